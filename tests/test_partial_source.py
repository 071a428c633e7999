"""Pipelines of DALI's users are fed cached partial images, and serve what a loader would."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, DALIGenericIterator, LastBatchPolicy

from dalirefurb import (
    Arrays,
    AutoAssist,
    BadSamplePolicy,
    Custom,
    Echo,
    Evaluate,
    ImageFolder,
    Loader,
    MemoryStore,
    Output,
    PartialSource,
    Prefetch,
    Recipe,
    Refurbish,
    SmartCache,
    Standard,
    TorchDataset,
    evaluate,
    rand_augment,
    simple,
)
from dalirefurb.augment import Decode, HorizontalFlip, KernelStage, RandomResizedCrop, Resize
from dalirefurb.errors import ConfigurationError, LoaderError, SampleError, StateMismatchError
from dalirefurb.planning import BatchEcho, Fresh
from dalirefurb.planning.planner import Planner
from dalirefurb.store import DeviceStore
from tests.in_turn import EACH_CHANGE, in_turn, weekly
from tests.pictures import write_folder

pytestmark = pytest.mark.usefixtures("traced_once")
COUNT, ROWS, SIZE, EPOCHS = 13, 4, 24, 4
ECHOED = BatchEcho(Standard(COUNT, batch_size=ROWS), echoing_factor=2)
RECIPE = rand_augment(SIZE)
FEW_OPERATORS = simple(SIZE)
"""DALI takes a second to build a graph of all the operations of the other one."""

QUICK = FEW_OPERATORS if EACH_CHANGE else RECIPE

Batch = tuple[bytes, ...]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("photographs"), num_samples=COUNT))


def refurbish(**options: Any) -> Refurbish:
    return Refurbish(COUNT, batch_size=ROWS, reuse_factor=2, seed=3, **options)


def bits(parts: Iterable[Any]) -> Batch:
    return tuple(np.asarray(part).tobytes() for part in parts)


def served(source: ImageFolder, recipe: Recipe, planner: Planner, **options: Any) -> list[list[Batch]]:
    """The epochs that a loader serves."""
    with Loader(source, recipe, planner, MemoryStore(), kernels="dali", **options) as loader:
        return [[bits(batch) for batch in loader] for _ in range(EPOCHS)]


def of_iterator(iterator: Any, epochs: int = EPOCHS) -> list[list[Batch]]:
    return [[bits(batch.values()) for (batch,) in iterator] for _ in range(epochs)]


def users_pipeline(samples: PartialSource, **options: Any) -> Any:
    """What the documentation says to write."""

    @pipeline_def(batch_size=samples.batch_size, num_threads=2, device_id=None, enable_conditionals=True)  # type: ignore[untyped-decorator]
    def graph() -> Any:
        images, labels, *parameters = fn.external_source(samples, num_outputs=samples.num_outputs, **options)
        return samples.final_graph(images, parameters), labels

    return graph()


PLANNERS: dict[str, Callable[[], Planner]] = {
    "refurbish": refurbish,
    "dropping": lambda: refurbish(drop_last=True),
    "standard": lambda: Standard(COUNT, batch_size=ROWS, seed=3),
    "echo": lambda: Echo(Standard(COUNT, batch_size=ROWS, seed=3), echoing_factor=2, buffer_size=6),
    "small batches": lambda: Refurbish(COUNT, batch_size=1, reuse_factor=3),
}


@pytest.mark.parametrize(("planner", "no_copy"), in_turn([*PLANNERS], [True, False]))
def test_a_users_pipeline_serves_what_a_loader_serves(source: ImageFolder, planner: str, *, no_copy: bool) -> None:
    plan, recipe = PLANNERS[planner], RECIPE if planner == "refurbish" else QUICK
    with PartialSource(source, recipe, plan(), MemoryStore(), kernels="dali") as samples:
        iterator = DALIGenericIterator(users_pipeline(samples, no_copy=no_copy), ["data", "label"], auto_reset=True)
        assert of_iterator(iterator) == served(source, recipe, plan())
        assert samples.stats().hits > 0 or planner == "standard"


def test_a_smart_cache_feeds_a_pipeline(source: ImageFolder) -> None:
    recipe = QUICK.at(QUICK.deterministic_prefix)
    planner = SmartCache(COUNT, batch_size=ROWS, num_cache_objects=8, replace_percent=0.5)
    with PartialSource(source, recipe, planner, MemoryStore(), kernels="dali") as samples:
        iterator = DALIGenericIterator(users_pipeline(samples), ["data", "label"], auto_reset=True)
        assert of_iterator(iterator) == served(source, recipe, planner)


@pytest.mark.parametrize("split", [1, *weekly("flip", "rand_augment_2"), 5])
def test_at_every_split(source: ImageFolder, split: int | str) -> None:
    """At split 1 images have sizes of their own; behind the last stage there are no parameters."""
    recipe = RECIPE.at(split)
    with PartialSource(source, recipe, refurbish(), MemoryStore(), kernels="dali") as samples:
        iterator = DALIGenericIterator(samples.pipeline(num_threads=2), ["data", "label"], auto_reset=True)
        assert of_iterator(iterator) == served(source, recipe, refurbish())


# One that holds all is in `test_at_every_split`.
@pytest.mark.parametrize(
    "store", [None, pytest.param(MemoryStore, marks=pytest.mark.weekly), lambda: MemoryStore(max_bytes=5000)]
)
def test_the_store_changes_nothing(source: ImageFolder, store: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = PartialSource(source, QUICK, refurbish(), store and store(), kernels="dali")
    with samples:
        iterator = DALIClassificationIterator(samples.pipeline(), auto_reset=True)
        assert of_iterator(iterator) == served(source, QUICK, refurbish())


def test_a_pipeline_can_be_run_without_an_iterator(source: ImageFolder) -> None:
    (first, second, *_) = served(source, QUICK, refurbish(), with_indices=True)
    with PartialSource(source, QUICK, refurbish(), MemoryStore(), kernels="dali", with_indices=True) as samples:
        pipeline = samples.pipeline()
        for epoch in (first, second):
            assert [bits(part.as_tensor() for part in pipeline.run()) for _ in epoch] == epoch
            with pytest.raises(StopIteration):
                pipeline.run()
            pipeline.reset()


def test_kernels_make_the_partial_part_by_default(source: ImageFolder) -> None:
    """All stages are partial: what is left to DALI is to normalise."""
    recipe = RECIPE.at(len(RECIPE.stages))
    with Loader(source, recipe, refurbish(), MemoryStore()) as loader:
        expected = [batch[0] for batch in loader]
    with PartialSource(source, recipe, refurbish(), MemoryStore()) as samples:
        assert samples.num_outputs == 2
        (iterator,) = (DALIGenericIterator(samples.pipeline(), ["data", "label"]),)
        for (batch,), images in zip(iterator, expected, strict=True):
            assert torch.allclose(batch["data"], images, atol=1e-5)


def test_any_operators_can_take_the_final_parts_place(source: ImageFolder) -> None:
    """Partial images are uint8, and stay what they were as long as somebody has them."""
    recipe = Recipe([Decode(), RandomResizedCrop(SIZE), HorizontalFlip()], Output(SIZE), split="flip")

    def epochs(kernels: Any, with_store: bool) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = PartialSource(source, recipe, refurbish(), MemoryStore() if with_store else None, kernels=kernels)
        with samples:

            @pipeline_def(batch_size=ROWS, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
            def graph() -> Any:
                images, labels, mirror = fn.external_source(
                    samples, num_outputs=3, no_copy=True, layout=["HWC", "", ""]
                )
                return images, fn.flip(images, horizontal=mirror), labels, mirror

            iterator = DALIGenericIterator(graph(), ["partial", "data", "label", "mirror"], auto_reset=True)
            return [batch for _ in range(EPOCHS) for (batch,) in iterator]

    kept = epochs(None, with_store=True)
    for batch, again in zip(kept, epochs(None, with_store=False), strict=True):
        assert batch["partial"].dtype == torch.uint8
        assert batch["partial"].shape[1:] == (SIZE, SIZE, 3)
        for image, flipped, mirror in zip(batch["partial"], batch["data"], batch["mirror"].tolist(), strict=True):
            assert torch.equal(flipped, image.flip(1) if mirror else image)
        assert all(torch.equal(batch[name], again[name]) for name in batch)


def test_a_graph_for_a_gpu_needs_none_to_be_made(source: ImageFolder) -> None:
    with PartialSource(source, RECIPE, refurbish(), MemoryStore()) as samples:

        @pipeline_def(batch_size=ROWS, num_threads=1, device_id=None, enable_conditionals=True)  # type: ignore[untyped-decorator]
        def graph() -> Any:
            images, labels, *parameters = fn.external_source(samples, num_outputs=samples.num_outputs)
            return samples.final_graph(images.gpu(), parameters), labels

        assert b"gpu" in graph().serialize()


def rest(epochs: list[list[Batch]], epoch: int, batch: int) -> list[Batch]:
    return [*epochs[epoch][batch:], *(each for later in epochs[epoch + 1 :] for each in later)]


@pytest.mark.parametrize(
    ("epoch", "batch"),
    [(1, 4), *weekly((0, 0), (0, 3), (1, 1), (3, 0))],
)
def test_it_goes_on_where_the_training_loop_was(source: ImageFolder, epoch: int, batch: int) -> None:
    """By the loop's own counts, however far ahead DALI is; also from a loader's state, and by a loader."""
    epochs = served(source, QUICK, refurbish())
    expected = rest(epochs, epoch + batch // 4, batch % 4)
    with PartialSource(source, QUICK, refurbish(), MemoryStore(), kernels="dali") as samples:
        iterator = DALIGenericIterator(samples.pipeline(), ["data", "label"], auto_reset=True)
        for _ in range(epoch):
            for _ in iterator:
                pass
        for _ in range(batch):
            next(iterator)
        state = samples.state_dict(epoch, batch)
    with PartialSource(source, QUICK, refurbish(), MemoryStore(), kernels="dali") as samples:
        samples.load_state_dict(state)
        assert (samples.epoch, state["batch"]) == (epoch + batch // 4, batch % 4)
        iterator = DALIGenericIterator(samples.pipeline(), ["data", "label"], auto_reset=True)
        assert [each for part in of_iterator(iterator, EPOCHS - epoch - batch // 4) for each in part] == expected
        with pytest.raises(ConfigurationError, match="before the first batch is taken, got 'one after it': load it"):
            samples.load_state_dict(state)
    with Loader(source, QUICK, refurbish(), MemoryStore(), kernels="dali") as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert [bits(each) for each in loader] == expected[: 4 - batch % 4]


def test_a_state_of_something_else_is_refused(source: ImageFolder) -> None:
    with PartialSource(source, RECIPE, refurbish(), MemoryStore()) as samples:
        state = samples.state_dict(1)
        with pytest.raises(ConfigurationError, match="batch must be"):
            samples.state_dict(0, 5)
        with pytest.raises(ConfigurationError, match="epoch must be"):
            samples.state_dict(-1)
    other = PartialSource(source, RECIPE.at("flip"), refurbish(), MemoryStore())
    with other, pytest.raises(StateMismatchError):
        other.load_state_dict(state)
    # Its final part is done by kernels, not by operators.
    loader = Loader(source, RECIPE, refurbish(), MemoryStore())
    with loader, pytest.raises(StateMismatchError, match="these differ: final;"):
        loader.load_state_dict(state)


def test_two_ranks_have_the_rows_of_one(source: ImageFolder) -> None:
    planner = refurbish(shards=2)
    whole = served(source, QUICK, planner, with_indices=True)
    ranks = []
    for rank in range(2):
        with PartialSource(source, QUICK, planner, MemoryStore(), kernels="dali", rank=(rank, 2)) as samples:
            assert (samples.batch_size, samples.epoch_size, len(samples)) == (2, 6, 3)
            iterator = DALIGenericIterator(samples.pipeline(), ["data", "label"], auto_reset=True)
            ranks.append(of_iterator(iterator))
    joined = [
        [tuple(map(bytes.__add__, *rows)) for rows in zip(*epochs, strict=True)] for epochs in zip(*ranks, strict=True)
    ]
    assert joined == [[batch[:2] for batch in epoch] for epoch in whole]


ARRAYS = Arrays(np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), np.uint8), np.arange(10))


def labels_of(iterator: Iterator[Any]) -> list[list[int]]:
    return [batch["label"].flatten().tolist() for (batch,) in iterator]


@pytest.mark.parametrize("policy", LastBatchPolicy)
def test_last_batches_are_as_behind_dalis_file_reader(tmp_path: Path, policy: LastBatchPolicy) -> None:
    """The same numbers: 10 samples in batches of 4, the last one padded, in both in the order of the files."""
    files = [str(file) for file in sorted(write_folder(tmp_path, num_samples=10, classes=1).rglob("*.jpg"))]

    @pipeline_def(batch_size=4, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def stock() -> Any:
        encoded, labels = fn.readers.file(files=files, labels=[*range(10)], pad_last_batch=True, name="Reader")
        return encoded.shape(), labels

    options: dict[str, Any] = {"last_batch_policy": policy, "auto_reset": True}
    theirs = DALIGenericIterator(stock(), ["data", "label"], reader_name="Reader", **options)
    planner = Standard(10, batch_size=4)
    with PartialSource(ARRAYS, simple(8, raw=True), planner, dali_labels=True, pad_last_batch=True) as samples:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = DALIGenericIterator(
                samples.pipeline(), ["data", "label"], size=samples.epoch_size, last_batch_padded=True, **options
            )
        for epoch in range(EPOCHS):
            served, expected = labels_of(ours), labels_of(theirs)
            order = np.concatenate([plan.indices for plan in planner.epoch(epoch)])
            assert served == [order[batch].tolist() for batch in expected]


def test_a_last_batch_of_partial_images_of_several_sizes_is_filled_up() -> None:
    various = TorchDataset([(np.full((20 + number, 24, 3), number, np.uint8), number) for number in range(5)])
    recipe = Recipe([HorizontalFlip(), RandomResizedCrop(8)], Output(8), split=1)
    with PartialSource(various, recipe, Standard(5, batch_size=3), pad_last_batch=True) as samples:
        _, (images, labels, *_) = samples(), samples()
    assert labels.tolist() == [labels[0], labels[1], labels[1]]
    assert [image.shape for image in images] == [(20 + label, 24, 3) for label in labels.tolist()]
    assert [set(image.flatten().tolist()) for image in images] == [{label} for label in labels.tolist()]


def test_without_padding_the_planner_says_what_becomes_of_the_last_batch() -> None:
    def sizes(planner: Planner, **options: Any) -> list[int]:
        with PartialSource(ARRAYS, simple(8, raw=True), planner, **options) as samples:
            iterator = DALIGenericIterator(samples.pipeline(), ["data", "label"], auto_reset=True)
            found = [[len(batch["label"]) for (batch,) in iterator] for _ in range(2)]
            assert found[0] == found[1]
            assert samples.epoch_size == min(10, sum(found[0]))
            assert len(samples) == len(found[0])
            return found[0]

    assert sizes(Standard(10, batch_size=4)) == [4, 4, 2]
    assert sizes(Standard(10, batch_size=4, drop_last=True)) == [4, 4]
    assert sizes(Standard(10, batch_size=4), pad_last_batch=True) == [4, 4, 4]


def test_rows_that_only_fill_up_have_index_minus_one() -> None:
    def indices(planner: Planner, **options: Any) -> list[list[int]]:
        recipe = evaluate(8, resize=8).for_arrays()
        with PartialSource(ARRAYS, recipe, planner, with_indices=True, **options) as samples:
            iterator = DALIGenericIterator(samples.pipeline(), ["data", "label", "index"])
            return [batch["index"].tolist() for (batch,) in iterator]

    assert indices(Evaluate(10, batch_size=4, pad=True))[-1] == [8, 9, -1, -1]
    assert indices(Evaluate(10, batch_size=4)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert indices(Standard(10, batch_size=4), pad_last_batch=True)[-1][2:] == [-1, -1]


def test_images_of_any_size_are_filled_up_with_the_last_one(source: ImageFolder) -> None:
    batches = []
    for pad in (False, True):
        planner = Standard(COUNT, batch_size=5)
        with PartialSource(source, FEW_OPERATORS.at(1), planner, kernels="dali", pad_last_batch=pad) as samples:
            batches.append([samples() for _ in range(len(samples))][-1])
    for plain, filled in zip(*batches, strict=True):
        assert (len(plain), len(filled)) == (3, 5)
        assert bits(filled) == bits([*plain, plain[-1], plain[-1]])


@pytest.mark.parametrize("planner", [Standard(10, batch_size=5), Standard(10, batch_size=4, drop_last=True)])
@pytest.mark.parametrize("kind", [lambda echo: echo, Fresh])
def test_an_echo_of_full_batches_alone_may_be_padded(planner: Planner, kind: Any) -> None:
    echo = kind(BatchEcho(planner, echoing_factor=2))
    with PartialSource(ARRAYS, simple(8, raw=True), echo, pad_last_batch=True) as samples:
        assert [len(samples()[1]) for _ in range(len(samples))] == [planner.batch_size] * 4


def test_labels_are_as_dalis_readers_have_them_if_asked_for() -> None:
    with PartialSource(ARRAYS, simple(8, raw=True), Standard(10, batch_size=4), dali_labels=True) as samples:
        ((batch,), *_) = DALIGenericIterator(samples.pipeline(), ["data", "label"])
    assert (batch["label"].dtype, batch["label"].shape) == (torch.int32, (4, 1))


def test_bad_samples_are_replaced(tmp_path: Path) -> None:
    root = write_folder(tmp_path, num_samples=COUNT)
    broken = sorted(root.rglob("*.jpg"))[5]
    broken.write_bytes(broken.read_bytes()[:300])
    source, policy = ImageFolder(root), BadSamplePolicy("replace")
    with PartialSource(source, RECIPE, refurbish(), MemoryStore(), kernels="dali", bad_samples=policy) as samples:
        iterator = DALIGenericIterator(samples.pipeline(), ["data", "label"], auto_reset=True)
        assert of_iterator(iterator) == served(source, RECIPE, refurbish(), bad_samples=policy)
        assert [each.index for each in samples.bad_samples()] == [5]


def test_an_error_is_raised_where_the_batch_is_asked_for(tmp_path: Path) -> None:
    root = write_folder(tmp_path, num_samples=COUNT)
    broken = sorted(root.rglob("*.jpg"))[5]
    broken.write_bytes(broken.read_bytes()[:300])
    samples = PartialSource(ImageFolder(root), RECIPE, refurbish(), MemoryStore())
    with samples, pytest.raises(SampleError, match=broken.name):
        samples.pipeline().run()


def _darken(image: Any, uniforms: Any, out: Any) -> None:
    for i in range(image.size):
        out.flat[i] = image.flat[i] // 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"recipe": RECIPE.at(0)}, "split 0 caches files"),
        ({"planner": AutoAssist(Standard(COUNT, batch_size=ROWS), lag=40)}, "AutoAssist chooses batches by the losses"),
        ({"store": DeviceStore(device="cpu")}, "partial images are given on the host, but a DeviceStore has them on a"),
        (
            {"views": 2},
            r"views must be a list of recipes, got 2: pass such as \[recipe\.view\(2\)\]; a Loader takes a num",
        ),
        ({"planner": Evaluate(COUNT, batch_size=ROWS), "pad_last_batch": True}, "pass Evaluate"),
        *(
            ({"planner": planner, "pad_last_batch": True}, "BatchEcho repeats a smaller one: pass drop_last=True")
            for planner in (ECHOED, Fresh(ECHOED))
        ),
        ({"planner": Evaluate(COUNT, batch_size=ROWS, pad=True)}, "with_indices=True"),
        (
            {"recipe": Recipe([*RECIPE.stages, KernelStage(_darken, "darken")], Output(SIZE), split=3)},
            "'darken' is run by kernels, but the final part is your pipeline's",
        ),
        (
            {"views": [Recipe([*RECIPE.stages, KernelStage(_darken, "darken")], Output(SIZE), RECIPE.split)]},
            "'darken' is run by kernels, but the final part is your pipeline's",
        ),
    ],
)
def test_what_cannot_be_is_refused(source: ImageFolder, change: dict[str, Any], told: str) -> None:
    parts: dict[str, Any] = {"recipe": RECIPE, "planner": refurbish(), **change}
    with pytest.raises(ConfigurationError, match=told):
        PartialSource(source, **parts)


def test_a_users_stage_in_the_final_part_leaves_the_partial_one_to_kernels(source: ImageFolder) -> None:
    half = Custom(lambda images: fn.brightness(images, brightness=0.5), "half")
    recipe = Recipe([Decode(), RandomResizedCrop(SIZE), HorizontalFlip(), half], Output(SIZE), split="flip")
    with PartialSource(source, recipe, refurbish(), MemoryStore()) as samples:
        assert repr(samples).startswith("PartialSource(13 samples of ")
        assert repr(samples).endswith("; kernels: numba)")
        of_iterator(DALIGenericIterator(samples.pipeline(), ["data", "label"], auto_reset=True))


def test_a_pipeline_without_conditionals_says_what_is_missing(source: ImageFolder) -> None:
    samples = PartialSource(source, RECIPE, refurbish(), MemoryStore())
    with samples, pytest.raises(TypeError, match="enable_conditionals=True"):
        samples.pipeline(enable_conditionals=False)


def test_parameters_that_are_missing_are_counted(source: ImageFolder) -> None:
    with PartialSource(source, RECIPE, refurbish(), MemoryStore()) as samples:

        @pipeline_def(batch_size=ROWS, num_threads=1, device_id=None, enable_conditionals=True)  # type: ignore[untyped-decorator]
        def graph() -> Any:
            images, labels, *parameters = fn.external_source(samples, num_outputs=samples.num_outputs)
            return samples.final_graph(images, parameters[1:]), labels

        with pytest.raises(TypeError, match="parameters must be all 2 of the final part, in their order, got 1"):
            graph()


def test_a_pipeline_has_the_threads_rows_and_device_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no CUDA device DALI makes no pipeline for one: it is made without, of the same graph."""
    given: list[dict[str, Any]] = []

    def hosted(graph: Any) -> Any:
        return lambda **options: given.append(options) or pipeline_def(graph)(**{**options, "device_id": None})

    monkeypatch.setattr("dalirefurb.partial_source.pipeline_def", hosted)
    options: dict[str, Any]
    for options, threads, device in (
        ({}, 6, None),
        ({"num_threads": 1, "batch_size": 7, "debug": False}, 1, None),
        ({"device_id": 0}, 6, 0),
        ({"device_id": 1, "num_threads": 2}, 2, 1),
    ):
        prefetch = Prefetch(num_threads=6, replicas=3)
        with PartialSource(ARRAYS, simple(8, raw=True), Standard(10, batch_size=4), prefetch=prefetch) as samples:
            pipeline = samples.pipeline(**options)
            assert (pipeline.num_threads, pipeline.max_batch_size) == (threads, options.get("batch_size", 4))
            assert given.pop()["device_id"] == device
            pipeline.serialize()
            assert pipeline._graph_outputs[0].device == ("cpu" if device is None else "gpu")


