"""Contract of stages: fingerprints of all fields, draws that are each row's own, pixels that are each image's own."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from dalirefurb.augment import Stage
from dalirefurb.augment.maps import chained
from dalirefurb.augment.stage import Arrays, Device, as_inputs, draw
from dalirefurb.augment.stages.custom import OnCPU
from dalirefurb.image_batch import Image

_MAX_BATCH_SIZE = 256
_ROWS = 24
_LARGEST = 256
"""Side of images whose pixels show their own column and row in 8 bits."""

_BORDER = 16
"""Pixels from the border of an image within which what is made of it may be made of the border."""

Maker = Callable[[Sequence[Image], Mapping[str, NDArray[Any]]], list[Image]]
"""From images, and the stage's parameters for them, to what the stage makes."""


def stage_pipeline(stage: Stage, device: Device = "cpu") -> Any:
    """Return a pipeline of a stage alone, by DALI's operators."""
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import pipeline_def

    dtypes = {"float32": types.FLOAT, "float64": types.FLOAT64, "int32": types.INT32, "uint8": types.UINT8}

    def graph() -> Any:
        images = fn.external_source(name="images", dtype=types.UINT8, ndim=3, layout="HWC")
        parameters = {
            name: fn.external_source(name=name, dtype=dtypes[parameter.dtype], ndim=len(parameter.shape))
            for name, parameter in stage.parameters.items()
        }
        return stage.apply(images.gpu() if device == "gpu" else images, parameters)

    pipeline = pipeline_def(enable_conditionals=True)(graph)
    return pipeline(batch_size=_MAX_BATCH_SIZE, num_threads=2, device_id=None, prefetch_queue_depth=1)


def dali_maker(stage: Stage) -> Maker:
    """Return what makes a stage's images by DALI's operators."""
    pipeline = stage_pipeline(stage)

    def made(pictures: Sequence[Image], parameters: Mapping[str, NDArray[Any]]) -> list[Image]:
        pipeline.feed_input("images", list(pictures))
        for name, values in parameters.items():
            pipeline.feed_input(name, values)
        (output,) = pipeline.run()
        images = [np.array(image) for image in output.as_cpu()]
        wrong = {f"{image.dtype} of layout {output.layout()}" for image in images} - {"uint8 of layout HWC"}
        assert not wrong, f"apply must return uint8 images of layout HWC, got {wrong}"
        return images

    return made


def kernel_maker(stage: Stage) -> Maker | None:
    """Return what makes a stage's images by kernels; None if it has none, or nothing compiles them."""
    if importlib.util.find_spec("numba") is None:
        return None
    from dalirefurb.kernels.buffers import OutputBuffers
    from dalirefurb.kernels.lower import steps_of
    from dalirefurb.kernels.program import KernelProgram
    from dalirefurb.kernels.rows import KernelThreadPool

    steps = steps_of((stage,))
    if steps is None:
        return None
    program = KernelProgram(steps, None, split=len(steps))
    pool, buffers = KernelThreadPool(0), OutputBuffers(0)

    def made(pictures: Sequence[Image], parameters: Mapping[str, NDArray[Any]]) -> list[Image]:
        work = program.work({"sample": pictures, **as_inputs({stage.name: dict(parameters)})}, reserve=buffers.partials)
        pool.share(work.part(np.arange(len(pictures))))
        return [np.array(image) for image in work.partials]

    return made


def coordinates(height: int, width: int) -> Image:
    """Return an image that shows its coordinates: a pixel's red is its column, its green its row, its blue 255."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([columns, rows, np.full_like(rows, 255)], axis=2).astype(np.uint8)


def predicted(maps: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """Return columns and rows, with fractions, that centres of pixels come from, (n, height, width, 2)."""
    rows, columns = np.mgrid[:height, :width] + 0.5
    centres = np.stack([columns, rows, np.ones_like(rows)], axis=2)
    points = np.einsum("nij,hwj->nhwi", maps, centres)
    places: NDArray[np.float64] = points[..., :2] / points[..., 2:] - 0.5
    return places


def makers_of(stage: Stage) -> dict[str, Maker]:
    """Return what can make a stage's images, by name."""
    kernels = kernel_maker(stage)
    makers = {} if kernels is None else {"kernels": kernels}
    if not any(isinstance(each, OnCPU) for each in (stage, *stage.nested)):
        makers["DALI"] = dali_maker(stage)
    return makers


