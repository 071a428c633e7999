"""Where do hits and misses meet? In one DALI pipeline.

    hit ───────────────┐
    cached images ─────┤ if hit:  cached
    encoded samples ───┤ else:    partial(encoded) ─┬─▶ computed partial images, misses only
    parameters ────────┘                            └─▶ final(...) ─▶ output ─▶ images

Every input is fed by name. All random choices are among the inputs, so the pipeline is a pure function of what it is
fed, and any number of copies of it (`Replica`) serve the same tensors.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline, pipeline_def

from dalirefurb.augment.geometry import Decode, Device, HorizontalFlip, RandomCrop, Window
from dalirefurb.augment.stage import Node, Stage
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.recipe import Output, Recipe

Feed = NDArray[Any] | Sequence[NDArray[Any]]
"""One input of one batch: a dense array with a row per sample, or a list of arrays."""

_DTYPES = {
    "bool": types.DALIDataType.BOOL,
    "uint8": types.DALIDataType.UINT8,
    "int32": types.DALIDataType.INT32,
    "float32": types.DALIDataType.FLOAT,
    "float16": types.DALIDataType.FLOAT16,
}


@dataclass(frozen=True)
class Input:
    """One named external source.

    Attributes:
        name: "hit", "sample", "cached" or "<stage>/<parameter>".
        dtype: As NumPy names it.
        ndim: Of one sample.
        layout: DALI's, such as "HWC".
    """

    name: str
    dtype: str
    ndim: int
    layout: str = ""

    def node(self) -> Node:
        """Declare the input inside a graph."""
        return fn.external_source(
            name=self.name,
            dtype=_DTYPES[self.dtype],
            ndim=self.ndim,
            layout=self.layout or None,
            batch=True,
            no_copy=True,
        )


@dataclass(frozen=True)
class Graph:
    """One pipeline, described; nothing is built before `serialize`.

    Attributes:
        recipe: What is done to a sample.
        caching: Whether cached images can enter and computed ones leave. Without it every sample is a miss.
        partial_device: Where the partial part runs.
        final_device: Where the final part runs; "cpu" only if the partial part is on the CPU too.
    """

    recipe: Recipe
    caching: bool
    partial_device: Device = "cpu"
    final_device: Device = "cpu"

    def __post_init__(self) -> None:
        placements = [("cpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu")]
        if (self.partial_device, self.final_device) not in placements:
            raise ConfigurationError(
                f"partial_device and final_device must be one of {placements}, "
                f"got ({self.partial_device!r}, {self.final_device!r})"
            )

    @property
    def needs_gpu(self) -> bool:
        """Whether any part runs on the GPU."""
        return self.final_device == "gpu"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Everything to feed for one batch."""
        encoded = self.recipe.encoded
        sample = Input("sample", "uint8", 1) if encoded else Input("sample", "uint8", 3, "HWC")
        cache = (Input("hit", "bool", 0), Input("cached", "uint8", 3, "HWC")) if self.caching else ()
        parameters = (
            Input(f"{stage.name}/{name}", parameter.dtype, len(parameter.shape))
            for stage in self.recipe.stages
            for name, parameter in stage.parameters.items()
        )
        return (sample, *cache, *parameters)

    def serialize(self, *, max_batch_size: int, num_threads: int) -> bytes:
        """Trace the graph; works without a GPU also where the graph needs one.

        Raises:
            ConfigurationError: If a stage uses one of DALI's own random operators.
        """
        pipeline = pipeline_def(enable_conditionals=True)(self._trace)(
            batch_size=max_batch_size, num_threads=num_threads, device_id=None, prefetch_queue_depth=1
        )
        blob: bytes = pipeline.serialize()
        for operator in pipeline._ops:
            if operator._op.schema.HasRandomSeedArg():
                raise ConfigurationError(
                    f"a stage uses DALI's random operator {operator._op.schema.Name()!r}, whose numbers depend on "
                    f"which other samples are in the batch; draw them on the host in a Stage of your own"
                )
        return blob

    def _trace(self) -> tuple[Node, ...]:
        nodes = {declared.name: declared.node() for declared in self.inputs}
        if not self.caching:
            images = partial_part(self.recipe, nodes, self.partial_device)
            return (final_part(self.recipe, self._on_final_device(images), nodes),)
        hit, cached = nodes["hit"], nodes["cached"]
        if hit:
            images = cached if self.partial_device == "cpu" else cached.gpu()
        else:
            images = partial_part(self.recipe, nodes, self.partial_device)
        _, computed = fn._conditional.split(images, predicate=hit)  # type: ignore[attr-defined]
        outputs = final_part(self.recipe, self._on_final_device(images), nodes)
        return outputs, computed if self.partial_device == "cpu" else computed.cpu()

    def _on_final_device(self, images: Node) -> Node:
        return images.gpu() if self.final_device != self.partial_device else images


