"""BackendFactory: builds what computes a part: DALI's pipelines, or kernels, which leave decoding to DALI, or more."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Device, Stage, leaving
from dalirefurb.augment.stages.custom import KernelStage, OnCPU
from dalirefurb.dali import Feed, Graph, Part, PipelineRunner, Replicas, cut_window, release_unused_memory
from dalirefurb.engine.backends import FinalKernels
from dalirefurb.engine.cuda_final import CudaFinal
from dalirefurb.engine.cuda_partial import CudaPartial, check_own
from dalirefurb.engine.cuda_queue import CudaDevice, CudaQueue
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.engine.prefetch import Depths
from dalirefurb.errors import ConfigurationError, how_to_install
from dalirefurb.image_batch import Images
from dalirefurb.kernels.buffers import Levels, OutputBuffers
from dalirefurb.kernels.lower import steps_of
from dalirefurb.system.threads import Background

if TYPE_CHECKING:
    from dalirefurb.engine.volumes import FinalVolumes, VolumeRunner
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


Kernels = Literal["numba", "cuda", "dali"]
"""What computes: on the CPU kernels compiled by Numba up to a stage that has none; the final part on a GPU by the same
kernels in CUDA; or DALI's operators alone."""


def choose_kernels(kernels: Kernels | None, recipe: Recipe, devices: Devices, *, final: bool = True) -> Kernels:
    """Fill in what is None: Numba, if it is installed, both parts run on the CPU and the first stages have kernels.

    Or CUDA, if CuPy is installed, the final part runs on a GPU and all of its stages have kernels. Which stages run by
    which on the CPU, see `done_by_kernels`, depends neither on the split nor on whether there is a store.

    Args:
        kernels: Name of what computes; None: whatever can.
        recipe: Recipe whose stages are computed.
        devices: Devices of the parts.
        final: Whether the final part is computed here, too; else DALI's operators do it elsewhere.

    Raises:
        ConfigurationError: If they cannot be had.
    """
    chosen = _chosen(kernels, recipe, devices)
    partners = recipe.partner_stage
    if final and partners is not None and (chosen != "numba" or done_by_kernels(recipe) < len(recipe.stages)):
        partners.apply(None, {})  # Which refuses.
    done = recipe.split if begun_on_gpu(chosen, recipe, devices) else done_by(chosen, recipe, devices) or 0
    others = recipe.partial[done:] if chosen == "cuda" else recipe.stages[done if final else min(done, recipe.split) :]
    for stage in others:
        for each in (stage, *getattr(stage, "inner", ())):
            if not isinstance(each, OnCPU):
                continue
            if not final and stage in recipe.final:
                raise ConfigurationError(
                    f"stage {each.name!r} is run by kernels, but the final part is your pipeline's, of DALI's "
                    f"operators: split the recipe behind it, or make it of these by Stage or Custom"
                )
            each.refuse_dali()
    return chosen


def done_by_kernels(recipe: Recipe) -> int:
    """Return how many first stages kernels can do, decoding included: from the first without a kernel on DALI goes on.

    DALI is fed one array of them, so with none of them if that stage does not get images of one size from each recipe.
    """
    first = next(
        (place for place, stage in enumerate(recipe.stages) if place >= recipe.encoded and steps_of((stage,)) is None),
        len(recipe.stages),
    )
    return first if first == len(recipe.stages) or leaving(recipe.stages[:first], None) is not None else 0


def dali_goes_on(kernels: Kernels, recipe: Recipe, *, final: bool) -> str | None:
    """Name the stage where Numba's kernels end and DALI goes on; None: all is done by one of them.

    Args:
        kernels: Name of what computes.
        recipe: Recipe of what is computed.
        final: Whether the final part is done, too.
    """
    stages = recipe.stages if final else recipe.partial
    done = done_by_kernels(recipe)
    return stages[done].name if kernels == "numba" and done < len(stages) else None


def done_by(kernels: Kernels, recipe: Recipe, devices: Devices) -> int | None:
    """Return how many first stages kernels do on the CPU, decoding included; None if DALI does all there."""
    if kernels == "numba":
        return done_by_kernels(recipe)
    ours = kernels == "cuda" and devices.partial == "cpu" and steps_of(recipe.partial[recipe.encoded :]) is not None
    return recipe.split if ours else None


