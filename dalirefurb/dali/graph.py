"""Graph: what DALI does to a batch, each part as a pipeline of its own, between which hits and misses meet.

    samples, misses only ─▶ partial graph ─▶ computed partial images ─┬─▶ final graph ─▶ images
    parameters ───────────────┘                cached ones, the hits ─┘       │
                                               parameters ────────────────────┘

Where nothing is cached, one pipeline does both parts. Every input is fed by name. All random choices are among the
inputs, so a pipeline is a pure function of what it is fed, and any number of copies of it (`Replica`) make the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline, pipeline_def

from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Device, Node, Stage
from dalirefurb.augment.stages.crop import HorizontalFlip, RandomCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.resize import WINDOW, RandomResizedCrop, resized_window, window_of
from dalirefurb.dali.insides import random_operator, traced
from dalirefurb.errors import ConfigurationError

Feed = NDArray[Any] | Sequence[NDArray[Any]]
"""One input of one batch: a dense array with a row per sample, or a list of arrays."""

Part = Literal["partial", "final", "whole", "decoded"]
"""Which part of a recipe a graph does; "whole": both, "decoded": only the decoding that the partial one begins with."""

_DTYPES = {
    "bool": types.DALIDataType.BOOL,
    "uint8": types.DALIDataType.UINT8,
    "int32": types.DALIDataType.INT32,
    "int64": types.DALIDataType.INT64,
    "float32": types.DALIDataType.FLOAT,
    "float16": types.DALIDataType.FLOAT16,
    "float64": types.DALIDataType.FLOAT64,
}


@dataclass(frozen=True)
class Input:
    """One named external source.

    Attributes:
        name: Name of the input: "sample", "partial" (a partial image) or "<stage>/<parameter>".
        dtype: Type of the values, as NumPy names it.
        ndim: Number of dimensions of one sample.
        layout: Layout of one sample as DALI names it, such as "HWC"; empty if it has none.
        device: Device where the input is fed. On the GPU it is copied on the stream that is named when it is fed, and
            the graph waits for the copy: DALI records an event of copies only. Of memory that it does not copy the host
            would have to see that it is written, which may be milliseconds later if a model trains on the same GPU.
    """

    name: str
    dtype: str
    ndim: int
    layout: str = ""
    device: Device = "cpu"

    def node(self) -> Node:
        """Declare the input inside a graph."""
        return fn.external_source(
            name=self.name,
            dtype=_DTYPES[self.dtype],
            ndim=self.ndim,
            layout=self.layout or None,
            batch=True,
            device=self.device,
            no_copy=self.device == "cpu",
        )


ENCODED = Input("sample", "uint8", 1)
"""Encoded images."""


_STAGE_THAT_DRAWS = """
    @dataclass(frozen=True)
    class Drawn(Stage):
        name: str = "drawn"
        num_uniforms: ClassVar[int] = 1
        parameters: ClassVar = {"amount": Parameter("float32")}

        def draw(self, uniforms, heights, widths):  # uniforms in [0, 1), a row for each sample
            return {"amount": (30.0 * uniforms[:, 0]).astype(np.float32)}

        def apply(self, images, parameters):
            return fn.color_twist(images, hue=parameters["amount"])"""
"""Lines in the place of a function that draws."""


@dataclass(frozen=True)
class Graph:
    """One pipeline, described; nothing is built before `serialize`.

    Attributes:
        recipe: Recipe that says what is done to a sample.
        part: Part of the recipe that this pipeline does.
        partial_device: Device where the partial part runs.
        final_device: Device where the final part runs; "cpu" only if the partial part is on the CPU too.
        entering_device: Device where partial images enter the final graph; "gpu" only if the final part is there.
        leaving_device: Device where partial images leave the partial graph; "gpu" only if the partial part is there.
        first: Number of stages of the partial part that are done already, by kernels: images enter, not samples.
    """

    recipe: Recipe
    part: Part
    partial_device: Device = "cpu"
    final_device: Device = "cpu"
    entering_device: Device = "cpu"
    leaving_device: Device = "cpu"
    first: int = 0

    def __post_init__(self) -> None:
        placements = [("cpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu")]
        if (self.partial_device, self.final_device) not in placements:
            raise ConfigurationError(
                f"partial_device and final_device must be one of {placements}, got ({self.partial_device!r}, "
                f"{self.final_device!r}): name 'cpu' or 'gpu', the CUDA device of this process, and where the partial "
                f"part is on the 'gpu' leave the final one there"
            )
        if self.recipe.caches_encoded:
            raise ConfigurationError(
                "a graph decodes before it does anything else, got split 0: use a split of 1 or more"
            )
        if self.part == "decoded" and not (self.recipe.encoded and self.final_device == self.partial_device):
            raise ConfigurationError(
                f"part='decoded' is for encoded images on one device, got a recipe for "
                f"{'encoded images' if self.recipe.encoded else 'arrays'}, partial_device={self.partial_device!r} and "
                f"final_device={self.final_device!r}: use 'partial'"
            )
        if self.entering_device == "gpu" and (self.part, self.final_device) != ("final", "gpu"):
            raise ConfigurationError(
                f"entering_device='gpu' is for the final part on the GPU, but the part is {self.part!r} and its "
                f"final_device {self.final_device!r}: leave it out"
            )
        if self.leaving_device == "gpu" and (self.part, self.partial_device) != ("partial", "gpu"):
            raise ConfigurationError(
                f"leaving_device='gpu' is for the partial part on the GPU, but the part is {self.part!r} and its "
                f"partial_device {self.partial_device!r}: leave it out"
            )

    @property
    def needs_gpu(self) -> bool:
        """Whether any of it runs on the GPU."""
        return (self.partial_device if self.part == "partial" else self.final_device) == "gpu"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Everything to feed for one batch."""
        if self.part == "final":
            entering = Input("partial", "uint8", 3, "HWC", self.entering_device)
        else:
            entering = ENCODED if self.recipe.encoded and not self.first else Input("sample", "uint8", 3, "HWC")
        window = cut_window(self.recipe)
        stages = {
            "partial": self.recipe.partial[self.first :],
            "final": self.recipe.final,
            "whole": self.recipe.stages,
            "decoded": () if window is None else (window,),
        }[self.part]
        parameters = (
            Input(f"{stage.name}/{name}", parameter.dtype, len(parameter.shape))
            for stage in stages
            for name, parameter in stage.parameters.items()
            if self.part != "decoded" or name in WINDOW
        )
        return (entering, *parameters)

    def serialize(self, *, max_batch_size: int, num_threads: int) -> bytes:
        """Trace the graph; works without a GPU also where the graph needs one.

        Raises:
            ConfigurationError: If a stage uses one of DALI's own random operators.
        """
        try:
            with warnings.catch_warnings():
                # From Python 3.13 on there are warnings of DALI's tracer, which traces no `if` where these are errors.
                warnings.filterwarnings("ignore", r".*unexpected keyword argument '___pyct_anno'", DeprecationWarning)
                pipeline = pipeline_def(enable_conditionals=True)(self.trace)(
                    batch_size=max_batch_size, num_threads=num_threads, device_id=None, prefetch_queue_depth=1
                )
                blob: bytes = pipeline.serialize()
        except Exception as error:
            raised = traced(
                error,
                "each stage is applied once, to make a loader, and must return nodes of DALI's that run no Python",
            )
            raise raised from raised.__cause__
        _refuse_random(pipeline, "a stage")
        return blob

    def trace(self) -> Node:
        """Define the graph in the pipeline that is being defined; return what leaves it."""
        nodes = {declared.name: declared.node() for declared in self.inputs}
        device = self.entering_device if self.part == "final" else self.partial_device
        if self.part == "decoded":
            return _decoded_part(self.recipe, nodes, device)
        images = nodes["partial"] if self.part == "final" else _partial_part(self.recipe, nodes, device, self.first)
        if self.part == "partial":
            return images.cpu() if device != self.leaving_device else images
        if device != self.final_device:
            images = images.gpu()
        return _final_part(self.recipe, images, nodes)


