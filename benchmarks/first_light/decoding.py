"""Decoding probes: on the device against the CPU, and against Pillow."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image

from first_light.findings import Finding
from first_light.pictures import (
    Sample,
    by_pillow,
    cut,
    decoded,
    decoded_windows,
    jpegs,
    near,
    oriented,
    same,
    sample,
    windows_in,
)
from first_light.processes import ROOT

_KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "grey JPEG": ("L", "JPEG", {}),
    "CMYK JPEG": ("CMYK", "JPEG", {}),
    "progressive JPEG": ("RGB", "JPEG", {"progressive": True}),
    "JPEG, 4:2:2": ("RGB", "JPEG", {"subsampling": 1}),
    "JPEG, quality 20": ("RGB", "JPEG", {"quality": 20}),
    "PNG": ("RGB", "PNG", {}),
    "grey PNG": ("L", "PNG", {}),
    "PNG with alpha": ("RGBA", "PNG", {}),
    "PNG with a palette": ("P", "PNG", {}),
    "PNG of 16 bits": ("I;16", "PNG", {}),
    "BMP": ("RGB", "BMP", {}),
    "TIFF": ("RGB", "TIFF", {}),
    "WebP": ("RGB", "WEBP", {"quality": 90}),
}
_LARGEST_BYTES = 1_000_000


def whole(device: str) -> Iterator[Finding]:
    """Decode whole images: chroma interpolated, as the library asks for, repeated, and not subsampled."""
    samples = jpegs()
    on_cpu, on_device = decoded(samples, "cpu"), decoded(samples, device)
    yield near("JPEG, 4:2:0, against the CPU", on_cpu, on_device, mean=1)
    yield near("JPEG, 4:2:0, against Pillow", [by_pillow(each) for each in samples], on_device, mean=1)
    fine = jpegs(subsampling=0)
    yield near("JPEG, 4:4:4, against the CPU", decoded(fine, "cpu"), decoded(fine, device), mean=1)
    if device == "gpu":
        repeated = decoded(samples, device, jpeg_fancy_upsampling=None)
        yield near("JPEG, 4:2:0, chroma repeated", on_cpu, repeated, mean=1, told=True)


def neighbours(device: str) -> Iterator[Finding]:
    """Decode the same samples alone, together, and in another order: their bits must not depend on that."""
    samples = [*jpegs(), *(_encoded(kind, seed) for seed, kind in enumerate(_KINDS))]
    yield from _among_neighbours(samples, device, "", told=False)
    if device == "gpu":
        yield from _among_neighbours(samples, device, ", with the JPEG engine", told=True, hw_decoder_load=None)


def orientations(device: str) -> Iterator[Finding]:
    """Decode images with each of EXIF's orientations, whole and windows of them; Pillow turns them, too."""
    for orientation in range(1, 9):
        samples = [oriented(orientation, subsampling=0), oriented(orientation, progressive=True)]
        expected = [by_pillow(each) for each in samples]
        yield from _parts_near(f"orientation {orientation}", expected, samples, device)


def odd_kinds(device: str) -> Iterator[Finding]:
    """Decode one image of each kind, whole and a window of it."""
    for kind in _KINDS:
        samples = [_encoded(kind, 1)]
        yield from _parts_near(kind, decoded(samples, "cpu"), samples, device)


def odd_files(device: str) -> Iterator[Finding]:
    """Decode the files of shared/data/odd that the CPU decodes, but for very large ones; each one alone."""
    folder = ROOT.parent / "shared" / "data" / "odd"
    if not (folder / "index.tsv").exists():
        yield Finding("odd files", "each is near the CPU's, or an error", "shared/data/odd is not there", None)
        return
    with (folder / "index.tsv").open() as index:
        rows = [row for row in csv.DictReader(index, delimiter="\t") if row["dali_cpu_rgb"].startswith("ok")]
    files = [row["file"] for row in rows if int(row["bytes"]) < _LARGEST_BYTES and not row["file"].startswith("huge")]
    found: list[Finding] = []
    for file in files:
        samples = [sample((folder / file).read_bytes())]
        found += _parts_near(file, decoded(samples, "cpu"), samples, device, windowed=False)
    wrong = [finding for finding in found if not finding.right]
    seen = f"{len(files) - len(wrong)} of {len(files)} are"
    yield Finding("odd files", "each is near the CPU's", seen, not wrong)
    yield from wrong


def region(device: str) -> Iterator[Finding]:
    """Decode windows alone, which the library does on a CPU only."""
    yield from _regions(device, {})


def region_by_engine(device: str) -> Iterator[Finding]:
    """Decode windows alone, with DALI's default share of the JPEG engine, as stock DALI's users do."""
    yield from _regions(device, {"hw_decoder_load": None, "jpeg_fancy_upsampling": None})


def _regions(device: str, arguments: dict[str, Any]) -> Iterator[Finding]:
    samples = jpegs()
    images = decoded(samples, device, **arguments)
    windows = windows_in(images)
    yield same("window, against the whole", cut(images, windows), decoded(samples, device, windows, **arguments))


def _among_neighbours(
    samples: list[Sample], device: str, how: str, *, told: bool, **arguments: Any
) -> Iterator[Finding]:
    together = decoded(samples, device, **arguments)
    yield same(f"again{how}", together, decoded(samples, device, **arguments), told=told)
    reverse = decoded(samples[::-1], device, **arguments)[::-1]
    yield same(f"in reverse order{how}", together, reverse, told=told)
    rows = [0, 16, 18, *range(19, len(samples), 4)]
    alone = [decoded(samples[row : row + 1], device, **arguments)[0] for row in rows]
    yield same(f"alone{how}", [together[row] for row in rows], alone, told=told)


def _parts_near(
    what: str, expected: list[Sample], samples: list[Sample], device: str, *, windowed: bool = True
) -> Iterator[Finding]:
    """Decode whole images, and windows, and compare with images that somebody else decoded."""
    yield from _tried(f"{what}, whole", lambda name: near(name, expected, decoded(samples, device), mean=1.5))
    if windowed:
        windows = windows_in(expected)
        yield from _tried(
            f"{what}, window",
            lambda name: near(name, cut(expected, windows), decoded_windows(samples, device, windows), mean=1.5),
        )


def _tried(what: str, find: Callable[[str], Finding]) -> Iterator[Finding]:
    """Yield a finding, or that the decoder raises."""
    from dalirefurb.dali.insides import reason_of

    try:
        yield find(what)
    except RuntimeError as error:
        yield Finding(what, "is decoded", reason_of(str(error)).partition("\n")[0][:200], False)


def _encoded(kind: str, seed: int) -> Sample:
    from tests.pictures import picture

    mode, form, options = _KINDS[kind]
    image = picture(seed, height=90, width=121)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    file = io.BytesIO()
    (image if mode == "I;16" else image.convert(mode)).save(file, form, **options)
    return sample(file.getvalue())
