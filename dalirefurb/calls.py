"""Calls: NumPy's numbers become Python's, and of wrong arguments and names is told what takes their place here."""

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

Words = Mapping[str, str]
"""What takes the place of words from elsewhere, by the word."""

_KEYWORD, _BY_PLACE = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_BOUND = ("self", "cls")

DATA_LOADER: Words = {
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

INSTEAD: Words = {
    **DATA_LOADER,
    "epochs": "a planner plans any number of epochs: for epoch in range(90): for images, labels in loader: ...",
    "num_epochs": "a planner plans any number of epochs: for epoch in range(90): for images, labels in loader: ...",
    "num_replicas": "shards=S divides a batch among ranks, and Loader(rank=(rank, world_size)) says which this is",
    "rank": "shards=S divides a batch among ranks, and Loader(rank=(rank, world_size)) says which this is",
    "world_size": "pass rank=(rank, world_size) to the loader",
    "shard_id": "Loader(rank=(rank, world_size)) says which rank this is, where no launcher's environment does",
    "device": "partial_device= and final_device= say where images are made, 'cpu' or 'gpu'; CudaPrefetch copies "
    "batches to a GPU",
    "random_shuffle": "planners shuffle, each epoch anew; Evaluate serves in the source's order",
    "last_batch_policy": "drop_last=True leaves out a smaller last batch, Evaluate(..., pad=True) fills it up",
    "shards": "the planner has it: Refurbish(..., shards=8)",
    "seed": "the planner has it: Refurbish(..., seed=0)",
    **{
        name: f"pass prefetch=Prefetch({name}=...) to the loader"
        for name in ("num_threads", "replicas", "look_ahead", "batches_per_group", "memory")
    },
    **{
        name: f"pass bad_samples=BadSamplePolicy({name}=...) to the loader"
        for name in ("on_bad_sample", "quarantine", "max_pixels", "retry_s")
    },
    "labels": "ImageFolder finds them in the names of folders, FileList(paths, labels) takes them",
    "reuse_factor": "the planner has it: Refurbish(len(source), batch_size=64, reuse_factor=3), not Standard, which "
    "reuses nothing",
    "num_ops": "it is layers here",
    "n": "it is layers here",
    "m": "it is magnitude here",
    **dict.fromkeys(
        ("transform", "transforms"),
        "images are transformed by a recipe, the loader's second argument: rand_augment(224)",
    ),
    "target_transform": "labels are numbers in an array: change source.labels before the loader is made",
    "loader": "images are decoded by DALI, see Recipe",
    "is_valid_file": "list the files: FileList(paths, labels)",
    "antialias": "images are always resized with anti-aliasing",
    "crop_size": "it is size here",
    "resize_size": "it is resize here",
    "hflip_prob": "it is flip here",
    "auto_augment_policy": "presets are functions: rand_augment(), auto_augment(), trivial_augment()",
    "size_limit": "it is max_bytes here",
    "memory_limit": "it is max_bytes here",
}
"""What takes the place of words whoever is asked for them; a class has others in a table `INSTEAD` of its own."""

NEEDED: Words = {
    "source": "pass ImageFolder(path) for a folder, Arrays(images, labels) for arrays",
    "recipe": "pass rand_augment(224), or another preset",
    "planner": "pass Refurbish(len(source), batch_size=64, reuse_factor=3), or another one",
    "store": "pass MemoryStore(), or DiskStore(path)",
    "prefetch": "pass Prefetch(num_threads=4), or leave it out",
    "bad_samples": "pass BadSamplePolicy('replace')",
    "labels": "pass a number for each sample; ImageFolder finds them in the names of folders",
    "reuse_factor": "how often each version is used, 2 or 3; Standard(...) reuses nothing",
    "batch_size": "rows of a batch, of all ranks together",
    "path": "pass a file to be made, on a fast local disk",
    "sources": "pass them in a list: Concat([one, other])",
}
"""What is to be passed for an argument; a class says of its own in a table `NEEDED`."""

_ALIKE = 0.75
"""How alike a misspelt argument and the one that is meant are at least, 0..1; `sampler` and `num_samples` are less."""

_RENAMED = re.compile(r"it is (\w+) here")


def instead(owner: Any, word: str) -> str | None:
    """Return what takes the place of a word from elsewhere, such as an argument, where a class or function is asked.

    What the table `INSTEAD` of a class says comes first. None if it is not known.
    """
    return getattr(owner, "INSTEAD", {}).get(word) or INSTEAD.get(word)


def no_argument(owner: Any, name: str) -> str:
    """Say that a class or function has no such argument, and what is meant."""
    parameters = _signature(owner).parameters
    near = difflib.get_close_matches(name, parameters, 1, _ALIKE)
    other = f"it is {near[0]} here" if near else f"it takes {', '.join(parameters) or 'none'}"
    told = instead(owner, name) or other
    renamed = _RENAMED.fullmatch(told)  # Such advice is for what has the other argument.
    return f"there is no argument {name!r}: {other if renamed and renamed[1] not in parameters else told}"


def _signature(owner: Any) -> inspect.Signature:
    """Return the signature of a class or function, of a method as who calls it sees it."""
    signature = inspect.signature(owner)
    return signature.replace(parameters=[each for name, each in signature.parameters.items() if name not in _BOUND])


def _explained(owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TypeError | None:
    """Return an error that tells how to call what was called with wrong arguments; None if they were right."""
    signature = _signature(owner)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return TypeError(f"{owner.__name__}: {_refusal(owner, signature, args, kwargs) or error}")
    return None


def _refusal(owner: Any, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    parameters, needed = signature.parameters, {**NEEDED, **getattr(owner, "NEEDED", {})}
    by_place = [each for each, parameter in parameters.items() if parameter.kind == _BY_PLACE]
    required = [each for each, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    if unknown := [each for each in kwargs if each not in parameters]:
        return no_argument(owner, unknown[0])
    if len(args) > len(by_place):
        free = [each for each, parameter in parameters.items() if parameter.kind == _KEYWORD and each not in kwargs]
        free.sort(key=lambda each: each not in required)
        meant = dict(zip(free, map(_short, args[len(by_place) :]), strict=False))
        told = needed.get(next(reversed(by_place), ""), "leave the others out")
        if free:
            told = _call(owner, args[: len(by_place)], meant)
        most = f"{len(by_place)} at most can" if by_place else "none can"
        return f"of its arguments {most} be given without a name, got {len(args)}: {told}"
    missing = [each for each in required if each not in kwargs and each not in by_place[: len(args)]]
    if missing:
        alone = len(missing) == 1
        helps = [needed[each] if alone else f"{each}: {needed[each]}" for each in missing if each in needed]
        given = {name: _short(value) for name, value in kwargs.items()} | dict.fromkeys(missing, "...")
        return f"{' and '.join(missing)} must be given: {'; '.join([*helps, _call(owner, args, given)])}"
    return None


def _call(owner: Any, args: tuple[Any, ...], named: Mapping[str, str]) -> str:
    """Say how to write a call."""
    meant = [*map(_short, args), *(f"{name}={value}" for name, value in named.items())]
    return f"write such as {owner.__name__}({', '.join(meant)})"


def _short(value: object) -> str:
    return " ".join(repr(value).split())[:40]


class Explained(ABCMeta):
    """Class of classes whose constructors explain wrong arguments.

    What takes the place of words that users know from elsewhere is in a class's table `INSTEAD`, see `instead`; what is
    to be passed in its table `NEEDED`.
    It stands between a constructor and its caller: a warning's `stacklevel` counts it.
    """

    if not TYPE_CHECKING:  # Which would take this for every constructor's signature.

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Make one; explain if the arguments cannot be taken."""
            try:
                return super().__call__(*args, **kwargs)
            except Exception as error:
                # One from within a constructor that was called rightly, or from an abstract class, stays as it is.
                if isinstance(error, TypeError) and (told := _explained(cls, args, kwargs)) is not None:
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
    """Have a function or method explain wrong arguments, and take numbers as `TakesNumbers` does."""
    bound = sum(name in _BOUND for name in inspect.signature(function).parameters)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})
        except TypeError:
            explanation = _explained(function, args[bound:], kwargs)
            if explanation is None:
                raise
            raise explanation from None

    return called  # type: ignore[return-value]