def refuse_random(function: Callable[[Node], Node], stage: str) -> None:
    """Refuse a function of HWC uint8 images that uses one of DALI's own random operators, before a graph is made of it.

    What cannot be traced by itself here, an `if` for example, is left to `Graph.serialize`, which says what is wrong.

    Args:
        function: Function from node to node; it is called once.
        stage: Words for the stage that has it, for the message.

    Raises:
        ConfigurationError: If it uses one.
    """
    pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    try:
        with warnings.catch_warnings(record=True), pipeline:  # `Graph.serialize` has the same warnings.
            pipeline.set_outputs(function(Input("sample", "uint8", 3, "HWC").node()))
            pipeline.serialize()
    except Exception:
        return
    _refuse_random(pipeline, stage)


def _refuse_random(pipeline: Pipeline, stage: str) -> None:
    operator = random_operator(pipeline)
    if operator is not None:
        raise ConfigurationError(
            f"{stage} uses DALI's random operator {operator!r}, whose numbers depend on which other samples are in the "
            f"batch; draw them on the host in a Stage of your own (docs/how-to/own-stage), or have your own pipeline "
            f"draw them behind a PartialSource. Such a Stage is\n{_STAGE_THAT_DRAWS}"
        )


def final_graph(recipe: Recipe, images: Node, parameters: Sequence[Node]) -> Node:
    """Trace the final part of a recipe in anybody's pipeline.

    Args:
        recipe: Recipe whose final part is traced.
        images: Partial images, on the device where the final part is to run.
        parameters: Nodes of the inputs that `final_inputs` names, in that order, all of them.
    """
    names = [declared.name for declared in final_inputs(recipe)]
    return _final_part(recipe, fn.reshape(images, layout="HWC"), dict(zip(names, parameters)))  # noqa: B905 - DALI traces it without arguments


