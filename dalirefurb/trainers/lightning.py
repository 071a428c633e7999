"""Lightning: a data module whose checkpoints resume at the next batch, and callbacks for statistics and losses.

What Lightning 2 presumes of a loader, and how it is met:

* `Trainer.fit` sends the data module to each process (`ddp_spawn`, `ddp_fork`), or the program makes it there (`ddp`).
  A loader cannot be sent, so the data module has functions that make loaders, and calls them where they are used.
* Lightning saves the state of a loader that has `state_dict`, but loads it only from a checkpoint of the middle of an
  epoch. After one of its end (`ModelCheckpoint()`, `save_last`) it takes the loader as it was made, and sets the epoch
  of its sampler. An Assistant's state is lost then. So the place is in the data module's own state, which Lightning
  saves with each checkpoint and always loads.
* `trainer.estimated_stepping_batches`, which OneCycleLR and warm-up need, has Lightning set up the loader before its
  own state is loaded (its issue 20550). So the loader is moved when its first batch is asked for, and not before.
* A checkpoint counts a batch as trained once it is processed, though it was served before, and one that is saved at an
  exception may be of a batch that was not. So the place before each batch is remembered, and saved until then.
* An epoch that `limit_train_batches` or early stopping has ended is one that the loader has only left. Where Lightning
  begins an epoch, and does not go on in one, the loader begins the next one. Lightning's progress also says where to
  go on after a checkpoint without a loader's place.
* From some checkpoints Lightning counts wrong: those of an epoch's end with `max_steps`, of an epoch's start, and of a
  step that had only begun. It tells a sampler the epoch before it goes through it; there its progress is mended.
* `overfit_batches` replaces the sampler of a `DataLoader` to have the same batches in each epoch. A plan cannot be
  replaced like that, so there is a warning that says what to do.
* `len` must be equal on all ranks, and is. No `DistributedSampler` is injected, since that is done to a `DataLoader`
  only; the planner divides the batches among the ranks, which the loader finds in torch.distributed.
* Checkpoints are made on all ranks together, and rank 0's is written. With AutoAssist it has the states of all ranks.

The package is the one of `lightning` and `pytorch_lightning` that the program has imported before this module, else the
one that is installed, `lightning` first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from dalirefurb.engine.loader_view import Batch
from dalirefurb.engine.stats import Stats
from dalirefurb.errors import ConfigurationError, warn
from dalirefurb.loader import Loader
from dalirefurb.trainers.trainer_loader import (
    Make,
    TrainerLoader,
    check_maker,
    import_trainer,
    log_diagnosis,
    make_loader,
)

_NAMES = ["lightning.pytorch", "pytorch_lightning"]
_PL = import_trainer(*sorted(_NAMES, key=lambda name: name not in sys.modules), install="lightning")

_DATA_MODULE: Any = _PL.LightningDataModule
_CALLBACK: Any = _PL.Callback


class LightningLoader(TrainerLoader):
    """What the data module gives to Lightning: the loader's batches, and nothing that Lightning would change."""

    def __iter__(self) -> Iterator[Batch]:
        """Serve one epoch, or what is left of it."""
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the data module saves the place."""
        return {}


class _TrainingLoader(LightningLoader):
    """The loader to fit with, which goes to where Lightning's loop begins, and knows what that has trained on."""

    def __init__(self, loader: Loader, fit: Any) -> None:
        super().__init__(loader)
        self._fit = fit
        self._arrived = self._restored = False
        self._served_at = -1
        self._before: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Batch]:
        if not self._arrived:
            if self._fit.epoch_loop.batch_progress.current.ready >= self._fit.max_batches:
                return  # With `max_steps` Lightning asks for more of an epoch at whose end a checkpoint was saved.
            self._arrive()
        batches = iter(self.loader)
        while True:
            if (trained := self._trained()) != self._served_at:
                self._served_at, self._before = trained, self.loader.state_dict()
            if (batch := next(batches, None)) is None:
                return
            yield batch

    @property
    def place(self) -> dict[str, Any]:
        """The loader's state before the first batch that was not trained on; empty where Lightning has not begun."""
        if not self._arrived and not self._restored:
            return {}
        return self._before if self._trained() == self._served_at else self.loader.state_dict()

    @property
    def sampler(self) -> _TrainingLoader:
        """What Lightning tells the epoch before it goes through it."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Mend what Lightning has counted wrong of an epoch that it goes on with; the loader knows its own."""
        if self._fit.restarted_on_epoch_start:  # The batches that are counted are those of the epoch before.
            self._fit.epoch_loop.batch_progress.reset_on_run()
        elif self._fit.restarted_on_epoch_end:  # The epoch has been counted, and will be once more at its end.
            for counted in (self._fit.epoch_progress.current, self._fit.epoch_progress.total):
                counted.processed -= 1
                counted.completed = counted.processed

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a checkpoint was saved; it has no state here where only the data module's is saved."""
        if state:
            super().load_state_dict(state)
            self._restored = True

    def _arrive(self) -> None:
        """Go to where Lightning begins, which its loops know when the first batch is asked for, and not before.

        Raises:
            ConfigurationError: If the loader was elsewhere in the epoch when the checkpoint was saved.
        """
        batches = self._fit.epoch_loop.batch_progress
        batches.total.reset_on_restart()  # Lightning forgets a batch that had only begun in what is current alone.
        batch = batches.current.ready
        if not self._restored:
            self.seek(self._fit.epoch_progress.current.processed, batch)
        elif batch == 0:
            self.leave_epoch()
        if (place := self.loader.state_dict()["batch"]) != batch:
            raise ConfigurationError(
                f"a checkpoint must be saved where Lightning and the loader have come equally far, but Lightning goes "
                f"on with batch {batch} of its epoch, and the loader with batch {place}: take another checkpoint, such "
                f"as those of ModelCheckpoint"
            )
        self._arrived = True

    def _trained(self) -> int:
        """Count the batches that were trained on so far."""
        return int(self._fit.epoch_loop.batch_progress.total.processed)