def test_what_is_closed_gives_nothing_any_more() -> None:
    with PartialSource(ARRAYS, simple(8, raw=True), Standard(10, batch_size=4)) as samples:
        samples()
    with pytest.raises(LoaderError, match="closed"):
        samples()


def test_after_an_interrupt_it_goes_on_with_the_batch_that_was_asked_for() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with PartialSource(ARRAYS, simple(8, raw=True), Standard(10, batch_size=4)) as samples:
        expected = [samples()[1].tolist() for _ in range(3)]
    with PartialSource(ARRAYS, simple(8, raw=True), Standard(10, batch_size=4)) as samples:
        found = [samples()[1].tolist()]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(samples._loader._assembler.engine, "take", interrupt)
            with pytest.raises(KeyboardInterrupt):
                samples()
        found += [samples()[1].tolist() for _ in range(2)]
        assert found == expected
        with pytest.raises(StopIteration):
            samples()
        assert (samples.epoch, sorted(samples()[1].tolist() != [] for _ in range(3))) == (1, [True] * 3)


def views_of(recipe: Recipe) -> tuple[Recipe, Recipe]:
    """A smaller one with a flip of its own, and one that flips as the first one does."""
    small = [*recipe.partial, HorizontalFlip(name="another_flip"), Resize(16)]
    same = [*recipe.partial, HorizontalFlip()]
    return Recipe(small, Output(16), recipe.split), Recipe(same, Output(SIZE, mean=0, std=1), recipe.split)


