"""MONAI's SmartCache: a loader made by the arguments of `monai.data.SmartCacheDataset`, for 2-D images.

    dataset = SmartCacheDataset(data, transform, replace_rate=0.2, cache_num=512)      MONAI
    loader = DataLoader(dataset, batch_size=16, shuffle=True)

    loader = smart_cache(data, recipe, replace_rate=0.2, cache_num=512, batch_size=16) here

The samples of every epoch are those of MONAI's window over the same running order. MONAI itself is not imported.
Written for MONAI 1.6.1.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from dalirefurb.augment.recipe import Recipe
from dalirefurb.calls import explains
from dalirefurb.checks import integer, number, require
from dalirefurb.engine.loader_view import MappedLoader, WithNames
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.engine.rank import Rank
from dalirefurb.errors import ConfigurationError
from dalirefurb.loader import Loader
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.source import Arrays, FileList, Source
from dalirefurb.store import MemoryStore, Store


class SmartCacheLoader(MappedLoader):
    """Serves a loader's batches as mappings of images and labels, with the methods of a `SmartCacheDataset`.

    Its length counts the batches of an epoch; that of MONAI's dataset is `len(loader.dataset)` here.

    The window moves on with each epoch by itself, so `start`, `update_cache` and `shutdown` need not be called; they do
    nothing.

    Args:
        loader: Loader that serves the batches.
        keys: Keys of images and labels in a batch.

    Attributes:
        loader: Loader that serves the batches.
        keys: Keys of images and labels in a batch.
    """

    def __init__(self, loader: Loader, keys: tuple[str, str] = ("image", "label")) -> None:
        super().__init__(loader, WithNames(keys))
        self.keys = keys

    def start(self) -> None:
        """Do nothing: the loader's threads begin with the first epoch."""

    def update_cache(self) -> None:
        """Do nothing: the next epoch is of the next window in any case."""

    def shutdown(self) -> None:
        """Do nothing, so that training can go on; `loader.close()` ends threads and pipelines."""


@explains
def smart_cache(
    data: Sequence[Mapping[str, Any]] | Source,
    transform: Recipe,
    replace_rate: float = 0.1,
    cache_num: int = sys.maxsize,
    cache_rate: float = 1.0,
    num_init_workers: int | None = None,
    num_replace_workers: int | None = None,
    progress: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    copy_cache: bool = True,
    as_contiguous: bool = True,
    runtime_cache: bool = False,
    *,
    batch_size: int,
    shards: int = 1,
    store: Store | None = None,
    rank: Rank | tuple[int, int] | None = None,
    keys: tuple[str, str] = ("image", "label"),
) -> SmartCacheLoader:
    """Make a loader by the arguments of `SmartCacheDataset`.

    What comes before the first random stage is cached, as MONAI caches what comes before its first random transform.

    Args:
        data: Samples, each a mapping with the path of an image file, or an array, uint8 of shape (height, width, 3) and
            the same for all, and with a numeric label; or a source.
        transform: Recipe that says what is done to the images; its split does not matter. MONAI's transforms are none.
        replace_rate: Share of the window that is replaced after each epoch, in 0..1; with 0 the first window stays.
        cache_num: Samples of the window.
        cache_rate: Share of the data that the window holds at most, in 0..1.
        num_init_workers: CPU threads. Here the same threads fill the window and replace its samples, so it is the
            larger one of the two numbers; None: as many as there are cores.
        num_replace_workers: CPU threads, see `num_init_workers`.
        progress: Not used: the window is filled while the first epoch is served.
        shuffle: Whether the running order is drawn by `seed`; False: it is the order of `data`. Each epoch's samples
            are shuffled in any case.
        seed: Seed of all random numbers.
        copy_cache: Not used: cached images are never changed.
        as_contiguous: Not used: batches are contiguous.
        runtime_cache: False, as it has to be in MONAI.
        batch_size: Rows of a batch, of all ranks together.
        shards: Number of parts of a batch, see `SmartCache`; with more than 1, ranks share the window.
        store: Store for the window; a `MemoryStore` if None.
        rank: Place among the processes that share the window, see `Loader`; (0, 1) where each has data of its own,
            as by `monai.data.partition_dataset`.
        keys: Keys of images and labels, in `data` and in batches.

    Raises:
        ConfigurationError: If an argument has no meaning here, or the parts do not fit together.
        TypeError: If there is no such argument.
    """
    if not isinstance(transform, Recipe):
        raise ConfigurationError(
            f"transform must be a dalirefurb Recipe, got {type(transform).__name__}: MONAI's transforms work on one "
            f"sample at a time in Python, so take a preset such as simple(224), or Custom for operators of your own"
        )
    require(runtime_cache is False, "runtime_cache", "False", runtime_cache, "leave it out, as in MONAI")
    _check_workers(num_init_workers, num_replace_workers)
    source = data if isinstance(data, Source) else _source(data, keys)
    rate = number("replace_rate", replace_rate, "in 0..1", lambda share: 0 <= share <= 1, "pass 0.1 for 10 %")
    window = _window(len(source), cache_num, cache_rate, batch_size)
    planner = SmartCache(
        len(source), batch_size=batch_size, num_cache_objects=window, replace_percent=rate, seed=seed, shards=shards
    )
    if not shuffle:
        require(shards == 1, "shards", "1 where shuffle is False", shards, "leave shuffle out: ranks draw the order")
        # The planner's order deals the samples by its seed: this puts sample i of the data at place i of that order.
        source = source.subset(np.argsort(planner.members(0, np.arange(len(source)))))
    workers = [count for count in (num_init_workers, num_replace_workers) if count is not None]
    loader = Loader(
        source,
        transform.at(transform.deterministic_prefix),
        planner,
        MemoryStore() if store is None else store,
        prefetch=Prefetch(num_threads=max(1, *workers) if workers else None),
        rank=rank,
    )
    return SmartCacheLoader(loader, keys)


