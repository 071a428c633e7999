"""Kernel probe: the bits and the time of the final part's kernels on a GPU, which needs CuPy and NumPy alone there.

    python benchmarks/first_light/kernels.py pack kernels.npz             with dalirefurb and Numba, on any machine
    python benchmarks/first_light/kernels.py run kernels.npz --out k.json    with CuPy, on the one with the GPU

What is packed is the kernels' source, what is launched for some batches, and a checksum of each image that the CPU's
kernels make of them. So it is known whether a GPU makes the same bits before anything else is installed there.
Addresses are packed as if memory began at `BASES`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

if __name__ != "__main__":
    from first_light.findings import Finding

BASES = {"page": 1 << 44, "memory": 2 << 44, "images": 3 << 44, "targets": 4 << 44}
_POINTERS = ("kernels", "numbers", "sizes", "images", "results", "rooms", "targets", "means", "scales", "halves")
FUNCTIONS = ("prepare", "pass", "pixels", "output")
FIELDS = (
    *("count", "steps", "tail", "fused", "kernels", "numbers", "sizes", "images", "results"),
    *("rooms", "room_bytes", "targets", "output", "means", "scales", "halves"),
)
"""Of the record that a page begins with, as `dalirefurb.kernels.cuda.program` has them."""

_TIMED, _REPEATED = 256, 100
_BYTES_PER_S = 2.8e12

Packed = dict[str, Any]


def bits(device: str) -> Iterator[Finding]:
    """Make the batches of `cases` on the device, or without one by a C++ compiler, and compare every image."""
    from tests.kernels.cuda_host import COMPILER

    if device == "cpu" and COMPILER is None:
        yield Finding("kernels", "a C++ compiler, where there is no GPU", "there is none", None)
        return
    packed = pack(small=device == "cpu")
    for name, case in packed.items():
        machine = CuPyMachine(case["text"]) if device == "gpu" else _host(case["text"])
        timed = device == "gpu" and len(case["checksums"]) == _TIMED
        made, milliseconds = run_case(case, machine, repeated=_REPEATED if timed else 0)
        wrong, rows = int((made != case["checksums"]).sum()), len(made)
        yield Finding(f"{name}, rows that differ", "0", f"{wrong} of {rows}", wrong == 0)
        if milliseconds is not None:
            yield Finding(
                f"{name}, {rows} images",
                f"about {1000 * case['nbytes'] / _BYTES_PER_S:.2f} ms by the bytes that it moves",
                f"{milliseconds:.3f} ms, {len(case['launches'])} launches",
                None,
            )


def cases() -> dict[str, Any]:
    """Return the recipes' final parts that are tried: their stages, their output, and which pictures enter."""
    from dalirefurb.augment import (
        AugMix,
        AutoAugmentFirst,
        AutoAugmentSecond,
        ColorJitter,
        GaussianBlur,
        HorizontalFlip,
        RandAugmentLayer,
        RandomAffine,
        RandomCrop,
        RandomErasing,
        RandomGrayscale,
        RandomPerspective,
        RandomResizedCrop,
        Resize,
        TrivialAugmentLayer,
    )
    from dalirefurb.augment.output import Output

    layers = [RandAugmentLayer("one"), RandAugmentLayer("two", "bilinear")]
    last = [RandomCrop(224, margin=6), HorizontalFlip()]
    return {
        "rand_augment": ([*layers, *last], Output(224)),
        "rand_augment, float16": ([*layers, *last], Output(224, "float16", channels_last=True)),
        "auto_augment": ([AutoAugmentFirst("first"), AutoAugmentSecond("second", first="first"), *last], Output(224)),
        "trivial_augment": ([TrivialAugmentLayer(interpolation="bilinear"), *last], Output(224, "bfloat16")),
        "views": (
            [ColorJitter(0.4, 0.4, 0.4, 0.1), RandomGrayscale(0.2), GaussianBlur(23), *last],
            Output(224),
        ),
        "warps": ([RandomAffine(30, (0.1, 0.1), (0.8, 1.2), 10, "bilinear"), RandomPerspective(), *last], Output(224)),
        "erased": ([*last, RandomErasing(1.0, value="pixel", count=(1, 3))], Output(224)),
        "augmix": ([AugMix(), *last], Output(224)),
        "resized": ([RandomResizedCrop(224), RandomErasing(0.5)], Output(224)),
        "bicubic": ([Resize(256, "bicubic"), RandomCrop(224, margin=32)], Output(224)),
        "lanczos": ([RandomResizedCrop(224, interpolation="lanczos"), HorizontalFlip()], Output(224)),
    }