@pytest.mark.parametrize("split", [1, 2])
def test_views_are_further_outputs_of_the_same_samples(source: ImageFolder, split: int) -> None:
    """Each is what a loader of its recipe serves; at split 1 partial images vary in size."""
    stages = [Decode(), RandomResizedCrop(SIZE), HorizontalFlip()]
    recipe = Recipe(stages, Output(SIZE), split)
    views = views_of(Recipe(stages, Output(SIZE), 2))
    views = tuple(view.at(split) for view in views)  # type: ignore[assignment]
    expected = [served(source, each, refurbish()) for each in (recipe, *views)]
    with PartialSource(source, recipe, refurbish(), MemoryStore(), kernels="dali", views=views) as samples:
        names = ["data", "small", "same", "label"]
        iterator = DALIGenericIterator(samples.pipeline(), names, auto_reset=True)
        found = of_iterator(iterator)
        state = samples.state_dict(1)
    for place, epochs in enumerate(expected):
        assert [[(batch[place], batch[3]) for batch in epoch] for epoch in found] == epochs
    alone = PartialSource(source, recipe, refurbish(), MemoryStore(), kernels="dali")
    with alone, pytest.raises(StateMismatchError, match="views"):
        alone.load_state_dict(state)


def test_views_have_the_recipes_partial_part(source: ImageFolder) -> None:
    with pytest.raises(ConfigurationError, match="views must be recipes whose partial part is that of the recipe, got"):
        PartialSource(source, RECIPE, refurbish(), MemoryStore(), views=[simple(SIZE)])
    with pytest.raises(ConfigurationError, match="views must be recipes, got"):
        PartialSource(source, RECIPE, refurbish(), MemoryStore(), views=[HorizontalFlip()])  # type: ignore[list-item]


