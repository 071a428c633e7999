"""What does a window cost that is augmented as nnU-Net does it? Beside MONAI's transforms nearest to it.

    nn_unet, nothing reused       its list of stages: an affine map, noise, blur, brightness, contrast, low resolution,
                                  gamma twice, mirrors
    nn_unet, reuse factor 3       all but the mirrors is cached for three uses; volumes are copied from memory for it
    MONAI                         the same list, without contrast, one tensor after the other

Claims: MONAI's CPU time a window is at least 2 times that of nothing reused.
Bound: a reuse factor of n takes at least an n-th of the time.
n: 5 rounds (`--rounds`), each of 48 windows (`--windows`) of each contender in turn, of different random numbers.

Like for like: float32, one volume in memory, windows of 128 a side, values linear between voxels, one thread, no
meta data. CPU time of the process, without reading. Ours takes what is outside of a window from the volume; MONAI's
maps the window that was cut out, and fills corners. nnU-Net itself takes cubic splines, and is not compared.

    python benchmarks/competitors/build.py               once, minutes
    python benchmarks/nn_unet.py                         about 3 minutes on 2 cores
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import workers
from claims import Claim, Spread, claim_table, say, table
from experiment import Experiment, Options

from dalirefurb import Loader, MemoryStore, Prefetch, Recipe, Refurbish, Volumes
from dalirefurb.augment import VolumeOutput, nn_unet
from dalirefurb.planning import Frozen
from dalirefurb.system.threads import wait_until_idle

OURS, REUSED, MONAI = "nn_unet, nothing reused", "nn_unet, reuse factor 3", "MONAI"
REUSE, LEAST = 3, 2.0

_IDLE_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is run.

    Attributes:
        size: Side of the windows in voxels.
        volume: Sides of the volume.
        windows: Windows of each contender in a round.
        rounds: How often each has a turn.
        volumes: Volumes in the store, all alike.
    """

    size: int = 128
    volume: tuple[int, int, int] = (160, 200, 200)
    windows: int = 48
    rounds: int = 5
    volumes: int = 16


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Let contenders take turns."""
    rng = np.random.default_rng(0)
    image = rng.normal(0, 1, (1, *config.volume)).astype(np.float32)
    mask = (rng.random(config.volume) < 0.01).astype(np.uint8)
    seconds: dict[str, list[float]] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        standard, reused = (stack.enter_context(ours(image, mask, config, reuse)) for reuse in (1, REUSE))
        turns = {OURS: cpu_of(standard), REUSED: cpu_of(reused)}
        if options.competitors.exists():
            path = Path(folder) / "volume.npz"
            np.savez(path, image=image, mask=mask)
            monai = workers.Asked(options.competitors, "nn_unet.py", path, config.size)
            stack.callback(monai.close)
            turns[MONAI] = lambda windows: float(monai.answer(str(windows)))
        for turn in turns.values():
            turn(2 * config.volumes)  # What is compiled, and the store, are there then.
        for number in range(config.rounds):
            for name, turn in list(turns.items())[:: 1 if number % 2 == 0 else -1]:
                seconds.setdefault(name, []).append(turn(config.windows) / config.windows)
    claims = [Claim.ratio(f"{OURS} / {REUSED}", seconds[OURS], seconds[REUSED], bound=REUSE)]
    if MONAI in seconds:
        claims += [
            Claim.ratio(f"{MONAI} / {OURS}", seconds[MONAI], seconds[OURS], LEAST),
            Claim.ratio(f"{MONAI} / {REUSED}", seconds[MONAI], seconds[REUSED]),
        ]
    rows = [[name, f"{Spread.of([1000 * each for each in own]):1}"] for name, own in seconds.items()]
    say(table(["contender", "ms of CPU time a window [quartiles]"], rows), claim_table(claims))
    return {"claims": claims, "seconds_a_window": seconds}


def ours(image: Any, mask: Any, config: Config, reuse: int) -> Loader:
    """Return a loader of windows, on one thread: of volumes that are all in the store, or of cached windows."""
    stages = nn_unet(config.size)
    source = Volumes([image] * config.volumes, [mask] * config.volumes)
    planner = (
        Frozen(len(source), batch_size=1) if reuse == 1 else Refurbish(len(source), batch_size=1, reuse_factor=reuse)
    )
    recipe = Recipe(stages, VolumeOutput(config.size), split=0 if reuse == 1 else "flip")
    prefetch = Prefetch(num_threads=1, look_ahead=1, reading_threads=1)
    return Loader(source, recipe, planner, MemoryStore(), prefetch=prefetch)


def cpu_of(loader: Loader) -> Callable[[int], float]:
    """Return what takes so many windows, and tells the CPU time; as many are made ahead then as before."""
    batches = (batch for _ in iter(int, 1) for batch in loader)

    def turn(windows: int) -> float:
        began = time.process_time()
        for _ in islice(batches, windows):
            pass
        if not wait_until_idle(_IDLE_LIMIT_S):
            raise RuntimeError(f"a loader must come to rest after its turn, but worked on for {_IDLE_LIMIT_S:.0f} s")
        return time.process_time() - began

    return turn


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(size=12, volume=(16, 18, 20), volumes=4, windows=4, rounds=1),
    data=None,
    options=workers.OPTION,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
