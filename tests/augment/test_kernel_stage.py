"""A user's loop over pixels runs among the library's kernels, or is refused in one line that says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba")

from numba import njit

from dalirefurb import Arrays, Loader, MemoryStore, Recipe, Refurbish
from dalirefurb.augment import Custom, HorizontalFlip, KernelStage, RandomApply
from dalirefurb.augment.stage import draw
from dalirefurb.errors import ConfigurationError
from tests.one_batch import levels

HEIGHT, WIDTH, COUNT = 20, 28, 24
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, HEIGHT, WIDTH, 3), np.uint8)


def inverted_above(image: Any, uniforms: Any, out: Any) -> None:
    """Invert the levels above a random one."""
    limit = int(256 * uniforms[0])
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            for channel in range(3):
                level = image[y, x, channel]
                out[y, x, channel] = 255 - level if level > limit else level


def halved(image: Any, uniforms: Any, out: Any) -> None:
    """Take every other row and column."""
    for y in range(out.shape[0]):
        for x in range(out.shape[1]):
            for channel in range(3):
                out[y, x, channel] = image[2 * y, 2 * x, channel]


def served(stages: list[Any], size: Any = (HEIGHT, WIDTH), split: int = 0, **options: Any) -> NDArray[np.float32]:
    recipe = Recipe(stages, levels(size), split)
    planner = Refurbish(COUNT, batch_size=COUNT, reuse_factor=2, seed=1)
    with Loader(Arrays(IMAGES, np.arange(COUNT)), recipe, planner, MemoryStore(), **options) as loader:
        images, labels = next(iter(loader))
        return images.numpy()[np.argsort(labels.numpy())].transpose(0, 2, 3, 1)


def wanted_of(stage: KernelStage) -> NDArray[np.uint8]:
    """What Python's own interpreter makes of the first version of each image."""
    count = np.arange(COUNT)
    sides = count * 0 + HEIGHT, count * 0 + WIDTH
    arrays, _, _ = draw((stage,), seed=1, indices=count, numbers=0 * count, heights=sides[0], widths=sides[1])
    made = np.empty_like(IMAGES)
    for image, uniforms, out in zip(IMAGES.astype(int), arrays[stage.name]["uniforms"], made, strict=True):
        stage.function(image, uniforms, out)
    return made


@pytest.mark.parametrize("split", [0, 1])
def test_a_function_makes_what_the_interpreter_makes_with_numbers_of_each_sample(split: int) -> None:
    stage = KernelStage(inverted_above, "mine", uniforms=1)
    made = served([stage], split=split)
    assert np.array_equal(made, wanted_of(stage))
    limits = {tuple(np.unique(image[image > 127])) for image in made}
    assert len(limits) > COUNT // 2  # numbers differ


def ratio(image: Any, uniforms: Any, out: Any) -> None:
    for i in range(image.size):
        out.flat[i] = min(100.0 / image.flat[i], 255.0)


def test_a_division_by_zero_is_numpys() -> None:
    """Python would raise, of which compiled code tells nobody."""
    assert IMAGES.min() == 0
    with np.errstate(divide="ignore"):
        wanted = np.minimum(100.0 / IMAGES, 255.0).astype(np.uint8)
    assert np.array_equal(served([KernelStage(ratio, "ratio")]), wanted)


def of_larger_images(image: Any, uniforms: Any, out: Any) -> None:
    share = 60 // (image.shape[0] - 16)
    for i in range(image.size):
        out.flat[i] = image.flat[i] // share


