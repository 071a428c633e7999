"""Arguments that only timm knows: those that ask for nothing, and what takes the place of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dalirefurb.calls import explained
from dalirefurb.checks import plain

_ASK_NOTHING: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("collate_fn", "device", "num_batches", "input_size_choices", "batch_size_choices"), ()),
    **dict.fromkeys(("batch_choice_weights", "batch_schedule_epochs"), ()),
    **dict.fromkeys(("re_split", "distributed", "pin_memory", "fp16"), (False,)),
    **dict.fromkeys(("patchify_channels_last", "patchify_flatten"), (True,)),
    **dict.fromkeys(("persistent_workers", "use_multi_epochs_loader"), (True, False)),
    **dict.fromkeys(("num_aug_repeats", "num_aug_splits", "batch_choice_seed"), (0,)),
    "img_dtype": ("float32", "torch.float32"),
    "worker_seeding": ("all",),
    "batch_choice_schedule": ("constant",),
    "batch_schedule_spread": (0.65,),
    "batch_schedule_random_mix": (0.1,),
    "patch_size": (16,),
    "max_seq_len": (576,),
}
"""Arguments of `create_loader` and `create_transform` of timm 1.0, with the values that change nothing; None is one of
each. Threads live as long as the loader, whatever is said of workers."""

_OF_PRETRAINED_CFG = {
    *("url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag", "custom_load"),
    *("test_input_size", "min_input_size", "fixed_input_size", "test_crop_pct", "num_classes", "label_offset"),
    *("label_names", "label_descriptions", "pool_size", "test_pool_size", "first_conv", "classifier", "license"),
    *("description", "origin_url", "paper_name", "paper_ids", "notes"),
}
"""What a model's `pretrained_cfg` has besides arguments of `create_transform`."""

_ANOTHER_SIZE = "images and batches of another size are another loader's: leave it out"

_INSTEAD: Mapping[str, str] = {
    "force_color_jitter": "create_transform has none: put a ColorJitter after the policy, in a Recipe of your own",
    "worker_seeding": "the planner draws all numbers: Refurbish(..., seed=0)",
    "num_batches": _ANOTHER_SIZE,
    **dict.fromkeys((name for name in _ASK_NOTHING if name.startswith("batch_")), _ANOTHER_SIZE),
    "input_size_choices": _ANOTHER_SIZE,
    **dict.fromkeys(
        ("patch_size", "max_seq_len", "patchify_channels_last", "patchify_flatten"),
        "images are made, not patches: leave it out",
    ),
}
"""What takes the place of arguments that `dalirefurb.calls` does not tell of."""


def separated(arguments: Mapping[str, Any], known: set[str]) -> tuple[list[str], dict[str, Any]]:
    """Separate arguments: the names of those that are not known and ask for something, and those that are known.

    Args:
        arguments: Arguments by name.
        known: Names of those that are known.
    """
    unknown = [name for name, value in arguments.items() if name not in known and not _asks_nothing(name, value)]
    return unknown, {name: plain(value) for name, value in arguments.items() if name in known}


def refusals(unknown: Sequence[str], call: Callable[..., Any]) -> list[str]:
    """Return why arguments cannot be taken, and what helps: one text for each, or for all of a `pretrained_cfg`.

    Args:
        unknown: Names of arguments that are not known, and ask for something.
        call: Class that is called with those that are.
    """
    of_model = [name for name in unknown if name in _OF_PRETRAINED_CFG]
    names = ", ".join(map(repr, of_model))
    told = [f"a model's pretrained_cfg has {names}, too: pass **timm.data.resolve_model_data_config(model)"]
    return told[: len(of_model)] + [_refusal(name, call) for name in unknown if name not in of_model]


def _refusal(name: str, call: Callable[..., Any]) -> str:
    if name in _INSTEAD:
        return f"there is no argument {name!r}: {_INSTEAD[name]}"
    return str(explained(call, call.__name__, (), {name: None})).removeprefix(f"{call.__name__}: ")


def _asks_nothing(name: str, value: Any) -> bool:
    if name not in _ASK_NOTHING:
        return False
    value = str(value) if name == "img_dtype" and value is not None else plain(value)
    return value is None or (isinstance(value, (bool, int, float, str)) and value in _ASK_NOTHING[name])