class RefurbDataModule(_DATA_MODULE):  # type: ignore[misc]
    """Makes loaders where they are used, keeps the place of training in checkpoints, and closes loaders at the end.

    Each argument is a function that makes a `Loader`, or a tuple (source, recipe, planner) or (source, recipe, planner,
    store). For strategies that start processes from this one it must be possible to pickle them: a function of a
    module, or a tuple whose store is a function that makes it, such as the class `MemoryStore`.

    Args:
        train: Maker of the loader for `trainer.fit`.
        val: Maker of the loader for `trainer.validate` and for validation in `trainer.fit`.
        test: Maker of the loader for `trainer.test`.
        predict: Maker of the loader for `trainer.predict`.

    Raises:
        ConfigurationError: If one is neither.
    """

    def __init__(
        self, train: Make | None = None, val: Make | None = None, test: Make | None = None, predict: Make | None = None
    ) -> None:
        super().__init__()
        makers = {"train": train, "val": val, "test": test, "predict": predict}
        self._loaders: dict[str, LightningLoader] = {}
        self._to_load: Mapping[str, Any] | None = None
        self._last: dict[str, Any] = {}
        self._makers: dict[str, Make] = {}
        for stage, make in makers.items():
            if make is not None:
                check_maker(stage, make)
                self._makers[stage] = make
                # Set only where there is a loader, since that is how Lightning tells.
                setattr(self, f"{stage}_dataloader", partial(self._made, stage))

    def loader(self, stage: str = "train") -> Loader:
        """Return the loader of "train", "val", "test" or "predict", while the trainer runs with it.

        Raises:
            ConfigurationError: If there is none now.
        """
        if stage not in self._loaders:
            raise ConfigurationError(
                f"a loader is there while the trainer uses it, got {stage!r} when there are {sorted(self._loaders)}: "
                f"ask for it in a callback or in the model"
            )
        return self._loaders[stage].loader

    def state_dict(self) -> dict[str, Any]:
        """Return the place of training; called for each checkpoint, on all ranks."""
        training = self._loaders.get("train")
        return training.of_ranks(training.place) if isinstance(training, _TrainingLoader) else self._last

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the training loader to a place, now or when it is made."""
        if self.trainer is not None and self.trainer.state.fn == "fit":
            self._to_load = state_dict
            self._restore()

    def teardown(self, stage: str) -> None:
        """Close the loaders."""
        if "train" in self._loaders:
            self._last = self.state_dict()
        self._close()

    def on_exception(self, exception: BaseException) -> None:
        """Close the loaders; called once callbacks have saved what they save."""
        self._close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_loaders": {}}

    def _made(self, stage: str) -> LightningLoader:
        """Return a stage's loader, made now if there is none."""
        if stage not in self._loaders:
            training = stage == "train"
            if training and self.trainer.overfit_batches > 0:
                warn(
                    "overfit_batches takes other samples in each epoch, since the planner shuffles all of them: leave "
                    "it out, and make the loader of source.subset(range(n))",
                )
            loader = make_loader(self._makers[stage])
            fit = self.trainer.fit_loop
            self._loaders[stage] = _TrainingLoader(loader, fit) if training else LightningLoader(loader)
            self._restore()
        return self._loaders[stage]

    def _restore(self) -> None:
        """Take the training loader to the place of a checkpoint, as soon as both are there."""
        if "train" in self._loaders and self._to_load is not None:
            self._loaders["train"].load_state_dict(self._to_load)
            self._to_load = None

    def _close(self) -> None:
        while self._loaders:
            self._loaders.popitem()[1].loader.close()


