"""Files that were reported, and their kind: served as Pillow shows them or named, and others come to no harm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dalirefurb import FileList, Recipe, Standard
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.resize import RandomResizedCrop
from dalirefurb.dali import Graph
from dalirefurb.errors import SampleError
from tests.in_turn import EACH_CHANGE, in_turn
from tests.loading import flat_loader
from tests.mutations import notorious
from tests.one_batch import levels
from tests.pictures import jpeg, picture
from tests.reading.test_as_pillow_shows import CROPPED, cropped, exif
from tests.reading.test_structure import of_many_bits

BATCH = 64
"""DALI's threads work on a batch of this size together: only then does what is thrown end the process."""

LIMIT_S = 900

REPORTED = [
    "reports/apng_default_image.png",
    "reports/mutated.bmp",
    "reports/cmyk_without_adobe_marker.jpg",
    "reports/pal4rle.bmp",
    "reports2/bw_1raw.tif",
    "reports2/exif_long_MM.jpg",
    "reports2/jp2_rgb12.jp2",
    "reports2/la_u.tif",
    "reports2/p5_15.pgm",
    "reports2/p6_100.ppm",
    "reports2/p6_1023.ppm",
    "reports2/two_exif_1_6.jpg",
    "reports2/two_exif_6_1.jpg",
    "reports2/white0_16.tif",
]

BAD = {"mutated.bmp"}
"""What Pillow cannot decode."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("good")
    paths = [folder / f"{number:02d}.jpg" for number in range(BATCH - 1)]
    for number, path in enumerate(paths):
        path.write_bytes(jpeg(picture(number, height=48 + number % 5, width=50 + number % 7)))
    return paths


def serve(paths: list[Path], recipe: Recipe = CROPPED, *, epochs: int = 2, **options: Any) -> tuple[Any, ...]:
    """Serve files as one batch, several times; return images and indices, and what was found to be bad."""
    source = FileList(paths, range(len(paths)))
    planner = Standard(len(paths), batch_size=len(paths))
    with flat_loader(source, recipe, planner, num_threads=2, with_indices=True, **options) as loader:
        for _ in range(epochs):
            ((images, _, indices),) = loader
        bad = loader.bad_samples()
    images = images.clone()
    return images, indices.clone(), bad


@pytest.fixture(scope="module")
def alone(good: list[Path]) -> Callable[[str], dict[int, torch.Tensor]]:
    """What is served of each good file where there are no others, by kernels."""

    @cache
    def images_of(kernels: str) -> dict[int, torch.Tensor]:
        images, order, _ = serve(good, kernels=kernels, epochs=1)
        return dict(zip(order.tolist(), images, strict=True))

    return images_of


def right(path: Path) -> NDArray[np.float64]:
    """What is to be served: the pixels beside a file, if there are such; else what Pillow shows."""
    beside = path.with_name(f"{path.name}.want.png")
    # Of a JPEG these are the pixels that were encoded.
    return cropped((beside if beside.exists() and path.suffix != ".jpg" else path).read_bytes())


@pytest.mark.parametrize(
    ("name", "on_bad_sample", "kernels"), in_turn(REPORTED, ["raise", "replace"], ["dali", "numba"])
)
def test_a_reported_file_is_served_or_named(
    name: str,
    on_bad_sample: str,
    kernels: str,
    good: list[Path],
    alone: Callable[[str], dict[int, torch.Tensor]],
    shared_data: Path,
) -> None:
    if kernels == "numba":
        pytest.importorskip("numba")
    path = shared_data / name
    options = {"on_bad_sample": on_bad_sample, "kernels": kernels}
    is_served = path.name not in BAD
    if not is_served and on_bad_sample == "raise":
        with pytest.raises(SampleError) as caught:
            serve([*good, path], **options)
        assert (caught.value.index, caught.value.name) == (len(good), str(path))
        assert "not an image that can be decoded" in caught.value.reason
        return
    images, indices, bad = serve([*good, path], **options)
    assert [sample.name for sample in bad] == ([] if is_served else [str(path)])
    wanted = alone(kernels)
    for image, index in zip(images, indices.tolist(), strict=True):
        assert index == len(good) or torch.equal(image, wanted[index])
    (rows,) = np.nonzero(indices.numpy() == len(good))
    assert len(rows) == is_served
    for row in rows:
        assert np.array_equal(images[row].numpy(), right(path))


def two_orientations(first: int, second: int) -> bytes:
    """A JPEG of two EXIF segments, as editors write them."""
    segments = []
    for orientation in (first, second):
        data = b"Exif\0\0" + exif(orientation=orientation).tobytes().removeprefix(b"Exif\0\0")
        segments.append(b"\xff\xe1" + (len(data) + 2).to_bytes(2, "big") + data)
    content = jpeg(picture(0, height=48, width=64))
    return content[:2] + b"".join(segments) + content[2:]


THROWN_ON = {
    "BMP": notorious()["BMP of a type that DALI does not know"],
    "JPEG": of_many_bits("JPEG"),
    "JPEG 2000": of_many_bits("JPEG 2000"),
    "two orientations": two_orientations(1, 6),
    "orientations that lie and stand": two_orientations(8, 3),
}


SCENES: list[tuple[str, int, str, bool]] = [
    ("BMP", 1, "dali", True),
    ("BMP", 2, "numba", True),
    ("JPEG", 2, "dali", False),
    ("JPEG 2000", 1, "numba", True),
    ("two orientations", 1, "numba", True),
    ("two orientations", 2, "dali", True),
    ("orientations that lie and stand", 2, "numba", True),
]
"""Which file, how it is served, split and kernels, and whether it can be."""

SERVED = [number for number in range(len(SCENES)) if not EACH_CHANGE or number not in (1, 5)]
"""For each change each file once, of BMP and of two orientations one scene; and each split and kernels."""


@pytest.fixture(scope="module")
def told(good: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[str]], str]:
    """What became of the file in each scene, one after the other in a process that one of them may end; its errors."""
    folder = tmp_path_factory.mktemp("thrown_on")
    for kind, content in THROWN_ON.items():
        (folder / kind).write_bytes(content)
    (folder / "paths").write_text("\n".join(str(path) for path in good))
    command = [sys.executable, "-m", "tests.reading.test_reports", str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], timeout=LIMIT_S, capture_output=True, text=True)
    return [line.split() for line in done.stdout.splitlines()], f"exit code {done.returncode}: {done.stderr}"


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(scene, id="-".join(map(str, scene)), marks=pytest.mark.weekly if number in (1, 5) else [])
        for number, scene in enumerate(SCENES)
    ],
)
def test_what_decoders_throw_on_ends_no_process(
    scene: tuple[str, int, str, bool], told: tuple[list[list[str]], str]
) -> None:
    """It stands at the beginning, in the middle, and at the end, where DALI's own thread would meet it."""
    _, _, kernels, is_served = scene
    if kernels == "numba":
        pytest.importorskip("numba")
    lines, errors = told
    mine = [line[1:] for line in lines if line[0] == str(SCENES.index(scene))]
    ends = {"raise": "named", "replace": "replaced"}
    assert mine == [["served" if is_served else ends[policy] for policy, _ in runs(SCENES.index(scene))]], errors