def begun_on_gpu(kernels: Kernels, recipe: Recipe, devices: Devices) -> bool:
    """Tell whether kernels do the partial part on a GPU, where DALI decodes alone."""
    return kernels == "cuda" and devices.partial == "gpu" and _has_cuda(recipe.partial[recipe.encoded :])


def _has_cuda(stages: tuple[Stage, ...]) -> bool:
    """Tell whether all of some stages have kernels for a GPU."""
    from dalirefurb.kernels.cuda.source import name_of

    steps = steps_of(stages)
    return steps is not None and all(each is None or name_of(each) for step in steps for each in step.kernels)


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # A stand-in, which has no spec.
        return True


def _cuda_refusal(recipe: Recipe, devices: Devices) -> str | None:
    """Say why the final part cannot be done by kernels on a GPU; None if it can."""
    if devices.final != "gpu":
        return f"is for a final part on a GPU, got final_device={devices.final!r}"
    if recipe.caches_encoded:
        return "is for decoded partial images, but split 0 caches encoded ones"
    if not all(map(_installed, ("cupy", "numba"))):
        return f"needs CuPy and Numba, which are not all installed ({how_to_install('gpu')})"
    if not _has_cuda(recipe.final):
        return "needs stages that have kernels for a GPU, but one of the final part has none"
    return None


def _chosen(kernels: Kernels | None, recipe: Recipe, devices: Devices) -> Kernels:
    on_cpu = devices.partial == devices.final == "cpu"
    installed = _installed("numba")
    done = done_by_kernels(recipe)
    some = done == len(recipe.stages) or done > recipe.encoded
    refused = _cuda_refusal(recipe, devices)
    if kernels is None:
        return "numba" if on_cpu and installed and some else "cuda" if refused is None else "dali"
    if kernels not in get_args(Kernels):
        raise ConfigurationError(f"kernels must be one of {get_args(Kernels)} or None, got {kernels!r}")
    if kernels == "cuda" and refused is not None:
        raise ConfigurationError(f"kernels='cuda' {refused}: leave kernels out")
    if kernels != "numba":
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
    if not some:
        names = [stage.name for stage in recipe.stages[recipe.encoded :] if steps_of((stage,)) is None]
        raise ConfigurationError(
            f"kernels='numba' needs stages that have kernels before {names[0]!r}, which has none, and to leave it "
            f"images of one size: leave kernels out"
        )
    return kernels


def choose_for_views(
    kernels: Kernels | None, recipes: Sequence[Recipe], devices: Devices, *, final: bool = True, versions: int = 1
) -> Kernels:
    """Choose for all views of a sample, `versions` by each recipe, what computes them.

    That is kernels if all their stages have some, else DALI alone.

    Raises:
        ConfigurationError: If they cannot be had.
    """
    if recipes[0].volumes:
        _check_volumes(kernels, devices, views=versions * len(recipes), final=final)
        return "numba"
    if not final:
        for view in recipes[1:]:
            choose_kernels(None, view, devices, final=False)  # Which refuses what only kernels run.
        return choose_kernels(kernels, recipes[0], devices, final=False)
    chosen = [choose_kernels(kernels, recipe, devices) for recipe in recipes]
    if len(recipes) == 1:
        return chosen[0]
    lacking = [
        stage.name for recipe in recipes for stage in recipe.stages[recipe.encoded :] if steps_of((stage,)) is None
    ]
    if len({*chosen}) == 1 and not (lacking and chosen[0] == "numba"):
        return chosen[0]
    if kernels is not None:
        raise ConfigurationError(
            f"kernels={kernels!r} needs kernels for all stages where there are views, but {lacking[0]!r} has none: "
            f"leave kernels out"
        )
    return choose_for_views("dali", recipes, devices)


def _check_volumes(kernels: Kernels | None, devices: Devices, *, views: int, final: bool) -> None:
    """Refuse what cannot be had of volumes."""
    for holds, what, remedy in (
        (devices.partial == devices.final == "cpu", "on a GPU", "leave the devices out"),
        (kernels in (None, "numba"), f"by kernels={kernels!r}", "leave kernels out"),
        (views <= 1, "in several views", "pass Echo(planner, ...) for several windows of each volume"),
        (final, "by a PartialSource", "pass the recipe to a Loader"),
        (_installed("numba"), "without Numba", "pip install numba"),
    ):
        if not holds:
            raise ConfigurationError(f"volumes cannot be made {what}: {remedy}")