def _parameters(stage: Stage, nodes: Mapping[str, Node]) -> dict[str, Node]:
    return {name: nodes[f"{stage.name}/{name}"] for name in stage.parameters}


def partial_part(recipe: Recipe, nodes: Mapping[str, Node], device: Device) -> Node:
    """Trace from the source's samples to partial images; a window right after decoding is decoded by region."""
    stages = recipe.partial
    sample = nodes["sample"]
    if recipe.encoded:
        images, stages = _decode(stages, sample, nodes, device)
    else:
        images = sample if device == "cpu" else sample.gpu()
    for stage in stages:
        images = stage.apply(images, _parameters(stage, nodes))
    return images


def _decode(
    stages: tuple[Stage, ...], encoded: Node, nodes: Mapping[str, Node], device: Device
) -> tuple[Node, tuple[Stage, ...]]:
    decode, rest = stages[0], stages[1:]
    assert isinstance(decode, Decode)
    if rest and isinstance(rest[0], Window):
        window = _parameters(rest[0], nodes)
        images = decode.decode_region(encoded, device, window["start"], window["shape"])
        return rest[0].apply_to_window(images, window), rest[1:]
    return decode.decode(encoded, device), rest


def final_part(recipe: Recipe, images: Node, nodes: Mapping[str, Node]) -> Node:
    """Trace from partial images to the output; a crop and a flip at the end are fused with normalisation."""
    stages = list(recipe.final)
    fused: dict[str, Any] = {}
    if stages and isinstance(stages[-1], HorizontalFlip):
        flip = stages.pop()
        fused["mirror"] = _parameters(flip, nodes)["mirror"]
    if stages and isinstance(stages[-1], RandomCrop) and not stages[-1].padding:
        crop = stages.pop()
        assert isinstance(crop, RandomCrop)
        fused |= crop.crop_arguments(_parameters(crop, nodes))
    for stage in stages:
        images = stage.apply(images, _parameters(stage, nodes))
    return _normalise(recipe.output, images, fused)


def _normalise(output: Output, images: Node, fused: dict[str, Any]) -> Node:
    return fn.crop_mirror_normalize(
        images,
        dtype=_DTYPES[output.dtype],
        output_layout="CHW",
        mean=[255 * value for value in output.mean],
        std=[255 * value for value in output.std],
        **fused,
    )


def versions() -> dict[str, str]:
    """Return the versions of what computes pixels: DALI and its codecs."""
    import nvidia.dali
    from nvidia import nvimgcodec

    return {"dali": nvidia.dali.__version__, "nvimgcodec": nvimgcodec.__version__}


