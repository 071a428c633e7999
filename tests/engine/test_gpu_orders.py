"""On a GPU: the order of streams where images are handed over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali.tensors import TensorGPU

from dalirefurb import Arrays, Loader, Standard, rand_augment
from dalirefurb.engine.finisher import _as_torch
from tests.occupied import Spin
from tests.placements import NEEDS_GPU

pytestmark = NEEDS_GPU


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


def test_the_training_loops_stream_does_not_wait_for_what_the_images_stream_does_later(cupy: Any) -> None:
    spin, dalis = Spin(cupy), cupy.cuda.Stream(non_blocking=True)
    array = cupy.arange(24, dtype=np.float32).reshape(2, 3, 4)
    cupy.cuda.Device().synchronize()
    with dalis:
        images = TensorGPU(array)
        spin.stream()
    handed = _as_torch(images)
    torch.cuda.current_stream().synchronize()
    assert not dalis.done
    assert torch.equal(handed.cpu(), torch.arange(24, dtype=torch.float32).reshape(2, 3, 4))


def test_bfloat16_is_there_for_whichever_stream_takes_a_batch(cupy: Any) -> None:
    images = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    source, planner = Arrays(images, np.zeros(24)), Standard(24, batch_size=6)
    placed: dict[str, Any] = {"partial_device": "gpu", "final_device": "gpu"}
    with Loader(source, rand_augment(32, raw=True), planner, **placed) as loader:
        expected = [batch.to(torch.bfloat16) for batch, _ in loader]
    spin, own = Spin(cupy), torch.cuda.Stream()
    with Loader(source, rand_augment(32, raw=True, dtype="bfloat16"), planner, **placed) as loader:
        spin.stream()
        with torch.cuda.stream(own):
            taken = [batch.clone() for batch, _ in loader]
    torch.cuda.synchronize()
    assert all(torch.equal(*pair) for pair in zip(taken, expected, strict=True))
