"""Kernels read nothing behind their image and write nothing behind their result: here there is no memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, mmap, sys
import numpy as np
from dalirefurb.image_batch import GREY, HALVED, RGB, layout_bytes
from dalirefurb.kernels.kernel import compile_kernel, kernel_named
from dalirefurb.kernels.record import FULL, WIDTH

beyond, beyond_result, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
libc = ctypes.CDLL(None, use_errno=True)
kept = []

def protected():
    # The end of memory behind which there is none.
    kept.append(mmap.mmap(-1, 4 * mmap.PAGESIZE))
    end = np.frombuffer(kept[-1], np.uint8).ctypes.data + 3 * mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return end

end_of_image, end_of_result, end_of_shape = protected(), protected(), protected()
turned = [[1, 0, 0, 0, 1, 0, 0, 0, 1], [-1, 0, 7.3, 0, -1, 5.2, 0, 0, 1], [1.1, 0.2, -1, -0.1, 0.9, 0.5, 0.01, 0.02, 1]]
for name in names:
    print(name, flush=True)
    kernel, function = kernel_named(name), compile_kernel(name).ctypes
    for height, width in ((5, 7), (1, 9), (9, 1), (1, 1), (3, 24), (4, 70)):
        if name.startswith(("warp", "perspective")):
            given, sides = turned, (height, width)
        elif name in ("resize.bilinear", "crop_flip.pick") or name.startswith("resample"):
            given = [[0, 0, height, width, mirror, 0, 0, 6, 4] for mirror in (0, 1)]
            given += [[height - 1, width - 1, 1, 1, 0, 0, 0, 6, 4]]
            sides = 6, 4
        elif name.startswith("frame"):
            given = [[0, 0, height, width, mirror, 0, 0, 6, 4, 1, 2, 3, 0, 0] for mirror in (0, 1)]
            given += [[0, 0, height, width, 0, 0, 0, 5, 3, 1, 2, 3, 1, 1]]
            sides = 6, 4
        elif name == "partners.mosaic":
            kept.append(np.array([[end_of_image - 3 * height * width, height, width]] * 8, np.float64))
            cuts = [(2, 1, 1, 2, 3, 2, 1, 2), (2, 1, 1, 2, 3, 4, 3, 3), (0, 0, 1, 2, 3, 0, 0, 2)]
            given, sides = [[*cut, kept[-1].ctypes.data] for cut in cuts], (6, 4)
        elif name == "planes.window":
            given, sides = [[0, 0, GREY], [0, 0, HALVED]], (height, width)
        elif name.startswith("partners"):
            other, shape = end_of_image - 3 * height * width, end_of_shape - height * width
            ctypes.memset(shape, 1, height * width)
            given, sides = [[other, height, width, 0.5 if name == "partners.mix_up" else shape]], (height, width)
        elif name.startswith(("blur", "erasing")):
            given, sides = [[2.0, 3] if name == "blur.gaussian" else [0, 0, height, width]], (height, width)
        else:
            given, sides = [[0, 0]], (height, width)
        for numbers in given:
            numbers = np.array(numbers + [0] * (WIDTH - len(numbers)), np.float64)
            room = np.zeros(int(kernel.room_bytes(height, width, *sides, numbers)) + 64, np.uint8)
            layout = int(numbers[2]) if name == "planes.window" else RGB
            image = end_of_image - layout_bytes(layout, height, width) + beyond
            out = end_of_result - 3 * sides[0] * sides[1] + beyond_result
            addresses = numbers.ctypes.data, room.ctypes.data + -room.ctypes.data % 64, len(room) - 64, out
            assert function(image, height, width, *sides, *addresses) == 1
print("done")
"""


def run(*names: str, beyond: int = 0, beyond_result: int = 0) -> subprocess.CompletedProcess[str]:
    """Have a process run kernels; it says the name of each before it begins, and that it is done."""
    command = [sys.executable, "-c", SCRIPT, str(beyond), str(beyond_result), *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is protected by Linux's call")
def test_no_kernel_reads_or_writes_anything_behind_its_images() -> None:
    """In one process, which the system kills; the last name that it says is that of the kernel it died of."""
    pytest.importorskip("numba")
    from dalirefurb.kernels.kernel import kernel_names

    done = run(*kernel_names())
    assert (done.returncode, done.stdout.split()) == (0, [*kernel_names(), "done"]), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="memory is protected by Linux's call")
def test_what_reads_a_byte_behind_it_would_be_killed() -> None:
    pytest.importorskip("numba")
    assert run("crop_flip.crop", beyond=1).returncode < 0


@pytest.mark.weekly  # What reads a byte would be killed alike, below: the same memory is protected.
@pytest.mark.skipif(sys.platform != "linux", reason="memory is protected by Linux's call")
def test_what_writes_a_byte_behind_its_result_would_be_killed() -> None:
    pytest.importorskip("numba")
    assert run("crop_flip.crop", beyond_result=1).returncode < 0
