"""BackendFactory: builds what computes a part, DALI's pipelines or kernels that leave only decoding to DALI."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch

from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Device, Stage
from dalirefurb.augment.stages.custom import KernelStage
from dalirefurb.dali import Graph, Part, PipelineRunner, Replicas, cut_window, release_unused_memory
from dalirefurb.engine.prefetch import Depths
from dalirefurb.errors import ConfigurationError
from dalirefurb.image_batch import Images
from dalirefurb.kernels.lower import steps_of

if TYPE_CHECKING:
    from dalirefurb.kernels.pipelines import DecodePipelines
    from dalirefurb.kernels.runner import KernelRunner
    from dalirefurb.kernels.thread_pool import KernelThreadPool


@dataclass(frozen=True)
class Devices:
    """Where the parts of a recipe run, and where partial images are in between.

    Attributes:
        partial: Device where the partial part runs.
        final: Device where the final part runs.
        leaving: Device where partial images leave the partial part.
        entering: Device where partial images enter the final part.
    """

    partial: Device = "cpu"
    final: Device = "cpu"
    leaving: Device = "cpu"
    entering: Device = "cpu"


Kernels = Literal["numba", "dali"]
"""What computes on the CPU: kernels compiled by Numba where there are any, or DALI's operators alone."""


def choose_kernels(kernels: Kernels | None, recipe: Recipe, devices: Devices) -> Kernels:
    """Fill in what is None: Numba, if it is installed, both parts run on the CPU and every stage has a kernel.

    All stages or none: else it would depend on the split, or on whether there is a store, which stages run by which.

    Raises:
        ConfigurationError: If they cannot be had.
    """
    chosen = _chosen(kernels, recipe, devices)
    if chosen == "dali":
        for stage in recipe.stages:
            for each in (stage, *getattr(stage, "inner", ())):
                if isinstance(each, KernelStage):
                    each.refuse_dali()
    return chosen


def _chosen(kernels: Kernels | None, recipe: Recipe, devices: Devices) -> Kernels:
    on_cpu = devices.partial == devices.final == "cpu"
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
            f"kernels='numba' is for the CPU, got partial_device={devices.partial!r} and "
            f"final_device={devices.final!r}: leave kernels out"
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


def compile_kernels(kernels: Kernels, recipe: Recipe) -> None:
    """Compile what a recipe needs, where kernels are chosen; what was compiled before is loaded."""
    if kernels == "dali":
        return
    from dalirefurb.kernels.ahead import compile_for
    from dalirefurb.kernels.random import use_compiled

    stages, split = _stages(recipe), max(recipe.split - recipe.encoded, 0)
    compile_for(stages[:split], stages[split:], recipe.output)
    use_compiled()


def _stages(recipe: Recipe) -> tuple[Stage, ...]:
    """Return the stages that kernels can do: all but decoding."""
    return recipe.stages[1:] if recipe.encoded else recipe.stages


class BackendFactory:
    """Builds what runs the parts of one recipe, on the CUDA device that is current when it is made, if on any.

    Args:
        recipe: Recipe that says what is done to a sample.
        kernels: Name of what computes on the CPU, "numba" or "dali".
        devices: Devices where the parts run.
        max_rows: Largest number of rows in one batch group.
        depths: Numbers of pipeline copies, of threads and of batch groups.
        reserve: Function that gives room for partial images, see `Store.reserve`; None without a store.
    """

    def __init__(
        self,
        recipe: Recipe,
        kernels: Kernels,
        devices: Devices,
        *,
        max_rows: int,
        depths: Depths,
        reserve: Callable[[int], Images | None] | None = None,
    ) -> None:
        self._recipe = recipe
        self._kernels = kernels
        self._devices = devices
        self._max_rows = max_rows
        # Not when a part is built: on another thread another device may be the current one.
        self._device_id = torch.cuda.current_device() if "gpu" in (devices.partial, devices.final) else None
        self._depths = depths
        self._reserve = reserve
        self._num_threads = depths.replicas * depths.threads_each
        self._pools: list[KernelThreadPool] = []

    def build(self, part: Part, count: int | None = None) -> PipelineRunner:
        """Return what runs a part: kernels, or `count` copies of its pipeline, by default as `Depths` says.

        Where kernels are chosen the final part is never alone: see `build_both`.
        """
        if self._kernels == "dali":
            return self._replicas(part, count)
        assert part != "final"
        recipe = self._recipe
        if part == "partial":
            return self._kernel_runner(recipe.partial, output=None, split=True)
        return self._kernel_runner(recipe.stages, output=recipe.output, split=False)

    def build_both(self) -> KernelRunner:
        """Return kernels of both parts, where kernels are chosen, for samples and partial images."""
        recipe = self._recipe
        return self._kernel_runner(recipe.partial, recipe.final, output=recipe.output, split=True)

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

    def _replicas(self, part: Part, count: int | None) -> Replicas:
        devices, depths = self._devices, self._depths
        copies, threads_each = depths.replicas, depths.threads_each
        if part == "final":
            copies, threads_each = depths.final_replicas, depths.final_threads_each
        graph = Graph(
            self._recipe,
            part,
            devices.partial,
            devices.final,
            entering_device=devices.entering if part == "final" else "cpu",
            leaving_device=devices.leaving if part == "partial" else "cpu",
        )
        return Replicas(
            graph,
            copies if count is None else count,
            max_batch_size=self._max_rows,
            num_threads=threads_each,
            device_id=self._device_id if graph.needs_gpu else None,
        )

    def _kernel_runner(
        self, first: tuple[Stage, ...], then: tuple[Stage, ...] = (), *, output: Output | None, split: bool
    ) -> KernelRunner:
        """Return kernels of some stages.

        Args:
            first: First stages of the recipe, decoding included.
            then: Stages after them.
            output: Output that the model receives, if the stages end with it; None: they do not.
            split: Whether images are partial after the first stages, and written down.
        """
        from dalirefurb.kernels.buffers import OutputBuffers
        from dalirefurb.kernels.program import KernelProgram
        from dalirefurb.kernels.runner import KernelRunner
        from dalirefurb.kernels.thread_pool import KernelThreadPool

        encoded = self._recipe.encoded
        window = cut_window(self._recipe) if encoded else None
        # Each part alone: what is one operation never reaches over the split.
        ops, ops_then = steps_of(first[encoded:]), steps_of(then)
        assert ops is not None
        assert ops_then is not None
        program = KernelProgram(
            (*ops, *ops_then),
            output,
            split=len(ops) if split else None,
            encoded=encoded,
            window=None if window is None else window.name,
        )
        pool = KernelThreadPool(self._num_threads - 1)
        self._pools.append(pool)
        buffers = OutputBuffers(self._depths.groups_made, self._reserve)
        return KernelRunner(program, self._pipelines(decoding=encoded), pool, buffers)

    def _pipelines(self, *, decoding: bool) -> DecodePipelines:
        """Return where kernels run, after decoding or without."""
        from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines, shared_out

        shares, threads_each = shared_out(self._num_threads)
        decoded = Graph(self._recipe, "decoded", self._devices.partial, self._devices.final) if decoding else None
        pipelines = DecodePipelines(
            [
                DecodePipeline(decoded, max_rows=self._max_rows, num_threads=threads_each)
                for _ in range(shares if decoding else 0)
            ],
            DecodePipeline(None, max_rows=1, num_threads=self._num_threads),
        )
        self._pools.extend(pipelines.pools())
        return pipelines
