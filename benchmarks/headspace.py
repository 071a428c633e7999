"""When does a training loop gain, and never lose? With steps of every length, on fewer and more cores.

    cores       loading alone on 1, 2, ... of the cores
    headspace   steps of a device of its own, which the loop waits for, on as many cores: the ratio of CPU to GPU, which
                figure 13 of Revamper sweeps; and of a small network on the same cores; fed by standard, by
                refurbishing, and from memory, which no loader can beat

Claim, on any machine: where a step takes 1.5 times as long as standard takes for a batch, refurbishing reaches at least
0.98 of standard's images/s.
Bounds: nothing that trains is faster than the same loader that loads alone, or than steps from memory.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, 12 batches of 128 timed in each.

Lengths of steps are told in standard's time for a batch on all cores, measured before the rounds.

    python benchmarks/headspace.py                        about 12 minutes on 2 cores
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import harness
import stock_dali
import torch
from claims import Claim, Spread, say_speeds
from experiment import Experiment, Options
from harness import Contender, Entrant, MadeAnew
from loaders import STANDARD, LoaderTurns, Loading, Step, default_placement, reuse, settled

from dalirefurb import FileList
from dalirefurb.demo.training import SmallResNet
from dalirefurb.planning.planner import Planner

MEMORY = "from memory"
NETWORK = "network"
LEAST_OF_STANDARD = 0.98
NOT_BOUND = 1.5

_LEARNING_RATE = 0.001

Length = float | str | None
"""Of a step, in standard's time for a batch; "network" for the small one, None for no step."""


def _numbers_of_cores() -> tuple[int, ...]:
    """List powers of two, and all."""
    every = harness.cores()
    return tuple(dict.fromkeys([*(1 << power for power in range(every.bit_length())), every]))


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        cores: Numbers of cores to load on.
        reuse_factor: Of what is compared with standard.
        steps: Lengths of steps, in standard's time for a batch.
        network: Whether to train the small network, too.
        timed_batches: Of a slice.
    """

    cores: tuple[int, ...] = field(default_factory=_numbers_of_cores)
    reuse_factor: int = 3
    steps: tuple[float, ...] = (0.5, 1.0, NOT_BOUND)
    network: bool = True
    timed_batches: int = 12

    @property
    def reused(self) -> str:
        """Name of the loader that is compared with standard."""
        return reuse(self.reuse_factor)


@dataclass(frozen=True)
class OnCores:
    """An entrant that works on fewer cores than there are; what it starts in its turn stays on them."""

    name: str
    entrant: Entrant
    cores: int

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Take a turn of the entrant's."""
        every = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(every)[: self.cores])
        try:
            with self.entrant.turn() as contender:
                yield replace(contender, name=self.name)
        finally:
            os.sched_setaffinity(0, every)


