"""Runs drawn at random: saved at every kind of moment and resumed, no batch is lost, and none is trained on twice."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.in_turn import in_turn
from tests.trainers.runs import BATCHES, EPOCHS, Run, drawn, plain_stream
from tests.trainers.streams import Step, evaluating_loader, network, step_of, training_loader

pytestmark = pytest.mark.filterwarnings("default")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

Saved = list[tuple[Path, int]]
"""Checkpoints, each with the number of batches that were trained on before."""

Trainer = Callable[[Run, Path, "Path | None"], tuple[list[Step], Saved]]
"""Trains as a run says, saving into a folder wherever it can, perhaps from a checkpoint on."""


def lightning(run: Run, folder: Path, checkpoint: Path | None) -> tuple[list[Step], Saved]:
    tests = pytest.importorskip("tests.trainers.test_lightning", reason="the package lightning is not installed")

    class Asking(tests.Model):  # type: ignore[misc, name-defined]
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            if run.asked != "configure_optimizers":
                return optimizer
            steps = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps + BATCHES)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        def setup(self, stage: str) -> None:
            if run.asked == "setup":
                self.trainer.estimated_stepping_batches  # noqa: B018 - asking does it

        def on_fit_start(self) -> None:
            if run.asked == "on_fit_start":
                self.trainer.estimated_stepping_batches  # noqa: B018

        def on_train_batch_end(self, *_: Any) -> None:
            self.trainer.should_stop |= self.trainer.global_step >= (run.stopped or 1000)

    class Everywhere(tests.SaveAlways):  # type: ignore[misc, name-defined]
        def on_train_batch_start(self, trainer: Any, model: Any, *_: Any) -> None:
            self._save(trainer, "begun")

        def on_train_start(self, trainer: Any, model: Any) -> None:
            self._save(trainer, "start")

        def on_train_epoch_start(self, trainer: Any, model: Any) -> None:
            self._save(trainer, "epochbegun")

        def on_train_end(self, trainer: Any, model: Any) -> None:
            self._save(trainer, "end")

    model, always = Asking(), Everywhere(folder)
    tests.fitted(
        always,
        model=model,
        checkpoint=checkpoint,
        limit_train_batches=run.limit if run.limit != 2 else 0.5,
        accumulate_grad_batches=run.accumulated,
        max_steps=run.max_steps or -1,
        reload_dataloaders_every_n_epochs=int(run.reloaded),
        **({"limit_val_batches": 0} if run.validated == 0 else {"val_check_interval": run.validated or 1.0}),
    )
    return model.trained, always.saved


def by_hand(
    run: Run,
    folder: Path,
    training: Any,
    validation: Any,
    begin: tuple[int, int, int],
    train: Callable[[Any, bool], None],
    save: Callable[[Path, tuple[int, int, int]], None],
) -> tuple[list[Step], Saved]:
    """Train in a loop of one's own, from an epoch, its batch and a number of steps on."""
    trained: list[Step] = []
    saved: Saved = []

    def keep(kind: str) -> None:
        saved.append((folder / f"{len(saved):02}-{kind}", len(trained)))
        save(saved[-1][0], (epoch + 1, 0, steps) if batch == run.limit else (epoch, batch, steps))

    epoch, batch, steps = begin
    end = min(run.max_steps or 1000, run.stopped or 1000)
    while epoch < EPOCHS and steps < end:
        training.set_epoch(epoch)
        for images, labels in training:
            batch += 1
            steps += (stepping := batch % run.accumulated == 0 or batch == run.limit)
            train((images, labels), stepping)
            trained.append(step_of(images, labels))
            keep("step")
            if run.validated and batch % run.validated == 0:
                assert sum(len(labels) for _, labels, *_ in validation) >= len(training.loader.source)
                keep("validation")
            if batch == run.limit or steps >= end:
                break
        keep("epoch")
        epoch, batch = (epoch + 1, 0) if batch == run.limit else (epoch, batch)
    return trained, saved