def test_a_source_has_one_pipeline(source: ImageFolder) -> None:
    with PartialSource(source, RECIPE, refurbish(), MemoryStore()) as samples:
        for name, given, told in (
            ("num_threads", 0, "an int of at least 1, got 0: leave it out"),
            ("device_id", "cpu", "an int of at least 0, got 'cpu': pass the number of a CUDA device, or leave it out"),
            ("batch_size", ROWS - 1, f"an int of at least {ROWS}, got {ROWS - 1}: leave it out"),
        ):
            with pytest.raises(ConfigurationError, match=f"^{name} must be {told}"):
                samples.pipeline(**{name: given})
        with pytest.raises(TypeError, match=r"none can be given without a name, got 1: .* pipeline\(num_threads=2\)"):
            samples.pipeline(2)  # type: ignore[misc]
        for name, told in (("depth", "it takes batch_size, num_threads, "), ("batch_siz", "it is batch_size here")):
            with pytest.raises(TypeError, match=f"^pipeline: there is no argument '{name}': {told}"):
                samples.pipeline(**{name: 3})
        with pytest.raises(TypeError, match="prefetch_queue_depth"):
            samples.pipeline(prefetch_queue_depth="deep")
        samples.pipeline(prefetch_queue_depth=np.int64(1))
        with pytest.raises(
            ConfigurationError, match=r"pipeline\(\) must be called once, got 'a second call': make a new"
        ):
            samples.pipeline()
