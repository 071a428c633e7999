"""Shape of a `torch.utils.data.DataLoader`: what its users, and the frameworks made for it, look for in a loader."""

from __future__ import annotations

from abc import abstractmethod
from typing import NoReturn, TypeVar

from dalirefurb.augment.recipe import Recipe
from dalirefurb.calls import DATA_LOADER
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.batch_tensors import BatchTensors
from dalirefurb.engine.loader_view import Mappable
from dalirefurb.errors import LoaderError
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source

Shape = TypeVar("Shape", bound="DataLoaderShape")

_ELSEWHERE = {
    **DATA_LOADER,
    "reuse_factor": "the planner has it: Refurbish(len(source), batch_size=64, reuse_factor=3)",
    "shards": "the planner has it: Refurbish(..., shards=8)",
    "seed": "the planner has it: Refurbish(..., seed=0)",
    "transform": "the second argument, a recipe, is what is done to images: rand_augment(224)",
    "device": "partial_device= and final_device= say where images are made, 'cpu' or 'gpu'; CudaPrefetch(loader) "
    "copies batches to a GPU",
    "world_size": "pass rank=(rank, world_size)",
    **dict.fromkeys(("num_threads", "replicas", "look_ahead", "batches_per_group"), "pass prefetch=Prefetch({}=...)"),
    "batches_per_run": "pass prefetch=Prefetch(batches_per_group=...)",
    **dict.fromkeys(
        ("on_bad_sample", "quarantine", "fallback_decoder", "max_pixels", "retry_s"),
        "pass bad_samples=BadSamplePolicy({}=...)",
    ),
}


def refuse_unknown(names: list[str]) -> None:
    """Refuse arguments of other loaders, and say what takes their place here.

    Raises:
        TypeError: If there is one.
    """
    for name in names:
        remedy = _ELSEWHERE.get(name, "see help(Loader)").format(name)
        raise TypeError(f"Loader has no argument {name!r}: {remedy}")


class EpochSampler:
    """Stands for a loader's planner where a sampler is looked for, whose `set_epoch` many training loops call.

    Args:
        loader: Loader whose epoch is set.
        num_samples: Number of rows that an epoch has, at most.
    """

    def __init__(self, loader: DataLoaderShape, num_samples: int) -> None:
        self._loader = loader
        self._num_samples = num_samples

    def __len__(self) -> int:
        """Count the samples that can be served in an epoch."""
        return self._num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is served next, see `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)


class DataLoaderShape(Mappable):
    """What a loader is made of, under its own names and under those of PyTorch's `DataLoader`.

    Attributes:
        source: Source of the samples and labels.
        recipe: Recipe that says what is done to the samples.
        planner: Planner of the batches of all ranks.
    """

    source: Source
    recipe: Recipe
    planner: Planner
    _tensors: BatchTensors
    num_workers = 0
    collate_fn = None
    batch_sampler = None
    generator = None

    @property
    def dataset(self) -> Source:
        """The source."""
        return self.source

    @property
    def num_samples(self) -> int:
        """Samples of the source, those of all ranks together."""
        return self.planner.num_samples

    @property
    def with_indices(self) -> bool:
        """Whether a batch has a third part, the samples' indices."""
        return self._tensors.with_indices

    @property
    def pin_memory(self) -> bool:
        """Whether what is made on the CPU is put into pinned memory."""
        return self._tensors.pin_memory

    @property
    def drop_last(self) -> bool:
        """Whether samples that fill no batch wait for the next epoch."""
        return self.planner.drop_last or self.planner.shards > 1

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is served next."""

    @abstractmethod
    def close(self) -> None:
        """End what works for the loader."""

    @property
    def sampler(self) -> EpochSampler:
        """What stands for the planner where a sampler is looked for."""
        return EpochSampler(self, self.planner.num_samples)

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            f"a loader serves batches in the planner's order, not by index, got {index!r}: iterate it, for images, "
            f"labels in loader; loader.source[i] shows a sample; around a Loader there needs to be no DataLoader"
        )

    def __enter__(self: Shape) -> Shape:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise LoaderError(
            "a loader cannot be pickled or copied, since its threads and pipelines belong to one process: make "
            "it in the process that iterates, and pass on loader.state_dict() if it is to go on there"
        )

    def described(self, position: Position, kernels: str) -> str:
        """Say in one line what is served, from where on.

        Args:
            position: Position of the next batch.
            kernels: Name of what computes on the CPU.
        """
        planner, classes = self.planner, self.source.classes
        whole = "files" if self.recipe.encoded else "arrays"
        cached = " > ".join(stage.name for stage in self.recipe.partial) or f"{whole}, as they are read"
        return (
            f"Loader({planner.num_samples:,} samples{'' if classes is None else f' of {len(classes):,} classes'} by "
            f"{type(planner).__name__} in batches of {planner.batch_size:,}, next: batch "
            f"{position.batch} of epoch {position.epoch}; {'cached' if planner.peak_slots else 'partial'}: {cached}; "
            f"kernels: {kernels})"
        )
