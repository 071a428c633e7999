"""How many batches are in a group by default, and how many pipelines and groups there are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dalirefurb.engine.prefetch as prefetch_module
from dalirefurb import (
    Arrays,
    AutoAssist,
    BadSamplePolicy,
    FileList,
    ImageFolder,
    Loader,
    MemoryStore,
    Output,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
    rand_augment,
    simple,
)
from dalirefurb.augment import CenterCrop, Resize
from dalirefurb.dali import Graph
from dalirefurb.engine import backend_factory
from dalirefurb.engine.backend_factory import BackendFactory
from dalirefurb.engine.configuration import Configuration
from dalirefurb.engine.finisher import Finisher
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.engine.kernel_choice import Devices
from dalirefurb.engine.preparer import Prepared
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning import Frozen
from dalirefurb.source import Source
from tests.pictures import write_folder

NUM_SAMPLES = 64 * 128


def batches_per_group(num_batches: int, batch_size: int, given: int | None = None, pixels: int | None = None) -> int:
    planner = Standard(num_batches * batch_size, batch_size=batch_size)
    return Prefetch(num_threads=2, batches_per_group=given).depths(planner, pixels=pixels).batches_per_group


@pytest.mark.parametrize(
    ("batch_size", "expected"), [(1, 256), (64, 4), (85, 3), (86, 2), (128, 2), (129, 1), (256, 1), (1024, 1)]
)
def test_of_a_long_epoch_as_many_batches_run_together_as_fit_into_256_rows(batch_size: int, expected: int) -> None:
    assert batches_per_group(2000, batch_size) == expected


@pytest.mark.parametrize(
    ("side", "batch_size", "expected"),
    [
        (32, 128, 16),
        (32, 3000, 1),
        (79, 1, 2048),
        (80, 1, 2007),
        (112, 64, 16),
        (128, 128, 6),
        (224, 64, 4),
        (999, 64, 4),
    ],
)
def test_of_arrays_as_many_more_run_together_as_they_are_smaller(side: int, batch_size: int, expected: int) -> None:
    assert batches_per_group(9000, batch_size, pixels=side * side) == expected


@pytest.mark.parametrize(("num_batches", "expected"), [(1, 1), (3, 1), (7, 1), (8, 2), (15, 3), (16, 4), (17, 4)])
def test_no_more_than_a_quarter_of_a_short_epoch_runs_together(num_batches: int, expected: int) -> None:
    assert batches_per_group(num_batches, 64) == expected


@pytest.mark.parametrize(("side", "expected"), [(64, 8), (224, 8), (288, 4), (320, 4), (640, 4), (1280, 4)])
def test_of_images_that_are_served_large_fewer_run_together_but_128_rows(side: int, expected: int) -> None:
    depths = Prefetch(num_threads=2).depths(Standard(64_000, batch_size=32), served=side * side)
    assert depths.batches_per_group == expected


@pytest.mark.parametrize(("lag", "look_ahead", "planned"), [(8, 1, 7), (9, 1, 7), (10, 2, 9)])
def test_no_batch_is_planned_before_the_losses_that_it_depends_on(lag: int, look_ahead: int, planned: int) -> None:
    """One is handed over, two wait for the final part and two for the partial one; the store is told of no more."""
    planner = AutoAssist(Standard(64, batch_size=4), lag=lag)
    depths = Prefetch(num_threads=2).depths(planner)
    assert (depths.look_ahead, depths.announced, depths.batches_planned) == (look_ahead, 0, planned)
    with pytest.raises(ConfigurationError, match="more than the 7 batches planned ahead, got 7: pass lag=8"):
        Prefetch(num_threads=2).depths(AutoAssist(Standard(64, batch_size=4), lag=7))


@pytest.mark.parametrize("num_threads", [1, 2, 8])
def test_where_kernels_do_all_three_groups_are_in_work_whatever_the_number_of_threads(num_threads: int) -> None:
    planner = Standard(8000, batch_size=4)
    depths = Prefetch(num_threads=num_threads).depths(planner, by_kernels=True)
    assert (depths.look_ahead, depths.partial_ahead) == (3, 2 if num_threads == 1 else 3)
    chosen = Prefetch(num_threads=num_threads, look_ahead=7).depths(planner, by_kernels=True)
    assert chosen.look_ahead == 7


def test_loaders_whose_stages_all_have_kernels_have_fewer_groups_in_work(tmp_path: Path) -> None:
    write_folder(tmp_path, num_samples=8)
    planner = Standard(8, batch_size=2)
    looked: dict[tuple[str, str], int] = {}
    for kernels in ("numba", "dali"):
        for serves in ("final", "partial"):
            whole = Configuration(
                source=ImageFolder(tmp_path),
                recipe=simple(16),
                planner=planner,
                stored=False,
                devices=Devices("cpu", "cpu"),
                kernels=kernels,  # type: ignore[arg-type]
                bad_samples=BadSamplePolicy(),
                pin_memory=False,
                serves=serves,  # type: ignore[arg-type]
            )
            looked[kernels, serves] = whole.depths(planner, Prefetch(num_threads=4)).look_ahead
    assert looked == {("numba", "final"): 3, ("numba", "partial"): 12, ("dali", "final"): 12, ("dali", "partial"): 12}


def test_as_many_batches_run_together_as_the_user_says() -> None:
    assert batches_per_group(8, 64, given=5) == 5
    assert batches_per_group(8, 64, given=5, pixels=1024) == 5


@pytest.mark.parametrize(
    ("num_batches", "batch_size", "look_ahead", "expected"),
    [
        (2000, 64, 6, (4, 8)),
        (2000, 256, 6, (1, 2)),
        (2000, 513, 6, (1, 1)),
        (7, 256, 6, (1, 1)),
        (2000, 256, 1, (1, 1)),
    ],
)
def test_where_all_rows_are_hits_twice_as_many_rows_run_together_within_what_is_made_ahead(
    num_batches: int, batch_size: int, look_ahead: int, expected: tuple[int, int]
) -> None:
    planner = Frozen(num_batches * batch_size, batch_size=batch_size)
    depths = Prefetch(num_threads=2, look_ahead=look_ahead).depths(planner, hits_together=True)
    assert (depths.batches_per_group, depths.hits_per_group) == expected
    chosen = Prefetch(num_threads=2, look_ahead=look_ahead, batches_per_group=3)
    depths = chosen.depths(planner, hits_together=True)
    assert (depths.batches_per_group, depths.hits_per_group) == (3, 3)


@pytest.mark.parametrize(
    ("devices", "apart", "expected"),
    [
        (("cpu", "cpu"), True, (8, 8, 24, 16)),
        (("cpu", "cpu"), False, (8, 8, 24, 16)),
        (("cpu", "gpu"), True, (8, 2, 4, 16)),
        (("cpu", "gpu"), False, (8, 8, 10, 10)),
        (("gpu", "gpu"), True, (2, 2, 4, 4)),
        (("gpu", "gpu"), False, (2, 2, 4, 4)),
    ],
)
def test_on_a_gpu_few_pipelines_work_and_few_groups_wait(
    devices: Any, apart: bool, expected: tuple[int, int, int, int]
) -> None:
    """But as many as there are threads where a pipeline begins on the CPU."""
    planner = Standard(8000, batch_size=4)
    depths = Prefetch(num_threads=8).depths(planner, devices=devices, apart=apart)
    assert (depths.replicas, depths.final_replicas, depths.look_ahead, depths.partial_ahead) == expected
    assert depths.replicas * depths.threads_each == depths.final_replicas * depths.final_threads_each == 8
    given = Prefetch(num_threads=8, replicas=3, look_ahead=5).depths(planner, devices=devices, apart=apart)
    assert (given.replicas, given.final_replicas, given.look_ahead, given.partial_ahead) == (3, 3, 5, 5)
    one = Prefetch(num_threads=8, look_ahead=1).depths(planner, devices=devices, apart=apart)
    assert one.partial_ahead == -(-expected[0] // expected[1])


def test_the_devices_decide_how_many_copies_of_each_part_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, tuple[int, int]] = {}

    class Counted:
        def __init__(self, graph: Graph, count: int, *, num_threads: int, **_: Any) -> None:
            made[graph.part] = count, num_threads

    monkeypatch.setattr(backend_factory, "Replicas", Counted)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    depths = Prefetch(num_threads=8).depths(Standard(64, batch_size=8), devices=("cpu", "gpu"), apart=True)
    factory = BackendFactory(simple(32), "dali", Devices("cpu", "gpu"), max_rows=8, depths=depths)
    factory.build("partial")
    factory.build_final(simple(32), InputBuilder(simple(32), seed=0, entering=None), None)
    assert made == {"partial": (8, 1), "final": (2, 4)}


@pytest.mark.parametrize(("split", "stored", "expected"), [(1, True, 2), (1, False, 8), (0, True, 8)])
def test_the_final_part_is_apart_where_partial_images_are_stored(split: int, stored: bool, expected: int) -> None:
    configuration: Any = SimpleNamespace(
        source=FileList(["a.jpg"] * 64, np.zeros(64)),
        recipe=simple(32).at(split),
        stored=stored,
        devices=Devices("cpu", "gpu"),
        kernels="dali",
        serves="final",
        views=(),
        finished_together=False,
    )
    configuration.apart = partial(Configuration.apart, configuration)
    depths = Configuration.depths(configuration, Refurbish(64, batch_size=8, reuse_factor=2), Prefetch(num_threads=8))
    assert depths.final_replicas == expected


def test_batches_of_hits_that_run_together_are_served_as_they_are_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(prefetch_module, "_ROWS_PER_GROUP", 4)
    lengths: list[int] = []
    most: list[int] = []

    def submit(finisher: Finisher, prepared: Prepared, submit: Any = Finisher._submit) -> None:
        lengths.append(len(prepared.cache_plan.group.plans))
        submit(finisher, prepared)

    def begun(finisher: Finisher, running: Any, begun: Any = Finisher._begun) -> int:
        most.append(sum(len(each.cache_plan.group.plans) for each in running))
        return int(begun(finisher, running))

    monkeypatch.setattr(Finisher, "_submit", submit)
    monkeypatch.setattr(Finisher, "_begun", begun)
    source = ImageFolder(write_folder(tmp_path, num_samples=36))
    recipe = rand_augment(32, order="crop_last")
    served = []
    for batches_per_group in (1, None):
        lengths.clear()
        planner = Frozen(36, batch_size=4)
        with Loader(
            source,
            recipe,
            planner,
            MemoryStore(),
            prefetch=Prefetch(batches_per_group=batches_per_group, num_threads=2),
        ) as loader:
            served.append([images for _ in range(4) for images, _ in loader])
            assert max(most) <= loader.batches_ahead
    assert lengths[:9] == [1] * 9
    assert lengths[9:14] == [2, 2, 2, 2, 1]
    assert all(torch.equal(one, other) for one, other in zip(*served, strict=True))


def raw(entering: int, size: int) -> tuple[Source, Recipe]:
    source = Arrays(np.zeros((NUM_SAMPLES, entering, entering, 3), np.uint8), np.zeros(NUM_SAMPLES))
    return source, Recipe([Resize(size), CenterCrop(size)], Output(size), split=2)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (raw(32, 32), 16),
        (raw(32, 112), 8),
        (raw(112, 32), 8),
        ((FileList(["a.jpg"] * NUM_SAMPLES, np.zeros(NUM_SAMPLES)), simple(32)), 2),
    ],
    ids=["small", "enlarged", "reduced", "encoded"],
)
def test_what_the_source_has_and_what_the_model_gets_decide(parts: tuple[Source, Recipe], expected: int) -> None:
    def ahead(batches_per_group: int | None) -> int:
        planner = Standard(NUM_SAMPLES, batch_size=128)
        with Loader(*parts, planner, prefetch=Prefetch(batches_per_group=batches_per_group)) as loader:
            return loader.batches_ahead

    assert ahead(None) == ahead(expected)
    assert ahead(None) != ahead(expected - 1)


def test_what_all_views_together_are_served_as_decides() -> None:
    source, recipe = FileList(["a.jpg"] * NUM_SAMPLES, np.zeros(NUM_SAMPLES)), simple(200).at(1)

    def ahead(views: tuple[Recipe, ...], batches_per_group: int | None = None) -> int:
        planner, prefetch = Standard(NUM_SAMPLES, batch_size=32), Prefetch(batches_per_group=batches_per_group)
        with Loader(source, recipe, planner, views=views, prefetch=prefetch) as loader:
            return loader.batches_ahead

    for views, expected in (((), 8), ((recipe.view(2),), 5)):
        assert ahead(views) == ahead(views, expected) != ahead(views, expected - 1)
