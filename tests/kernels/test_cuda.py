"""Does the CUDA source of the kernels make the same bits as the kernels, where a C++ compiler compiles it?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from PIL import Image

from dalirefurb import rand_augment, simple
from dalirefurb.augment import (
    CenterCrop,
    Custom,
    Equalize,
    GaussianBlur,
    HorizontalFlip,
    HostStage,
    Invert,
    KernelStage,
    Letterbox,
    RandAugmentLayer,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    ScaleJitter,
    Solarize,
    SolarizeAdd,
    VerticalFlip,
    presets,
    published,
)
from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage
from dalirefurb.dali import GraphError
from dalirefurb.errors import ConfigurationError
from dalirefurb.kernels.buffers import PlainLevels
from dalirefurb.kernels.cuda.counting import PHOTOGRAPH, launches_of, row_bytes
from dalirefurb.kernels.cuda.program import OPTIONS, CudaLauncher, CudaProgram, Launch
from dalirefurb.kernels.cuda.source import needs, source, translated
from dalirefurb.kernels.kernel import kernel_names
from dalirefurb.kernels.lower import steps_of
from tests.augment.test_stage_contract import ALL
from tests.engine.test_any_recipe import KEEP_SIZE, TO_SIZE
from tests.in_turn import EACH_CHANGE
from tests.kernels.cuda_host import COMPILER, Beside, Picture, differing, feeds_of, on_a_gpu
from tests.kernels.test_kernel_memory import CASES, SHAPES

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler (g++ or clang++)")

SIDES = [(224, 230), (3, 5), (1, 1), *([] if EACH_CHANGE else [(32, 32), (40, 17), (2, 7)])]
SEEDS = range(1 if EACH_CHANGE else 10)


def pictures_of(sides: tuple[int, int], photos: Sequence[Any] = ()) -> list[Picture]:
    """Noise, single colours, a few levels, and photographs, of one size."""
    height, width = sides
    rng = np.random.default_rng(height * 1000 + width)
    made = [rng.integers(0, 256, (height, width, 3), np.uint8) for _ in range(2)]
    made += [np.full((height, width, 3), level, np.uint8) for level in (0, 77, 255)]
    made.append(rng.integers(100, 104, (height, width, 3), np.uint8))
    ramp = np.linspace(0, 255, height * width * 3).astype(np.uint8)
    made.append(ramp.reshape(height, width, 3))
    return [*made, *(np.array(photo.resize((width, height))) for photo in photos)]


def listed(made: Stage | list[Stage]) -> list[Stage]:
    return made if isinstance(made, list) else [made]


@pytest.fixture(scope="module")
def few_photos(request: pytest.FixtureRequest) -> list[Any]:
    try:
        photos: list[Any] = request.getfixturevalue("photos")
    except pytest.skip.Exception:
        return []
    return [Image.open(path).convert("RGB") for path in photos[:: 90 if EACH_CHANGE else 10]]


# Each stage


@needs_compiler
@pytest.mark.parametrize("name", [name for name, make in KEEP_SIZE.items() if on_a_gpu(listed(make("stage")))])
def test_a_stage_is_made_alike_at_every_size(name: str, few_photos: list[Any]) -> None:
    rows = 0
    for sides in SIDES:
        pictures = pictures_of(sides, few_photos)
        stages = listed(KEEP_SIZE[name]("stage"))
        beside = Beside(stages, PlainLevels(sides))
        for seed in SEEDS:
            given = {"pictures": pictures, "feeds": feeds_of(stages, pictures, seed)}
            assert differing(beside.by_kernels(**given), beside.by_cuda(**given)) == [], sides
            rows += len(pictures)
    assert rows >= 21


@needs_compiler
@pytest.mark.parametrize("name", [name for name, make in TO_SIZE.items() if on_a_gpu(listed(make("stage")))])
def test_a_resize_or_crop_is_made_alike_of_every_size(name: str) -> None:
    stages = listed(TO_SIZE[name]("stage"))
    sizes = [(height, width) for height, width in SHAPES if height * width < 40_000]
    if isinstance(first := stages[0], RandomCrop):
        sides = [side + (first.margin or 0) - 2 * first.padding for side in recipe_size(stages)]
        sizes = [(48, 40) if first.margin is None else (sides[0], sides[1])] * 20
    pictures = [pictures_of(sides)[0] for sides in sizes]
    output = Output(recipe_size(stages))
    beside = Beside(stages, output)
    for seed in range(5):
        given = {"pictures": pictures, "feeds": feeds_of(stages, pictures, seed)}
        assert differing(beside.by_kernels(**given), beside.by_cuda(**given)) == []


def recipe_size(stages: Sequence[Stage]) -> tuple[int, int]:
    heights, widths = np.array([100]), np.array([90])
    for stage in stages:
        heights, widths = stage.output_sizes(heights, widths)
    return int(heights[0]), int(widths[0])


BATCHES = {name: stages for name, stages in CASES.items() if on_a_gpu(stages)}


def test_nearly_all_kernels_are_there_for_a_gpu() -> None:
    """What is not is made by DALI's operators there."""
    kinds = {type(stages[0]) for stages in ALL if not on_a_gpu(stages[:1])}
    assert kinds == {Custom, HostStage, KernelStage}
    assert BATCHES.keys() >= {"bilinear", "lanczos window", "mixed", "timm", "erased", "perspectives"}