def final_inputs(recipe: Recipe) -> tuple[Input, ...]:
    """Return what the final part of a recipe is fed beside partial images."""
    return Graph(recipe, "final").inputs[1:]


def _parameters(stage: Stage, nodes: Mapping[str, Node]) -> dict[str, Node]:
    return {name: nodes[f"{stage.name}/{name}"] for name in stage.parameters}


def cut_window(recipe: Recipe) -> RandomResizedCrop | None:
    """Return the stage whose window alone is decoded: one right after decoding, if it is partial, too."""
    after = recipe.partial[1] if recipe.encoded and recipe.split > 1 else None
    return after if type(after) is RandomResizedCrop else None


def _partial_part(recipe: Recipe, nodes: Mapping[str, Node], device: Device, first: int) -> Node:
    """Trace from the source's samples to partial images; a window right after decoding is decoded by region."""
    stages = recipe.partial[first:]
    if recipe.encoded and not first:
        images, window = _decoded_part(recipe, nodes, device), cut_window(recipe)
        if window is not None:
            images = window.apply_to_window(images, _parameters(window, nodes))
        stages = stages[1 if window is None else 2 :]
    else:
        images = nodes["sample"] if device == "cpu" else nodes["sample"].gpu()
    return _applied(list(stages), images, nodes)


def _applied(stages: Sequence[Stage], images: Node, nodes: Mapping[str, Node]) -> Node:
    """Trace consecutive stages of one part."""
    rest = list(stages)
    while rest:
        stage = rest.pop(0)
        crop = window_of(stage, rest)
        if crop is None:
            images = stage.apply(images, _parameters(stage, nodes))
        else:
            rest.pop(0)
            images = resized_window(stage, crop, images, _parameters(stage, nodes) | _parameters(crop, nodes))
    return images


def _decoded_part(recipe: Recipe, nodes: Mapping[str, Node], device: Device) -> Node:
    """Trace from encoded samples to decoded images, or windows of them."""
    decode, window = recipe.stages[0], cut_window(recipe)
    assert isinstance(decode, Decode)
    if window is None:
        return decode.decode(nodes["sample"], device)
    start, shape = (nodes[f"{window.name}/{name}"] for name in WINDOW)
    return decode.decode_region(nodes["sample"], device, start, shape)


def _final_part(recipe: Recipe, images: Node, nodes: Mapping[str, Node]) -> Node:
    """Trace from partial images to the output; a crop and a flip at the end are fused with normalisation.

    Stages that a user derives from these may do something else, so they are left as they are.
    """
    stages = list(recipe.final)
    fused: dict[str, Any] = {}
    if stages and type(stages[-1]) is HorizontalFlip:
        flip = stages.pop()
        fused["mirror"] = _parameters(flip, nodes)["mirror"]
    crop = stages[-1] if stages else None
    if type(crop) is RandomCrop and crop.margin is not None and not crop.padding:
        stages.pop()
        # How far places are between the first one (0) and the last one (1).
        row, column = (_parameters(crop, nodes)["start"][axis] * (1 / max(crop.margin, 1)) for axis in (0, 1))
        fused |= {"crop": crop.fixed_size, "crop_pos_y": row, "crop_pos_x": column}
    return _normalise(recipe.output, _applied(stages, images, nodes), fused)


def _normalise(output: Output, images: Node, fused: dict[str, Any]) -> Node:
    if output.channels == 1:
        images = fn.color_space_conversion(images, image_type=types.RGB, output_type=types.GRAY)
    return fn.crop_mirror_normalize(
        images,
        dtype=_DTYPES["float32" if output.dtype == "bfloat16" else output.dtype],
        output_layout="HWC" if output.channels_last else "CHW",
        mean=[255 * value for value in output.means],
        std=[255 * value for value in output.stds],
        **fused,
    )
