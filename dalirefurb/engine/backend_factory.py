"""BackendFactory: builds what computes a part: DALI's pipelines, or kernels, which leave decoding to DALI, or more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage
from dalirefurb.augment.stages.custom import KernelStage
from dalirefurb.dali import Feed, Graph, Part, PipelineRunner, Replicas, cut_window, release_unused_memory
from dalirefurb.engine.cuda import CudaDevice, CudaFinal, CudaPartial, CudaQueue, check_own
from dalirefurb.engine.finals import Final, FinalGraph, FinalKernels
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.engine.kernel_choice import Devices, Kernels, begun_on_gpu, done_by, fallback_levels
from dalirefurb.engine.prefetch import Depths
from dalirefurb.engine.volumes import FinalVolumes, VolumeRunner
from dalirefurb.image_batch import Images
from dalirefurb.kernels.buffers import OutputBuffers, PlainLevels
from dalirefurb.kernels.lower import steps_of
from dalirefurb.store import DeviceStore
from dalirefurb.system.threads import Background

if TYPE_CHECKING:
    from dalirefurb.kernels.pipelines import DecodePipelines
    from dalirefurb.kernels.rows import KernelThreadPool
    from dalirefurb.kernels.runner import KernelRunner


class BackendFactory:
    """Builds what runs the parts of one recipe, on the CUDA device that is current when it is made, if on any.

    Args:
        recipe: Recipe that says what is done to a sample.
        kernels: Name of what computes.
        devices: Devices where the parts run.
        max_rows: Largest number of rows in one batch group.
        depths: Numbers of pipeline copies, of threads and of batch groups.
        reserve: Function that gives room for partial images, see `Store.reserve`; None without a store.
        gpu: GPU of kernels; None: there are none for a GPU.
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
        gpu: CudaDevice | None = None,
    ) -> None:
        self._recipe, self._gpu = recipe, gpu
        self._begun_on_gpu = begun_on_gpu(kernels, recipe, devices)
        self._checked = set[KernelStage]()
        done = done_by(kernels, recipe, devices)
        self._compiled, self._done, self._fallback = done is not None, done or 0, fallback_levels(kernels, recipe)
        self._devices = devices
        self._max_rows = max_rows
        # Not when a part is built: on another thread another device may be the current one.
        self._device_id = torch.cuda.current_device() if "gpu" in (devices.partial, devices.final) else None
        self._depths = depths
        self._reserve = reserve
        self._num_threads = depths.replicas * depths.threads_each
        self._pools: list[KernelThreadPool | Background] = []

    def build(self, part: Part, count: int | None = None) -> PipelineRunner:
        """Return what runs the partial part, or the whole: kernels, or `count` copies of its pipeline.

        How many these are by default `Depths` says. What does the final part alone is made by `build_final`.
        """
        recipe, done = self._recipe, self._done
        if self._begun_on_gpu:
            return self._cuda_partial(count)
        if not self._compiled:
            return self._replicas(self._graph(part), count)
        if part == "whole":
            return self._kernel_runner(recipe.stages[:done], output=self._output, split=False)
        runner = self._kernel_runner(recipe.partial[:done], output=None, split=True, reserves=done >= recipe.split)
        if done >= recipe.split:
            return runner
        # One copy, with all threads: a group is collected as soon as it is submitted.
        fallback = self._replicas(replace(self._graph("partial"), first=done), 1, threads_each=self._num_threads)
        return KernelsThenGraph(runner, fallback)

    def build_both(self) -> KernelRunner:
        """Return kernels of both parts, where they do all of the partial part, for samples and partial images."""
        recipe = self._recipe
        return self._kernel_runner(
            recipe.partial, recipe.final[: self._done - recipe.split], output=self._output, split=True
        )

    def build_finals(
        self, views: Sequence[Recipe], builders: Sequence[InputBuilder], *, slice_rows: int
    ) -> list[FinalKernels]:
        """Return kernels of the final parts of several views, each with the builder of its inputs."""
        from dalirefurb.kernels.program import KernelProgram
        from dalirefurb.kernels.rows import KernelThreadPool

        pool = KernelThreadPool(self._num_threads - 1)
        self._pools.append(pool)
        made = []
        for view, builder in zip(views, builders, strict=True):
            steps = steps_of(view.final)
            assert steps is not None
            program = KernelProgram(steps, view.output, split=0)
            buffers = OutputBuffers(self._depths.groups_made)
            stage = view.partner_stage
            made.append(FinalKernels(builder, program, pool, buffers, stage=stage, slice_rows=slice_rows))
        return made

    def build_volumes(self, builder: InputBuilder, *, masked: bool) -> tuple[VolumeRunner, FinalVolumes]:
        """Return what carries out both parts of a recipe for volumes, which may have labels of voxels."""
        recipe = self._recipe
        pool = Background(self._num_threads, name="dalirefurb-volumes")
        self._pools.append(pool)
        final = FinalVolumes(recipe, builder, pool, masked=masked, most_groups=self._depths.groups_made)
        return VolumeRunner(recipe.partial, pool), final

    def build_final(self, view: Recipe, builder: InputBuilder, store: DeviceStore | None) -> Final:
        """Return what does the final part of a view apart: kernels of a GPU, or DALI's pipelines.

        For these groups are laid out on the device of a store, if one is given.
        """
        if self._gpu is not None:
            return CudaFinal(builder, self._cuda_queue(view.final, view.output))
        return FinalGraph(builder, self._replicas(replace(self._graph("final"), recipe=view)), store)

    def _cuda_partial(self, count: int | None) -> CudaPartial:
        """Return the kernels of the partial part on a GPU, behind `count` copies of the pipeline that decodes."""
        recipe, decoder = self._recipe, None
        assert self._gpu is not None
        if recipe.encoded:
            device = self._gpu.decodes_on
            decoder = self._replicas(Graph(recipe.at(1), "decoded", device, device), count)
        return CudaPartial(self._cuda_queue(recipe.partial[recipe.encoded :], None), decoder, self._devices.leaving)

    def _cuda_queue(self, stages: tuple[Stage, ...], output: Output | None) -> CudaQueue:
        from dalirefurb.kernels.cuda.program import CudaProgram

        steps = steps_of(stages)
        assert steps is not None
        assert self._gpu is not None
        own = {kernel for step in steps for kernel in step.kernels if isinstance(kernel, KernelStage)}
        for stage in own - self._checked:  # Views have the same ones.
            check_own(stage, self._gpu)
        self._checked |= own
        return CudaQueue(CudaProgram(steps, output, split=0 if output else len(steps)), self._gpu)

    def build_fallback(self, builder: InputBuilder) -> FinalGraph:
        """Return DALI's operators from the first stage on that has no kernel, where kernels are chosen."""
        graph = replace(self._graph("final"), recipe=self._recipe.at(self._done))
        return FinalGraph(builder, self._replicas(graph), None)

    @property
    def falls_back(self) -> bool:
        """Whether kernels are chosen, and leave stages to DALI's operators, see `build_fallback`."""
        return self._fallback is not None

    @property
    def _output(self) -> Output | PlainLevels:
        """What kernels end with."""
        return self._fallback or self._recipe.output

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

    def _graph(self, part: Part) -> Graph:
        devices = self._devices
        return Graph(
            self._recipe,
            part,
            devices.partial,
            devices.final,
            entering_device=devices.entering if part == "final" else "cpu",
            leaving_device=devices.leaving if part == "partial" else "cpu",
        )

    def _replicas(self, graph: Graph, count: int | None = None, *, threads_each: int | None = None) -> Replicas:
        depths = self._depths
        copies, threads = depths.replicas, depths.threads_each
        if graph.part == "final":
            copies, threads = depths.final_replicas, depths.final_threads_each
        return Replicas(
            graph,
            copies if count is None else count,
            max_batch_size=self._max_rows,
            num_threads=threads_each or threads,
            device_id=self._device_id if graph.needs_gpu else None,
        )

    def _kernel_runner(
        self,
        first: tuple[Stage, ...],
        then: tuple[Stage, ...] = (),
        *,
        output: Output | PlainLevels | None,
        split: bool,
        reserves: bool = True,
    ) -> KernelRunner:
        """Return kernels of some stages.

        Args:
            first: First stages of the recipe, decoding included.
            then: Stages after them.
            output: What the stages end with; None: with partial images.
            split: Whether images are partial after the first stages, and written down.
            reserves: Whether they are written into the store's slots, if it has room.
        """
        from dalirefurb.kernels.program import KernelProgram
        from dalirefurb.kernels.rows import KernelThreadPool
        from dalirefurb.kernels.runner import KernelRunner

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
        buffers = OutputBuffers(self._depths.groups_made, self._reserve if reserves else None)
        return KernelRunner(program, self._pipelines(decoding=encoded), pool, buffers)

    def _pipelines(self, *, decoding: bool) -> DecodePipelines:
        """Return where kernels run, after decoding or without."""
        from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines, shared_out

        shares, threads_each = shared_out(self._num_threads)
        decoded = Graph(self._recipe, "decoded") if decoding else None
        pipelines = DecodePipelines(
            [
                DecodePipeline(decoded, max_rows=self._max_rows, num_threads=threads_each)
                for _ in range(shares if decoding else 0)
            ],
            DecodePipeline(None, max_rows=1, num_threads=self._num_threads),
        )
        self._pools.extend(pipelines.pools())
        return pipelines


class KernelsThenGraph:
    """Kernels make images, and a graph, whose samples these are, goes on with them: a `PipelineRunner`."""

    def __init__(self, kernels: KernelRunner, graph: PipelineRunner) -> None:
        self._kernels = kernels
        self._graph = graph
        self._feeds: deque[Mapping[str, Feed]] = deque()

    def submit(self, feeds: Mapping[str, Feed]) -> None:
        """Have the kernels begin."""
        self._kernels.submit(feeds)
        self._feeds.append(feeds)

    def collect(self) -> Any:
        """Wait for the kernels, then for the graph; see `PipelineRunner.collect`."""
        feeds = self._feeds.popleft()
        images = self._kernels.collect()
        self._graph.submit({**feeds, "sample": images.as_tensor()})
        return self._graph.collect()

    def restart(self) -> None:
        """Forget all batches in flight."""
        self._kernels.restart()
        self._graph.restart()
        self._feeds.clear()