def test_what_comes_out_moves_pixels_in_passing_as_each_crop_and_flip_does() -> None:
    moving = {"flip", "flip_over", "crop", "crop_reflected"}
    assert {name for name in kernel_names() if needs(name).moves} == {f"crop_flip.{name}" for name in moving}


@needs_compiler
@pytest.mark.parametrize("case", BATCHES)
def test_images_of_all_sizes_in_one_batch_are_made_alike(case: str) -> None:
    pictures = [pictures_of(shape)[0] for shape in SHAPES]
    stages = BATCHES[case]
    beside = Beside(stages, Output(24))
    for seed in SEEDS:
        given = {"pictures": pictures, "feeds": feeds_of(stages, pictures, seed)}
        assert differing(beside.by_kernels(**given), beside.by_cuda(**given)) == []


@needs_compiler
def test_the_nearest_rows_of_long_images_are_found_alike() -> None:
    stages, pictures = [Resize((56_470, 2), "nearest")], [pictures_of((40_000, 2))[0]]
    beside = Beside(stages, PlainLevels((56_470, 2)))
    given = {"pictures": pictures, "feeds": feeds_of(stages, pictures, 0)}
    assert differing(beside.by_kernels(**given), beside.by_cuda(**given)) == []


RARE: dict[str, tuple[list[Stage], tuple[int, int]]] = {
    "columns just first": ([Resize((18, 26), "lanczos")], (30, 32)),
    "many pixels, mirrored and cropped": ([Resize((8, 13)), HorizontalFlip(1.0), CenterCrop((8, 12))], (4, 3000)),
    "of what would be large": ([Resize(64, "nearest"), HorizontalFlip(1.0), CenterCrop((2, 3000))], (7, 100_003)),
    "a frame of a colour": ([Letterbox((20, 30), fill=(1, 2, 3), place="center")], (9, 5)),
    "a window in a frame": ([ScaleJitter((20, 30), (2.0, 3.0), fill=(1, 2, 3), place="random")], (9, 50)),
    "black is inverted": ([Solarize(0)], (5, 7)),
    "nothing is inverted": ([Solarize(256)], (5, 7)),
    "levels are darkened": ([SolarizeAdd(-100, 256)], (5, 7)),
}


