"""Calls: NumPy's numbers become Python's, and of wrong arguments is told what takes the argument's place here."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from abc import ABCMeta
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dalirefurb.checks import plain
from dalirefurb.errors import shortened

Function = TypeVar("Function", bound=Callable[..., Any])

_KEYWORD, _BY_PLACE = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD

DATA_LOADER: Mapping[str, str] = {
    "dataset": "the source is the data set, the loader's first argument: ImageFolder(root), or TorchDataset(dataset)",
    "batch_size": "the planner has it: Refurbish(len(source), batch_size=64, reuse_factor=3)",
    "shuffle": "planners shuffle, each epoch anew; Evaluate serves in the source's order",
    "sampler": "planners serve each sample once an epoch; for other weights or for some samples make "
    "source.subset(indices), indices drawn by the weights, and give it to planner and loader",
    "batch_sampler": "planners make the batches, by batch_size and drop_last; source.subset(indices) chooses samples",
    "num_workers": "threads take the place of processes: prefetch=Prefetch(num_threads=4) of the loader",
    "collate_fn": "batches are tensors already: loader.map(function) changes each, and Mix does MixUp and CutMix",
    "pin_memory": "the loader has it: Loader(..., pin_memory=True)",
    "drop_last": "the planner has it: Refurbish(..., drop_last=True)",
    "timeout": "nothing can time out, since errors of threads come to the loop by themselves",
    "worker_init_fn": "there are no worker processes, and all numbers are drawn by the planner's seed",
    "multiprocessing_context": "there are no worker processes",
    "generator": "the planner's seed is that of order and augmentation alike: Refurbish(..., seed=0)",
    "prefetch_factor": "prefetch=Prefetch(look_ahead=6) of the loader has it, in groups of batches",
    "persistent_workers": "threads live as long as the loader does",
    "pin_memory_device": "the loader has pin_memory=True, and CudaPrefetch(loader) copies batches to a GPU ahead",
    "in_order": "batches always come in the planner's order",
}
"""What takes the place of the arguments of PyTorch's `DataLoader`."""

INSTEAD: Mapping[str, str] = {
    **DATA_LOADER,
    "epochs": "a planner plans any number of epochs: for epoch in range(90): for images, labels in loader: ...",
    "num_epochs": "a planner plans any number of epochs: for epoch in range(90): for images, labels in loader: ...",
    "num_replicas": "shards=S divides a batch among ranks, and Loader(rank=(rank, world_size)) says which this is",
    "rank": "shards=S divides a batch among ranks, and Loader(rank=(rank, world_size)) says which this is",
    "shard_id": "Loader(rank=(rank, world_size)) says which rank this is, where no launcher's environment does",
    "random_shuffle": "planners shuffle, each epoch anew; Evaluate serves in the source's order",
    "last_batch_policy": "drop_last=True leaves out a smaller last batch, Evaluate(..., pad=True) fills it up",
    "Prefetch.num_workers": "threads take the place of processes: num_threads=4",
    "Prefetch.prefetch_factor": "it is look_ahead here",
    "shards": "the planner has it: Refurbish(..., shards=8)",
    "seed": "the planner has it: Refurbish(..., seed=0)",
    "Loader.device": "partial_device= and final_device= say where images are made, 'cpu' or 'gpu'; CudaPrefetch copies "
    "batches to a GPU",
    "Loader.world_size": "pass rank=(rank, world_size)",
    **{
        name: f"pass prefetch=Prefetch({name}=...) to the loader"
        for name in ("num_threads", "replicas", "look_ahead", "batches_per_group", "memory")
    },
    **{
        name: f"pass bad_samples=BadSamplePolicy({name}=...) to the loader"
        for name in ("on_bad_sample", "quarantine", "fallback_decoder", "max_pixels", "retry_s")
    },
    **dict.fromkeys(("Mix.alpha", "Mix.mixup_alpha", "Mix.cutmix_alpha"), "mixup= and cutmix= are alphas, 0 for never"),
    **dict.fromkeys(("Mix.prob", "Mix.switch_prob"), "each batch is mixed; with both alphas each step tosses a coin"),
    "Mix.smoothing": "it is label_smoothing here",
    "labels": "ImageFolder finds them in the names of folders, FileList(paths, labels) takes them",
    "reuse_factor": "the planner has it: Refurbish(len(source), batch_size=64, reuse_factor=3)",
    "num_ops": "it is layers here",
    "n": "it is layers here",
    "m": "it is magnitude here",
    "transform": "images are transformed by a recipe, the loader's second argument: rand_augment(224)",
    "target_transform": "labels are numbers in an array: change source.labels",
    "loader": "images are decoded by DALI, see Recipe",
    "is_valid_file": "list the files: FileList(paths, labels)",
    "antialias": "images are always resized with anti-aliasing",
    "CreateTransform.aa": "it is auto_augment here",
    "CreateTransform.reprob": "it is re_prob here",
    "CreateTransform.remode": "it is re_mode here",
    "CreateTransform.recount": "it is re_count here",
    "CreateTransform.train_interpolation": "it is interpolation here",
    "CreateTransform.img_size": "it is input_size here",
    "CreateTransform.distributed": "the planner divides batches among ranks: Refurbish(..., shards=8)",
    "CreateTransform.device": "TimmLoader(loader, device=device) moves batches",
    **dict.fromkeys(
        ("CreateTransform.img_dtype", "CreateTransform.fp16"),
        "the output has a dtype: Recipe.from_timm(...).with_output(dtype='bfloat16')",
    ),
    **dict.fromkeys(
        ("CreateTransform.re_split", "CreateTransform.num_aug_splits", "CreateTransform.num_aug_repeats"),
        "a sample is served once an epoch, and all images of a batch are augmented alike: leave it out",
    ),
    "CreateTransform.mixup": "batches are mixed after the loader: dalirefurb.Mix(num_classes, mixup=...)",
    "CreateTransform.cutmix": "batches are mixed after the loader: dalirefurb.Mix(num_classes, cutmix=...)",
    "crop_size": "it is size here",
    "resize_size": "it is resize here",
    "hflip_prob": "it is flip here",
    "auto_augment_policy": "presets are functions: rand_augment(), auto_augment(), trivial_augment()",
    "size_limit": "it is max_bytes here",
    "memory_limit": "it is max_bytes here",
    **dict.fromkeys(
        ("dali_iterator.reader_name", "dali_iterator.size"),
        "the planner knows the number of samples, and the loader which rank it is: leave it out",
    ),
    **dict.fromkeys(
        ("dali_iterator.fill_last_batch", "dali_iterator.last_batch_padded"),
        "pass last_batch_policy, which must be what the planner does",
    ),
    "dali_iterator.dynamic_shape": "images of a batch are of one size: leave it out",
    "dali_iterator.prepare_first_batch": "the loader begins when it is first iterated: leave it out",
    "dali_iterator.pipelines": "the loader takes their place: leave it out",
    "Standard.reuse_factor": "Standard reuses nothing, Refurbish(..., reuse_factor=3) does",
}
"""What takes the place of an argument that is not there."""

