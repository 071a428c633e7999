"""Packed samples: several arrays, such as a volume and its labels, in the bytes of one image.

Plans, stores and what is between know samples as images of bytes, whatever these mean. So arrays of any type and any
number of dimensions are cached, shared and evicted as images are: packed into one, and viewed in it again.

    number of bytes of the list │ list of arrays: name, type, shape │ first array │ second array │ ...

Each array begins at a cache line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Image, rounded

_WIDTH = 64
"""Of the image, in pixels of three bytes: so a row is whole cache lines."""

_LENGTH = np.dtype("<i8")

Arrays = Mapping[str, NDArray[Any]]
"""The arrays of a sample, by name."""


def pack(arrays: Arrays) -> Image:
    """Return an image, uint8 of shape (n, 64, 3), that has copies of some arrays.

    >>> image = pack({"image": np.ones((1, 2, 3, 4), np.int16), "mask": np.zeros((2, 3, 4), np.uint8)})
    >>> image.shape, {name: each.shape for name, each in unpack(image).items()}
    ((2, 64, 3), {'image': (1, 2, 3, 4), 'mask': (2, 3, 4)})
    """
    listed = json.dumps([[name, each.dtype.str, each.shape] for name, each in arrays.items()]).encode()
    nbytes = rounded(_LENGTH.itemsize + len(listed)) + sum(rounded(each.nbytes) for each in arrays.values())
    image = np.empty((-(-nbytes // (3 * _WIDTH)), _WIDTH, 3), np.uint8)
    content = image.reshape(-1)
    content[: _LENGTH.itemsize].view(_LENGTH)[0] = len(listed)
    end = _LENGTH.itemsize + len(listed)
    content[_LENGTH.itemsize : end] = np.frombuffer(listed, np.uint8)
    for each in arrays.values():
        start = rounded(end)
        content[end:start] = 0
        end = start + each.nbytes
        content[start:end].view(each.dtype).reshape(each.shape)[...] = each
    content[end:] = 0
    return image


def unpack(image: Image) -> dict[str, NDArray[Any]]:
    """View the arrays of a packed sample."""
    content = image.reshape(-1)
    end = _LENGTH.itemsize + int(content[: _LENGTH.itemsize].view(_LENGTH)[0])
    arrays: dict[str, NDArray[Any]] = {}
    for name, kind, shape in json.loads(content[_LENGTH.itemsize : end].tobytes()):
        start, dtype = rounded(end), np.dtype(kind)
        end = start + math.prod(shape) * dtype.itemsize
        arrays[name] = content[start:end].view(dtype).reshape(shape)
    return arrays