@needs_compiler
@pytest.mark.parametrize("name", RARE)
def test_what_is_rare_is_made_alike(name: str) -> None:
    stages, sides = RARE[name]
    pictures = pictures_of(sides)
    beside = Beside(stages, PlainLevels(sides if stages[0].keeps_place else recipe_size(stages)))
    given = {"pictures": pictures, "feeds": feeds_of(stages, pictures, 0)}
    assert differing(beside.by_kernels(**given), beside.by_cuda(**given)) == []


# Recipes

OUTPUTS = [
    Output(24),
    Output(24, channels_last=True),
    Output(24, "float16"),
    Output(24, "bfloat16", channels_last=True),
    Output(24, channels=1),
    Output(24, "float16", channels=1),
    Output((23, 25)),
    Output((23, 25), "float16"),
    PlainLevels((24, 24)),
]


@needs_compiler
@pytest.mark.parametrize("output", OUTPUTS, ids=str)
@pytest.mark.parametrize(
    "last", [(), (HorizontalFlip(),), (RandomCrop(24, margin=16, padding=8), VerticalFlip(), HorizontalFlip())], ids=len
)
def test_every_output_is_made_alike_with_what_is_done_in_passing(output: Any, last: tuple[Stage, ...]) -> None:
    stages = [RandomResizedCrop(output.sides), RandAugmentLayer("one", fill=(1, 2, 3)), *last]
    if len(last) == 3:
        stages[-3] = RandomCrop(output.sides, margin=16, padding=8)
    pictures = [picture for sides in ((64, 50), (33, 90)) for picture in pictures_of(sides)]
    beside = Beside(stages, output)
    for seed in SEEDS:
        given = {"pictures": pictures, "feeds": feeds_of(stages, pictures, seed)}
        assert differing(beside.by_kernels(**given), beside.by_cuda(**given)) == []


RECIPE = [
    Resize((40, 44)),
    HorizontalFlip(),
    RandAugmentLayer("one", "bilinear"),
    GaussianBlur(5),
    RandAugmentLayer("two"),
    RandomErasing(0.6, value="pixel"),
    RandomCrop(24),
    VerticalFlip(),
]


@needs_compiler
@pytest.mark.parametrize("split", range(len(RECIPE) + 1))
def test_every_split_writes_the_same_partial_images_and_finishes_them_alike(split: int) -> None:
    partial, final = RECIPE[:split], RECIPE[split:]
    sides = [(50, 60), (40, 44), (90, 30)] if split else [(40, 44), (50, 60)]
    pictures = [picture for each in sides for picture in pictures_of(each)]
    beside = Beside(partial, Output(24), final)
    pinned = Beside(partial, None, ()).by_kernels(pictures=pictures, feeds=feeds_of(partial, pictures, 3)).partials
    shown = [*Beside(partial, None, ()).by_kernels(pictures=pictures, feeds=feeds_of(partial, pictures, 7)).partials]
    parameters = feeds_of(final, [*shown, *pinned], 9)
    for computed, at_hand in ((pictures, pinned), (pictures, []), ([], pinned)):
        rows = np.r_[: len(computed), len(pictures) : len(pictures) + len(at_hand)]
        given = {
            "pictures": computed,
            "feeds": feeds_of(partial, pictures, 7) if len(computed) else {},
            "pinned": at_hand,
            "final": {name: values[rows] for name, values in parameters.items()},
        }
        ours, cuda = beside.by_kernels(**given), beside.by_cuda(**given)
        assert differing(ours, cuda) == []
        assert len(ours.partials) == len(computed)


def all_presets() -> Iterator[tuple[str, Recipe]]:
    """Every preset that needs a size alone."""
    for module in (presets, published):
        for name, each in vars(module).items():
            own = getattr(each, "__module__", "") == module.__name__ and not name.startswith("_")
            if own and getattr(each, "__annotations__", {}).get("return") == "Recipe" and name != "simplified":
                with suppress(TypeError, ConfigurationError):
                    yield name, each(32)


ALL_PRESETS = dict(all_presets())


