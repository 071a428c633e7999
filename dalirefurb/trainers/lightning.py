"""Lightning: a data module whose checkpoints resume at the next batch, and callbacks for statistics and losses.

What Lightning 2 presumes of a loader, and how it is met:

* `Trainer.fit` sends the data module to each process (`ddp_spawn`, `ddp_fork`), or the program makes it there (`ddp`).
  A loader cannot be sent, so the data module has functions that make loaders, and calls them where they are used.
* Lightning saves the state of a loader that has `state_dict`, but loads it only from a checkpoint of the middle of an
  epoch. After one of its end (`ModelCheckpoint()`, `save_last`) it takes the loader as it was made, and sets the epoch
  of its sampler. An Assistant's state is lost then. So the place is in the data module's own state, which Lightning
  saves with each checkpoint and always loads; the epoch is not set, since what Lightning is given has no sampler.
* A checkpoint counts a batch as trained once it is processed, though it was served before, and one that is saved at an
  exception may be of a batch that was not. So the place before each batch is remembered, and saved until then.
* An epoch that `limit_train_batches` or early stopping has ended is one that the loader has only left. Lightning's
  progress in the checkpoint says whether Lightning goes on in the epoch; if not, the loader begins the next one. It
  also says where to go on after a checkpoint without a loader's place.
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
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dalirefurb.engine.batch_tensors import Batch
from dalirefurb.engine.stats import Stats
from dalirefurb.errors import ConfigurationError
from dalirefurb.loader import Loader
from dalirefurb.trainers.making import Make, check_maker, make_loader
from dalirefurb.trainers.trainer_loader import (
    TrainerLoader,
    import_trainer,
    leave_epoch,
    load_of_ranks,
    log_diagnosis,
    of_ranks,
    seek,
)

_NAMES = ["lightning.pytorch", "pytorch_lightning"]
_PL = import_trainer(*sorted(_NAMES, key=lambda name: name not in sys.modules), install="lightning")

_DATA_MODULE: Any = _PL.LightningDataModule
_CALLBACK: Any = _PL.Callback


class LightningLoader(TrainerLoader):
    """What the data module gives to Lightning: the loader's batches, and nothing that Lightning would change.

    Args:
        loader: Loader that serves the batches.
        trained: Function that counts the batches that were trained on so far; None where nothing is trained.
    """

    def __init__(self, loader: Loader, trained: Callable[[], int] | None = None) -> None:
        super().__init__(loader)
        self._trained = trained
        self._served_at = -1
        self._before: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Batch]:
        """Serve one epoch, or what is left of it."""
        batches = iter(self.loader)
        while True:
            if self._trained is not None and (trained := self._trained()) != self._served_at:
                self._served_at, self._before = trained, self.loader.state_dict()
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    @property
    def place(self) -> dict[str, Any]:
        """The loader's state before the first batch that was not trained on."""
        if self._trained is not None and self._trained() == self._served_at:
            return self._before
        return self.loader.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the data module saves the place."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a checkpoint was saved by a trainer that was given the loader itself."""
        if state:
            super().load_state_dict(state)


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
                setattr(self, f"{stage}_dataloader", getattr(self, f"_{stage}"))

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
        if (training := self._loaders.get("train")) is None:
            return self._last
        return of_ranks(training.loader, training.place)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember a place for the loader that is made next; called before there is one."""
        if self.trainer is not None and self.trainer.state.fn == "fit":
            self._to_load = state_dict

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

    def _train(self) -> LightningLoader:
        """Return the loader to fit with, made and moved to where Lightning goes on if there is none."""
        if "train" in self._loaders:
            return self._loaders["train"]
        if self.trainer.overfit_batches > 0:
            warnings.warn(
                "overfit_batches takes other samples in each epoch, since the planner shuffles all of them: leave it "
                "out, and make the loader of source.subset(range(n))",
                stacklevel=2,
            )
        fit = self.trainer.fit_loop
        training = self._made("train", trained=lambda: int(fit.epoch_loop.batch_progress.total.processed))
        epochs, batches = fit.epoch_progress.current, fit.epoch_loop.batch_progress
        ended = batches.is_last_batch and batches.current.processed == batches.current.ready
        goes_on = fit.restarting and not ended
        if self._to_load is not None:
            load_of_ranks(training.loader, self._to_load)
            self._to_load = None
            if not goes_on:
                leave_epoch(training.loader)
        elif goes_on:
            seek(training.loader, epochs.started - 1, batches.current.processed)
        else:
            seek(training.loader, epochs.started if fit.restarting else epochs.processed, 0)
        return training

    def _val(self) -> LightningLoader:
        return self._made("val")

    def _test(self) -> LightningLoader:
        return self._made("test")

    def _predict(self) -> LightningLoader:
        return self._made("predict")

    def _made(self, stage: str, trained: Callable[[], int] | None = None) -> LightningLoader:
        """Return a stage's loader, made now if there is none."""
        if stage not in self._loaders:
            self._loaders[stage] = LightningLoader(make_loader(self._makers[stage]), trained)
        return self._loaders[stage]

    def _close(self) -> None:
        while self._loaders:
            self._loaders.popitem()[1].loader.close()


class LogStats(_CALLBACK):  # type: ignore[misc]
    """Logs what the loader did since the last time: at every `log_every_n_steps` of the trainer, and after each epoch.

    After each epoch rank 0 also has `loader.diagnose()` as a line at level INFO of the logger "dalirefurb", once there
    are steps enough to tell.

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
        if (batch_idx + 1) % trainer.log_every_n_steps == 0:
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
