"""Construction of a loader's parts. Source, recipe, plan and store meet here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from dalirefurb.augment.custom import Custom
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Device
from dalirefurb.dali import PipelineRunner, views
from dalirefurb.engine.backend_factory import BackendFactory, Kernels, choose_mix
from dalirefurb.engine.backends import BothPartsBackend, ComputeBackend, PartialBackend, View, WholeBackend
from dalirefurb.engine.batch_group import Position, numbered, planned
from dalirefurb.engine.cache_client import CacheClient
from dalirefurb.engine.compute_now import ComputeNow, unless_replaced
from dalirefurb.engine.configuration import traced
from dalirefurb.engine.engine import Engine, Plans
from dalirefurb.engine.finish_thread import FinishThread
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.engine.prepare_thread import PrepareThread, Watch
from dalirefurb.engine.stats import Tally
from dalirefurb.engine.store_opening import open_store
from dalirefurb.engine.ticket import Ticket
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.assistant import Assistant
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.planning.features import FeatureTable
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.bad_sample_policy import BadSamplePolicy
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
        engine: Engine that carries out the plans.
        assistant: Assistant that makes the plans, if they depend on losses; otherwise None.
    """

    engine: Engine
    assistant: Assistant | None


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
        open_store(store, source, recipe, planner, reader, fingerprint)
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
        traced(recipe),
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
