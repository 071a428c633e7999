"""Fabric: loaders on its device, whose state it saves and loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dalirefurb.errors import ConfigurationError
from tests.trainers.streams import EPOCHS, evaluating_loader, plain_loop, step_of, training_loader

fabric_package = pytest.importorskip("lightning.fabric", reason="the package lightning is not installed")

from dalirefurb.trainers.fabric import FabricLoader, setup_dataloaders  # noqa: E402 - beside what it is for

pytestmark = pytest.mark.filterwarnings("default")


def fabric() -> Any:
    launched = fabric_package.Fabric(accelerator="cpu", devices=1)
    launched.launch()
    return launched


def test_a_state_that_fabric_saved_after_any_batch_resumes_exactly(tmp_path: Path) -> None:
    with training_loader() as loader:
        expected = plain_loop(loader)
    served = []
    with training_loader() as loader:
        training = setup_dataloaders(fabric(), loader)
        assert len(training) == len(loader)
        for _ in range(EPOCHS):
            for images, labels in training:
                served.append(step_of(images, labels))
                fabric().save(tmp_path / f"{len(served)}.ckpt", {"loader": training, "step": len(served)})
    assert served == expected
    for step in range(1, len(expected)):
        with training_loader() as loader:
            state = {"loader": setup_dataloaders(fabric(), loader), "step": 0}
            fabric().load(tmp_path / f"{step}.ckpt", state)
            assert state["step"] == step
            rest = []
            while len(rest) < len(expected) - step:
                rest += [step_of(*batch) for batch in state["loader"]]
            assert rest == expected[step:]


def test_batches_are_put_on_the_device() -> None:
    class Elsewhere:
        def to_device(self, batch: Any) -> Any:
            return fabric_package.utilities.apply_func.move_data_to_device(batch, torch.device("meta"))

    with training_loader() as loader, evaluating_loader() as val:
        both = setup_dataloaders(Elsewhere(), loader, val)
        assert [type(each) for each in both] == [FabricLoader, FabricLoader]
        assert all(tensor.is_meta for batch in both[0] for tensor in batch)


def test_a_loader_as_it_is_is_refused_with_what_takes_fabrics_place() -> None:
    remedy = r"dalirefurb\.trainers\.fabric\.setup_dataloaders\(fabric, loader\) takes its place"
    with training_loader() as loader:
        for given in (loader, loader.as_dicts()):
            with pytest.raises(ConfigurationError, match=remedy):
                fabric().setup_dataloaders(given)
