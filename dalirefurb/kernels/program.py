"""KernelProgram: kernel operations, with a row of numbers and addresses for each image of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import Code
from dalirefurb.augment.output import Output
from dalirefurb.augment.stage import Sizes
from dalirefurb.dali import Feed, GraphError
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Images, Places, decoded_rows, rounded
from dalirefurb.kernels.buffers import PlainLevels
from dalirefurb.kernels.host import HostFunction
from dalirefurb.kernels.kernel import compile_any, kernel_named
from dalirefurb.kernels.lower import KernelOp
from dalirefurb.kernels.normalize import LANES, compile_output, output_of
from dalirefurb.kernels.pixels.planes import planes_first, record_behind_planes
from dalirefurb.kernels.record import DONE, NOT_SPLIT, PROBLEMS, RAISED, WIDTH, WORK


class Scratch(NamedTuple):
    """Memory of one thread, known before its kernels begin; multiples of `ALIGNMENT`.

    image on the way │ another one │ room for a kernel's tables

    Attributes:
        image_bytes: Number of bytes of the largest image on the way, rounded up to a multiple of `ALIGNMENT`.
        room_bytes: Number of bytes that kernels need beside images, rounded up to a multiple of `ALIGNMENT`.
    """

    image_bytes: int = 0
    room_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """All of it."""
        return 2 * self.image_bytes + self.room_bytes

    def with_step(self, step: KernelOp, before: Sizes, after: Sizes) -> Scratch:
        """Return what is needed if a step is taken, too, given the sizes of the images before and after it."""
        images = 3 * after[0] * after[1]
        return Scratch(
            max(self.image_bytes, _aligned(images)), max(self.room_bytes, _aligned(_room_bytes(step, before, after)))
        )


def _room_bytes(step: KernelOp, before: Sizes, after: Sizes) -> NDArray[np.int64]:
    """Return what any of a step's kernels needs for each image, at most: a window is not larger than its image."""
    numbers = step.largest(before).T
    most = np.zeros(len(before[0]), np.int64)
    for name in step.kernels:
        if isinstance(name, str):
            np.maximum(most, kernel_named(name).room_bytes(*before, *after, numbers), out=most)
    return most


def _aligned(nbytes: NDArray[np.int64]) -> int:
    return rounded(int(nbytes.max(initial=0)))


STREAMED_BYTES = 16 << 20
"""Results of a batch from which on they are streamed."""

_NOWHERE = np.empty(0, np.int64)
_NO_PLACES = Places(_NOWHERE, np.empty((0, 2), np.int64))


@dataclass(frozen=True)
class Work:
    """What there is to do for a batch, or for some of its rows.

    Attributes:
        record: Record of the work, a `WORK` of shape (1,); in the work of a whole batch, it takes no rows yet.
        count: Number of rows of the batch.
        computed: Number of rows that are computed from what enters the first step: the first ones of the batch.
        partials: Partial images of the rows that are computed, once the work is done; empty if they are not written
            down.
        scratch: Memory that each thread needs.
        done: Outcome of each row of the batch, uint8 of shape (n,), see `WORK`.
        taken: Rows of the batch that are to be done, int64 of shape (t,); in the work of a whole batch there are none
            yet.
        arrays: What the record has addresses of, by its names, as far as it is of this batch alone.
        kept: Further objects whose memory it has addresses of.
        samples: Index of each row's sample, int64 of shape (n,); None: not known.
        functions: Python functions that kernels call.
    """

    record: NDArray[Any]
    count: int
    computed: int
    partials: Images
    scratch: Scratch
    done: NDArray[np.uint8]
    taken: NDArray[np.int64]
    arrays: Mapping[str, NDArray[Any]]
    kept: object
    samples: Feed | None = None
    functions: Sequence[HostFunction] = ()

    def part(self, taken: NDArray[np.int64]) -> Work:
        """Return what there is to do for some rows, int64 (t,)."""
        begun = np.zeros(1, np.int64)
        record = self.record.copy()
        record["rows"] = len(taken)
        record["taken"], record["begun"] = _address(taken), _address(begun)
        return replace(self, record=record, taken=taken, kept=(self.kept, begun))

    def with_memory(self, scratch: NDArray[np.uint8]) -> Work:
        """Return the work, for threads that have `scratch.nbytes` each."""
        record = self.record.copy()
        record["scratch"] = _address(scratch)
        return replace(self, record=record, kept=(self.kept, scratch))

    def check(self) -> None:
        """Refuse to go on where a row was not carried out, once nobody works on them any more.

        Raises:
            StageRaised: If a function of the user's raised an error.
            GraphError: It names the rows.
        """
        outcomes = self.done[self.taken]
        if (outcomes == DONE).all():
            return
        raised = [
            function.raised(_address(step[row]), None if self.samples is None else int(self.samples[row]))
            for row in self.taken[outcomes == RAISED].tolist()
            for step in self.arrays["numbers"]
            for function in self.functions
        ]
        for error in filter(None, raised):
            raise error
        missed = outcomes != DONE
        rows = ", ".join(map(str, np.sort(self.taken[missed]).tolist()))
        reasons = "; ".join(PROBLEMS[outcome] for outcome in np.unique(outcomes[missed]).tolist())
        raise GraphError(
            f"kernels must carry out all of {len(self.taken)} rows, but did not carry out {rows} ({reasons}): this is "
            f"a fault of the library"
        )