class LogStats(_CALLBACK):  # type: ignore[misc]
    """Logs what the loader did since the last time: at every `log_every_n_steps` of the trainer, and after each epoch.

    After each epoch rank 0 also has `loader.diagnose()` as a line at level INFO of the logger "dalirefurb".

    Args:
        prefix: Beginning of the names that are logged.
    """

    def __init__(self, prefix: str = "data/") -> None:
        self._prefix = prefix
        self._logged = Stats()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        self._logged = training_loader(trainer).stats()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log, if it is time."""
        every = trainer.log_every_n_steps  # 0: never
        if every and (batch_idx + 1) % every == 0:
            self._log(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what is left of the epoch, and whether training waits."""
        self._log(trainer)
        if trainer.is_global_zero:
            log_diagnosis(training_loader(trainer))

    def _log(self, trainer: Any) -> None:
        stats = training_loader(trainer).stats()
        since, self._logged = stats - self._logged, stats
        if since.batches:
            for logger in trainer.loggers:
                logger.log_metrics(since.as_dict(self._prefix), step=trainer.global_step)


class ObserveLosses(_CALLBACK):  # type: ignore[misc]
    """Gives AutoAssist the loss of each sample, which `training_step` returns beside their mean.

    `training_step` returns {"loss": losses.mean(), "losses": losses.detach()}.

    Args:
        key: Name of the samples' losses, shape (B,), in what `training_step` returns.
    """

    def __init__(self, key: str = "losses") -> None:
        self._key = key

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Tell the loader the losses of the batch.

        Raises:
            ConfigurationError: If the step returned none.
        """
        if not isinstance(outputs, Mapping) or self._key not in outputs:
            got = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
            raise ConfigurationError(
                f"training_step must return each sample's loss as {self._key!r}, got {got}: return "
                f'{{"loss": losses.mean(), {self._key!r}: losses.detach()}}, of losses with reduction="none"'
            )
        training_loader(trainer).observe(outputs[self._key])


def training_loader(trainer: Any) -> Loader:
    """Return the loader that a trainer fits with.

    Raises:
        ConfigurationError: If it is none of ours.
    """
    given = trainer.train_dataloader
    loader = given.loader if isinstance(given, LightningLoader) else given
    if not isinstance(loader, Loader):
        raise ConfigurationError(
            f"the trainer must fit with one dalirefurb.Loader, got {type(given).__name__}: pass a RefurbDataModule, or "
            f"leave this callback out"
        )
    return loader
