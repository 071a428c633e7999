"""Lightning: checkpoints of every kind resume at the next batch, in one process and in two."""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dalirefurb import Loader, Prefetch, Standard, simple
from dalirefurb.errors import ConfigurationError, LoaderError, StateMismatchError
from tests.in_turn import EACH_CHANGE
from tests.trainers.streams import (
    BATCH_SIZE,
    EPOCHS,
    NUM_SAMPLES,
    Step,
    assisted_loader,
    evaluating_loader,
    losses_of,
    network,
    plain_loop,
    source,
    step_of,
    training_loader,
)

pl = pytest.importorskip("lightning.pytorch", reason="the package lightning is not installed")

from dalirefurb.trainers.lightning import (  # noqa: E402 - it needs Lightning
    LightningLoader,
    LogStats,
    ObserveLosses,
    RefurbDataModule,
)

pytestmark = pytest.mark.filterwarnings("default")  # Lightning and what it imports warn of each other.
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
BATCHES = -(-NUM_SAMPLES // BATCH_SIZE)


class Model(pl.LightningModule):  # type: ignore[misc]
    """Remembers what it was trained, validated, tested and asked on."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.network = network()
        self.trained: list[Step] = []
        self.evaluated: list[Step] = []
        self.fails_at = fails_at

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels, *_ = batch
        if self.fails_at == len(self.trained):
            raise KeyError("the step fails")
        self.trained.append(step_of(images, labels))
        loss = torch.nn.functional.cross_entropy(self.network(images), labels)
        return {"loss": loss, "losses": losses_of(images)}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluated.append(step_of(*batch[:2]))
        self.log("val_loss", losses_of(batch[0]).mean())

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluated.append(step_of(*batch[:2]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class SaveAlways(pl.callbacks.Checkpoint):  # type: ignore[misc]
    """Saves wherever Lightning's own callbacks do: after steps, validation and epochs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saved: list[tuple[Path, int]] = []

    def on_train_batch_end(self, trainer: Any, model: Any, *_: Any) -> None:
        self._save(trainer, "step")

    def on_validation_end(self, trainer: Any, model: Any) -> None:
        if not trainer.sanity_checking:
            self._save(trainer, "validation")

    def on_train_epoch_end(self, trainer: Any, model: Any) -> None:
        self._save(trainer, "epoch")

    def _save(self, trainer: Any, where: str) -> None:
        path = self.folder / f"{len(self.saved):02}-{where}.ckpt"
        trainer.save_checkpoint(path)
        self.saved.append((path, len(trainer.lightning_module.trained)))


def some(saved: list[tuple[Path, int]]) -> list[tuple[Path, int]]:
    """All checkpoints; for each change every fifth of each kind, another batch of each epoch: others are of all."""
    by_kind: dict[str, list[tuple[Path, int]]] = {}
    for path, step in saved:
        by_kind.setdefault(path.stem.split("-")[1], []).append((path, step))
    return [each for kind in by_kind.values() for each in kind[:: 5 if EACH_CHANGE else 1]]


def trainer_for(*callbacks: Any, **settings: Any) -> Any:
    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(each, pl.callbacks.Checkpoint) for each in callbacks),
        "max_epochs": EPOCHS,
    }
    return pl.Trainer(callbacks=[*callbacks], **{**quiet, **settings})


def fitted(
    *callbacks: Any, data: Any = None, checkpoint: Path | None = None, model: Model | None = None, **settings: Any
) -> list[Step]:
    """Fit; return what was trained on."""
    model = model or Model()
    data = data or RefurbDataModule(train=training_loader, val=evaluating_loader)
    # A checkpoint holds a whole `Callback`'s state, which torch loads only where it may be anything.
    trainer_for(*callbacks, **settings).fit(model, datamodule=data, ckpt_path=checkpoint, weights_only=False)
    return model.trained


@pytest.fixture(scope="module")
def expected() -> list[Step]:
    with training_loader() as loader:
        return plain_loop(loader)


def test_18_of_18_checkpoints_of_lightnings_own_callback_resume_exactly(expected: list[Step], tmp_path: Path) -> None:
    steps = pl.callbacks.ModelCheckpoint(
        tmp_path, "{step}", save_top_k=-1, every_n_train_steps=1, save_on_train_epoch_end=False
    )
    epochs = pl.callbacks.ModelCheckpoint(tmp_path, "end-{step}", save_top_k=-1, save_on_train_epoch_end=True)
    assert fitted(steps, epochs) == expected
    checkpoints = sorted(tmp_path.iterdir())
    assert len(checkpoints) == EPOCHS * BATCHES + EPOCHS == 18
    for checkpoint in checkpoints:
        step = int(checkpoint.stem.split("=")[1])
        assert fitted(checkpoint=checkpoint) == expected[step:], checkpoint.name


