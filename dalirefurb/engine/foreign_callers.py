"""Foreign callers: functions of other projects that would lose a loader's place without a word, and are refused.

They ask `isinstance(loader, DataLoader)` and pass by what is none, make a `DataLoader` of the loader's `dataset`, or
tell its `sampler` the epoch. So they are seen where Python asks for the loader's class, dataset or sampler, as there is
no other trace of them. Their names are used here alone.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from dalirefurb.errors import ConfigurationError

_ACCELERATE = (
    "Accelerate passes by what is no DataLoader: it would not save the loader's place, nor step at an epoch's end, nor "
    "skip batches; give loaders to dalirefurb.trainers.accelerate.prepare(accelerator, loader) in its place"
)
_FABRIC = "Fabric takes DataLoaders only; dalirefurb.trainers.fabric.setup_dataloaders(fabric, loader) takes its place"
_RAY = "Ray would serve its dataset without the recipe; iterate the loader, which finds its rank by itself"
_LIGHTNING = (
    "Lightning does not load the loader's place where it reads the loader before its own state (as for "
    "trainer.estimated_stepping_batches), from ends of epochs with max_steps, or where a step had only begun; pass "
    "datamodule=RefurbDataModule(lambda: Loader(...)) of dalirefurb.trainers.lightning, which goes on from any "
    "checkpoint, this one too"
)
_REFUSED = {
    ("accelerate.accelerator", "prepare"): _ACCELERATE,
    ("accelerate.data_loader", "skip_first_batches"): _ACCELERATE,
    ("accelerate.data_loader", "prepare_data_loader"): _ACCELERATE,
    ("ray.train.torch.train_loop_utils", "prepare_data_loader"): _RAY,
    ("ray.train.v2.torch.train_loop_utils", "prepare_data_loader"): _RAY,
    ("lightning.fabric.fabric", "<genexpr>"): _FABRIC,
    ("lightning_fabric.fabric", "<genexpr>"): _FABRIC,
}


def refuse_caller(frame: FrameType) -> None:
    """Refuse a function that asks about a loader, if it would lose the loader's place.

    Args:
        frame: Frame of the function.

    Raises:
        ConfigurationError: If it is one of those.
    """
    module, function, caller = str(frame.f_globals.get("__name__")), frame.f_code.co_name, frame.f_back
    reason = _REFUSED.get((module, function))
    if function == "_set_sampler_epoch" and caller is not None and caller.f_code.co_name == "on_advance_start":
        reason = _LIGHTNING if _is_lost(caller.f_locals["self"]) else None
    if reason is not None:
        raise ConfigurationError(f"a loader must not be given to {module}.{function} as it is: {reason}")


def _is_lost(fit: Any) -> bool:
    """Tell whether Lightning's loop goes on elsewhere than a loader that was given to the trainer itself."""
    batches = fit.epoch_loop.batch_progress.current
    not_loaded = fit.restarting and fit._combined_loader_states_to_load
    counted_wrong = batches.ready != batches.processed or fit.restarted_on_epoch_start or fit.restarted_on_epoch_end
    return bool(fit.is_resuming and (not_loaded or counted_wrong))