NEEDED: Mapping[str, str] = {
    "labels": "pass a number for each sample; ImageFolder finds them in the names of folders",
    "reuse_factor": "how often each version is used, 2 or 3; Standard(...) reuses nothing",
    "batch_size": "rows of a batch, of all ranks together",
    "path": "pass a file to be made, on a fast local disk",
    "sources": "pass them in a list: Concat([one, other])",
}
"""What is to be passed for an argument that is missing."""

_ALIKE = 0.75
"""How alike a misspelt argument and the one that is meant are at least, 0..1; `sampler` and `num_samples` are less."""

_RENAMED = re.compile(r"it is (\w+) here")


def explained(
    call: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> TypeError | None:
    """Return an error that tells how to call what was called with wrong arguments; None if they were right.

    Args:
        call: Function that was called, or the signature's owner, without `self`.
        name: Name that users know it by.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
    """
    signature = inspect.signature(call)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return TypeError(f"{name}: {_refusal(name, signature, args, kwargs) or error}")
    return None


def _refusal(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    parameters = signature.parameters
    by_place = [each for each, parameter in parameters.items() if parameter.kind == _BY_PLACE]
    required = [each for each, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    for unknown in (each for each in kwargs if each not in parameters):
        near = difflib.get_close_matches(unknown, parameters, 1, _ALIKE)
        other = f"it is {near[0]} here" if near else f"it takes {', '.join(parameters) or 'none'}"
        told = INSTEAD.get(f"{name}.{unknown}") or INSTEAD.get(unknown, other)
        renamed = _RENAMED.fullmatch(told)  # Such advice is for what has the other argument.
        return f"there is no argument {unknown!r}: {other if renamed and renamed[1] not in parameters else told}"
    if len(args) > len(by_place):
        if name == "Concat":
            return f"one argument is taken, got {len(args)}: {NEEDED['sources']}"
        free = [each for each, parameter in parameters.items() if parameter.kind == _KEYWORD and each not in kwargs]
        free.sort(key=lambda each: each not in required)
        named = [f"{each}={value!r:.40}" for each, value in zip(free, args[len(by_place) :], strict=False)]
        meant = ", ".join([*(f"{value!r:.40}" for value in args[: len(by_place)]), *named])
        most = f"{len(by_place)} at most can" if by_place else "none can"
        return f"of its arguments {most} be given without a name, got {len(args)}: write such as {name}({meant})"
    missing = [each for each in required if each not in kwargs and each not in by_place[: len(args)]]
    if missing:
        alone = len(missing) == 1
        told = "; ".join(NEEDED[each] if alone else f"{each}: {NEEDED[each]}" for each in missing if each in NEEDED)
        return f"{' and '.join(missing)} must be given{f': {told}' if told else ''}"
    return None


class Explained(ABCMeta):
    """Class of classes whose constructors explain wrong arguments.

    It stands between a constructor and its caller: a warning's `stacklevel` counts it.
    """

    if not TYPE_CHECKING:  # Which would take this for every constructor's signature.

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Make one; explain if the arguments cannot be taken."""
            try:
                return super().__call__(*args, **kwargs)
            except Exception as error:
                # One from within a constructor that was called rightly, or from an abstract class, stays as it is.
                made = functools.partial(cls.__init__, None)
                if isinstance(error, TypeError) and (told := explained(made, cls.__name__, args, kwargs)) is not None:
                    raise told from None
                raise shortened(error)  # noqa: B904 - it is this one

        @property
        def __signature__(cls) -> inspect.Signature:
            return inspect.signature(functools.partial(cls.__init__, None))


class TakesNumbers(Explained):
    """Class of classes that are made of Python's numbers and tuples, so that fingerprints are JSON; see `plain`."""

    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Make one."""
            return super().__call__(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})


def explains(function: Function) -> Function:
    """Have a function explain wrong arguments, and take numbers as `TakesNumbers` does."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})
        except TypeError:
            explanation = explained(function, function.__name__, args, kwargs)
            if explanation is None:
                raise
            raise explanation from None

    return called  # type: ignore[return-value]