def stage_cases() -> dict[str, Any]:
    """Return every stage that keeps an image's size, at sizes of which one is no more than a few pixels."""
    from dalirefurb.kernels.buffers import PlainLevels
    from tests.engine.test_any_recipe import KEEP_SIZE

    return {
        f"{name}, {sides[0]} x {sides[1]}": (made if isinstance(made, list) else [made], PlainLevels(sides))
        for name, make in KEEP_SIZE.items()
        for made in (make("stage"),)
        for sides in ((3, 5), (32, 32), (224, 230))
    }


def pack(*, small: bool = False) -> dict[str, Packed]:
    """Lay the batches of `cases` out, and those of `stage_cases`, and have the CPU's kernels make them."""
    count, given = (4, 4) if small else (_TIMED, 24)
    block = _pictures((230, 230), given)
    packed = {name: _packed(stages, output, block, count) for name, (stages, output) in cases().items()}
    for name, (stages, output) in stage_cases().items():
        if not small or output.sides != (224, 230):
            packed[name] = _packed(stages, output, _pictures(output.sides, 4), 4, timed=False)
    return packed


def _pictures(sides: tuple[int, int], count: int) -> NDArray[np.uint8]:
    """Make images of one size: pictures, noise, and a single level."""
    from tests.pictures import picture

    few = [np.asarray(picture(seed, height=sides[0], width=sides[1])).copy() for seed in range(count - 2)]
    rng = np.random.default_rng(0)
    return np.stack([*few, rng.integers(0, 256, (*sides, 3), np.uint8), np.full((*sides, 3), 77, np.uint8)])


def _packed(stages: Any, output: Any, block: NDArray[np.uint8], count: int, *, timed: bool = True) -> Packed:
    """Lay a batch out; one that is not timed shares its source with others."""
    from tests.kernels.cuda_host import Beside, feeds_of

    rows = np.arange(count) % len(block)
    pictures = [block[row] for row in rows.tolist()]
    feeds = feeds_of(stages, pictures)
    beside = Beside(stages, output, of_all_kernels=not timed)
    expected = beside.by_kernels(pictures=pictures, feeds=feeds).results
    work, results, _ = beside.work(beside.cuda, pictures=pictures, feeds=feeds)
    work.arrays["targets"][:] = BASES["targets"] + results[:1].nbytes * np.arange(count)
    launched = beside.cuda.launched(work)
    page = np.zeros(launched.page_bytes, np.uint8)
    launched.write(page, BASES["page"], BASES["memory"], BASES["images"] + block[:1].nbytes * rows)
    return {
        "text": beside.cuda.text,
        "page": page,
        "launches": np.array([(FUNCTIONS.index(each.function), *each[1:3]) for each in launched.launches]),
        "nbytes": launched.nbytes,
        "memory_bytes": launched.memory_bytes,
        "images": block,
        "row_bytes": results[:1].nbytes,
        "checksums": checksums(expected.reshape(count, -1).view(np.uint8)),
    }