def test_presets_are_found() -> None:
    assert len(ALL_PRESETS) >= 8
    assert {"rand_augment", "auto_augment", "trivial_augment"} <= ALL_PRESETS.keys()


@needs_compiler
@pytest.mark.parametrize("name", ALL_PRESETS)
def test_every_preset_is_made_alike(name: str) -> None:
    recipe = ALL_PRESETS[name]
    stages = recipe.stages[recipe.encoded :]
    if steps_of(stages) is None:
        pytest.skip(f"{name} has a stage without a kernel")
    if recipe.partner_stage is not None:
        pytest.skip(f"{name} makes one image of several of a batch, which kernels on the CPU alone do")
    # Some presets are for images of one size.
    several = [(64, 50), (33, 90), (230, 224)]
    fits = recipe.refusal(*np.array(several).T, max_pixels=None) is None
    pictures = [picture for sides in (several if fits else [(32, 32)]) for picture in pictures_of(sides)]
    beside = Beside(stages, recipe.output)
    for seed in SEEDS:
        given = {"pictures": pictures, "feeds": feeds_of(stages, pictures, seed)}
        assert differing(beside.by_kernels(**given), beside.by_cuda(**given)) == []


# What is launched


def launches(
    stages: Sequence[Stage], pictures: list[Picture], output: Any, final: Sequence[Stage] | None = None
) -> Any:
    beside = Beside(stages, output, final)
    whole = [*stages, *(final or ())]
    feeds = feeds_of(stages, pictures)
    work, _, _ = beside.work(
        beside.cuda, pictures=pictures, feeds=feeds, final=feeds_of(whole[len(stages) :], pictures) if final else None
    )
    return [launch.function for launch in beside.cuda.launched(work).launches]


def test_a_recipe_is_few_launches_however_many_rows_there_are() -> None:
    stages = [RandAugmentLayer("one"), RandAugmentLayer("two"), RandomCrop(24, margin=8), HorizontalFlip()]
    few, many = (launches(stages, pictures_of((32, 32)) * count, Output(24)) for count in (10, 40))
    assert few == many == ["prepare", "pixels", "prepare", "output"]


def test_crops_and_flips_at_the_end_and_the_last_step_before_them_are_done_by_what_comes_out() -> None:
    pictures = pictures_of((32, 32))
    assert launches([RandomCrop(24, margin=8), HorizontalFlip()], pictures, Output(24)) == ["output"]
    assert launches([RandomResizedCrop(24), HorizontalFlip()], pictures, Output(24)) == ["prepare", "output"]
    assert launches([GaussianBlur(5), CenterCrop(24)], pictures, Output(24)) == ["prepare", "pass", "output"]
    assert launches([], pictures_of((24, 24)), Output(24), [HorizontalFlip()]) == ["pixels", "output"]


def test_randaugment_of_256_images_moves_so_few_bytes_that_an_h100_needs_a_quarter_of_a_millisecond() -> None:
    stages = [RandAugmentLayer("one"), RandAugmentLayer("two"), RandomCrop(224, margin=6), HorizontalFlip()]
    pictures = pictures_of((230, 230)) * 37
    beside = Beside(stages, Output(224))
    work, _, _ = beside.work(beside.cuda, pictures=pictures[:256], feeds=feeds_of(stages, pictures[:256]))
    launched = beside.cuda.launched(work)
    written, read = 256 * 3 * 224 * 224 * 4, 256 * 3 * 230 * 230
    assert written + read < launched.nbytes < written + 6 * read
    assert launched.nbytes / 2.8e12 < 0.25e-3


