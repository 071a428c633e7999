"""How DALI's images become torch's: no stream of the training loop's waits for what DALI does later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali.backend_impl import DLDeviceType
from nvidia.dali.tensors import TensorCPU

from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.batch_tensors import BatchTensors
from dalirefurb.engine.finisher import Finisher, Served, _as_torch
from dalirefurb.engine.stats import Tally

VALUES = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)


class Recorded:
    """Images in DALI's hands, which say where they are, and note which stream is to wait for them."""

    def __init__(self, device: DLDeviceType) -> None:
        self._device, self._images = device, TensorCPU(VALUES)
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[DLDeviceType, int]:
        return self._device, 0

    def __dlpack__(self, stream: int | None = None, **_: Any) -> Any:
        self.streams.append(stream)
        return self._images.__dlpack__()


@pytest.mark.parametrize(("device", "stream"), [(DLDeviceType.kDLCUDA, -1), (DLDeviceType.kDLCPU, None)])
def test_no_stream_waits_for_images_that_the_host_has_waited_for(device: DLDeviceType, stream: int | None) -> None:
    images = Recorded(device)
    assert torch.equal(_as_torch(images), torch.from_numpy(VALUES))
    assert images.streams == [stream]


class OnAGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True  # type: ignore[assignment]


def test_on_a_gpu_bfloat16_is_made_where_a_batch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finish thread's own stream is none that the training loop waits for."""
    output = Output(8, dtype="bfloat16")
    recipe = Recipe([], output, 0)
    thread = Finisher(
        recipes=(recipe,),
        cache=None,  # type: ignore[arg-type]
        finals=(),
        most_groups=1,
        batches_per_group=1,
        pin_memory=False,
        tally=Tally(),
    )
    images = torch.rand(2, 3, 8, 8)
    finished = thread._tensor(images.as_subclass(OnAGpu), recipe)
    assert finished.dtype == torch.float32
    tensors = BatchTensors(np.arange(2), with_indices=False, pin_memory=False, dtypes=(output.dtype,))
    served = Served(Position(0, 0), finished.as_subclass(torch.Tensor), np.arange(2), 0, 0, 0)
    assert torch.equal(tensors.of(served, 0)[0], images.to(torch.bfloat16))
    assert thread._tensor(images, recipe).dtype == torch.bfloat16