class KernelProgram:
    """The steps of a part, or of both parts of a recipe.

    Args:
        steps: Kernel operations of the stages, decoding excepted.
        output: Output that the model receives, or what DALI goes on with, if the steps end with it; None: they do
            not.
        split: Number of steps after which an image is partial, and written down; None: it is not.
        encoded: Whether samples are decoded before the first step.
        window: Name of the first stage, if decoding already cuts its window; None: it does not.

    Attributes:
        constants: Arrays that are the same for all batches, by their names in `WORK`.
    """

    def __init__(
        self,
        steps: tuple[KernelOp, ...],
        output: Output | PlainLevels | None,
        *,
        split: int | None = None,
        encoded: bool = False,
        window: str | None = None,
    ) -> None:
        self.steps = steps
        self.output = output
        self._split = NOT_SPLIT if split is None else split
        self._encoded = encoded
        self._window = window
        self._entered: tuple[bytes, bytes] | None = None
        self._sizes = np.empty((len(steps) + 1, 0, 2), np.int64)
        self._scratch = Scratch()
        # As DALI computes them: in single precision, from numbers for levels 0 .. 255.
        means, scales = np.zeros(3, np.float32), np.ones(3, np.float32)
        if output is not None:
            means[:] = [255 * mean for mean in output.means]
            scales[:] = 1 / np.array([255 * std for std in output.stds], np.float32)
        levels = np.arange(256, dtype=np.float32)
        numbers = (levels - means[:, None]) * scales[:, None]
        brain = output is not None and output.dtype == "bfloat16"
        halves = brain_floats(numbers) if brain else numbers.astype(np.float16)
        self._functions: list[Any] = []
        self._record = np.zeros(1, WORK)
        self.constants: dict[str, NDArray[Any]] = {
            "kernels": self._table(),
            "codes": np.array([step.code for step in steps], np.int64),
            "means": means,
            "scales": scales,
            "halves": halves,
        }
        for name, array in self.constants.items():
            self._record[name] = _address(array)
        self._record["steps"], self._record["split"] = len(steps), self._split
        self._record["choices"] = self.constants["kernels"].shape[1]
        self._record["tail"] = self._tail()
        self._record["output"] = self._output_function()
        self._record["channels_last"] = output is None or output.channels_last

    def work(
        self,
        feeds: Mapping[str, Feed],
        *,
        pinned: Images | None = None,
        final: Mapping[str, Feed] | None = None,
        reserve: Callable[[NDArray[np.int64]], Images] | None = None,
        results: NDArray[Any] | None = None,
        targets: NDArray[np.int64] = _NOWHERE,
    ) -> Work:
        """Prepare to carry out all steps for n rows: first those that are computed, then those whose image is pinned.

        Args:
            feeds: Inputs by name: what enters the first step, and, as "<stage>/<parameter>", what was drawn for each
                row that is computed.
            pinned: Partial images of the rows that are not computed; None: there are none.
            final: Parameters of all n rows for the steps after the split, as "<stage>/<parameter>"; None: there are
                none.
            reserve: Function that makes room for c partial images, given their heights and widths, shape (c, 2), if
                partial images are written down.
            results: Array for the results of the whole batch, if the model receives any.
            targets: Addresses in `results` where the results of these n rows belong, int64 of shape (n,).
        """
        sample = feeds.get("sample", ())
        images = None if self._encoded else Images.of(sample)
        entering = self._places(feeds, images) if len(sample) else _NO_PLACES
        cut = np.flatnonzero(entering.addresses == 0) if self._window is not None else _NOWHERE
        at_hand = _NO_PLACES if pinned is None or not len(pinned) else pinned.places
        computed, count = len(entering.sizes), len(entering.sizes) + len(at_hand.sizes)
        sizes, scratch = self._sizes_of(entering.sizes, at_hand.sizes)
        partials, written = Images(()), _NOWHERE
        if self._split != NOT_SPLIT and computed:
            assert reserve is not None
            partials = reserve(sizes[self._split, :computed])
            written = partials.places.addresses
        chosen, numbers = self._laid_out(feeds, final or {}, sizes, computed, cut)
        record = self._record.copy()
        if entering.layouts is not None:
            cuts = self.steps[0].code if self.steps and self._split != 0 else Code.OTHER
            laid_out = planes_first(entering.layouts, cuts, sizes, chosen, numbers)
            sizes, chosen, numbers, (image_bytes, room_bytes) = laid_out
            scratch = Scratch(max(scratch.image_bytes, image_bytes), max(scratch.room_bytes, room_bytes))
            record = self._from_planes.copy()
        arrays = {
            "sizes": sizes,
            "chosen": chosen,
            "numbers": numbers,
            "origins": np.concatenate([entering.addresses, at_hand.addresses]),
            "partials": written,
            "targets": targets,
            "done": np.zeros(count, np.uint8),
        }
        record["count"], record["computed"] = count, computed
        record["streamed"] = self.output is not None and results is not None and streamed(self.output, len(results))
        record["image_bytes"], record["room_bytes"] = scratch
        for name, array in arrays.items():
            record[name] = _address(array)
        kept = self.constants, self._functions, sample, images, pinned, results
        samples = (final or {}).get("index", feeds.get("index"))
        functions = [each for each in self._functions if isinstance(each, HostFunction)]
        return Work(
            record, count, computed, partials, scratch, arrays["done"], _NOWHERE, arrays, kept, samples, functions
        )

    def _table(self) -> NDArray[np.int64]:
        """Return the kernels that each step chooses among, as `WORK` has them, (s, k); 0 where there is none."""
        table = np.zeros((len(self.steps), max((len(step.kernels) for step in self.steps), default=1)), np.int64)
        for place, step in enumerate(self.steps):
            for choice, kernel in enumerate(step.kernels):
                if kernel is not None:
                    table[place, choice] = self._number(kernel)
        return table

    def _number(self, kernel: Any) -> int:
        """Return the address of a kernel, and keep what is there."""
        self._functions.append(compile_any(kernel))
        return int(self._functions[-1].address)

    @cached_property
    def _from_planes(self) -> NDArray[Any]:
        """The record of the steps behind one that makes RGB of planes; it is made when an image first needs it."""
        return record_behind_planes(self._record, self.constants)

    def _output_function(self) -> int:
        """Return the address of what makes what comes out; 0 if nothing does."""
        return compile_output(output_of(self.output)).address if self.output else 0

    def _places(self, feeds: Mapping[str, Feed], images: Images | None) -> Places:
        """Return the places of what enters; what is yet to be decoded has no address, but its size to come."""
        if images is not None:
            return images.origins
        sizes = np.array(feeds["sizes" if self._window is None else f"{self._window}/shape"], np.int64)
        addresses, layouts = np.zeros(len(sizes), np.int64), None
        samples = feeds["sample"]
        if len(decoded := decoded_rows(samples)):
            whole = samples if isinstance(samples, Images) else Images([samples[row] for row in decoded])
            addresses[decoded], sizes[decoded], own = whole.origins
            if own is not None:
                layouts = np.zeros(len(sizes), np.int64)
                layouts[decoded] = own
        return Places(addresses, sizes, layouts)

    def _sizes_of(self, entering: NDArray[np.int64], pinned: NDArray[np.int64]) -> tuple[NDArray[np.int64], Scratch]:
        """Return the sizes of images before, between and after the steps, (s + 1, n, 2), given those that enter.

        Often they are those of the batch before. Beside them the memory that the steps need.
        """
        entered = entering.tobytes(), pinned.tobytes()
        if entered != self._entered:
            computed, split = len(entering), max(self._split, 0)
            sizes = np.zeros((len(self.steps) + 1, computed + len(pinned), 2), np.int64)
            sizes[0, :computed] = entering
            if len(pinned):
                sizes[split, computed:] = pinned
            scratch = Scratch()
            for place, step in enumerate(self.steps):
                rows = slice(None if place >= split else computed)
                heights, widths = sizes[place, rows].T
                after = step.output_sizes(heights, widths)
                sizes[place + 1, rows, 0], sizes[place + 1, rows, 1] = after
                scratch = scratch.with_step(step, (heights, widths), after)
            self._check(sizes[-1])
            self._sizes, self._scratch, self._entered = sizes, scratch, entered
        return self._sizes, self._scratch

    def _check(self, sizes: NDArray[np.int64]) -> None:
        """Refuse results of sizes, (n, 2), that are not the output's."""
        if self.output is None:
            return
        other = (sizes != self.output.sides).any(axis=1)
        if other.any():
            height, width = sizes[other.argmax()]
            raise LoaderError(
                f"the last stage must leave images of the output's size {self.output.sides_text}, got {height} x "
                f"{width}; end with a crop or a resize to that size"
            )

    def _tail(self) -> int:
        """Return the number of steps before the crops and flips at the end of the final part, if its output does these.

        What makes halves looks at all pixels of an image.
        """
        tail = len(self.steps)
        if self.output is None or self.output.dtype != "float32":
            return tail
        while tail > max(self._split, 0) and self.steps[tail - 1].code in (Code.CROP, Code.FLIP):
            tail -= 1
        return tail

    def _laid_out(
        self,
        feeds: Mapping[str, Feed],
        final: Mapping[str, Feed],
        sizes: NDArray[np.int64],
        computed: int,
        cut: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Lay a batch's parameters out, given the sizes on the way, (s + 1, n, 2): (s, n), and (s, n, WIDTH).

        Of the rows `cut`, (c,), decoding cuts the window of the first step.
        """
        numbers = np.zeros((len(self.steps), sizes.shape[1], WIDTH))
        chosen = np.zeros(numbers.shape[:2], np.int64)
        for place, step in enumerate(self.steps):
            of_all = 0 <= self._split <= place
            drawn, rows = (final, slice(None)) if of_all else (feeds, slice(computed))
            if len(numbers[place, rows]):
                heights, widths = sizes[place, rows].T
                step.lay_out(drawn, (heights, widths), chosen[place, rows], numbers[place, rows])
        if len(cut):
            numbers[0, cut, :2] = 0
        return chosen, numbers


def brain_floats(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite numbers to bfloat16 as torch does, half to even; return their bits."""
    bits = numbers.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def streamed(output: Output | PlainLevels, count: int) -> bool:
    """Tell whether results go past the caches, see `normalize.floats`: if they cannot hold a batch for the model."""
    height, width = output.sides
    vectors = output.dtype == "float32" and output.channels == 3 and width % LANES == 0
    return vectors and 12 * count * height * width >= STREAMED_BYTES


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