def checksums(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return a checksum of the bytes of each row."""
    return np.array([zlib.crc32(row.tobytes()) for row in images], np.int64)


class CuPyMachine:
    """The GPU: memory by name, and launches in one stream. Nothing but CuPy is imported."""

    def __init__(self, text: str) -> None:
        import cupy

        self._cupy = cupy
        module = cupy.RawModule(code=text, options=("-std=c++17", "-fmad=false"))
        self._functions = [module.get_function(name) for name in FUNCTIONS]
        self._memory: dict[str, Any] = {}

    def allocate(self, name: str, nbytes: int) -> int:
        """Allocate memory; return its address."""
        self._memory[name] = self._cupy.full(nbytes, 0xA5, np.uint8)
        return int(self._memory[name].data.ptr)

    def write(self, name: str, content: NDArray[np.uint8]) -> None:
        """Set the first bytes of some memory."""
        self._memory[name][: len(content)] = self._cupy.asarray(content)

    def read(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of some memory, once all that was launched is done."""
        content: NDArray[np.uint8] = self._cupy.asnumpy(self._memory[name])
        return content

    def launch(self, number: int, step: int, blocks: int, rows: int, page: int) -> None:
        """Queue a launch of `FUNCTIONS[number]`."""
        self._functions[number]((blocks, rows), (256,), (np.int64(page), np.int64(step)))

    def milliseconds(self, function: Callable[[], None], repeated: int) -> float:
        """Return the median time of what a function queues."""
        times = []
        for _ in range(repeated):
            began, ended = self._cupy.cuda.Event(), self._cupy.cuda.Event()
            began.record()
            function()
            ended.record()
            ended.synchronize()
            times.append(self._cupy.cuda.get_elapsed_time(began, ended))
        return statistics.median(times)


def run_case(case: Packed, machine: Any, repeated: int) -> tuple[NDArray[np.int64], float | None]:
    """Make a packed batch; return checksums of its images, and the milliseconds that it takes."""
    images, rows = case["images"].reshape(-1), len(case["checksums"])
    sizes = {
        "page": len(case["page"]),
        "memory": int(case["memory_bytes"]),
        "images": len(images),
        "targets": rows * int(case["row_bytes"]),
    }
    addresses = {name: machine.allocate(name, max(nbytes, 1)) for name, nbytes in sizes.items()}
    machine.write("images", images)
    machine.write("page", moved(case["page"], addresses))

    def launch() -> None:
        for number, step, blocks in case["launches"].tolist():
            machine.launch(number, step, blocks, rows, addresses["page"])

    launch()
    made = checksums(machine.read("targets").reshape(rows, -1))
    return made, machine.milliseconds(launch, repeated) if repeated else None


def moved(page: NDArray[np.uint8], addresses: dict[str, int]) -> NDArray[np.uint8]:
    """Return a page whose addresses are of memory that begins elsewhere than at `BASES`."""
    words = page.copy().view(np.int64)
    record = dict(zip(FIELDS, words[: len(FIELDS)].tolist(), strict=True))
    rows, steps = record["count"], record["steps"]
    lengths = {"images": (steps + 1) * rows, "results": steps * rows, "targets": rows}
    places = [*map(FIELDS.index, _POINTERS)]
    for name, length in lengths.items():
        first = (record[name] - BASES["page"]) // 8
        places += range(first, first + length)
    for base, actual in zip(BASES.values(), (addresses[name] for name in BASES), strict=True):
        chosen = [place for place in places if words[place] >> 44 == base >> 44]
        words[chosen] += actual - base
        taken = set(chosen)
        places = [place for place in places if place not in taken]
    return words.view(np.uint8)


def _host(text: str) -> Any:
    from tests.kernels.cuda_host import HostMachine

    return HostMachine(text)


def main() -> int:
    """Pack, or run what is packed; return 0 if no image differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "run"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, help="JSON of what was seen")
    options = parser.parse_args()
    if options.what == "pack":
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        flat = {f"{name}/{key}": value for name, case in pack().items() for key, value in case.items()}
        np.savez_compressed(options.file, **flat)
        return 0
    loaded: dict[str, Packed] = {}
    with np.load(options.file) as flat:
        for key in flat.files:
            name, _, part = key.rpartition("/")
            loaded.setdefault(name, {})[part] = flat[key][()]
    seen = {}
    for name, case in loaded.items():
        try:
            made, milliseconds = run_case(case, CuPyMachine(str(case["text"])), _REPEATED)
            seen[name] = {
                "rows": len(made),
                "rows_that_differ": int((made != case["checksums"]).sum()),
                "milliseconds": milliseconds,
                "launches": len(case["launches"]),
                "nbytes": int(case["nbytes"]),
            }
        except Exception as error:
            seen[name] = {"failed": f"{type(error).__name__}: {error}"[:2000]}
        print(name, json.dumps(seen[name]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(seen, indent=1) + "\n")
    return int(any(each.get("rows_that_differ", 1) for each in seen.values()))


if __name__ == "__main__":
    raise SystemExit(main())