def compile_kernels(kernels: Kernels, recipe: Recipe, devices: Devices, *, final: bool = True) -> None:
    """Compile what a recipe needs on the CPU, its final part perhaps; what was compiled is loaded."""
    done, encoded = done_by(kernels, recipe, devices), recipe.encoded
    if done is None or recipe.volumes:
        return
    from dalirefurb.kernels.ahead import compile_for
    from dalirefurb.kernels.random import use_compiled

    final = final and kernels == "numba"
    split = min(max(recipe.split, encoded), done) if final else done
    output = (left_to_dali(kernels, recipe) or recipe.output) if final else None
    stages = recipe.stages if final else recipe.partial
    compile_for(stages[encoded:split], stages[split:done], output)
    use_compiled()


def left_to_dali(kernels: Kernels, recipe: Recipe) -> Levels | None:
    """Return what DALI's operators go on with behind Numba's kernels; None if these do all, or are not chosen."""
    done = done_by_kernels(recipe)
    if kernels != "numba" or done == len(recipe.stages):
        return None
    sides = leaving(recipe.stages[:done], None)
    assert sides is not None
    return Levels(sides)


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
        done = done_by(kernels, recipe, devices)
        self._compiled, self._done, self._left = done is not None, done or 0, left_to_dali(kernels, recipe)
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
        rest = self._replicas(replace(self._graph("partial"), first=done), 1, threads_each=self._num_threads)
        return KernelsThenGraph(runner, rest)

    def build_both(self) -> KernelRunner:
        """Return kernels of both parts, where they do all of the partial part, for samples and partial images."""
        recipe = self._recipe
        return self._kernel_runner(
            recipe.partial, recipe.final[: self._done - recipe.split], output=self._output, split=True
        )

    def build_finals(
        self, views: Sequence[Recipe], builders: Sequence[InputBuilder], *, slice_rows: int
    ) -> list[FinalKernels]:
        """Return kernels of the final parts of several views, each with the builder of its inputs.

        Args:
            views: The recipes.
            builders: Builders of their inputs.
            slice_rows: Number of rows of a batch whose samples are of one shard.
        """
        from dalirefurb.kernels.program import KernelProgram
        from dalirefurb.kernels.thread_pool import KernelThreadPool

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
        """Return what carries out the parts of a recipe for volumes, given the builder of its inputs.

        Args:
            builder: The builder.
            masked: Whether there are labels of voxels.
        """
        from dalirefurb.engine.volumes import FinalVolumes, VolumeRunner

        recipe = self._recipe
        pool = Background(self._num_threads, name="dalirefurb-volumes")
        self._pools.append(pool)
        final = FinalVolumes(recipe, builder, pool, masked=masked, most_groups=self._depths.groups_made)
        return VolumeRunner(recipe.partial, pool), final

    def build_final(self, view: Recipe) -> PipelineRunner:
        """Return copies of the pipeline of a final part, of a view of the same partial images."""
        return self._replicas(replace(self._graph("final"), recipe=view))

    def build_cuda(self, view: Recipe, builder: InputBuilder) -> CudaFinal:
        """Return the kernels of such a final part on a GPU, with the builder of their inputs."""
        return CudaFinal(builder, self._cuda_queue(view.final, view.output))

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
        for own in {kernel for step in steps for kernel in step.kernels if isinstance(kernel, KernelStage)}:
            check_own(own, self._gpu)
        return CudaQueue(CudaProgram(steps, output, split=0 if output else len(steps)), self._gpu)

    def build_rest(self) -> PipelineRunner:
        """Return DALI's operators from the first stage on that has no kernel, where kernels are chosen."""
        return self._replicas(replace(self._graph("final"), recipe=self._recipe.at(self._done)))

    @property
    def leaves_rest(self) -> bool:
        """Whether kernels are chosen, and leave stages to DALI's operators, see `build_rest`."""
        return self._left is not None

    @property
    def _output(self) -> Output | Levels:
        """What kernels end with."""
        return self._left or self._recipe.output

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
        output: Output | Levels | None,
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
    """Kernels make images, and a graph goes on with them: a `PipelineRunner`.

    Args:
        kernels: Runner of the first stages.
        graph: Runner of the others, whose samples are images.
    """

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
