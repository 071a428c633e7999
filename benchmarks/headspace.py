"""When does a training loop gain, and never lose? On fewer and more cores, and with steps of every length.

    cores       loading alone on 1, 2, ... of the cores, as figure 13 of Revamper sweeps them
    headspace   steps of a device of its own, which the loop waits for, and of a small network on the same cores;
                fed by standard, by refurbishing, and from memory, which no loader can beat

Claim, on any machine: where a step takes 1.5 times as long as standard takes for a batch, refurbishing reaches at least
0.98 of standard's images/s.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 3 rounds (`--rounds`), each a slice of every contender in turn, 12 batches of 256 timed in each.

Lengths of steps are told in standard's time for a batch on all cores, measured before the rounds.

    python benchmarks/headspace.py                        about nine minutes on 2 cores
    python benchmarks/headspace.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import command
import harness
import stock_dali
import torch
from harness import Claim, Contender, Entrant, Slice, Spread
from loaders import KernelOp, LoaderTurns, default_placement, layered, repeated

from dalirefurb import FileList, Refurbish, Standard
from dalirefurb.cli.network import SmallResNet
from dalirefurb.planning.planner import Planner

STANDARD = "standard"
MEMORY = "from memory"
NETWORK = "network"
LEAST_OF_STANDARD = 0.98
NOT_BOUND = 1.5

_LEARNING_RATE = 0.001


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set; its images are repeated to fill an epoch.
        cores: Numbers of cores to load on.
        reuse_factors: Loaded on each number of cores; the last one is trained with.
        steps: Lengths of steps, in standard's time for a batch.
        network: Whether to train the small network, too.
        layers: Of RandAugment.
        size: Side of the images, in pixels.
        batch_size: Images of a batch.
        epoch_batches: Batches of an epoch.
        timed_batches: Of a slice.
        rounds: Slices of each contender.
    """

    data: str
    cores: tuple[int, ...]
    reuse_factors: tuple[int, ...] = (2, 3)
    steps: tuple[float, ...] = (0.5, 1.0, NOT_BOUND)
    network: bool = True
    layers: int = 2
    size: int = 224
    batch_size: int = 256
    epoch_batches: int = 12
    timed_batches: int = 12
    rounds: int = 3


@dataclass(frozen=True)
class Row:
    """One contender at one number of cores, or with one step.

    Attributes:
        contender: What feeds.
        cores: It runs on.
        step: In standard's time for a batch; "network" for the small one, None for no step.
        images_per_s: Throughput over the rounds.
    """

    contender: str
    cores: int
    step: float | str | None
    images_per_s: Spread

    @property
    def name(self) -> str:
        """As in the slices."""
        return _name(self.contender, self.cores, self.step)


@dataclass(frozen=True)
class Results:
    """Everything that was measured.

    Attributes:
        cores: Loading alone.
        headspace: With a step.
        standard_s: Standard's time for a batch on all cores.
        claims: Ratios of images/s of one round.
        slices: Every slice of every round.
    """

    cores: list[Row]
    headspace: list[Row]
    standard_s: float
    claims: list[Claim]
    slices: list[Slice]

    def show(self) -> str:
        """Write both tables."""
        rows = [[each.name, each.images_per_s.show(0)] for each in (*self.cores, *self.headspace)]
        return (
            f"{harness.table(['contender', 'images/s [quartiles]'], rows)}\n\n"
            f"{harness.table(['ratio', 'median [quartiles]', ''], [claim.show() for claim in self.claims])}\n"
        )


class OnCores:
    """An entrant that works on fewer cores than there are; what it starts in its turn stays on them."""

    def __init__(self, name: str, entrant: Entrant, cores: int) -> None:
        self.name = name
        self._entrant = entrant
        self._cores = cores

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Take a turn of the entrant's."""
        every = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(every)[: self._cores])
        try:
            with self._entrant.turn() as contender:
                yield replace(contender, name=self.name)
        finally:
            os.sched_setaffinity(0, every)


class Remade:
    """An entrant that is made for each turn."""

    def __init__(self, make: Callable[[], Contender], name: str) -> None:
        self.name = name
        self._make = make

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Make it, and end it."""
        contender = self._make()
        yield contender
        contender.batches.close()


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


def compare(config: Config, data: Path) -> Results:
    """Measure standard's time for a batch, then let all take turns."""
    source = repeated(data, config.epoch_batches * config.batch_size)
    everything, last = harness.cores(), f"reuse factor {config.reuse_factors[-1]}"
    with ExitStack() as stack:
        loading = _loading(stack, config, source)
        (taken,) = harness.interleave(
            [
                LoaderTurns(
                    stack, STANDARD, source, layered(config.size, config.layers), _planners(config, source)[STANDARD]
                )
            ],
            rounds=1,
            timed_batches=config.timed_batches,
        )
        standard_s = taken.seconds / len(taken.batch_s)
        steps: dict[float | str, KernelOp] = {each: _wait(each * standard_s) for each in config.steps}
        if config.network:
            steps[NETWORK] = Network(config.size)
        training = {
            (name, everything, step): entrant
            for step, act in steps.items()
            for name, entrant in _trained(stack, config, source, step, act, last).items()
        }
        entrants: dict[tuple[str, int, float | str | None], Entrant] = {**loading, **training}
        for entrant in entrants.values():
            if isinstance(entrant, LoaderTurns):
                entrant.settle()
        slices = harness.interleave(list(entrants.values()), rounds=config.rounds, timed_batches=config.timed_batches)
    rows = [Row(*key, Spread.of(harness.per_round(slices, _name(*key)))) for key in entrants]
    return Results(
        [row for row in rows if row.step is None],
        [row for row in rows if row.step is not None],
        standard_s,
        _claims(config, slices, list(steps), last),
        slices,
    )


