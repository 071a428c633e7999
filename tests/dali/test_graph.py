"""The graph: every placement can be constructed and serialised, also where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from nvidia.dali import fn
from nvidia.dali.pipeline import pipeline_def

from dalirefurb import Arrays, Evaluate, Loader, Output, Recipe, Standard, rand_augment, simple
from dalirefurb.augment.stage import Device
from dalirefurb.augment.stages import decode
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, RandomCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.resize import RandomResizedCrop, Resize
from dalirefurb.dali import Graph, GraphError, Part, Replica, Replicas, images_in
from dalirefurb.errors import ConfigurationError, LoaderError
from tests.in_turn import in_turn
from tests.pictures import jpeg, picture

RECIPES = {
    "simple": simple(64),
    "rand_augment": rand_augment(64),
    "rand_augment split after decoding": rand_augment(64, split=1),
    "rand_augment split at the end": rand_augment(64, split=5),
    "rand_augment bilinear float16": rand_augment(64, interpolation="bilinear", dtype="float16"),
    "crop_last": rand_augment(64, order="crop_last"),
    "crop_last split after decoding": rand_augment(64, order="crop_last", split=1),
    "raw": rand_augment(32, raw=True),
    "raw crop_last": rand_augment(32, order="crop_last", raw=True),
    "resize": Recipe([Decode(), Resize(80), RandomResizedCrop(64)], Output(64), split=2),
}
PLACEMENTS: list[tuple[Device, Device]] = [("cpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu")]


@pytest.mark.parametrize(
    ("name", "placement", "part"), in_turn(list(RECIPES), PLACEMENTS, ["partial", "final", "whole"])
)
def test_every_placement_serialises_without_a_warning(name: str, placement: tuple[Device, Device], part: Part) -> None:
    graph = Graph(RECIPES[name], part, *placement)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        blob = graph.serialize(max_batch_size=4, num_threads=1)
    assert len(blob) > 100
    assert not caught


@pytest.mark.parametrize("regions", [False, True])
@pytest.mark.parametrize("name", ["simple", "crop_last split after decoding"])
def test_a_gpu_decodes_windows_alone_only_where_its_decoder_can(
    name: str, regions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "REGIONS_ON_GPU", regions)
    windowed = name == "simple"
    blobs = {
        device: Graph(RECIPES[name], "partial", device, device).serialize(max_batch_size=4, num_threads=1)
        for device in get_args(Device)
    }
    assert (b"decoders__ImageSlice" in blobs["cpu"]) == windowed
    assert (b"decoders__ImageSlice" in blobs["gpu"]) == (windowed and regions)
    assert b"jpeg_fancy_upsampling" in blobs["gpu"]
    assert b"jpeg_fancy_upsampling" not in blobs["cpu"]


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("simple", ["sample", "random_resized_crop/start", "random_resized_crop/shape"]),
        ("rand_augment split after decoding", ["sample"]),
        ("resize", ["sample"]),
    ],
)
def test_decoding_alone_takes_the_window_of_a_crop_that_is_partial_too(name: str, inputs: list[str]) -> None:
    graph = Graph(RECIPES[name], "decoded")
    assert [declared.name for declared in graph.inputs] == inputs
    assert len(graph.serialize(max_batch_size=4, num_threads=1)) > 100


def test_decoding_alone_is_for_encoded_images_on_one_device() -> None:
    with pytest.raises(ConfigurationError, match="encoded images on one device, got a recipe for arrays"):
        Graph(RECIPES["raw"], "decoded")
    with pytest.raises(ConfigurationError, match="final_device='gpu': use 'partial'"):
        Graph(RECIPES["simple"], "decoded", "cpu", "gpu")


def test_what_is_decoded_alone_stays_where_it_was_decoded() -> None:
    for device in ("cpu", "gpu"):
        assert leaves_on(Graph(RECIPES["simple"].at(1), "decoded", device, device)) == device


def leaves_on(graph: Graph) -> str:
    pipeline: Any = pipeline_def(enable_conditionals=True)(graph.trace)(
        batch_size=4, num_threads=1, device_id=None, prefetch_queue_depth=1
    )
    pipeline.serialize()
    (output,) = pipeline._graph_outputs
    device: str = output.device
    return device


@pytest.mark.parametrize(("partial", "final"), PLACEMENTS)
def test_images_leave_on_the_final_device_and_partial_ones_on_the_host(partial: Device, final: Device) -> None:
    for part, device in (("partial", "cpu"), ("final", final), ("whole", final)):
        assert leaves_on(Graph(RECIPES["simple"], part, partial, final)) == device


def test_partial_images_can_stay_on_the_gpu() -> None:
    for name in ("rand_augment", "raw crop_last"):
        graph = Graph(RECIPES[name], "partial", "gpu", "gpu", leaving_device="gpu")
        assert leaves_on(graph) == "gpu"
        assert graph.serialize(max_batch_size=4, num_threads=2)
    for part, partial in (("final", "gpu"), ("partial", "cpu")):
        with pytest.raises(ConfigurationError, match="leaving_device='gpu' is for the partial part on the GPU"):
            Graph(RECIPES["simple"], part, partial, "gpu", leaving_device="gpu")


def test_partial_images_enter_on_the_gpu_only_where_the_final_part_is_there() -> None:
    parts: tuple[tuple[Part, Device], ...] = (("final", "cpu"), ("partial", "gpu"), ("whole", "gpu"))
    for part, final in parts:
        with pytest.raises(ConfigurationError, match="entering_device='gpu' is for the final part on the GPU"):
            Graph(RECIPES["simple"], part, "cpu", final, entering_device="gpu")


def test_a_final_part_on_the_host_after_a_partial_part_on_the_gpu_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"must be one of .*got \('gpu', 'cpu'\)"):
        Graph(RECIPES["simple"], "whole", "gpu", "cpu")


def test_inputs_of_different_lengths_are_refused_before_dali_sees_them() -> None:
    graph = Graph(Recipe([HorizontalFlip()], Output(8), split=0), "whole")
    replica = Replica.of(graph, graph.serialize(max_batch_size=4, num_threads=1), num_threads=1, device_id=None)
    image = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(LoaderError, match=r"same length.*'sample': 1.*'flip/mirror': 2"):
        replica.submit({"sample": [image], "flip/mirror": np.zeros(2, np.int32)})
    replica.submit({"sample": [image, image], "flip/mirror": np.zeros(2, np.int32)})
    assert replica.collect().as_tensor().shape() == [2, 3, 8, 8]


def test_what_each_copy_of_a_graph_had_to_do_is_forgotten_and_batches_come_in_order() -> None:
    graph = Graph(Recipe([HorizontalFlip()], Output(8, mean=0.0, std=1 / 255), split=0), "whole")
    replicas = Replicas(graph, 2, max_batch_size=1, num_threads=1, device_id=None)

    def submit(level: int) -> None:
        image = np.full((8, 8, 3), level, np.uint8)
        replicas.submit({"sample": [image], "flip/mirror": np.zeros(1, np.int32)})

    for levels in ((1, 2, 3), (4, 5), (6, 7, 8)):
        for level in levels:
            submit(level)
        assert sorted(len(each._fed) for each in replicas._replicas) == [len(levels) // 2, (len(levels) + 1) // 2]
        if levels[0] != 4:
            assert [int(replicas.collect().as_array().max()) for _ in levels] == [*levels]
        else:
            replicas.restart()
    alone = Replica.of(graph, graph.serialize(max_batch_size=1, num_threads=1), num_threads=1, device_id=None)
    alone.restart()
    with pytest.raises(LoaderError, match="a batch must be submitted before it is collected"):
        alone.collect()


@pytest.mark.parametrize("kind", [HorizontalFlip, RandomCrop])
def test_what_a_user_derives_from_a_stage_that_is_fused_does_what_it_says(kind: Any) -> None:
    class Darker(kind):  # type: ignore[misc]
        def apply(self, images: Any, parameters: Any) -> Any:
            return fn.brightness(kind.apply(self, images, parameters), brightness=0.5)

    source = Arrays(np.random.default_rng(0).integers(0, 256, (6, 12, 12, 3), np.uint8), np.arange(6))
    size, given = (12, {}) if kind is HorizontalFlip else (8, {"size": 8, "margin": 4})
    served = []
    for stage in (kind(**given), Darker(**given)):
        recipe = Recipe([stage], Output(size, mean=0.0, std=1.0), split=0)
        with Loader(source, recipe, Standard(6, batch_size=6), kernels="dali") as loader:
            served.append(next(iter(loader))[0])
    assert (served[1] - served[0] / 2).abs().max() <= 1 / 255


def test_a_crop_without_a_margin_is_the_whole_image() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 12, 3), np.uint8)
    recipe = Recipe([RandomCrop((8, 12), margin=0)], Output((8, 12), mean=0.0, std=1 / 255), split=0)
    with Loader(Arrays(images, np.arange(4)), recipe, Standard(4, batch_size=4), kernels="dali") as loader:
        served, labels = next(iter(loader))
    assert np.array_equal(served.permute(0, 2, 3, 1), images[labels])


@pytest.mark.parametrize(
    ("dtype", "channels", "channels_last"),
    [("float32", 1, False), ("bfloat16", 3, True), ("float16", 1, False), ("float16", 3, True), ("bfloat16", 1, False)],
)
def test_each_output_is_normalised_levels_in_its_type_and_layout(
    dtype: Any, channels: Any, channels_last: bool
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 6, 10, 3), np.uint8)
    means, stds = (np.array(each[:channels]) for each in ((0.5, 0.25, 0.375), (0.25, 0.5, 0.2)))
    output = Output((6, 10), dtype, tuple(means), tuple(stds), channels_last, channels)
    with Loader(
        Arrays(images, np.arange(4)), Recipe([], output, 0), Evaluate(4, batch_size=4), kernels="dali"
    ) as loader:
        ((served, _),) = loader
    levels = images.astype(np.float64)
    if channels == 1:
        levels = levels @ np.array([[0.299], [0.587], [0.114]])
    expected = torch.from_numpy((levels / 255 - means) / stds)
    found = served.permute(0, 2, 3, 1)
    assert found.is_contiguous() == (channels_last or channels == 1)
    assert (served.dtype, found.shape) == (getattr(torch, dtype), (4, 6, 10, channels))
    # Of grey levels DALI's are whole ones; half a level is left by rounding.
    least = 0.6 / 255 / stds.min() if channels == 1 else 1e-6
    most = {"float32": 1e-6, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    assert ((found.double() - expected).abs() <= most * expected.abs() + least + 1e-6).all()


def test_a_graph_needs_a_gpu_if_its_own_part_is_there() -> None:
    needed = {
        placement: [part for part in get_args(Part) if Graph(RECIPES["simple"], part, *placement).needs_gpu]
        for placement in PLACEMENTS
        if placement != ("cpu", "gpu")
    }
    assert needed == {("cpu", "cpu"): [], ("gpu", "gpu"): ["partial", "final", "whole", "decoded"]}
    parts: tuple[Part, ...] = ("partial", "final", "whole")
    assert [Graph(RECIPES["simple"], part, "cpu", "gpu").needs_gpu for part in parts] == [False, True, True]


class Scattered:
    """A tensor list whose images lie anywhere."""

    def __init__(self, images: Any) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._images, name)

    def __getitem__(self, row: int) -> Any:
        return self._images[row]

    def as_reshaped_tensor(self, shape: list[int]) -> Any:
        raise RuntimeError("the list must be contiguous")


@pytest.mark.parametrize("seen", [lambda images: images, Scattered], ids=["together", "scattered"])
def test_images_of_different_sizes_are_found_where_dali_put_them(seen: Callable[[Any], Any]) -> None:
    shapes = [(20, 30, 3), (7, 11, 3), (40, 16, 3)]
    graph = Graph(Recipe([Decode(), Resize(8), CenterCrop(8)], Output(8), split=1), "decoded")
    replica = Replica.of(graph, graph.serialize(max_batch_size=4, num_threads=2), num_threads=2, device_id=None)
    encoded = [jpeg(picture(seed, height=shape[0], width=shape[1])) for seed, shape in enumerate(shapes)]
    replica.submit({"sample": [np.frombuffer(sample, np.uint8) for sample in encoded]})
    images = replica.collect()
    places = images_in(seen(images)).places
    assert places.addresses.tolist() == [image.data_ptr() for image in images]
    assert places.sizes.tolist() == [[height, width] for height, width, _ in shapes]


@pytest.mark.parametrize(("given", "expected"), [(None, "1M"), pytest.param("64k", "64k", marks=pytest.mark.weekly)])
def test_dali_keeps_large_blocks_unless_the_user_says_otherwise(given: str | None, expected: str) -> None:
    name = "DALI_MALLOC_POOL_THRESHOLD"
    environment = {key: value for key, value in os.environ.items() if key != name} | ({name: given} if given else {})
    told = subprocess.run(
        [sys.executable, "-c", f"import os, dalirefurb.dali; print(os.environ[{name!r}])"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == expected


def schedules() -> dict[int, tuple[int, int]]:
    """How each thread of the process is scheduled, and how nice it is; one may end meanwhile."""
    found = {}
    for each in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            found[int(each.name)] = (
                os.sched_getscheduler(int(each.name)),
                os.getpriority(os.PRIO_PROCESS, int(each.name)),
            )
    return found


@pytest.mark.parametrize("part", get_args(Part))
def test_threads_take_their_share_like_those_of_any_other_program(part: Part) -> None:
    graph = Graph(RECIPES["rand_augment"], part)
    before = schedules()
    replica = Replica.of(graph, graph.serialize(max_batch_size=4, num_threads=2), num_threads=2, device_id=None)
    made = {schedule for thread, schedule in schedules().items() if thread not in before}
    assert made == {before[threading.get_native_id()]}
    assert os.SCHED_IDLE not in {policy for policy, _ in made}
    replica.restart()


def test_the_operators_own_message_and_row_are_found_in_dalis() -> None:
    message = (
        "Critical error in pipeline:\nError in CPU operator `x`,\nencountered:\n\n"
        "Failed to decode sample #3 : nothing\nCurrent pipeline object is no longer valid."
    )
    error = GraphError(message)
    assert (error.row, error.reason) == (3, "Failed to decode sample #3 : nothing")
    assert GraphError("something else").reason == "something else"