class Replica:
    """One running copy of a graph. It has one owner thread; `submit` does not block, `collect` does."""

    def __init__(self, graph: Graph, serialized: bytes, *, num_threads: int, device_id: int | None) -> None:
        self._inputs = graph.inputs
        self._caching = graph.caching
        self._rebuild: Callable[[], Pipeline] = lambda: Pipeline.deserialize(
            serialized,
            num_threads=num_threads,
            device_id=device_id,
            prefetch_queue_depth=1,
            exec_pipelined=True,
            exec_async=True,
            exec_dynamic=True,
        )
        self._pipeline = self._rebuild()

    def submit(self, feeds: Mapping[str, Feed]) -> None:
        """Start one batch.

        An input that is wrong would stay at the head of DALI's queue for ever, so lengths are checked first.
        """
        lengths = {declared.name: len(feeds[declared.name]) for declared in self._inputs}
        if len(set(lengths.values())) > 1:
            raise LoaderError(f"all inputs of a batch must have the same length, got {lengths}")
        for declared in self._inputs:
            self._pipeline.feed_input(declared.name, feeds[declared.name])
        self._pipeline.schedule_run()

    def collect(self) -> tuple[Any, list[NDArray[np.uint8]]]:
        """Wait for the oldest batch.

        Returns:
            The final images as a DALI tensor (owning its memory), and the computed partial images, HWC uint8, misses
            only, in order; they are views of one buffer, to be copied by whoever keeps them.

        Raises:
            GraphError: If an operator failed; that batch is lost, the replica goes on.
        """
        try:
            outputs = self._pipeline.share_outputs()
            self._pipeline.release_outputs()
        except RuntimeError as error:
            raise GraphError(str(error)) from error
        computed = [np.asarray(outputs[1][i]) for i in range(len(outputs[1]))] if self._caching else []
        return outputs[0].as_tensor(), computed

    def restart(self) -> None:
        """Forget all batches in flight."""
        self._pipeline = self._rebuild()


class GraphError(Exception):
    """DALI failed; `reason` is the operator's own message, `row` the row among the misses, where it is known."""

    def __init__(self, message: str) -> None:
        inner = re.search(r"encountered:\s*(.*?)\s*(?:Current pipeline object|$)", message, re.DOTALL)
        row = re.search(r"[Ff]ailed to decode sample #(\d+)", message)
        self.reason = (inner.group(1) if inner else message).strip()
        self.row = int(row.group(1)) if row else None
        super().__init__(self.reason)


class HeaderReader:
    """Tells the size of encoded images from their headers, as DALI's decoder will see it: orientation applied.

    Thread-safe; one small pipeline behind a lock.
    """

    def __init__(self, max_batch_size: int) -> None:
        self._lock = threading.Lock()
        self._max_batch_size = max_batch_size
        self._pipeline: Pipeline | None = None

    def sizes(self, encoded: Sequence[NDArray[np.uint8]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return heights and widths in pixels, each of shape (n,).

        Raises:
            GraphError: If a header cannot be read; `row` names the first such sample.
        """
        if not encoded:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        with self._lock:
            try:
                shapes = self._peek(encoded)
            except RuntimeError:
                shapes = np.stack([self._peek_one(row, sample) for row, sample in enumerate(encoded)])
        return shapes[:, 0], shapes[:, 1]

    def _peek_one(self, row: int, sample: NDArray[np.uint8]) -> NDArray[np.int64]:
        try:
            return self._peek([sample])[0]
        except RuntimeError as error:
            failure = GraphError(str(error))
            failure.row = row
            raise failure from error

    def _peek(self, encoded: Sequence[NDArray[np.uint8]]) -> NDArray[np.int64]:
        if self._pipeline is None:
            self._pipeline = pipeline_def(_peek_shapes)(
                batch_size=self._max_batch_size, num_threads=1, device_id=None, prefetch_queue_depth=1
            )
            self._pipeline.build()
        self._pipeline.feed_input("sample", list(encoded))
        self._pipeline.schedule_run()
        try:
            (shapes,) = self._pipeline.share_outputs()
            peeked: NDArray[np.int64] = np.array(np.asarray(shapes.as_tensor()), dtype=np.int64)
            return peeked
        finally:
            self._pipeline.release_outputs()


def _peek_shapes() -> Node:
    return fn.peek_image_shape(Input("sample", "uint8", 1).node())


def first_undecodable(encoded: Sequence[NDArray[np.uint8]]) -> tuple[int, str] | None:
    """Decode samples one by one on the CPU; return the row that fails and why, or None if all succeed."""
    pipeline = pipeline_def(_decode_whole)(
        batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1
    )
    pipeline.build()
    for row, sample in enumerate(encoded):
        pipeline.feed_input("sample", [sample])
        pipeline.schedule_run()
        try:
            pipeline.share_outputs()
        except RuntimeError as error:
            return row, GraphError(str(error)).reason
        finally:
            pipeline.release_outputs()
    return None


def _decode_whole() -> Node:
    return Decode().decode(Input("sample", "uint8", 1).node(), "cpu")
