"""Construction of a loader's parts. Source, recipe, plan and store meet here, and nowhere else."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any

import numpy as np
import torch

from dalirefurb.augment.custom import Custom
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Device, Stage
from dalirefurb.dali import Graph, PipelineRunner, cut_window, versions, views
from dalirefurb.engine.backend_factory import BackendFactory, Kernels, choose_mix
from dalirefurb.engine.backends import BothPartsBackend, ComputeBackend, PartialBackend, View, WholeBackend
from dalirefurb.engine.batch_group import Position, numbered, planned
from dalirefurb.engine.cache_client import CacheClient
from dalirefurb.engine.compute_now import ComputeNow, unless_replaced
from dalirefurb.engine.engine import Engine, Plans
from dalirefurb.engine.finish_thread import FinishThread
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.engine.prepare_thread import PrepareThread, Watch
from dalirefurb.engine.stats import Tally
from dalirefurb.engine.ticket import Ticket
from dalirefurb.errors import ConfigurationError
from dalirefurb.kernels import VERSION
from dalirefurb.planning.assistant import Assistant
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.planning.derived import DerivedPlanner
from dalirefurb.planning.features import FeatureTable
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.reading.bad_sample_policy import BadSamplePolicy
from dalirefurb.reading.partial_sizes import partial_sizes
from dalirefurb.reading.reader import Reader
from dalirefurb.reading.substitutes import Substitutes
from dalirefurb.source import Source
from dalirefurb.store import DeviceStore, Store
from dalirefurb.store.device.batch_buffer import BatchBuffer

_READING_THREADS = 4


@dataclass(frozen=True)
class Assembly:
    """What a loader works with.

    Attributes:
        engine: Carries out the plans.
        assistant: Makes the plans, if they depend on losses.
    """

    engine: Engine
    assistant: Assistant | None


def check_kinds(source: object, recipe: object, planner: object, store: object) -> None:
    """Refuse what is of another kind than it should be, an argument at another one's place for example.

    Raises:
        ConfigurationError: If one is.
    """
    for name, given, kind, remedy in (
        ("source", source, Source, "pass ImageFolder(path) for a folder, Arrays(images, labels) for arrays"),
        ("recipe", recipe, Recipe, "pass rand_augment(224), or another preset"),
        ("planner", planner, Planner, "pass Refurbish(len(source), batch_size=64, reuse_factor=3), or another one"),
        ("store", store, (Store, NoneType), "pass MemoryStore(), DiskStore(path), or None"),
    ):
        if not isinstance(given, kind):
            what = f"the class {given.__name__} itself" if isinstance(given, type) else f"a {type(given).__name__}"
            raise ConfigurationError(
                f"{name} must be a {name}, got {what}: {remedy}; the order is Loader(source, recipe, planner, store)"
            )


def configuration(
    source: Source,
    recipe: Recipe,
    planner: Planner,
    *,
    partial_device: Device,
    final_device: Device,
    kernels: Kernels,
    policy: BadSamplePolicy,
) -> dict[str, Any]:
    """Check what can be checked before anything is built; for the arguments see `Loader`.

    Returns:
        Everything that decides the batches, as JSON values, the same on all ranks.

    Raises:
        ConfigurationError: If the parts do not fit together.
    """
    _check_fit(source, recipe, planner)
    _check_draws(recipe, planner)
    if recipe.caches_encoded and partial_device != final_device:
        raise ConfigurationError(
            f"with split 0 decoding is final, so both parts must be on one device, got partial_device="
            f"{partial_device!r} and final_device={final_device!r}: pass {final_device!r} for both, or a split of 1 or "
            f"more"
        )
    if Graph(_traced(recipe), "final", partial_device, final_device).needs_gpu:
        _check_gpu()
    return {
        "source": source.fingerprint(),
        "recipe": recipe.fingerprint(),
        "planner": planner.fingerprint(),
        "partial_device": partial_device,
        "kernels": f"numba {VERSION}" if kernels == "numba" else kernels,
        "versions": versions() | policy.versions(),
        **policy.fingerprint(),
    }


def assemble(
    source: Source,
    recipe: Recipe,
    planner: Planner,
    store: Store | None,
    *,
    fingerprint: dict[str, Any],
    partial_device: Device,
    final_device: Device,
    kernels: Kernels,
    prefetch: Prefetch,
    pin_memory: bool,
    policy: BadSamplePolicy,
    substitutes: Substitutes | None,
) -> Assembly:
    """Put together what carries out a planner's batches, or a rank's part of them; see `Loader` and `configuration`.

    Raises:
        ConfigurationError: If the parts do not fit together.
        OutOfMemoryError: If the store's slots exceed the memory at hand.
    """
    if planner.peak_slots == 0:
        store = None
    # Partial images can be seen where the parts are apart: by the store, by an Assistant, and by the check of what a
    # user's stage makes. Where nothing but reading is partial there are none.
    custom = any(isinstance(stage, Custom) for stage in recipe.partial)
    encoded = recipe.caches_encoded
    apart = not encoded and (store is not None or custom or planner.feedback_lag is not None)
    max_rows = prefetch.hits_per_run * planner.batch_size
    reader = Reader(
        source,
        max_batch_size=max_rows,
        num_threads=_READING_THREADS,
        max_pixels=policy.max_pixels,
        refusal=partial(recipe.refusal, max_pixels=policy.max_pixels),
        fallback=policy.fallback(),
        substitutes=substitutes,
    )
    input_builder = InputBuilder(recipe, seed=planner.seed, entering=source.image_shape, mix=choose_mix(kernels))
    device_store = store if isinstance(store, DeviceStore) and store.device == final_device else None
    if device_store is not None:
        _check_device(device_store)
    if store is not None:
        _open(store, source, recipe, planner, reader, fingerprint)
    cache = CacheClient(reader, store, encoded=encoded)
    tally = Tally()
    buffer: BatchBuffer | None = None
    view: View = views
    leaving_device: Device = "cpu"
    if device_store is not None:
        buffer = BatchBuffer(device_store, max_rows=max_rows, max_runs=prefetch.look_ahead)
        # An Assistant looks at partial images on the host.
        if partial_device == "gpu" and planner.feedback_lag is None:
            view, leaving_device = buffer.images, "gpu"
    factory = BackendFactory(
        _traced(recipe),
        kernels,
        partial_device=partial_device,
        final_device=final_device,
        entering_device="cpu" if buffer is None else final_device,
        leaving_device=leaving_device,
        max_rows=max_rows,
        prefetch=prefetch,
        reserve=None if store is None else store.reserve,
    )
    compute = ComputeNow(reader, input_builder, lambda: factory.build("partial", 1), max_rows=max_rows)
    assistant = Assistant.of(planner, compute)
    backend: ComputeBackend
    final: PipelineRunner | None = None
    if not apart:
        backend = WholeBackend(input_builder, factory.build("whole"))
    elif kernels == "numba":
        backend = BothPartsBackend(input_builder, factory.build_both())
    else:
        backend = PartialBackend(input_builder, factory.build("partial"), view, recipe.partial)
        final = factory.build("final")
    prepare_thread = PrepareThread(
        reader=reader,
        cache=cache,
        backend=backend,
        in_flight=prefetch.partial_ahead if apart else prefetch.look_ahead,
        admitted=prefetch.admitted,
        watch=None if assistant is None else _watch(assistant.features),
        tally=tally,
    )
    finish_thread = FinishThread(
        recipe=recipe,
        cache=cache,
        input_builder=input_builder,
        replicas=final,
        buffer=buffer,
        in_flight=1 if final is None else prefetch.look_ahead,
        batches_per_run=prefetch.batches_per_run,
        pin_memory=pin_memory,
        tally=tally,
    )
    engine = Engine(
        plans=_plans(planner, assistant, cache),
        announce=cache.announce,
        prepare_thread=prepare_thread,
        finish_thread=finish_thread,
        reader=reader,
        factory=factory,
        num_batches=len(planner),
        prefetch=prefetch,
        tally=tally,
    )
    return Assembly(engine, assistant)


def _check_fit(source: Source, recipe: Recipe, planner: Planner) -> None:
    if len(source) != planner.num_samples:
        raise ConfigurationError(
            f"planner and source must have the same number of samples, got {planner.num_samples} and {len(source)}; "
            f"pass len(source) to the planner"
        )
    shape, size = source.image_shape, recipe.output.size
    if shape is not None and recipe.final_size(shape[:2]) != (size, size):
        height, width = recipe.final_size(shape[:2]) or ("?", "?")
        raise ConfigurationError(
            f"the recipe must leave images of the output's size {size} x {size}, but makes {height} x {width} of the "
            f"source's {shape[0]} x {shape[1]}; make the recipe for the size of the source's images"
        )
    if recipe.caches_encoded and planner.feedback_lag is not None:
        raise ConfigurationError(
            "AutoAssist looks at partial images, but split 0 caches encoded ones: use a split of 1 or more"
        )
    if source.encoded != recipe.encoded:
        needs, gives = ("encoded images", "arrays") if recipe.encoded else ("arrays", "encoded images")
        raise ConfigurationError(
            f"the recipe starts from {needs}, but the source gives {gives}; "
            f"make the recipe with raw={not source.encoded}"
        )


def _check_draws(recipe: Recipe, planner: Planner) -> None:
    """Warn of a SmartCache that would serve a draw of the partial part for as long as a sample stays."""
    while isinstance(planner, DerivedPlanner):
        planner = planner.planner
    random = [stage.name for stage in recipe.partial if stage.random]
    if random and isinstance(planner, SmartCache):
        warnings.warn(
            f"with SmartCache the partial part should not be random, since a sample is served as it was drawn when it "
            f"entered until it is replaced, got {', '.join(random)} in it: pass recipe.at(recipe.deterministic_prefix)",
            stacklevel=4,
        )


def _open(
    store: Store, source: Source, recipe: Recipe, planner: Planner, reader: Reader, fingerprint: dict[str, Any]
) -> None:
    """Open a store for the partial images of a recipe; where nothing in them is random, the seed does not matter.

    Nor do the final stages, unless they refuse images of some sizes, or make too large ones: the store holds none of
    these. What is refused as too large decides, too: else a store would serve it. Of encoded samples the source alone
    decides: whether one is refused is found out again.
    """
    if recipe.caches_encoded and isinstance(store, DeviceStore):
        raise ConfigurationError(
            "a DeviceStore is for decoded images, but split 0 caches encoded ones: use a MemoryStore, or a split of 1 "
            "or more"
        )
    sizes = partial_sizes(source, recipe, reader, seed=planner.seed)
    partial = {"source": fingerprint["source"], "encoded": True}
    if not recipe.caches_encoded:
        partial = _made_by(source, recipe, planner, reader, fingerprint, varying=sizes.slot_shape is None)
    # So does what is behind the samples here and now. What changes from now on, the next loader notices.
    if content := source.content():
        partial["content"] = content
    slots = planner.peak_slots
    store.open(sizes.slot_shape, slots=slots, fingerprint=partial, arena_bytes=sizes.arena_bytes(slots))


def _made_by(
    source: Source, recipe: Recipe, planner: Planner, reader: Reader, fingerprint: dict[str, Any], *, varying: bool
) -> dict[str, Any]:
    """Return what decides partial images, as JSON values."""
    partial: dict[str, Any] = {key: fingerprint[key] for key in ("source", "partial_device", "kernels", "versions")}
    partial["stages"] = [stage.fingerprint() for stage in recipe.partial]
    partial["seed"] = planner.seed if any(stage.random for stage in recipe.partial) else None
    if source.encoded or source.image_shape is None:
        partial["max_pixels"] = reader.max_pixels
    if varying and any(_refuses(type(stage)) for stage in recipe.final):
        partial["final_stages"] = [stage.fingerprint() for stage in recipe.final]
    return partial


def _traced(recipe: Recipe) -> Recipe:
    """Return the recipe by which graphs and kernels are made.

    Where what is cached is encoded, they do both parts together, which make the same at every split. One behind a
    window lets this be decoded alone; else a resize stays together with the crop that may follow it.
    """
    if not recipe.caches_encoded:
        return recipe
    behind = recipe.at(min(2, len(recipe.stages)))
    return behind if cut_window(behind) else recipe.at(1)


def _refuses(kind: type[Stage]) -> bool:
    """Tell whether a kind of stage refuses images of some sizes, or makes some that are too large."""
    return kind.refusal is not Stage.refusal or kind.output_sizes is not Stage.output_sizes


def _plans(planner: Planner, assistant: Assistant | None, cache: CacheClient) -> Plans:
    """Return what plans from a position on."""

    def plans(start: Position) -> Iterator[tuple[Position, BatchPlan]]:
        if assistant is not None:
            assistant.rewind()
            (epoch, row), candidates = assistant.upcoming, assistant.chooses_from
            cache.retain(candidates, Position(epoch, row // candidates.batch_size))
            return numbered(iter(assistant.plan, None), start, len(planner))
        cache.begin(planner, start)
        return planned(planner, start)

    return plans


def _watch(features: FeatureTable) -> Watch:
    """Return what puts the features of each sample's version 0 into their table; replaced ones are black."""

    def watch(ticket: Ticket) -> None:
        plan, rows, computed = ticket.plan, ticket.rows, ticket.computed
        places = np.flatnonzero(plan.version[rows] == 0)
        if len(places):
            indices, images = plan.indices[rows[places]], [computed.images[place] for place in places.tolist()]
            features.fill(indices, unless_replaced(indices, computed.indices[places], images))

    return watch


def _check_device(store: DeviceStore) -> None:
    """Refuse a store on another CUDA device than the one whose threads and graphs are about to be made."""
    device = store.memory.device_id
    if device is not None and device != torch.cuda.current_device():
        raise ConfigurationError(
            f"a DeviceStore must be on the CUDA device that is current when a loader begins, but it was made on device "
            f"{device} and device {torch.cuda.current_device()} is current: call torch.cuda.set_device before both"
        )


def _check_gpu() -> None:
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "a part is placed on 'gpu', but torch finds no CUDA device; use partial_device='cpu', final_device='cpu'"
        )
