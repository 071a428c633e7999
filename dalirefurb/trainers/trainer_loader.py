"""Trainer loader: a loader as a trainer holds it, with a state that every rank can save and load.

Trainers save one state for all ranks. That of a loader is the same on all of them, but with AutoAssist each rank has
its own: then the states of all ranks are exchanged when one is asked for, which trainers do on all ranks at once. A
loader cannot be sent to another process, so trainers that start some are given what makes it there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import torch.distributed

from dalirefurb.augment.recipe import Recipe
from dalirefurb.checks import require
from dalirefurb.engine.loader_view import LoaderView
from dalirefurb.errors import ConfigurationError, StateMismatchError
from dalirefurb.loader import Loader
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.store import Store

_log = logging.getLogger("dalirefurb")


Parts: TypeAlias = "tuple[Source, Recipe, Planner] | tuple[Source, Recipe, Planner, Callable[[], Store] | Store]"
"""What a loader is made of; a function makes the store where it is used, such as the class `MemoryStore`."""

Make: TypeAlias = "Callable[[], Loader] | Parts"
"""A function that makes a loader, or what it is made of."""


class TrainerLoader:
    """A loader's length, its place and its state; what iterating it means is the trainer's matter."""

    def __init__(self, loader: Loader) -> None:
        mapped = "give the trainer what was mapped, and call the function on each batch in the training loop"
        remedy = mapped if isinstance(loader, LoaderView) else "give other loaders to the trainer itself"
        require(isinstance(loader, Loader), "loader", "a dalirefurb.Loader itself", loader, remedy)
        self.loader = loader

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is served next, see `Loader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for all ranks; with AutoAssist it must be asked for on all of them."""
        return self.of_ranks(self.loader.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state of all ranks, or the loader's own, was taken; see `Loader.load_state_dict`.

        Raises:
            StateMismatchError: If the state belongs to another configuration or another number of ranks, or is damaged.
        """
        if isinstance(state, Mapping) and isinstance(states := state.get("ranks"), (list, tuple)):
            if len(states) != _world_size():
                raise StateMismatchError(
                    ("world_size",),
                    f"with AutoAssist a state must be loaded by as many ranks as saved it, which were {len(states)}, "
                    f"got {_world_size()}: train on as many",
                )
            state = states[torch.distributed.get_rank() if len(states) > 1 else 0]
        self.loader.load_state_dict(state)

    def of_ranks(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state that each rank can load, made of this rank's state."""
        if self.loader.planner.feedback_lag is None or _world_size() == 1:
            return state
        states: list[Any] = [None] * _world_size()
        torch.distributed.all_gather_object(states, state)
        return {"ranks": states}

    def seek(self, epoch: int, batch: int) -> None:
        """Make a batch of an epoch the next to be served; nothing before it is read.

        Args:
            epoch: Number of the epoch, from 0.
            batch: Number of the batch in its epoch, from 0; as many as an epoch has are the beginning of the next one.

        Raises:
            ConfigurationError: If an Assistant plans, which knows of the batches that were served only.
        """
        epoch, batch = epoch + batch // len(self), batch % len(self)
        state = self.loader.state_dict()
        present = state["epoch"], state["batch"]
        if self.loader.planner.feedback_lag is not None and present != (epoch, batch):
            raise ConfigurationError(
                f"with AutoAssist batches cannot be skipped, since an Assistant plans by the losses that it has "
                f"observed, got batch {batch} of epoch {epoch} when batch {present[1]} of epoch {present[0]} is next: "
                f"load the loader's state"
            )
        self.loader.load_state_dict({**state, "epoch": epoch, "batch": batch})

    def leave_epoch(self) -> None:
        """Make the next epoch the next to be served, if some of the present one was."""
        state = self.loader.state_dict()
        if state["batch"]:
            self.loader.load_state_dict({**state, "epoch": state["epoch"] + 1, "batch": 0})


def log_diagnosis(loader: Loader) -> None:
    """Log whether training waits, and what would help most: a line at level INFO, of the logger "dalirefurb"."""
    _log.info("%s", loader.diagnose())


def check_maker(name: str, make: object) -> None:
    """Refuse an argument that makes no loader: it is neither a function nor a loader's parts."""
    wanted = "a function that makes a Loader, or (source, recipe, planner, store)"
    remedy = "pass lambda: Loader(...), or a function of a module if it is sent to other processes"
    require(callable(make) or (isinstance(make, tuple) and len(make) in (3, 4)), name, wanted, make, remedy)


def make_loader(make: Make) -> Loader:
    """Make a loader; refuse a function that makes something else."""
    if isinstance(make, tuple):
        source, recipe, planner, *stores = make
        return Loader(source, recipe, planner, *(store() if callable(store) else store for store in stores))
    loader = make()
    if not isinstance(loader, Loader):
        raise ConfigurationError(
            f"the function must return a dalirefurb.Loader, got {type(loader).__name__}: return Loader(...)"
        )
    return loader


def import_trainer(*names: str, install: str) -> Any:
    """Import the first that is installed of some modules that are alike, such as "lightning.pytorch".

    Raises:
        ImportError: If none is, or the one that is cannot be imported.
    """
    for name in names:
        if find_spec(name.split(".")[0]) is not None:
            return import_module(name)
    raise ImportError(f"{names[0]} must be installed for this module of dalirefurb.trainers: pip install {install}")


def _world_size() -> int:
    initialised = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if initialised else 1