class Network:
    """Steps of a small residual network on half of this process's cores, as `dalirefurb train` takes them.

    On all of them torch's threads would wait for each other without sleeping, in time that the loader could use.
    """

    def __init__(self, size: int) -> None:
        torch.set_num_threads(max(1, harness.cores() // 2))
        self._model = SmallResNet(10, size=size)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Learn from one batch that all images are of class 0: there may be more classes than the network knows."""
        loss = torch.nn.functional.cross_entropy(self._model(images), torch.zeros(len(images), dtype=torch.int64))
        self._model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for weights in self._model.parameters():
                assert weights.grad is not None
                weights -= _LEARNING_RATE * weights.grad


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Measure standard's time for a batch, then let all take turns."""
    source = config.source(options.data)
    planners = config.planners(config.reuse_factor)
    sizes = {"timed_batches": config.timed_batches}
    with ExitStack() as stack:
        loading = _loading(stack, config, source, planners)
        alone = LoaderTurns(stack, STANDARD, source, config.recipe(), planners[STANDARD])
        (taken,) = harness.interleave([alone], rounds=1, **sizes)
        standard_s = taken.seconds / len(taken.batch_s)
        steps: dict[Length, Step] = {each: _wait(each * standard_s) for each in config.steps}
        if config.network:
            steps[NETWORK] = Network(config.size)
        training = {
            key: entrant
            for length, step in steps.items()
            for key, entrant in _trained(stack, config, source, length, step, planners).items()
        }
        entrants = {**loading, **training}
        slices = harness.interleave(list(entrants.values()), rounds=config.rounds, **sizes)
    speeds = harness.speeds_of(slices)
    rows: list[dict[str, Any]] = [
        {"contender": name, "cores": cores, "step": step, "images_per_s": Spread.of(speeds[_name(name, cores, step)])}
        for name, cores, step in entrants
    ]
    judged = claims(config, speeds, list(steps))
    say_speeds(speeds, judged)
    return {
        "cores": [row for row in rows if row["step"] is None],
        "headspace": [row for row in rows if row["step"] is not None],
        "standard_s": standard_s,
        "claims": judged,
        "slices": slices,
    }


Entrants = dict[tuple[str, int, Length], Entrant]
"""By contender, its number of cores, and the length of its steps."""


def _loading(stack: ExitStack, config: Config, source: FileList, planners: dict[str, Planner]) -> Entrants:
    """Make every loader, and stock DALI, on every number of cores."""

    def stock() -> Contender:
        return stock_dali.stock(config, source, default_placement())

    entrants: Entrants = {}
    for cores in config.cores:
        loaders = settled(stack, source, config.recipe(), planners)
        every: list[Entrant] = [*loaders, MadeAnew(stock_dali.NEAREST, stock)]
        for each in every:
            entrants[each.name, cores, None] = OnCores(_name(each.name, cores, None), each, cores)
    return entrants


def _trained(
    stack: ExitStack, config: Config, source: FileList, length: Length, step: Step, planners: dict[str, Planner]
) -> Entrants:
    """Make what feeds one kind of step: a device of its own on every number of cores, a network on all."""
    every = harness.cores()
    images = torch.randn(config.batch_size, 3, config.size, config.size)
    labels = torch.zeros(config.batch_size, dtype=torch.int64)

    def batches() -> Generator[int, None, None]:
        while True:
            step(images, labels)
            yield len(images)

    entrants: Entrants = {(MEMORY, every, length): Contender(_name(MEMORY, every, length), "memory", 0, batches())}
    for cores in [every] if length == NETWORK else config.cores:
        for name, planner in planners.items():
            turns = LoaderTurns(stack, name, source, config.recipe(), planner, step)
            turns.settle()
            entrants[name, cores, length] = OnCores(_name(name, cores, length), turns, cores)
    return entrants


def _wait(seconds: float) -> Step:
    return lambda images, labels: time.sleep(seconds)


def _name(contender: str, cores: int, step: Length) -> str:
    on = "" if contender == MEMORY else f", {cores} {'core' if cores == 1 else 'cores'}"
    return contender + on + ("" if step is None else f", {_kind(step)}")


def _kind(step: Length) -> str:
    return NETWORK if step == NETWORK else f"step {step:g}"


def claims(config: Config, speeds: dict[str, list[float]], steps: Sequence[Length]) -> list[Claim]:
    """Divide figures of one round by each other, and by what is possible."""
    reused, made = config.reused, []
    for step in steps:
        memory = speeds[_name(MEMORY, harness.cores(), step)]
        for cores in [harness.cores()] if step == NETWORK else config.cores:
            fed = {name: speeds[_name(name, cores, step)] for name in (reused, STANDARD)}
            least = LEAST_OF_STANDARD if (step, cores) == (NOT_BOUND, config.cores[-1]) else None
            place = _name("", cores, step).removeprefix(", ")
            made.append(
                Claim.ratio(
                    f"{place}: {reused} / {STANDARD}", fed[reused], fed[STANDARD], least, bound=config.reuse_factor
                )
            )
            for name, own in fed.items():
                made.append(Claim.possible(f"{place}: {name} / {MEMORY}", own, memory))
                made.append(Claim.possible(f"{place}: {name} / loading alone", own, speeds[_name(name, cores, None)]))
    for cores in config.cores:
        ours, standard = (_name(name, cores, None) for name in (reused, STANDARD))
        ratio = f"{ours} / {STANDARD}"
        made.append(Claim.ratio(ratio, speeds[ours], speeds[standard], bound=config.reuse_factor))
    return made


EXPERIMENT = Experiment(
    measure,
    Config(batch_size=128, epoch_batches=12, rounds=5),
    quick=Config(
        layers=0,
        size=32,
        batch_size=8,
        epoch_batches=3,
        rounds=1,
        cores=(1,),
        steps=(NOT_BOUND,),
        network=False,
        timed_batches=2,
    ),
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