def test_what_a_recipe_launches_is_counted_without_images() -> None:
    partial, final = launches_of(rand_augment(224), 256)
    assert (partial.part, partial.size, final.part, final.size) == ("partial", (375, 500), "final", (224, 224))
    assert [(each.function, *each.stages) for each in partial.launches] == [
        ("prepare", "random_resized_crop"),
        ("pixels", "random_resized_crop"),
        ("prepare", "rand_augment_1"),
        ("pixels", "rand_augment_1"),
    ]
    assert [(each.function, *each.stages) for each in final.launches] == [
        ("prepare", "rand_augment_2"),
        ("output", "rand_augment_2"),
    ]
    assert final.launches[1].nbytes == 256 * 224 * 224 * (3 + 12)
    assert final.nbytes == sum(each.nbytes for each in final.launches)
    whole, _ = launches_of(rand_augment(224).at(1), 8, entering=(300, 400))
    assert [(each.stages, each.nbytes) for each in whole.launches] == [(("copy",), 8 * 2 * 3 * 300 * 400)]
    one, many = (launches_of(rand_augment(64), rows) for rows in (2, 300))
    for few, more in zip(one, many, strict=True):
        assert len(few.launches) <= len(more.launches) <= 4


def test_each_launch_counts_what_it_reads_and_writes_of_the_images_that_take_part() -> None:
    rows, pixels = 5, 30 * 40
    for output, itemsize in ((Output((30, 40)), 12), (Output((30, 40), "bfloat16", channels=1), 2)):
        recipe = Recipe([Equalize(), GaussianBlur(5)], output, 1)
        partial, final = launches_of(recipe, rows, entering=(30, 40))
        assert [(each.function, each.nbytes) for each in partial.launches] == [
            ("prepare", rows * 3 * pixels),
            ("pixels", rows * 6 * pixels),
        ]
        # Sums of rows, three float32 a pixel, and a table.
        first, then = final.launches[1:]
        assert (first.function, first.nbytes) == ("pass", rows * (15 * pixels + 4 * 192))
        assert (then.function, then.nbytes) == ("output", rows * (3 + itemsize) * pixels)
    sums = {sum(part.nbytes for part in launches_of(rand_augment(64), 3, seed=seed)) for seed in range(6)}
    assert len(sums) > 1  # some operations are prepared