def _check_workers(*counts: int | None) -> None:
    for name, count in zip(("num_init_workers", "num_replace_workers"), counts, strict=True):
        if count is not None:
            integer(name, count, None, None, "pass the number of threads, or None")


def _window(num_samples: int, cache_num: int, cache_rate: float, batch_size: int) -> int:
    """Return the samples of the window, as MONAI counts them."""
    cache_num = integer("cache_num", cache_num, 0, None, "pass the number of samples that are cached")
    share = number("cache_rate", cache_rate, "in 0..1", lambda share: 0 <= share <= 1, "pass 0.5 for a half")
    window = min(cache_num, int(num_samples * share), num_samples)
    if window < integer("batch_size", batch_size, 1, None, "pass the rows of a batch"):
        raise ConfigurationError(
            f"the window must fill a batch, but holds {window} samples, the least of cache_num={cache_num}, "
            f"cache_rate={share:g} of {num_samples} and all, and a batch has {batch_size}: pass a larger cache_num or "
            f"cache_rate, or a smaller batch_size"
        )
    return window


def _source(data: Sequence[Mapping[str, Any]], keys: tuple[str, str]) -> Source:
    """Make a source of MONAI's list of mappings."""
    image, label = keys
    for index, sample in enumerate(data):
        if not isinstance(sample, Mapping) or image not in sample or label not in sample:
            raise ConfigurationError(
                f"data must be a source, or mappings with {image!r} and {label!r}, but sample {index} is {sample!r}: "
                f"pass keys=(..., ...) if they are called otherwise"
            )
        if isinstance(sample[label], (str, bytes)):
            raise ConfigurationError(
                f"labels must be numbers, but {label!r} of sample {index} is {sample[label]!r}: masks are not served, "
                f"and names are numbered by np.unique(labels, return_inverse=True)[1]"
            )
    images, labels = [sample[image] for sample in data], [sample[label] for sample in data]
    if images and all(isinstance(each, np.ndarray) for each in images):
        shapes = sorted({each.shape for each in images})
        require(len(shapes) == 1, "arrays", "of one shape", shapes[:2], "write them as files, or resize them before")
        return Arrays(np.stack(images), labels)
    for index, each in enumerate(images):
        known = isinstance(each, (str, PathLike))
        require(known, f"{image!r} of sample {index}", "a path, or all of them arrays", each, "pass images of one kind")
    return FileList(images, labels)