def runs(number: int) -> Iterator[tuple[str, int]]:
    """Yield policies and places of a scene: each place with each policy in one of two scenes that follow.

    Where each change is tested it is one place of a scene, in turn.
    """
    policies = ("raise", "replace")
    places = [*enumerate((0, 31, 63))]
    chosen = places[number % 3 :][:1] if EACH_CHANGE else places
    return ((policies[(number + turn) % 2], place) for turn, place in chosen)


def _serve_in_this_process(folder: Path, number: int) -> list[str]:
    """Serve two epochs of a batch in which one file is bad, and say what became of that."""
    kind, split, kernels, _ = SCENES[number]
    bad = folder / kind
    good = [Path(line) for line in (folder / "paths").read_text().splitlines()]
    recipe = Recipe([Decode(), RandomResizedCrop(32)], levels(32), split)
    told = []
    for on_bad_sample, place in runs(number):
        paths = [*good[:place], bad, *good[place:]]
        options = {"on_bad_sample": on_bad_sample, "kernels": kernels}
        try:
            _, indices, found = serve(paths, recipe, **options)
        except SampleError as error:
            told.append("named" if error.name == str(bad) else str(error))
        else:
            assert (place in indices.tolist()) == (not found)
            assert [sample.name for sample in found] in ([], [str(bad)])
            told.append("replaced" if found else "served")
    return told


if __name__ == "__main__":
    Graph.serialize = cache(Graph.serialize)  # type: ignore[method-assign]
    for number in SERVED:
        kernels = SCENES[number][2]
        if kernels == "dali" or find_spec("numba"):
            told_of = _serve_in_this_process(Path(sys.argv[1]), number)
            print(number, *told_of, flush=True)  # noqa: T201