def _loading(stack: ExitStack, config: Config, source: FileList) -> dict[tuple[str, int, float | str | None], Entrant]:
    """Make every loader, and stock DALI, on every number of cores."""
    entrants: dict[tuple[str, int, float | str | None], Entrant] = {}
    for cores in config.cores:
        for name, planner in _planners(config, source).items():
            turns = LoaderTurns(stack, name, source, layered(config.size, config.layers), planner)
            turns.settle()
            entrants[name, cores, None] = OnCores(_name(name, cores, None), turns, cores)

        def stock() -> Contender:
            return stock_dali.stock(
                source,
                size=config.size,
                batch_size=config.batch_size,
                layers=config.layers,
                nearest=True,
                placement=default_placement(),
            )

        name = _name(stock_dali.NEAREST, cores, None)
        entrants[stock_dali.NEAREST, cores, None] = OnCores(name, Remade(stock, name), cores)
    return entrants


def _trained(
    stack: ExitStack, config: Config, source: FileList, step: float | str, act: KernelOp, refurbished: str
) -> dict[str, Entrant]:
    """Make what feeds one kind of step."""
    planners, cores = _planners(config, source), harness.cores()
    entrants: dict[str, Entrant] = {
        name: LoaderTurns(
            stack, _name(name, cores, step), source, layered(config.size, config.layers), planners[name], act
        )
        for name in (STANDARD, refurbished)
    }
    images = torch.randn(config.batch_size, 3, config.size, config.size)
    labels = torch.zeros(config.batch_size, dtype=torch.int64)

    def batches() -> Generator[int, None, None]:
        while True:
            act(images, labels)
            yield len(images)

    return {MEMORY: Contender(_name(MEMORY, cores, step), "memory", 0, batches()), **entrants}


def _planners(config: Config, source: FileList) -> dict[str, Planner]:
    count, batch_size = len(source), config.batch_size
    refurbished = {
        f"reuse factor {factor}": Refurbish(count, batch_size=batch_size, reuse_factor=factor)
        for factor in config.reuse_factors
    }
    return {STANDARD: Standard(count, batch_size=batch_size), **refurbished}


def _wait(seconds: float) -> KernelOp:
    return lambda images, labels: time.sleep(seconds)


def _name(contender: str, cores: int, step: float | str | None) -> str:
    if step is None:
        return f"{contender}, {cores} {'core' if cores == 1 else 'cores'}"
    return f"{contender}, {NETWORK if step == NETWORK else f'step {step:g}'}"


def _claims(config: Config, slices: Sequence[Slice], steps: Sequence[float | str], last: str) -> list[Claim]:
    """Divide figures of one round by each other."""
    everything, claims = harness.cores(), []

    def speeds(contender: str, cores: int, step: float | str | None) -> list[float]:
        return harness.per_round(slices, _name(contender, cores, step))

    for step in steps:
        standard, refurbished = speeds(STANDARD, everything, step), speeds(last, everything, step)
        kind = "network" if step == NETWORK else f"step {step:g}"
        least = LEAST_OF_STANDARD if step == NOT_BOUND else None
        claims.append(Claim.ratio(f"{kind}: {last} / {STANDARD}", refurbished, standard, least))
        claims.append(Claim.ratio(f"{kind}: {last} / {MEMORY}", refurbished, speeds(MEMORY, everything, step)))
    for cores in config.cores:
        standard, refurbished = speeds(STANDARD, cores, None), speeds(last, cores, None)
        claims.append(Claim.ratio(f"{_name(last, cores, None)} / {STANDARD}", refurbished, standard))
    return claims


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = _parser().parse_args(arguments)
    command.check_photographs(options.data)
    harness.keep_memory()
    config, environment = _config(options), harness.environment()
    results = compare(config, options.data)
    print(results.show(), flush=True)
    command.write(options, environment=environment, config=config, results=results)
    return 0


def _config(options: argparse.Namespace) -> Config:
    everything = harness.cores()
    cores = tuple(dict.fromkeys([*(1 << power for power in range(everything.bit_length())), everything]))
    config = Config(options.data.resolve().name, cores)
    if options.quick:
        config = replace(
            config,
            cores=(1,),
            reuse_factors=(3,),
            steps=(NOT_BOUND,),
            network=False,
            layers=0,
            size=32,
            batch_size=8,
            epoch_batches=3,
            timed_batches=2,
            rounds=1,
        )
    return replace(config, rounds=options.rounds or config.rounds)


def _parser() -> argparse.ArgumentParser:
    return command.arguments("Sweep cores and steps.", result="headspace.json", rounds=3)


if __name__ == "__main__":
    sys.exit(main())