@pytest.mark.parametrize(
    "settings",
    [
        {"limit_train_batches": 3},
        {"accumulate_grad_batches": 2},
        {"val_check_interval": 2},
        {"limit_val_batches": 0},
        {"reload_dataloaders_every_n_epochs": 1, "num_sanity_val_steps": 0},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_checkpoint_saved_anywhere_resumes_exactly(settings: dict[str, Any], tmp_path: Path) -> None:
    with training_loader() as loader:
        expected = plain_loop(loader, batches=settings.get("limit_train_batches"))
    always = SaveAlways(tmp_path)
    assert fitted(always, **settings) == expected
    for checkpoint, step in some(always.saved):
        assert fitted(checkpoint=checkpoint, **settings) == expected[step:], checkpoint.name


@pytest.mark.parametrize("settings", [{}, {"max_epochs": -1, "max_steps": EPOCHS * BATCHES}], ids=["epochs", "steps"])
def test_a_checkpoint_without_a_place_resumes_where_lightning_counts(
    expected: list[Step], settings: dict[str, Any], tmp_path: Path
) -> None:
    always = SaveAlways(tmp_path)
    fitted(always, **settings)
    for checkpoint, step in always.saved[3:8]:
        saved = torch.load(checkpoint, weights_only=False)
        del saved["RefurbDataModule"]
        torch.save(saved, checkpoint)
        assert fitted(checkpoint=checkpoint, **settings) == expected[step:], checkpoint.name


def test_training_that_stopped_in_an_epoch_goes_on(expected: list[Step], tmp_path: Path) -> None:
    class Stop(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, model: Any, *_: Any) -> None:
            trainer.should_stop = len(model.trained) == 7

    always = SaveAlways(tmp_path)
    assert fitted(Stop(), always) == expected[:7]
    checkpoint, _ = always.saved[-1]
    assert "epoch" in checkpoint.name
    # For Lightning the epoch has ended, and so it has for a plain loop that left it.
    assert fitted(checkpoint=checkpoint) == expected[2 * BATCHES :]
    always = SaveAlways(tmp_path)
    assert fitted(always, max_epochs=-1, max_steps=7) == expected[:7]
    # By steps it goes on in the epoch.
    assert fitted(checkpoint=always.saved[-1][0], max_epochs=-1, max_steps=15) == expected[7:]


@pytest.mark.parametrize("batch", [3, BATCHES - 1, BATCHES])
def test_a_batch_whose_step_failed_is_trained_on_after_the_resume(
    expected: list[Step], tmp_path: Path, batch: int
) -> None:
    saving = pl.callbacks.ModelCheckpoint(tmp_path, "failed", save_on_exception=True, save_on_train_epoch_end=False)
    with pytest.raises(KeyError, match="the step fails"):
        fitted(saving, model=Model(fails_at=batch), limit_val_batches=0)
    assert fitted(checkpoint=tmp_path / "failed.ckpt", limit_val_batches=0) == expected[batch:]


def test_every_checkpoint_of_training_with_autoassist_resumes_exactly(tmp_path: Path) -> None:
    with assisted_loader() as loader:
        expected = plain_loop(loader)
    always = SaveAlways(tmp_path)

    def data() -> RefurbDataModule:
        return RefurbDataModule(train=assisted_loader)

    assert fitted(ObserveLosses(), always, data=data(), limit_val_batches=0) == expected
    for checkpoint, step in some(always.saved):
        resumed = fitted(ObserveLosses(), data=data(), checkpoint=checkpoint, limit_val_batches=0)
        assert resumed == expected[step:], checkpoint.name


def test_losses_that_the_step_does_not_return_are_asked_for() -> None:
    data = RefurbDataModule(train=assisted_loader)
    with pytest.raises(ConfigurationError, match=r"each sample's loss as 'all', got \['loss', 'losses'\]: return"):
        fitted(ObserveLosses("all"), data=data, limit_val_batches=0)
    with pytest.raises(LoaderError, match="the losses of each batch must be observed"):
        fitted(data=data, limit_val_batches=0)


def test_a_loader_given_to_the_trainer_itself_resumes_exactly(expected: list[Step], tmp_path: Path) -> None:
    always, model = SaveAlways(tmp_path), Model()
    with training_loader() as loader, evaluating_loader() as val:
        trainer_for(always).fit(model, loader, val)
    assert model.trained == expected
    for checkpoint, step in some(always.saved):
        model = Model()
        with training_loader() as loader, evaluating_loader() as val:
            trainer_for().fit(model, loader, val, ckpt_path=checkpoint, weights_only=False)
        assert model.trained == expected[step:], checkpoint.name


class Scheduled(Model):
    """Asks for the number of its steps before Lightning restores its loops, for which Lightning reads the loader."""

    def setup(self, stage: str) -> None:
        assert self.trainer.estimated_stepping_batches == EPOCHS * BATCHES

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        steps = self.trainer.estimated_stepping_batches
        assert steps == EPOCHS * BATCHES
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def test_training_by_onecycle_resumes_exactly_in_the_middle_of_an_epoch(expected: list[Step], tmp_path: Path) -> None:
    always = SaveAlways(tmp_path)
    assert fitted(always, model=Scheduled(), limit_val_batches=0) == expected
    for checkpoint, step in always.saved[2:9]:
        assert fitted(checkpoint=checkpoint, model=Scheduled(), limit_val_batches=0) == expected[step:], checkpoint.name


def test_checkpoints_after_a_step_that_failed_and_was_made_again_resume_exactly(
    expected: list[Step], tmp_path: Path
) -> None:
    saving = pl.callbacks.ModelCheckpoint(tmp_path, "failed", save_on_exception=True, save_on_train_epoch_end=False)
    with pytest.raises(KeyError, match="the step fails"):
        fitted(saving, model=Model(fails_at=1), limit_val_batches=0)
    always = SaveAlways(tmp_path)
    assert fitted(always, checkpoint=tmp_path / "failed.ckpt", limit_val_batches=0) == expected[1:]
    for checkpoint, step in always.saved[1:4]:
        assert fitted(checkpoint=checkpoint, limit_val_batches=0) == expected[1 + step :], checkpoint.name


@pytest.mark.parametrize("settings", [{}, {"limit_train_batches": 3, "limit_val_batches": 0}], ids=["whole", "limited"])
def test_an_epoch_is_counted_once_where_steps_and_epochs_are_both_limited(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**settings, "max_epochs": 2, "max_steps": 100}
    with training_loader() as loader:
        expected = plain_loop(loader, epochs=2, batches=settings.get("limit_train_batches"))
    always = SaveAlways(tmp_path)
    assert fitted(always, **settings) == expected
    ended = [path.stem.endswith("epoch") for path, _ in always.saved].index(True)
    for checkpoint, step in always.saved[ended - 1 : ended + 2]:
        assert fitted(checkpoint=checkpoint, **settings) == expected[step:], checkpoint.name


def test_a_checkpoint_whose_loader_is_elsewhere_than_lightning_is_refused(tmp_path: Path) -> None:
    always = SaveAlways(tmp_path)
    fitted(always, max_epochs=1)
    checkpoint, step = always.saved[1]
    saved = torch.load(checkpoint, weights_only=False)
    saved["RefurbDataModule"]["batch"] += 1
    torch.save(saved, checkpoint)
    told = rf"goes on with batch {step} of its epoch, and the loader with batch {step + 1}: take another"
    with pytest.raises(ConfigurationError, match=told):
        fitted(checkpoint=checkpoint)


@pytest.mark.parametrize("view", [False, True])
def test_a_loader_given_to_the_trainer_itself_is_refused_where_lightning_would_not_load_its_place(
    expected: list[Step], tmp_path: Path, view: bool
) -> None:
    class Begun(SaveAlways):
        def on_train_batch_start(self, trainer: Any, model: Any, *_: Any) -> None:
            self._save(trainer, "begun")

    def fit(*callbacks: Any, model: Model, checkpoint: Path | None = None, **settings: Any) -> list[Step]:
        with training_loader() as loader:
            given = loader.map(list) if view else loader
            trainer = trainer_for(*callbacks, limit_val_batches=0, **settings)
            trainer.fit(model, given, ckpt_path=checkpoint, weights_only=False)
        return model.trained

    always = Begun(tmp_path)
    assert fit(always, model=Scheduled()) == expected
    remedy = r"pass datamodule=RefurbDataModule\(lambda: Loader\(\.\.\.\)\)"
    for checkpoint, step in always.saved[4:6] if view else always.saved[6:13]:
        kind = checkpoint.stem.split("-")[1]
        for model, settings, lost in (
            (Scheduled(), {}, kind != "epoch"),
            (Model(), {}, kind == "begun"),
            (Model(), {"max_steps": EPOCHS * BATCHES}, kind in ("begun", "epoch")),
        ):
            if lost:
                with pytest.raises(ConfigurationError, match=remedy):
                    fit(model=model, checkpoint=checkpoint, **settings)
            elif kind != "step" or step == BATCHES - 2:
                assert fit(model=model, checkpoint=checkpoint, **settings) == expected[step:], checkpoint.name
    data = RefurbDataModule(train=training_loader)
    assert fitted(data=data, model=Scheduled(), checkpoint=always.saved[5][0], limit_val_batches=0) == expected[3:]


def test_validate_test_and_predict_serve_each_sample_once() -> None:
    data = RefurbDataModule(val=evaluating_loader, test=evaluating_loader, predict=evaluating_loader)
    for run in ("validate", "test", "predict"):
        model = Model()
        getattr(trainer_for(), run)(model, datamodule=data)
        assert [label for labels, _ in model.evaluated for label in labels] == [*range(NUM_SAMPLES)]


def test_a_trainer_that_fits_twice_goes_on_and_another_begins(expected: list[Step]) -> None:
    data, model = RefurbDataModule(train=training_loader), Model()
    trainer = trainer_for(max_epochs=1, limit_val_batches=0)
    trainer.fit(model, datamodule=data)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, datamodule=data)
    assert model.trained == expected[: 2 * BATCHES]
    assert fitted(data=data, max_epochs=1, limit_val_batches=0) == expected[:BATCHES]


def test_a_checkpoint_moves_only_the_training_that_goes_on_from_it(expected: list[Step], tmp_path: Path) -> None:
    """Neither one after its weights were evaluated, nor the next one of the same data module."""
    always = SaveAlways(tmp_path)
    fitted(always, max_epochs=1)
    checkpoint, step = always.saved[1]
    data = RefurbDataModule(train=training_loader, val=evaluating_loader)
    trainer_for().validate(Model(), datamodule=data, ckpt_path=checkpoint, weights_only=False)
    assert fitted(data=data, max_epochs=1) == expected[:BATCHES]
    assert fitted(data=data, checkpoint=checkpoint, max_epochs=1) == expected[step:BATCHES]
    assert fitted(data=data, max_epochs=1) == expected[:BATCHES]


def test_a_checkpoint_saved_after_training_has_the_place(expected: list[Step], tmp_path: Path) -> None:
    trainer = trainer_for(max_epochs=1)
    trainer.fit(Model(), datamodule=RefurbDataModule(training_loader, evaluating_loader))
    trainer.save_checkpoint(tmp_path / "last")
    assert fitted(checkpoint=tmp_path / "last") == expected[BATCHES:]


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    trainer = trainer_for(max_epochs=1)
    trainer.fit(Model(), datamodule=RefurbDataModule(training_loader, evaluating_loader))
    trainer.save_checkpoint(tmp_path / "last")
    other = RefurbDataModule(lambda: training_loader(seed=1), evaluating_loader)
    with pytest.raises(StateMismatchError, match=r"these differ: planner\.seed"):
        fitted(data=other, checkpoint=tmp_path / "last")


def test_loaders_are_made_when_they_are_needed_and_closed_at_the_end() -> None:
    made: list[Loader] = []

    def make() -> Loader:
        made.append(training_loader())
        return made[-1]

    data = RefurbDataModule(make, evaluating_loader)
    with pytest.raises(ConfigurationError, match=r"got 'train' when there are \[\]: ask for it in a callback"):
        data.loader()

    class Look(pl.Callback):  # type: ignore[misc]
        def on_train_end(self, trainer: Any, model: Any) -> None:
            assert data.loader() is made[0]
            assert data.loader("val").stats().batches > 0
            with pytest.raises(ConfigurationError, match=r"got 'train' when there are \[\]"):
                copy.copy(data).loader()  # As in another process, where loaders cannot be.

    fitted(Look(), data=data)
    assert len(made) == 1
    with pytest.raises(LoaderError, match="the loader is closed"):
        next(iter(made[0]))
    with pytest.raises(KeyError):
        fitted(data=data, model=Model(fails_at=2))
    with pytest.raises(LoaderError, match="the loader is closed"):
        next(iter(made[1]))


def test_loaders_are_made_of_their_parts() -> None:
    planner = Standard(NUM_SAMPLES, batch_size=BATCH_SIZE)
    data = RefurbDataModule((source(), simple(32, raw=True), planner), evaluating_loader)
    with Loader(source(), simple(32, raw=True), planner, prefetch=Prefetch(1)) as loader:
        assert fitted(data=data) == plain_loop(loader)


def test_what_makes_no_loader_is_refused() -> None:
    with training_loader() as loader, pytest.raises(ConfigurationError, match="train must be a function that makes"):
        RefurbDataModule(loader)
    with pytest.raises(ConfigurationError, match=r"must return a dalirefurb\.Loader, got list: return Loader"):
        fitted(data=RefurbDataModule(train=lambda: [1]))
    with pytest.raises(ConfigurationError, match=r"loader must be a dalirefurb\.Loader itself, got \[\]"):
        LightningLoader([])


def test_pytorch_lightning_is_taken_where_the_program_has_imported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    other = pytest.importorskip("pytorch_lightning", reason="the package pytorch_lightning is not installed")
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    found = importlib.util.find_spec("dalirefurb.trainers.lightning")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert issubclass(module.RefurbDataModule, other.LightningDataModule)
    assert issubclass(RefurbDataModule, pl.LightningDataModule)


def test_overfit_batches_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"overfit_batches takes other samples in each epoch.*source.subset"):
        fitted(overfit_batches=2, max_epochs=1)


