"""BackendFactory: builds what computes a part, DALI's pipelines or kernels that leave only decoding to DALI."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

import torch

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Device, Stage
from dalirefurb.dali import Graph, Part, PipelineRunner, Replicas, cut_window, release_unused_memory
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.errors import ConfigurationError
from dalirefurb.image_batch import Images
from dalirefurb.kernels.lower import KernelOp, steps_of
from dalirefurb.rng import Mix

if TYPE_CHECKING:
    from dalirefurb.kernels.both_parts import BothParts
    from dalirefurb.kernels.pipelines import DecodePipelines
    from dalirefurb.kernels.thread_pool import KernelThreadPool

Kernels = Literal["numba", "dali"]
"""What computes on the CPU: kernels compiled by Numba where there are any, or DALI's operators alone."""


def choose_kernels(kernels: Kernels | None, recipe: Recipe, partial_device: Device, final_device: Device) -> Kernels:
    """Fill in what is None: Numba, if it is installed, both parts run on the CPU and every stage has a kernel.

    All stages or none: else it would depend on the split, or on whether there is a store, which stages run by which.

    Raises:
        ConfigurationError: If they cannot be had.
    """
    on_cpu = partial_device == final_device == "cpu"
    installed = importlib.util.find_spec("numba") is not None
    without = [stage.name for stage in _stages(recipe) if steps_of((stage,)) is None]
    if kernels is None:
        return "numba" if on_cpu and installed and not without else "dali"
    if kernels not in get_args(Kernels):
        raise ConfigurationError(f"kernels must be one of {get_args(Kernels)} or None, got {kernels!r}")
    if kernels == "dali":
        return kernels
    if not on_cpu:
        raise ConfigurationError(
            f"kernels='numba' is for the CPU, got partial_device={partial_device!r} and "
            f"final_device={final_device!r}: leave kernels out"
        )
    if not installed:
        raise ConfigurationError(
            "kernels='numba' needs Numba, which is not installed: pip install numba, or leave kernels out"
        )
    if without:
        raise ConfigurationError(
            f"kernels='numba' needs stages that have kernels, but {', '.join(map(repr, without))} has none: "
            f"leave kernels out"
        )
    return kernels


def choose_mix(kernels: Kernels) -> Mix | None:
    """Return what computes random numbers, see `rng.uniforms_for`."""
    if kernels == "dali":
        return None
    from dalirefurb.kernels.random import compile_mix

    return compile_mix()


def _stages(recipe: Recipe) -> tuple[Stage, ...]:
    """Return the stages that kernels can do: all but decoding."""
    return recipe.stages[1:] if recipe.encoded else recipe.stages


