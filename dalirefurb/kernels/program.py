"""What do kernels work on? Steps, with a row of numbers and addresses for each image of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import LoaderError
from dalirefurb.graph import Feed
from dalirefurb.images import Images
from dalirefurb.kernels.output import LANES
from dalirefurb.kernels.rows import FLOATS, HALVES, NOT_SPLIT, NOTHING, compile_run
from dalirefurb.kernels.steps import MIRROR, WIDTH, Step
from dalirefurb.recipe import Output

STREAMED_BYTES = 16 << 20
"""Results of a batch from which on they are streamed."""

_KINDS = {"float32": FLOATS, "float16": HALVES}
_NOWHERE = np.empty(0, np.int64)


class Program:
    """The steps of a part, or of both parts of a recipe.

    Args:
        steps: Of its stages, decoding excepted.
        output: What the model receives, if it ends with it.
        split: After how many steps an image is partial, and written down; None: it is not.
        cut: Whether decoding already cut the window of the first stage.
    """

    def __init__(
        self, steps: tuple[Step, ...], output: Output | None, *, split: int | None = None, cut: bool = False
    ) -> None:
        self._steps = steps
        self._output = output
        self._split = split
        self._cut = cut
        self._run = compile_run()
        self._inputs = [{name: f"{step.stage.name}/{name}" for name in step.stage.parameters} for step in steps]
        self._sizes = np.empty((len(steps) + 1, 0, 2), np.int64)
        self._codes = np.array([step.code for step in steps], np.int64)
        self._bilinear = np.array([step.bilinear for step in steps], np.bool_)
        self._fills = np.array([step.fill for step in steps], np.uint8).reshape(-1, 3)
        # As DALI computes them: in single precision, from numbers for levels 0 .. 255.
        self._means = np.array([255 * mean for mean in (output.mean if output else (0, 0, 0))], np.float32)
        self._scales = 1 / np.array([255 * std for std in (output.std if output else (1, 1, 1))], np.float32)
        levels = np.arange(256, dtype=np.float32)
        halves = ((levels - self._means[:, None]) * self._scales[:, None]).astype(np.float16)
        self._halves = halves.view(np.uint16)

    def work(
        self,
        images: Images,
        feeds: Mapping[str, Feed],
        *,
        reserve: Callable[[NDArray[np.int64]], Images] | None = None,
        results: NDArray[Any] | None = None,
        targets: NDArray[np.int64] = _NOWHERE,
    ) -> tuple[Callable[[], None], Images]:
        """Prepare to carry out all steps for n images.

        Args:
            images: What enters.
            feeds: What was drawn for each, by stage and name.
            reserve: Makes room for partial images of n sizes, (n, 2), if they are written down.
            results: The results of all of a batch, if the model receives any.
            targets: The addresses, in there, where those of these images belong, (n,).

        Returns:
            What to do, for several threads that share the images out; and the partial images, once that is done.
        """
        origins, entering = images.places
        sizes = self._sizes_of(entering)
        output = self._output
        partials, places = Images(()), _NOWHERE
        if self._split is not None:
            assert reserve is not None
            partials = reserve(sizes[self._split])
            places = partials.places.addresses
        work = partial(
            _carry_out,
            (images, partials, results),
            self._run,
            self._codes,
            self._bilinear,
            self._fills,
            self._numbers(feeds, sizes),
            sizes,
            origins,
            NOT_SPLIT if self._split is None else self._split,
            places,
            targets,
            np.zeros(1, np.int64),
            _KINDS[output.dtype] if output else NOTHING,
            output.channels_last if output else True,
            output is not None and results is not None and streamed(output, len(results)),
            self._means,
            self._scales,
            self._halves,
        )
        return work, partials

    def _sizes_of(self, entering: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes of images before, between and after the steps, (s + 1, n, 2), given the first ones, (n, 2).

        Often they are those of the batch before.
        """
        if entering.tobytes() != self._sizes[0].tobytes():
            sizes = np.empty((len(self._steps) + 1, len(entering), 2), np.int64)
            sizes[0] = entering
            for place, step in enumerate(self._steps):
                heights, widths = step.stage.output_sizes(*sizes[place].T)
                sizes[place + 1, :, 0], sizes[place + 1, :, 1] = heights, widths
            self._check(sizes[-1])
            self._sizes = sizes
        return self._sizes

    def _check(self, sizes: NDArray[np.int64]) -> None:
        """Refuse results of sizes, (n, 2), that are not the output's."""
        if self._output is None:
            return
        size = self._output.size
        other = (sizes != size).any(axis=1)
        if other.any():
            height, width = sizes[other.argmax()]
            raise LoaderError(
                f"the last stage must leave images of the output's size {size} x {size}, got {height} x {width}; "
                f"end with a crop or a resize to that size"
            )

    def _numbers(self, feeds: Mapping[str, Feed], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Lay a batch's parameters out, given the sizes on the way, (s + 1, n, 2): (s, n, WIDTH)."""
        numbers = np.zeros((len(self._steps), sizes.shape[1], WIDTH))
        for step, inputs, rows, before in zip(self._steps, self._inputs, numbers, sizes, strict=False):
            step.write({name: np.asarray(feeds[place]) for name, place in inputs.items()}, tuple(before.T), rows)
            if step.mirror is not None:
                rows[:, MIRROR] = feeds[f"{step.mirror.name}/mirror"]
        if self._cut:
            numbers[0, :, :2] = 0
        return numbers


def streamed(output: Output, count: int) -> bool:
    """Tell whether results go past the caches, see `normalise`: of a batch that these would not hold for the model."""
    return output.dtype == "float32" and output.size % LANES == 0 and 12 * count * output.size**2 >= STREAMED_BYTES


def _carry_out(_: object, run: Callable[..., None], *arguments: Any) -> None:
    """Take rows until none is left; what addresses point to is kept meanwhile, whatever becomes of the part."""
    run(*arguments)