class StageContract:
    """What every stage promises: what it draws is the row's own, what it makes the image's own, whatever the batch.

    Derive a class whose name begins with "Test", and say by `stages` which stage it is. What it does to pixels is yours
    to test.

    Attributes:
        sizes: Heights and widths of the images that it is tried on; those that it refuses are left out.
        levels_apart: Levels by which kernels and DALI's operators are apart, at most; None: they are not compared.
        pixels_apart: Pixels of the image by which what is shown is from where `matrices` says, at most, but near the
            border; None: it is not compared. What keeps its place never is.
    """

    sizes: ClassVar[Sequence[tuple[int, int]]] = ((64, 64), (48, 80), (80, 48), (33, 57))
    levels_apart: ClassVar[int | None] = 1
    pixels_apart: ClassVar[float | None] = 1.5

    def stages(self) -> Sequence[Stage]:
        """Return a stage, then others that differ from it in one field each; each field in one of them, at least."""
        raise NotImplementedError("a contract needs stages: define stages(self) to return one of yours, and variants")

    def taken(self, stage: Stage) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return heights and widths, of `sizes`, that a stage takes."""
        taken = [size for size in self.sizes if stage.refusal(np.array(size[:1]), np.array(size[1:])) is None]
        assert taken, f"{stage.name} must take an image of sizes={self.sizes}: set sizes to such as it takes"
        heights, widths = np.array(taken).T
        return heights, widths

    def drawn(self, stage: Stage, rows: NDArray[np.int64]) -> Arrays:
        """Return what is drawn for some rows, and the sizes that leave the stage."""
        heights, widths = self.taken(stage)
        entering = heights[rows % len(heights)], widths[rows % len(heights)]
        arrays, *leaving = draw(
            (stage,), seed=3, indices=rows, numbers=rows % 5, heights=entering[0], widths=entering[1], versions=rows % 5
        )
        return {**arrays.get(stage.name, {}), "output heights": leaving[0], "output widths": leaving[1]}

    def test_any_other_field_makes_another_fingerprint_and_another_repr(self) -> None:
        """A store that was filled by another configuration is told by it; functions alone are not seen."""
        first, *others = self.stages()
        listed = fields(first)  # type: ignore[arg-type]
        names = {field.name for field in listed if not callable(getattr(first, field.name))}
        alone = set()
        for other in others:
            differing = [name for name in names if getattr(other, name) != getattr(first, name)]
            alone |= set(differing) if len(differing) == 1 else set()
        assert alone == names, f"stages() must vary each field alone, but does not vary {sorted(names - alone)}"
        fingerprints = [json.dumps(stage.fingerprint()) for stage in (first, *others)]
        for texts in (fingerprints, [repr(stage) for stage in (first, *others)]):
            twice = {text for text in texts if texts.count(text) > 1}
            assert not twice, f"another field must make another text, but of several stages it is {twice}"

    def test_a_copy_is_equal_and_tells_the_same_of_itself(self) -> None:
        """A fingerprint depends on the fields alone, so that another run finds what this one stored."""
        for stage in self.stages():
            for other in (replace(stage), copy.deepcopy(stage)):  # type: ignore[type-var]
                assert other == stage, f"a copy must be equal, got {other} of {stage}"
                assert json.dumps(other.fingerprint()) == json.dumps(stage.fingerprint())
                assert repr(other) == repr(stage)

    def test_another_code_version_makes_another_fingerprint(self) -> None:
        """Raised when the same fields come to mean other pixels, it has older stores refused."""
        stage = self.stages()[0]
        before = stage.fingerprint()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(stage), "code_version", stage.code_version + 1)
            assert stage.fingerprint() != before, "the fingerprint must have code_version in it, as Stage.fingerprint"

    @pytest.mark.parametrize("count", [0, 1, _ROWS])
    def test_it_draws_what_its_parameters_declare(self, count: int) -> None:
        """For any number of rows, none included, C-contiguous arrays of the shapes and types of `parameters`."""
        for stage in self.stages():
            arrays = self.drawn(stage, np.arange(count))
            heights, widths = arrays.pop("output heights"), arrays.pop("output widths")
            assert arrays.keys() == stage.parameters.keys(), f"draw must return {[*stage.parameters]}, got {[*arrays]}"
            for name, parameter in stage.parameters.items():
                found, shape = arrays[name], (count, *parameter.shape)
                assert found.dtype == parameter.dtype, f"{name} must be {parameter.dtype}, got {found.dtype}"
                assert found.shape == shape, f"{name} must have shape {shape}, got {found.shape}"
                assert found.flags.c_contiguous, f"{name} must be C-contiguous: np.ascontiguousarray makes it so"
            assert heights.shape == widths.shape == (count,), f"output_sizes must return {count} of each"
            if stage.fixed_size is not None:
                sizes = {*zip(heights.tolist(), widths.tolist(), strict=True)}
                assert sizes <= {stage.fixed_size}, f"fixed_size is {stage.fixed_size}, but output_sizes says {sizes}"

    def test_what_is_drawn_for_a_row_depends_on_its_key_and_its_size_alone(self) -> None:
        """Neither the order of rows nor which others are there: so any batch can be made again."""
        rows = np.arange(_ROWS)
        for stage in self.stages():
            together = self.drawn(stage, rows)
            for some in (rows, rows[::-1], rows[::5], *rows[:3, None]):
                for name, values in self.drawn(stage, some).items():
                    same = np.array_equal(values, together[name][some])
                    assert same, f"{stage.name}: {name} of rows {some} must be as drawn among others, got {values}"

    def said(self, stage: Stage, rows: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return where things go in some rows."""
        heights, widths = self.taken(stage)
        drawn = self.drawn(stage, rows)
        parameters = {name: drawn[name] for name in stage.parameters}
        sides = heights[rows % len(heights)], widths[rows % len(widths)]
        maps, steps = stage.matrices(parameters, *sides), stage.steps(parameters, *sides)
        together = None if steps is None else chained(steps, len(rows))
        assert (maps is None) == (together is None), f"{stage.name}: matrices and steps must both be None, or neither"
        if maps is not None and together is not None:
            assert np.array_equal(maps, together), f"{stage.name}: matrices must be its steps one after the other"
        return maps

    def test_it_says_of_each_row_where_things_go_or_of_none(self) -> None:
        """Maps that have an inverse, each its row's own, for any number of rows; or None, always."""
        rows = np.arange(_ROWS)
        for stage in self.stages():
            together = self.said(stage, rows)
            for some in (rows, rows[:0], rows[::-1], *rows[:3, None]):
                maps = self.said(stage, some)
                if together is None or maps is None:
                    assert maps is together, f"{stage.name}: matrices must return None for any rows, or for none"
                    continue
                assert maps.shape == (len(some), 3, 3), f"{stage.name}: matrices must be (n, 3, 3), got {maps.shape}"
                assert np.array_equal(maps, together[some]), (
                    f"{stage.name}: maps of rows {some} must be as among others"
                )
                assert np.linalg.det(maps).all(), f"{stage.name}: maps must have an inverse, got {maps}"

    def test_what_is_shown_comes_from_where_it_is_said(self) -> None:
        """Images whose pixels are their own column and row show where each was, by kernels and by DALI's operators."""
        stage, rows = self.stages()[0], np.arange(_ROWS)
        maps = None if stage.keeps_place or self.pixels_apart is None else self.said(stage, rows)
        if maps is None:
            pytest.skip("what keeps its place, or does not say where things go, is not compared")
        heights, widths = self.taken(stage)
        sides = [*zip(heights[rows % len(heights)].tolist(), widths[rows % len(widths)].tolist(), strict=True)]
        pictures = [coordinates(*shape) for shape in sides]
        parameters = {name: values for name, values in self.drawn(stage, rows).items() if name in stage.parameters}
        for name, by in makers_of(stage).items():
            for row, image in enumerate(by(pictures, parameters)):
                if max(sides[row]) > _LARGEST:
                    continue
                (said,) = predicted(maps[row : row + 1], *image.shape[:2])
                least, most = _BORDER, np.array(sides[row][::-1]) - 1 - _BORDER
                deep, seen = (((least < at) & (at < most)).all(axis=2) for at in (said, image[..., :2]))
                assert (image[deep, 2] == 255).all(), f"{name} must show all that matrices says is shown of row {row}"
                looked_at = deep | (seen & (image[..., 2] == 255))
                apart = np.abs(image[looked_at, :2] - said[looked_at]).max(initial=0)
                assert apart <= self.pixels_apart, f"{name} shows row {row} from {apart} pixels beside what is said"

    def test_what_is_made_of_an_image_depends_on_it_alone_and_is_as_large_as_is_said(self) -> None:
        """The same pixels in any batch, by kernels and by DALI's operators, of the sizes that `output_sizes` says."""
        stage = self.stages()[0]
        rows = np.arange(2 * len(self.taken(stage)[0]))
        heights, widths = (np.tile(sides, 2) for sides in self.taken(stage))
        rng = np.random.default_rng(0)
        sides = zip(heights.tolist(), widths.tolist(), strict=True)
        pictures = [rng.integers(0, 256, (height, width, 3), np.uint8) for height, width in sides]
        parameters = self.drawn(stage, rows)
        said = np.stack([parameters.pop("output heights"), parameters.pop("output widths")], axis=1).tolist()

        def made(by: Maker, some: NDArray[np.int64]) -> list[Image]:
            return by([pictures[row] for row in some], {name: values[some] for name, values in parameters.items()})

        makers = makers_of(stage)
        whole = {name: made(by, rows) for name, by in makers.items()}
        for name, by in makers.items():
            sizes = [[*image.shape[:2]] for image in whole[name]]
            assert sizes == said, f"output_sizes says {said}, but {name} makes {sizes}"
            for some in (rows[::-1], *rows[:, None]):
                for row, image in zip(some, made(by, some), strict=True):
                    same = np.array_equal(image, whole[name][row])
                    assert same, f"image {row} must be the same in any batch, but not by {name} in the batch {some}"
        if len(whole) > 1 and self.levels_apart is not None:
            for ours, theirs in zip(whole["kernels"], whole["DALI"], strict=True):
                apart = np.abs(ours.astype(int) - theirs).max()
                assert apart <= self.levels_apart, f"kernels must be {self.levels_apart} levels from DALI, are {apart}"
