"""Hugging Face's Trainer: loaders as its datasets, resumed from every checkpoint."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dalirefurb import Arrays, Evaluate, Loader, Standard, evaluate
from dalirefurb.errors import ConfigurationError, StateMismatchError
from tests.in_turn import EACH_CHANGE
from tests.trainers.processes import in_two_processes
from tests.trainers.streams import (
    BATCH_SIZE,
    EPOCHS,
    NUM_SAMPLES,
    Step,
    assisted_loader,
    evaluating_loader,
    losses_of,
    plain_loop,
    training_loader,
)

transformers = pytest.importorskip("transformers", reason="the package transformers is not installed")
pytest.importorskip("accelerate", reason="the package accelerate is not installed")

from dalirefurb.trainers.transformers import RefurbTrainer  # noqa: E402 - it needs transformers
from tests.trainers.transformers_worker import Model, arguments  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")
BATCHES = -(-NUM_SAMPLES // BATCH_SIZE)


class Assisted(Model):
    """Tells the loader its losses."""

    loader: Loader

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = super().forward(pixel_values, labels)
        if self.training:
            self.loader.observe(losses_of(pixel_values))
        return outputs


def trained(
    folder: Path, loader: Loader, *, checkpoint: Path | None = None, model: Model | None = None, **settings: Any
) -> list[Step]:
    """Train by the Trainer; return what the model was shown."""
    model = model or Model()
    trainer = RefurbTrainer(model, arguments(folder, **settings), train_dataset=loader)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    return model.shown


@pytest.fixture(scope="module")
def expected() -> list[Step]:
    with training_loader() as loader:
        return plain_loop(loader)


def test_whether_training_waits_is_logged_after_each_epoch_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "dalirefurb"), training_loader() as loader:
        trained(tmp_path, loader)
    verdicts = [record.getMessage() for record in caplog.records if record.name == "dalirefurb"]
    assert len(verdicts) == EPOCHS
    assert "training waited for data" in verdicts[-1]


def test_processes_but_the_main_one_log_no_verdict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RefurbTrainer, "is_world_process_zero", lambda trainer: False)
    with caplog.at_level(logging.INFO, "dalirefurb"), training_loader() as loader:
        trained(tmp_path, loader)
    assert [record for record in caplog.records if record.name == "dalirefurb"] == []


@pytest.mark.parametrize("accumulated", [1, pytest.param(2, marks=pytest.mark.weekly)])
def test_every_checkpoint_resumes_exactly(expected: list[Step], tmp_path: Path, accumulated: int) -> None:
    settings = {"save_strategy": "steps", "save_steps": 1, "gradient_accumulation_steps": accumulated}
    with training_loader() as loader:
        assert trained(tmp_path / "whole", loader, **settings) == expected
    checkpoints = sorted((tmp_path / "whole").iterdir())
    per_epoch = -(-BATCHES // accumulated)
    assert len(checkpoints) == EPOCHS * per_epoch
    for checkpoint in checkpoints:
        epoch, step = divmod(int(checkpoint.name.split("-")[1]), per_epoch)
        with training_loader() as loader:
            rest = trained(tmp_path / "again", loader, checkpoint=checkpoint, gradient_accumulation_steps=accumulated)
            assert rest == expected[epoch * BATCHES + step * accumulated :], checkpoint.name
            assert loader.stats().batches == len(rest)  # None was read to be skipped.


def test_checkpoints_of_epochs_ends_resume_exactly(expected: list[Step], tmp_path: Path) -> None:
    with training_loader() as loader:
        trained(tmp_path / "whole", loader, save_strategy="epoch")
    for epoch in range(1, EPOCHS):
        with training_loader() as loader:
            checkpoint = tmp_path / "whole" / f"checkpoint-{epoch * BATCHES}"
            assert trained(tmp_path / "again", loader, checkpoint=checkpoint) == expected[epoch * BATCHES :]


def test_training_with_autoassist_resumes_exactly(tmp_path: Path) -> None:
    with assisted_loader() as loader:
        expected = plain_loop(loader)

    def run(folder: Path, **settings: Any) -> list[Step]:
        model = Assisted()
        with assisted_loader() as model.loader:
            return trained(folder, model.loader, model=model, **settings)

    assert run(tmp_path / "whole", save_strategy="steps", save_steps=1) == expected
    for step in range(1, len(expected), 3 if EACH_CHANGE else 1):  # 3: another batch of each of the epochs
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        restoring = {"restore_callback_states_from_checkpoint": step % 2 == 0}
        assert run(tmp_path / "again", checkpoint=checkpoint, **restoring) == expected[step:]


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    with training_loader() as loader:
        trained(tmp_path, loader, max_steps=2, save_strategy="steps", save_steps=2)
    with training_loader(seed=1) as loader, pytest.raises(StateMismatchError, match=r"these differ: planner\.seed"):
        trained(tmp_path, loader, checkpoint=tmp_path / "checkpoint-2")


def test_a_checkpoint_without_the_loaders_state_resumes_by_its_steps(expected: list[Step], tmp_path: Path) -> None:
    with training_loader() as loader:
        trained(tmp_path, loader, max_steps=7, save_strategy="steps", save_steps=7)
    state = tmp_path / "checkpoint-7" / "trainer_state.json"
    state.write_text(state.read_text().replace('"LoaderState"', '"Another"'))
    with training_loader() as loader:
        rest = trained(tmp_path, loader, checkpoint=tmp_path / "checkpoint-7", save_strategy="steps", save_steps=2)
        assert rest == expected[7:]


def test_statistics_are_beside_the_loss_in_the_logs(tmp_path: Path) -> None:
    assert inspect.signature(RefurbTrainer).parameters["stats_prefix"].default == "data/"
    with training_loader() as loader:
        for _ in loader:
            pass
        before = loader.stats()
        trainer = RefurbTrainer(
            Model(), arguments(tmp_path, logging_steps=BATCHES), train_dataset=loader, stats_prefix="io/"
        )
        trainer.train()
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert logged == [entry for entry in trainer.state.log_history if "io/samples" in entry]
        assert [entry["io/samples"] for entry in logged] == [NUM_SAMPLES] * EPOCHS
        assert sum(entry["io/hits"] for entry in logged) == (loader.stats() - before).hits > 0


@pytest.mark.parametrize("num_samples", [NUM_SAMPLES, 16, 4])
def test_evaluation_is_that_of_each_sample_once(num_samples: int, tmp_path: Path) -> None:
    model = Model().eval()
    with evaluating_loader(num_samples, pad=True) as loader:
        trainer = RefurbTrainer(model, arguments(tmp_path), eval_dataset={"one": loader}, compute_metrics=counted)
        metrics = trainer.evaluate()
        predictions, labels, _ = trainer.predict(loader)
        images, truth = zip(*((batch[0], batch[1]) for batch in loader), strict=True)
    logits = model.network(torch.cat(images)[:num_samples])
    expected = nn.functional.cross_entropy(logits, torch.cat(truth)[:num_samples])
    assert metrics["eval_one_loss"] == pytest.approx(float(expected.detach()), rel=1e-6)
    assert metrics["eval_one_counted"] == num_samples
    assert labels.tolist() == [*range(num_samples)]
    assert np.allclose(predictions, logits.detach(), rtol=1e-5)


def counted(outputs: Any) -> dict[str, float]:
    assert outputs.label_ids.tolist() == [*range(len(outputs.predictions))]
    return {"counted": len(outputs.predictions)}


def test_what_the_trainer_would_count_wrong_is_refused(tmp_path: Path) -> None:
    with training_loader() as loader, pytest.raises(ConfigurationError, match=r"got 3 and 4: pass TrainingArg.*=4\)"):
        trained(tmp_path, loader, per_device_train_batch_size=3)
    with evaluating_loader() as loader, pytest.raises(ConfigurationError, match=r"got pad=False: pass Evaluate\("):
        RefurbTrainer(Model(), arguments(tmp_path)).evaluate(loader)
    with evaluating_loader(pad=True) as loader:
        trainer = RefurbTrainer(Model(), arguments(tmp_path, per_device_eval_batch_size=3))
        for serve in (trainer.evaluate, trainer.predict):
            with pytest.raises(ConfigurationError, match=r"per_device_eval_batch_size must be .*, got 3 and 4: pass"):
                serve(loader)
    targets = {"boxes": [torch.zeros(0, 4)] * 2}
    with pytest.raises(
        ConfigurationError, match=r"labels that are classes, .* got targets: evaluate with a batch_size"
    ):
        trainer._mapping((torch.zeros(2, 3, 8, 8), targets), 1)
    scores = Arrays(np.zeros((NUM_SAMPLES, 32, 32, 3), np.uint8), np.linspace(0, 1, NUM_SAMPLES, dtype=np.float32))
    planner = Evaluate(NUM_SAMPLES, batch_size=BATCH_SIZE, pad=True)
    with (
        Loader(scores, evaluate(32, raw=True), planner, kernels="dali", with_indices=True) as loader,
        pytest.raises(
            ConfigurationError, match=r"labels that are classes, .* got torch\.float32: evaluate with a batch"
        ),
    ):
        list(RefurbTrainer(Model(), arguments(tmp_path)).get_eval_dataloader(loader))


def test_names_of_a_batch_can_be_chosen_and_what_is_no_loader_is_as_ever(tmp_path: Path) -> None:
    planner = Standard(NUM_SAMPLES, batch_size=BATCH_SIZE)
    with training_loader(planner) as loader:
        trainer = RefurbTrainer(Model(), arguments(tmp_path), train_dataset=loader, names=("x", "y"))
        assert [*next(iter(trainer.get_train_dataloader()))] == ["x", "y"]
    for wrong in (("x",), ("x", "x"), ("x", "y", "z")):
        with pytest.raises(ConfigurationError, match=r"names must be two, each another, got .*: pass such as"):
            RefurbTrainer(Model(), arguments(tmp_path), names=wrong)
    rows = [{"pixel_values": torch.zeros(3, 32, 32), "labels": number} for number in range(4)]
    trainer = RefurbTrainer(Model(), arguments(tmp_path, max_steps=1), train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
    assert len(trainer.predict(rows).predictions) == 4


@pytest.mark.weekly
def test_two_processes_train_evaluate_and_resume_as_one_does(tmp_path: Path) -> None:
    ranks = in_two_processes("tests.trainers.transformers_worker", tmp_path)
    with training_loader(shards=2) as loader:
        expected = plain_loop(loader)
    for rank, told in enumerate(ranks):
        half = slice(rank * BATCH_SIZE // 2, (rank + 1) * BATCH_SIZE // 2)
        assert told["trained"] == [list(labels[half]) for labels, _ in expected]
        assert told["resumed"] == told["trained"][6:]
        assert told["labels"] == [*range(NUM_SAMPLES)]
        assert told["eval_loss"] == pytest.approx(told["expected_loss"], rel=1e-6)
