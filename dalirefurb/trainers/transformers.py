"""Hugging Face's Trainer: datasets that are loaders, resumed in the middle of an epoch, with statistics in the logs.

What the Trainer presumes of a loader, and how it is met:

* It makes a `DataLoader` of `train_dataset`, `eval_dataset` and what `predict` is given. Where these are loaders,
  `RefurbTrainer` takes them as they are, prepared as `dalirefurb.trainers.accelerate` describes.
* A batch is a mapping whose items are the model's arguments: {"pixel_values": images, "labels": labels}, by default.
* It resumes by `skip_first_batches(loader, steps)`, which moves a prepared loader there, and calls `set_epoch` of what
  it iterates. Epoch and step follow from the number of optimizer steps that were done, so they are exact for any
  `save_strategy`, and with gradient accumulation, whose batches are all fetched before they are trained on.
* The loader's state is in `trainer_state.json`, too, as that of a callback. It is loaded first, so that another source,
  seed or recipe is refused rather than skipped through, and an Assistant goes on. Of several ranks it is rank 0's, so
  AutoAssist cannot resume on several. AutoAssist needs `loader.observe(losses)` in `compute_loss`, and no gradient
  accumulation, for which batches are fetched before the losses of the ones before are known.
* `evaluate` repeats the mean loss of a batch `per_device_eval_batch_size` times, and cuts what it has gathered to the
  samples there are. So rows of padding get the label -100, which losses of `transformers` and `cross_entropy` ignore,
  and `Evaluate` needs `pad=True`: else its batches differ by a row, and the mean of all losses is not that of samples.
* `per_device_train_batch_size` and `per_device_eval_batch_size` are used to count; they must be the loader's.
* `num_examples` is the length of the loader's `dataset`, which is that of the source.
"""

from __future__ import annotations

from typing import Any

import torch

from dalirefurb.checks import require
from dalirefurb.engine.loader_view import Batch
from dalirefurb.engine.stats import Stats
from dalirefurb.errors import ConfigurationError
from dalirefurb.loader import Loader
from dalirefurb.planning.evaluate import Evaluate
from dalirefurb.trainers.accelerate import AcceleratedLoader
from dalirefurb.trainers.trainer_loader import import_trainer, log_diagnosis

_TRANSFORMERS = import_trainer("transformers", install="transformers")
_CALLBACKS = import_trainer("transformers.trainer_callback", install="transformers")
_TRAINER: Any = _TRANSFORMERS.Trainer
_CALLBACK: Any = _CALLBACKS.TrainerCallback
_EXPORTABLE: Any = _CALLBACKS.ExportableState
_IGNORED = -100


class RefurbTrainer(_TRAINER):  # type: ignore[misc]
    """A `transformers.Trainer` whose `train_dataset`, `eval_dataset` and dataset of `predict` may be loaders.

    Loaders are not closed. What is no loader is treated as ever. All other arguments are those of `Trainer`.

    Args:
        names: Names of images and labels in a batch: the model's arguments.
        stats_prefix: Beginning of the names of the training loader's statistics in the logs.
    """

    def __init__(
        self,
        *arguments: Any,
        names: tuple[str, str] = ("pixel_values", "labels"),
        stats_prefix: str = "data/",
        **settings: Any,
    ) -> None:
        remedy = 'pass such as ("pixel_values", "labels")'
        require(len(names) == len({*names}) == 2, "names", "two, each another", names, remedy)
        self._names = names
        self._stats_prefix = stats_prefix
        self._logged = Stats()
        super().__init__(*arguments, **settings)
        self.add_callback(LoaderState())

    def get_train_dataloader(self) -> Any:
        """Return what serves the batches that are trained on."""
        if not isinstance(self.train_dataset, Loader):
            return super().get_train_dataloader()
        self._logged = self.train_dataset.stats()
        return self._prepared(self.train_dataset, "train")

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return what serves the batches of `evaluate`; see `Trainer.get_eval_dataloader`."""
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(chosen, str):
            chosen = self.eval_dataset[chosen]
        return (
            self._prepared(chosen, "eval") if isinstance(chosen, Loader) else super().get_eval_dataloader(eval_dataset)
        )

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return what serves the batches of `predict`."""
        if isinstance(test_dataset, Loader):
            return self._prepared(test_dataset, "eval")
        return super().get_test_dataloader(test_dataset)

    def log(self, logs: dict[str, float], *arguments: Any) -> None:
        """Log, with what the training loader did since the last time beside the loss."""
        if "loss" in logs and isinstance(self.train_dataset, Loader):
            stats = self.train_dataset.stats()
            logs.update((stats - self._logged).as_dict(self._stats_prefix))
            self._logged = stats
        super().log(logs, *arguments)

    def _prepared(self, loader: Loader, stage: str) -> AcceleratedLoader:
        """Prepare a loader for training or evaluation; refuse batches that are not what the trainer counts with."""
        planner = loader.planner
        if isinstance(planner, Evaluate) and not planner.pad:
            raise ConfigurationError(
                "Evaluate must pad its batches for the Trainer, which counts with batches of one size, got pad=False: "
                "pass Evaluate(..., pad=True) and Loader(..., with_indices=True)"
            )
        expected = getattr(self.args, f"per_device_{stage}_batch_size")
        if expected != loader.batch_size:
            raise ConfigurationError(
                f"per_device_{stage}_batch_size must be the rows of the loader's batches, got {expected} and "
                f"{loader.batch_size}: pass TrainingArguments(per_device_{stage}_batch_size={loader.batch_size})"
            )
        return AcceleratedLoader(self.accelerator, loader, self._mapping)

    def _mapping(self, batch: Batch, padding: int) -> dict[str, torch.Tensor]:
        """Return a batch whose last rows, so many, only fill it up, as the model's arguments."""
        images, labels = batch[:2]
        if padding:
            kind = labels.dtype if isinstance(labels, torch.Tensor) else "targets"
            if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
                raise ConfigurationError(
                    f"rows of padding need labels that are classes, to be told by {_IGNORED}, got {kind}: evaluate "
                    f"with a batch_size that divides the number of samples"
                )
            labels = labels.clone()
            labels[len(labels) - padding :] = _IGNORED
        return dict(zip(self._names, (images, labels), strict=True))


class LoaderState(_CALLBACK, _EXPORTABLE):  # type: ignore[misc]
    """Keeps the state of the training loader in the Trainer's own, and says after each epoch whether training waits.

    That is `loader.diagnose()`, on the main process, as a line at level INFO of the logger "dalirefurb".
    """

    def __init__(self) -> None:
        self.place: dict[str, Any] | None = None
        self._loader: Loader | None = None

    def state(self) -> dict[str, Any]:
        """Return the loader's state as attributes of this callback; called for each checkpoint."""
        place = None if self._loader is None else self._loader.state_dict()
        return {"args": {}, "attributes": {"place": place}}

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **others: Any) -> None:
        """Load the state of the checkpoint that training goes on from, if it has one."""
        self._loader = train_dataloader.loader if isinstance(train_dataloader, AcceleratedLoader) else None
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        if self._loader is not None and saved["attributes"]["place"] is not None:
            self._loader.load_state_dict(saved["attributes"]["place"])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Log whether training waits."""
        if self._loader is not None and state.is_world_process_zero:
            log_diagnosis(self._loader)