def test_what_python_cannot_do_to_a_small_image_is_left_to_compiled_code() -> None:
    assert np.array_equal(served([KernelStage(of_larger_images, "larger")]), IMAGES // 15)


def test_it_runs_inside_other_stages_beside_the_librarys_kernels_and_changes_sizes() -> None:
    stages = [HorizontalFlip(1.0), RandomApply(KernelStage(inverted_above, "mine", uniforms=1), 0.0)]
    assert np.array_equal(served(stages), IMAGES[:, :, ::-1])
    smaller = KernelStage(halved, "halved", size=(HEIGHT // 2, WIDTH // 2))
    for split in (0, 1, 2):
        made = served([smaller, HorizontalFlip(1.0)], (HEIGHT // 2, WIDTH // 2), split)
        assert np.array_equal(made, IMAGES[:, ::2, ::2][:, :, ::-1])


def test_a_function_compiled_already_is_taken() -> None:
    stage = KernelStage(njit(inverted_above), "mine", uniforms=1)
    assert np.array_equal(served([stage]), wanted_of(stage))


@njit
def third(level: Any) -> Any:
    return level // 3


def thirds(image: Any, uniforms: Any, out: Any) -> None:
    for i in range(image.size):
        out.flat[i] = third(image.flat[i])


def test_a_compiled_function_that_it_calls_can_be_called_by_python_too() -> None:
    """The interpreter calls it when it tries the stage, and the user may: it had no machine code of its own."""
    assert np.array_equal(served([KernelStage(thirds, "thirds")]), IMAGES // 3)
    assert third(np.uint8(200)) == 66


def test_a_function_that_has_changed_is_compiled_anew() -> None:
    for added in (1, 2):
        scope: dict[str, Any] = {}
        exec(  # the same name and file, as in a notebook
            f"def shifted(image, uniforms, out):\n"
            f"    for i in range(image.shape[0]):\n"
            f"        for j in range(image.shape[1]):\n"
            f"            for k in range(3):\n"
            f"                out[i, j, k] = image[i, j, k] // 2 + {added}\n",
            scope,
        )
        assert np.array_equal(served([KernelStage(scope["shifted"], "mine")]), IMAGES // 2 + added)


def makes_an_array(image: Any, uniforms: Any, out: Any) -> None:
    out[:] = image * 2


def raises(image: Any, uniforms: Any, out: Any) -> None:
    if image[0, 0, 0] > 3:
        raise ValueError("too bright")
    out[0, 0, 0] = 1


def unknown_name(image: Any, uniforms: Any, out: Any) -> None:
    out[0, 0, 0] = nothing(image)  # type: ignore[name-defined] # noqa: F821


def unknown_member(image: Any, uniforms: Any, out: Any) -> None:
    out[0, 0, 0] = np.fancy(image)  # type: ignore[attr-defined]


def wrong_type(image: Any, uniforms: Any, out: Any) -> None:
    out[0, 0, 0] = image["red"]


def takes_a_second_number(image: Any, uniforms: Any, out: Any) -> None:
    out[0, 0, 0] = int(uniforms[0] + uniforms[1])


def not_of_numba(image: Any, uniforms: Any, out: Any) -> None:
    with open("file") as file:  # noqa: PTH123
        out[0, 0, 0] = len(file.read())


def leaves_levels(image: Any, uniforms: Any, out: Any) -> None:
    for y in range(image.shape[0] // 2):
        for x in range(image.shape[1]):
            for channel in range(3):
                out[y, x, channel] = image[y, x, channel]


def draws_by_itself(image: Any, uniforms: Any, out: Any) -> None:
    for i in range(image.size):
        out.flat[i] = int(255 * np.random.rand())  # noqa: NPY002 - as users may


def writes_to_its_image(image: Any, uniforms: Any, out: Any) -> None:
    for i in range(image.size):
        image.flat[i] = 255 - image.flat[i]
        out.flat[i] = image.flat[i]


def returns_the_image(image: Any, uniforms: Any, out: Any) -> Any:
    return image


@pytest.mark.parametrize(
    ("function", "said"),
    [
        pytest.param(
            makes_an_array,
            "must neither make arrays nor raise, but it does: loop over pixels, write to out",
            marks=pytest.mark.weekly,
        ),
        (raises, "must neither make arrays nor raise, but it does: loop over pixels, write to out"),
        (unknown_name, "name 'nothing' is not defined"),
        (unknown_member, "has no attribute 'fancy'"),
        (wrong_type, "No implementation of function"),
        (wrong_type, f" (line {wrong_type.__code__.co_firstlineno + 1}); see KernelStage"),
        (not_of_numba, "not supported"),
        (
            takes_a_second_number,
            "must take no more numbers than are drawn for it, 1, but it says: index 1 is out of bounds for axis 0 with "
            "size 1: pass KernelStage(..., uniforms=n) with n above 1, or take fewer",
        ),
        (leaves_levels, "two runs on one image differ: write all of out, and take random numbers from uniforms"),
        (draws_by_itself, "two runs on one image differ: write all of out, and take random numbers from uniforms"),
        (writes_to_its_image, "must leave image as it is, since others take it too, but it writes to it: write to out"),
        (returns_the_image, "must return nothing, but it returns a ndarray: write to out"),
    ],
)
def test_what_cannot_run_is_refused_with_the_functions_name_and_place(function: Callable[..., None], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        served([KernelStage(function, "mine", uniforms=1)])
    message = str(refused.value)
    assert said in message
    assert message.startswith(f"{function.__name__} (")
    assert f"test_kernel_stage.py, line {function.__code__.co_firstlineno})" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: KernelStage(3, "mine"), "function must be a function, got 3"),  # type: ignore[arg-type]
        (lambda: KernelStage(max, "mine"), "function must be a function, got <built-in function max>"),
        (lambda: KernelStage(lambda image: None, "mine"), "three arguments: image, uniforms, out, got '(image)'"),
        (
            lambda: KernelStage(lambda image, uniforms, *out: None, "mine"),
            "image, uniforms, out, got '(image, uniforms, *",
        ),
        (
            lambda: KernelStage(lambda image, uniforms, *, out: None, "mine"),
            "image, uniforms, out, got '(image, uniform",
        ),
        (lambda: KernelStage(halved, "mine", uniforms=-1), "mine: uniforms must be an int in 0..16, got -1"),
        (lambda: KernelStage(halved, "mine", cuda=1), "stage 'mine': cuda must be the body of a function of CUDA C++"),  # type: ignore[arg-type]
        (lambda: KernelStage(halved, "mine", uniforms=17), "mine: uniforms must be an int in 0..16, got 17"),
        (lambda: KernelStage(halved, "mine", size=0), "mine: size must be"),
        (
            lambda: served([KernelStage(halved, "mine")], kernels="dali"),
            "stage 'mine' is run by kernels on the CPU, but this recipe is run by DALI's operators",
        ),
        (
            lambda: served([RandomApply(KernelStage(halved, "inner")), Custom(lambda node: node, "other")]),
            "stage 'inner' is run by kernels on the CPU",
        ),
    ],
)
def test_wrong_uses_are_refused_in_one_line(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_its_fingerprint_does_not_see_its_function() -> None:
    assert KernelStage(inverted_above, "mine").fingerprint() == KernelStage(halved, "mine").fingerprint()