def test_statistics_are_logged_as_often_as_the_trainer_logs() -> None:
    class Kept(pl.loggers.logger.DummyLogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kept: list[tuple[int, dict[str, float]]] = []

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            if "io/batches" in metrics or "data/batches" in metrics:
                self.kept.append((step, metrics))

    stats = LogStats("io/")  # Of each training, of a loader of its own, it begins to count anew.
    for every, logged in ((2, ((2, 2), (4, 2), (5, 1))), (5, ((5, 5),)), (0, ((5, 5),))):
        logger = Kept()
        fitted(stats, logger=[logger], log_every_n_steps=every)
        assert [(step, metrics["io/batches"]) for step, metrics in logger.kept] == [
            (BATCHES * epoch + step, batches) for epoch in range(EPOCHS) for step, batches in logged
        ]
    assert sum(metrics["io/samples"] for _, metrics in logger.kept) == EPOCHS * NUM_SAMPLES
    trainer = trainer_for(LogStats(), logger=[logger := Kept()], max_epochs=1)
    with training_loader() as loader:
        trainer.fit(Model(), loader)
    assert [metrics["data/samples"] for _, metrics in logger.kept] == [NUM_SAMPLES]
    with pytest.raises(
        ConfigurationError, match=r"must fit with one dalirefurb\.Loader, got DataLoader: pass a RefurbD"
    ):
        trainer_for(stats).fit(Model(), torch.utils.data.DataLoader([(torch.zeros(3, 32, 32), 0)]))


def test_whether_training_waits_is_logged_after_each_epoch_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dalirefurb"):
        fitted(LogStats())
    verdicts = [record.getMessage() for record in caplog.records if record.name == "dalirefurb"]
    assert len(verdicts) == EPOCHS
    assert "training waited for data" in verdicts[-1]
    assert "\n" not in "".join(verdicts)


def test_ranks_but_the_first_log_no_verdict(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl.Trainer, "is_global_zero", property(lambda trainer: False))
    with caplog.at_level(logging.INFO, "dalirefurb"):
        fitted(LogStats())
    assert [record for record in caplog.records if record.name == "dalirefurb"] == []


EVERY = {f"step-step={step}": step for step in range(1, 13)} | {f"epoch-step={step}": step for step in (4, 8, 12)}
RESUMED = {"ddp": EVERY, "ddp_fork": {"step-step=5": 5}, "ddp_spawn": {}}
"""Of each strategy, checkpoints to resume from and the steps that were done there; starting processes takes long."""


@pytest.mark.weekly  # Two processes train by Accelerate for each change, and one resumes from every checkpoint above.
@pytest.mark.parametrize("strategy", ["ddp", "ddp_fork", "ddp_spawn"])
def test_two_processes_serve_what_one_does_and_resume_exactly(strategy: str, tmp_path: Path) -> None:
    with training_loader(shards=2) as loader:
        expected = plain_loop(loader)
    begins = {"whole": 0, **RESUMED[strategy]}
    command = [sys.executable, "-m", "tests.trainers.lightning_worker", strategy, str(tmp_path), *begins]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        command, check=True, timeout=900, cwd=Path(__file__).parents[2], capture_output=True, env=environment
    )
    for name, begin in begins.items():
        ranks = [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in range(2)]
        joined = [
            (tuple(labels + other_labels), pixels + other)
            for (labels, pixels), (other_labels, other) in zip(*(rank["trained"] for rank in ranks), strict=True)
        ]
        assert [labels for labels, _ in joined] == [labels for labels, _ in expected[begin:]]
        assert [pixels for _, pixels in joined] == pytest.approx([pixels for _, pixels in expected[begin:]])
        validated = sorted(label for rank in ranks for label in rank["validated"])
        assert validated == sorted([*range(NUM_SAMPLES)] * (EPOCHS - begin // 4))