@pytest.mark.parametrize("name", ALL_PRESETS)
def test_memory_to_work_in_is_bounded_beforehand(name: str) -> None:
    """Four cases of a batch whose images' kernels are drawn: none takes more for an image than is said of the worst."""
    recipe = ALL_PRESETS[name]
    if recipe.partner_stage is not None or steps_of(recipe.stages[recipe.encoded :]) is None:
        pytest.skip(f"{name} has a stage that kernels for a GPU do not do")
    fits = recipe.refusal(np.array([375]), np.array([500]), max_pixels=None) is None
    entering = PHOTOGRAPH if fits else (32, 32)
    stages, rows = recipe.stages[recipe.encoded :], 64
    most = row_bytes(stages, entering)
    given: list[int] = []
    beside = CudaProgram(steps_of(stages) or (), recipe.output)
    for seed in range(4):
        pictures = [np.empty((*entering, 3), np.uint8)] * rows
        launched = beside.launched(beside.work({"sample": pictures, **feeds_of(stages, pictures, seed)}))
        given.append(launched.memory_bytes // rows)
    assert max(given) <= most <= max(3 * max(given), 8000)


@pytest.mark.parametrize(
    ("first", "last", "entering", "nbytes"),
    [
        (Resize((50, 60), "nearest"), Invert("again"), (10, 12), 2 * 9024 + 448),
        (CenterCrop((50, 60)), Invert("again"), (100, 120), 2 * 9024),
        (Resize((50, 60)), CenterCrop((5, 6)), (100, 120), 2 * 9024 + 3200),
    ],
)
def test_memory_has_two_images_on_the_way_and_what_is_prepared(
    first: Stage, last: Stage, entering: tuple[int, int], nbytes: int
) -> None:
    """In lines of 64 bytes: of a resize, a place for each row and column, and weights of four, 32 bits and 64."""
    stages, rows = (first, Invert(), last), 3
    pictures = [np.empty((*entering, 3), np.uint8)] * rows
    program = CudaProgram(steps_of(stages) or (), PlainLevels(last.fixed_size or (50, 60)))
    launched = program.launched(program.work({"sample": pictures, **feeds_of(stages, pictures)}))
    assert launched.memory_bytes == rows * nbytes
    assert row_bytes(stages, entering) == nbytes


def test_memory_is_counted_for_the_kernel_that_needs_most_of_those_that_may_be_drawn() -> None:
    assert row_bytes((RandAugmentLayer(),), (50, 60)) == 2 * 9024 + 3 * 256


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (rand_augment(32).at(0), "which has none behind split 0"),
        (published.yolo(64), "which has none of several images"),
        (
            Recipe([*simple(32).stages, HostStage(lambda image: image, "own")], simple(32).output, 2),
            "'own' has one for a CPU alone",
        ),
        (
            Recipe([CenterCrop(32), VerticalFlip(), Custom(lambda image: image, "own")], Output(32), 1),
            "to count launches, but 'own' has none",
        ),
    ],
)
def test_launches_of_what_a_gpu_does_not_do_are_refused(recipe: Recipe, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        list(launches_of(recipe, 4))


def test_a_launch_is_a_grid_of_blocks_by_rows_given_page_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for CuPy; numbers have 64 bits, as the source says."""
    begun: list[Any] = []

    class RefusedError(Exception):
        pass

    class Module:
        def __init__(self, code: str, options: tuple[str, ...]) -> None:
            begun.append((code, options))

        def get_function(self, name: str) -> Any:
            if begun[-1][0] == "broken":
                raise RefusedError("line 3")
            return lambda *given: begun.append((name, *given))

    compiler = SimpleNamespace(CompileException=RefusedError)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(RawModule=Module, cuda=SimpleNamespace(compiler=compiler)))
    CudaLauncher("text").launch(Launch("pass", step=3, blocks=7, nbytes=0), rows=5, page=4096)
    assert begun == [("text", ("-std=c++17", "-fmad=false")), ("pass", (7, 5), (256,), (4096, 3))]
    assert {type(number) for number in begun[1][3]} == {np.int64}
    with pytest.raises(ConfigurationError, match="NVRTC must compile the kernels for this GPU, but says: line 3"):
        CudaLauncher("broken")


# What cannot be made


def test_a_stage_with_a_kernel_for_the_cpu_alone_is_named() -> None:
    steps = steps_of((KernelStage(lambda image, uniforms, out: None, "mine"),))
    assert steps is not None
    with pytest.raises(ConfigurationError, match=r"'mine' has one for a CPU alone: let the CPU compute"):
        CudaProgram(steps, Output(24))


DARKENED = """
  float factor = 0.5f + 0.5f * step.number(0);
  Pixel given = step.at(y, x);
  return each_channel([&](int channel) { return (u8)(int)(level_of(given, channel) * factor); });"""


def darkened(image: Any, uniforms: Any, out: Any) -> None:
    factor = np.float32(0.5) + np.float32(0.5) * np.float32(uniforms[0])
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            for channel in range(3):
                out[y, x, channel] = int(np.float32(image[y, x, channel]) * factor)


@needs_compiler
def test_a_kernel_of_the_users_is_made_alike_among_others() -> None:
    own = KernelStage(darkened, "darkened", uniforms=1, cuda=DARKENED)
    turned = KernelStage(halved, "halved", size=12, cuda="return step.at(2 * y, 2 * x);")
    stages = [CenterCrop(24), RandomApply(own, 0.5), RandAugmentLayer("one"), turned, HorizontalFlip()]
    pictures = [picture for sides in ((64, 50), (33, 90)) for picture in pictures_of(sides)]
    beside = Beside(stages, Output(12), of_all_kernels=False)
    for seed in SEEDS:
        given = {"pictures": pictures, "feeds": feeds_of(stages, pictures, seed)}
        assert differing(beside.by_kernels(**given), beside.by_cuda(**given)) == []


def halved(image: Any, uniforms: Any, out: Any) -> None:
    for y in range(out.shape[0]):
        for x in range(out.shape[1]):
            for channel in range(3):
                out[y, x, channel] = image[2 * y, 2 * x, channel]


def test_a_kernel_for_a_gpu_is_in_the_fingerprint_if_there_is_one() -> None:
    alone = KernelStage(darkened, "darkened", uniforms=1).fingerprint()
    assert "cuda" not in alone
    assert KernelStage(darkened, "darkened", uniforms=1, cuda=DARKENED).fingerprint() == alone | {"cuda": DARKENED}
    with pytest.raises(ConfigurationError, match="cuda must be the body of a function of CUDA C"):
        KernelStage(darkened, "darkened", cuda=None)  # type: ignore[arg-type]


def test_a_window_outside_its_image_is_refused() -> None:
    stages, pictures = [RandomResizedCrop(24)], pictures_of((30, 40))
    beside = Beside(stages, Output(24))
    work, _, _ = beside.work(beside.cuda, pictures=pictures, feeds=feeds_of(stages, pictures))
    work.arrays["numbers"][0, 1, 2] = 1000
    with pytest.raises(GraphError, match=r"resize\.bilinear must be given images that it is for: a window must lie"):
        beside.cuda.launched(work)


# Compilation

ARCHITECTURES = ["sm_70", "sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_compiles_all_kernels_without_a_gpu(architecture: str) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"NVRTC is not installed: {error}")
    if int(architecture[3:]) not in nvrtc.getSupportedArchs():
        pytest.skip(f"this NVRTC does not know {architecture}")
    program = nvrtc.createProgram(source(list(filter(translated, kernel_names()))), "kernels.cu", [], [])
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}", "-default-device", *OPTIONS))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    assert nvrtc.getCUBIN(program)[:4] == b"\x7fELF"


SANITIZED = """
import sys
sys.path.insert(0, {root!r})
from tests.kernels.test_cuda import sanitized
print(sanitized(), "batches")
"""


def sanitized() -> int:
    """Make batches by a library whose every access is checked; each picture, and each partial image, is apart."""
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    done = 0
    for case in BATCHES.values():
        pictures = [pictures_of(shape)[0] for shape in SHAPES]
        beside = Beside(case, Output(24), flags=flags)
        beside.by_cuda(pictures=pictures, feeds=feeds_of(case, pictures))
        done += 1
    for stages in filter(on_a_gpu, (listed(make("stage")) for make in KEEP_SIZE.values())):
        for sides in ((3, 5), (1, 1), (33, 20)):
            pictures = pictures_of(sides)[:3]
            Beside(stages, PlainLevels(sides), flags=flags).by_cuda(pictures=pictures, feeds=feeds_of(stages, pictures))
            done += 1
    for split in range(len(RECIPE) + 1):
        partial, final = RECIPE[:split], RECIPE[split:]
        pictures = pictures_of((90, 30) if split else (40, 44))[:3]
        shown = [*Beside(partial, None, ()).by_kernels(pictures=pictures, feeds=feeds_of(partial, pictures)).partials]
        given = {"pictures": pictures, "feeds": feeds_of(partial, pictures), "final": feeds_of(final, shown)}
        Beside(partial, Output(24), final, flags=flags).by_cuda(**given)
        done += 1
    return done


@needs_compiler
@pytest.mark.weekly
def test_nothing_is_read_or_written_outside_its_memory() -> None:
    assert COMPILER is not None
    found = [
        subprocess.run(
            [COMPILER, f"-print-file-name={name}"], text=True, capture_output=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(os.path.isabs(path) for path in found):  # noqa: PTH117 - what the compiler says
        pytest.skip("the compiler has no sanitizers")
    root = os.fspath(Path(__file__).resolve().parents[2])
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(found),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED.format(root=root)],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "batches" in done.stdout
