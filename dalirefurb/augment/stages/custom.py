"""Stages of the user's own code: of DALI's operators, a loop over pixels among the library's kernels, any function."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import KernelCall, columns
from dalirefurb.augment.stage import Arrays, Node, Parameter, Size, Stage, checked_size, sides_of
from dalirefurb.checks import flag, integer, require
from dalirefurb.errors import ConfigurationError

MOST_UNIFORMS = 16


class _OfFunction(Stage):
    """A stage made of a function, which cannot be looked into: its name and revision stand for it in fingerprints."""

    size: Size | None

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """Height and width of `size`."""
        return None if self.size is None else sides_of(self.size)

    def fingerprint(self) -> dict[str, Any]:
        values = super().fingerprint()
        del values["function"]
        return values


@dataclass(frozen=True)
class Custom(_OfFunction):
    """A deterministic stage made of a function from DALI node to DALI node.

    In the partial part it must return HWC uint8.

    Attributes:
        function: The function, called with HWC uint8 images on "cpu" or "gpu" while a graph is traced, and before, to
            look at it, when the stage is made. DALI's own random operators are refused: their numbers depend on the
            batch.
        name: Name of the stage, unique within the recipe.
        revision: Revision of the function, which fingerprints have in its place: raise it whenever the function comes
            to make other pixels.
        size: Height and width in pixels of what the function returns, or None if it keeps the size.
    """

    function: Callable[[Node], Node]
    name: str
    revision: int = 1
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        remedy = "pass a function that takes a DALI node and returns one"
        require(callable(self.function), f"stage {self.name!r}: function", "callable", self.function, remedy)
        if self.size is not None:
            object.__setattr__(self, "size", sides_of(checked_size(f"{self.name}: size", self.size)))
        if "nvidia.dali" in sys.modules:  # Else it uses no operator yet.
            importlib.import_module("dalirefurb.dali").refuse_random(self.function, f"stage {self.name!r}")

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        return self.function(images)


class GivenUniforms(Stage):
    """A stage whose parameters are the uniforms that it takes, if there are any, as they are."""

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"uniforms": Parameter("float64", (self.num_uniforms,))} if self.num_uniforms else {}

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        return {"uniforms": uniforms} if self.num_uniforms else {}


class OnCPU(_OfFunction, GivenUniforms):
    """A stage whose function kernels call on the CPU, with the random numbers of each image."""

    def _check_size(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", checked_size(f"{self.name}: size", self.size))

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        return [KernelCall([self], columns(*self.parameters))]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Refuse: the function is no operator of DALI.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"stage {self.name!r} is run by kernels on the CPU, but this recipe is run by DALI's operators: leave "
            f"kernels and devices out, install numba, and use no stage without a kernel, such as Custom; or make it of "
            f"DALI's operators by Custom; a KernelStage may be for a GPU by cuda=, too"
        )


@dataclass(frozen=True)
class KernelStage(OnCPU):
    """A stage made of a Python function that Numba compiles, for the CPU.

    The function works on one image at a time, `function(image, uniforms, out)`: uint8 levels (height, width, 3), which
    it reads; random numbers, float64 (n,), uniform in [0, 1), that are the sample's own, whatever batch it is in; and
    uint8 levels of the result, all of which it writes. It may call functions that are compiled by `numba.njit`. It must
    neither make arrays nor raise, which `Loader` checks when it compiles. It must stay inside of its arrays, which
    nobody checks while it runs, as in all that Numba compiles: have Python run it once on an image. `Loader` does so on
    a small one, and refuses a function that takes more numbers than it has there, or writes to its image.

    Attributes:
        function: Function from image, uniforms and result to None.
        name: Name of the stage, unique within the recipe.
        uniforms: Number of random numbers for each image, 0 .. 16.
        size: Side of the results in pixels, or their height and width; None: each is as large as its image.
        revision: Revision of the function, which fingerprints have in its place: raise it whenever the function comes
            to make other pixels.
        cuda: The same for a GPU: the body of a function of CUDA C++ that returns the pixel of row `y` and column `x` of
            a result, see docs/how-to/own-stage.md; empty: there is none. Both must make the same levels, which `Loader`
            tries on a small image.
    """

    function: Callable[..., None]
    name: str
    uniforms: int = 0
    size: Size | None = None
    revision: int = 1
    cuda: str = ""

    def __post_init__(self) -> None:
        taken_as = "the body of a function of CUDA C++ that returns a pixel"
        require(isinstance(self.cuda, str), f"stage {self.name!r}: cuda", taken_as, self.cuda, "or leave it out")
        remedy = "pass a function (image, uniforms, out) that writes the levels of out"
        function = getattr(self.function, "py_func", self.function)
        require(inspect.isfunction(function), f"stage {self.name!r}: function", "a function", self.function, remedy)
        taken = inspect.signature(function).parameters.values()
        by_place = [each for each in taken if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        fits = len(by_place) == len(taken) == len(("image", "uniforms", "out"))
        wanted = "a function of three arguments: image, uniforms, out"
        require(fits, f"stage {self.name!r}: function", wanted, str(inspect.signature(function)), remedy)
        object.__setattr__(self, "function", function)
        integer(f"{self.name}: uniforms", self.uniforms, 0, MOST_UNIFORMS, "draw as many as are used")
        self._check_size()

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        return self.uniforms

    def fingerprint(self) -> dict[str, Any]:
        """Return all but the function, and what is for a GPU if there is any."""
        values = super().fingerprint()
        if not self.cuda:
            del values["cuda"]
        return values


@dataclass(frozen=True)
class HostStage(OnCPU):
    """A stage made of any Python function of NumPy arrays, for the CPU: of OpenCV, Pillow, albumentations, SciPy.

    The function works on one image at a time, `function(image, rng)`, or `function(image)` if nothing is random: uint8
    levels (height, width, 3), which are its own, and a `numpy.random.Generator` that is the image's own, whatever batch
    it is in. It returns uint8 levels (height, width, 3). It must take all random numbers from `rng`, and must not
    change what other calls see, since several threads call it at a time. A loader tries it twice on an image of 16 x 16
    before, and refuses a function whose images differ; if it raises then, a batch's own images will tell. What it
    raises is raised in the training loop, with the sample's number.

    Of `Volumes` the function is given a dictionary of arrays, "image" (channels, depth, height, width) and, where there
    are labels of voxels, "mask" (depth, height, width), and returns such a one, of any size and of the types that
    volumes have; it is not tried before.

    Python's lock lets one thread at a time run Python: what takes long should be done by a library that releases it, as
    NumPy, OpenCV and Pillow do. In the partial part it runs once for each version. A loop over pixels is a
    `KernelStage`, which compiles it.

    Attributes:
        function: Function from image and generator, or from the image alone, to an image.
        name: Name of the stage, unique within the recipe.
        size: Side of the results in pixels, or their height and width; None: each is as large as its image.
        keeps_place: Whether everything in an image stays where it is, so that masks and boxes stay, too.
        revision: Revision of the function, which fingerprints have in its place: raise it whenever the function, or
            what it depends on, comes to make other pixels.
    """

    function: Callable[..., Any]
    name: str
    size: Size | None = None
    keeps_place: bool = False  # type: ignore[misc]
    revision: int = 1

    def __post_init__(self) -> None:
        remedy = "pass such as lambda image, rng: f(image, rng), or lambda image: f(image) if nothing is random"
        require(callable(self.function), f"stage {self.name!r}: function", "callable", self.function, remedy)
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):  # Of some functions that are written in C.
            signature = inspect.signature(lambda image: image)
        needed = [each for each in signature.parameters.values() if each.default is each.empty or each.name == "rng"]
        by_place = [each for each in needed if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        fits = len(by_place) == len(needed) and len(needed) in (1, 2)
        wanted = "a function of (image, rng), or of (image), beside what has defaults"
        require(fits, f"stage {self.name!r}: function", wanted, str(signature), remedy)
        object.__setattr__(self, "_random", len(needed) > 1)
        flag(f"{self.name}: keeps_place", self.keeps_place)
        self._check_size()

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """Two, which are the generator's key; 0 if nothing is random."""
        return 2 if self._random else 0  # type: ignore[attr-defined]