class BackendFactory:
    """Builds what runs the parts of one recipe, on the CUDA device that is current when it is made, if on any.

    Args:
        recipe: Recipe that says what is done to a sample.
        kernels: Name of what computes on the CPU, "numba" or "dali".
        partial_device: Device where the partial part runs.
        final_device: Device where the final part runs.
        entering_device: Device where partial images enter the final part.
        leaving_device: Device where partial images leave the partial part.
        max_rows: Largest number of rows in one run.
        prefetch: Numbers of pipeline copies, of threads and of runs.
        reserve: Function that gives room for partial images, see `Store.reserve`; None without a store.
    """

    def __init__(
        self,
        recipe: Recipe,
        kernels: Kernels,
        *,
        partial_device: Device,
        final_device: Device,
        entering_device: Device,
        leaving_device: Device = "cpu",
        max_rows: int,
        prefetch: Prefetch,
        reserve: Callable[[int], Images | None] | None = None,
    ) -> None:
        self._recipe = recipe
        self._kernels = kernels
        self._devices: tuple[Device, Device] = partial_device, final_device
        self._entering_device: Device = entering_device
        self._leaving_device: Device = leaving_device
        self._max_rows = max_rows
        # Not when a part is built: on another thread another device may be the current one.
        self._device_id = torch.cuda.current_device() if "gpu" in self._devices else None
        self._prefetch = prefetch
        self._reserve = reserve
        self._num_threads = prefetch.replicas * prefetch.threads_each
        self._pools: list[KernelThreadPool] = []

    def build(self, part: Part, count: int | None = None) -> PipelineRunner:
        """Return what runs a part: kernels, or `count` copies of its pipeline, by default as `Prefetch` says."""
        if self._kernels == "numba":
            return self._kernel_part(part)
        return self._replicas(part, self._prefetch.replicas if count is None else count, self._prefetch.threads_each)

    def build_both(self) -> BothParts:
        """Return kernels of both parts, where kernels are chosen."""
        from dalirefurb.kernels.both_parts import BothParts
        from dalirefurb.kernels.thread_pool import KernelThreadPool

        recipe = self._recipe
        pool = KernelThreadPool(self._num_threads - 1)
        self._pools.append(pool)
        return BothParts(
            self._steps("partial"),
            self._steps("final"),
            recipe.output,
            pipelines=self._pipelines(decoding=recipe.encoded),
            pool=pool,
            encoded=recipe.encoded,
            window=self._window,
            most_results=self._prefetch.runs_made,
            reserve=self._reserve,
        )

    def close(self) -> None:
        """Have the kernels' threads end, and let the store go: nothing is built any more. Never waits."""
        self._reserve = None
        for pool in self._pools:
            pool.close()

    def join(self) -> None:
        """Wait until they have ended."""
        for pool in self._pools:
            pool.join()

    def give_back(self) -> None:
        """Have DALI's pools return what nobody uses of a GPU's memory, once all that was built is gone."""
        if self._device_id is not None:
            release_unused_memory()

    def _replicas(self, part: Part, count: int, threads_each: int) -> Replicas:
        graph = Graph(
            self._recipe,
            part,
            *self._devices,
            entering_device=self._entering_device if part == "final" else "cpu",
            leaving_device=self._leaving_device if part == "partial" else "cpu",
        )
        return Replicas(
            graph,
            count,
            max_batch_size=self._max_rows,
            num_threads=threads_each,
            device_id=self._device_id if graph.needs_gpu else None,
        )

    def _kernel_part(self, part: Part) -> PipelineRunner:
        from dalirefurb.kernels.part_runner import KernelPart

        recipe = self._recipe
        decodes = recipe.encoded and part != "final"
        return KernelPart(
            self._steps(part),
            None if part == "partial" else recipe.output,
            entering="partial" if part == "final" else "sample",
            pipelines=self._pipelines(decoding=decodes),
            encoded=decodes,
            window=self._window if decodes else None,
            most_results=self._prefetch.runs_made,
            reserve=self._reserve if part == "partial" else None,
        )

    def _steps(self, part: Part) -> tuple[KernelOp, ...]:
        """Return the steps of a part's stages, decoding excepted."""
        recipe = self._recipe
        stages = {"partial": recipe.partial, "final": recipe.final, "whole": recipe.stages}[part]
        steps = steps_of(stages[1:] if recipe.encoded and part != "final" else stages)
        assert steps is not None
        return steps

    def _pipelines(self, *, decoding: bool) -> DecodePipelines:
        """Return where kernels run, after decoding or without."""
        from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines, shared_out

        shares, threads_each = shared_out(self._num_threads)
        decoded = Graph(self._recipe, "decoded", *self._devices) if decoding else None
        pipelines = DecodePipelines(
            [
                DecodePipeline(decoded, max_rows=self._max_rows, num_threads=threads_each)
                for _ in range(shares if decoding else 0)
            ],
            DecodePipeline(None, max_rows=1, num_threads=self._num_threads),
        )
        self._pools.extend(pipelines.pools())
        return pipelines

    @property
    def _window(self) -> str | None:
        """The stage whose window is cut when samples are decoded, if one is."""
        window = cut_window(self._recipe) if self._recipe.encoded else None
        return None if window is None else window.name