def accelerate(run: Run, folder: Path, checkpoint: Path | None) -> tuple[list[Step], Saved]:
    package = pytest.importorskip("accelerate", reason="the package accelerate is not installed")
    from dalirefurb.trainers.accelerate import prepare

    class Place:
        begin = (0, 0, 0)

        def state_dict(self) -> dict[str, Any]:
            return {"begin": self.begin}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.begin = state["begin"]

    accelerator = package.Accelerator(cpu=True, gradient_accumulation_steps=run.accumulated)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(net, optimizer)
    place = Place()

    def train(batch: Any, stepping: bool) -> None:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(batch[0]), batch[1]))
            assert run.limit < BATCHES or accelerator.sync_gradients == stepping
            optimizer.step()

    def save(path: Path, begin: tuple[int, int, int]) -> None:
        place.begin = begin
        accelerator.save_state(str(path))

    try:
        with training_loader() as loader, evaluating_loader(pad=True) as val:
            training, validation = prepare(accelerator, loader, val)
            accelerator.register_for_checkpointing(place)
            if checkpoint is not None:
                accelerator.load_state(str(checkpoint))
            return by_hand(run, folder, training, validation, place.begin, train, save)
    finally:
        package.state.AcceleratorState._reset_state(reset_partial_state=True)
        package.state.GradientState._reset_state()


def fabric(run: Run, folder: Path, checkpoint: Path | None) -> tuple[list[Step], Saved]:
    package = pytest.importorskip("lightning.fabric", reason="the package lightning is not installed")
    from dalirefurb.trainers.fabric import setup_dataloaders

    fabric = package.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    with training_loader() as loader, evaluating_loader() as val:
        training, validation = setup_dataloaders(fabric, loader, val)
        state = {"loader": training, "begin": (0, 0, 0)}
        if checkpoint is not None:
            fabric.load(checkpoint, state)

        def save(path: Path, begin: tuple[int, int, int]) -> None:
            fabric.save(path, {"loader": training, "begin": begin})

        return by_hand(run, folder, training, validation, state["begin"], lambda *_: None, save)


def transformers(run: Run, folder: Path, checkpoint: Path | None) -> tuple[list[Step], Saved]:
    package = pytest.importorskip("transformers", reason="the package transformers is not installed")
    pytest.importorskip("accelerate", reason="the package accelerate is not installed")
    from dalirefurb.trainers.transformers import RefurbTrainer
    from tests.trainers.transformers_worker import Model, arguments

    class Stop(package.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= state.global_step >= (run.stopped or 1000)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            saved.append((folder / f"checkpoint-{state.global_step}", len(model.shown)))

    model = Model()
    saved: Saved = []
    settings = arguments(
        folder,
        save_strategy="steps" if run.reloaded or run.stopped else "epoch",
        save_steps=1,
        eval_strategy="steps" if run.validated else "no",
        eval_steps=run.validated,
        gradient_accumulation_steps=run.accumulated,
        max_steps=run.max_steps or -1,
        lr_scheduler_type="cosine" if run.asked else "constant",
        warmup_steps=2 if run.asked else 0,
    )
    with training_loader() as loader, evaluating_loader(pad=True) as val:
        trainer = RefurbTrainer(model, settings, train_dataset=loader, eval_dataset=val, callbacks=[Stop()])
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    return model.shown, saved


@pytest.fixture(scope="module")
def stream() -> list[Step]:
    return plain_stream()


def kind_of(path: Path) -> str:
    return path.stem.split("-")[-1] if path.stem[0].isdigit() else path.stem


def of_each_kind(saved: Saved, draws: random.Random) -> Iterator[tuple[Path, int]]:
    """Choose a checkpoint of each kind of moment."""
    for kind in sorted({kind_of(path) for path, _ in saved}):
        yield draws.choice([each for each in saved if kind_of(each[0]) == kind])


@pytest.mark.parametrize(("train", "seed"), in_turn([lightning, accelerate, fabric, transformers], range(60)))
def test_a_run_that_is_resumed_anywhere_and_resumed_again_loses_and_repeats_no_batch(
    train: Trainer, seed: int, stream: list[Step], tmp_path: Path
) -> None:
    run, draws = drawn(seed)
    if train is transformers:  # It has no limit.
        run = replace(run, limit=BATCHES)
    trained, saved = train(run, tmp_path / "whole", None)
    assert trained == run.expected(stream), run
    for number, (checkpoint, done) in enumerate(of_each_kind(saved, draws)):
        rest, again = train(run, tmp_path / str(number), checkpoint)
        assert run.goes_on(rest, done, stream), (run, checkpoint.name)
        if done < len(trained) and again:
            checkpoint, more = draws.choice(again)
            rest, _ = train(run, tmp_path / f"{number}-again", checkpoint)
            assert run.goes_on(rest, done + more, stream), (run, checkpoint.name, "again")
