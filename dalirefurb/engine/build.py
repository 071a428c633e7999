"""Construction of a loader's parts: where source, recipe, plan and store meet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch

from dalirefurb import rng
from dalirefurb.dali import images_in
from dalirefurb.engine.backend_factory import BackendFactory
from dalirefurb.engine.backends import BothPartsBackend, ComputeBackend, Look, PartialBackend, WholeBackend
from dalirefurb.engine.cache_client import CacheClient
from dalirefurb.engine.configuration import Configuration, Way, traced
from dalirefurb.engine.cuda import CudaDevice
from dalirefurb.engine.diagnosis import Facts
from dalirefurb.engine.engine import Engine
from dalirefurb.engine.finals import Final, FinalFeeds
from dalirefurb.engine.finisher import Finisher
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.engine.kernel_choice import begun_on_gpu, compile_kernels, done_by, fallback_stage
from dalirefurb.engine.memory import BESIDE_STORE, Account
from dalirefurb.engine.partial_sizes import PartialSizes, store_spec
from dalirefurb.engine.prefetch import Depths, Prefetch
from dalirefurb.engine.preparer import ComputeNow, Preparer
from dalirefurb.engine.rank import ALONE, Rank, present
from dalirefurb.engine.stats import Tally
from dalirefurb.engine.target_maker import TargetMaker
from dalirefurb.engine.volumes import probed_sizes
from dalirefurb.errors import ConfigurationError, LoaderError, shortened
from dalirefurb.image_batch import Images
from dalirefurb.planning.assistant import Assistant
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.bad_samples import Substitutes
from dalirefurb.reading.reader import Reader
from dalirefurb.store import DeviceStore, Store, StoreSpec
from dalirefurb.store.base import Taken
from dalirefurb.store.device.memory import device_images, device_memory
from dalirefurb.system.processes import shared_by


class Assembler:
    """Makes a loader's engine once, when it is first needed, since it depends on the rank; and closes it.

    A batch of one shard is mostly not divided, so where `shards` is 1 it is made at once, and what cannot work is
    refused early. Otherwise that waits until the rank is needed: the store, the graphs and the device depend on it.

    Args:
        configuration: Configuration of the loader.
        store: Store of the loader; None: nothing is cached.
        prefetch: What the user has chosen of threads, of batches on their way, and of memory.
        substitutes: Substitutes for bad samples; None: these raise an error.
        chosen: Rank that the caller gives; None if the caller gives none.

    Attributes:
        engine: The engine; None before it is made.

    Raises:
        ConfigurationError: If the shards cannot be divided among the ranks, or no rank could work so far ahead.
    """

    def __init__(
        self,
        configuration: Configuration,
        store: Store | None,
        prefetch: Prefetch,
        substitutes: Substitutes | None,
        chosen: Rank | None,
    ) -> None:
        self._configuration = configuration
        self._planner = configuration.planner
        self._store = store
        self._prefetch = prefetch
        self._substitutes = substitutes
        self._chosen = chosen
        self._rank = ALONE
        self.engine: Engine | None = None
        self._closed = False
        self._owner_pid = os.getpid()
        self._depths(self._planner)  # Refuses what no rank could work with.
        if chosen is not None:
            self._part(chosen)
        if self._planner.shards == 1 and not self._planner.any_world_size:
            self._begin(ALONE)

    @property
    def rank(self) -> Rank:
        """This process's rank: what the engine is, or would be, made for."""
        return (self._chosen or present()) if self.engine is None else self._rank

    @property
    def part(self) -> Planner:
        """Planner of what this rank carries out."""
        return self._part(self.rank)

    @property
    def divided(self) -> Planner:
        """What says into which batches an epoch is divided: the rank's part where the number of ranks decides it."""
        return self.part if self._planner.any_world_size else self._planner

    @property
    def depths(self) -> Depths:
        """How far ahead it works; once the engine is made, what memory has room for."""
        return self._depths(self.part) if self.engine is None else self.engine.depths

    def get(self) -> Engine:
        """Return the engine, made for this rank.

        Raises:
            ConfigurationError: If the shards cannot be divided among the ranks.
            LoaderError: If it is closed, or the rank is another one than at first.
        """
        rank = self._chosen or present()
        if self.engine is None:
            self.check_usable()
            return self._begin(rank)
        if rank not in (self._rank, ALONE):
            self._part(rank)
            raise LoaderError(
                f"a loader's rank must not change, but it was first used as rank {self._rank.rank} of "
                f"{self._rank.world_size}, and now this process is rank {rank.rank} of {rank.world_size}: initialise "
                f"torch.distributed before the loader is used, or make a new one"
            )
        return self.engine

    def check_usable(self) -> None:
        """Refuse to go on.

        Raises:
            LoaderError: If it is closed, or another process made it.
        """
        if self._closed:
            raise LoaderError("the loader is closed; make a new one")
        if os.getpid() != self._owner_pid:
            raise LoaderError(
                "a loader cannot be used in a forked process, since DALI's threads do not survive a fork; "
                "make it in the process that iterates"
            )

    def shutdown(self) -> None:
        """Have the engine end by itself, if there is one. Never waits."""
        self._closed, self._store = True, None
        if self.engine is not None:
            self.engine.shutdown()

    def close(self) -> None:
        """Close the engine, if there is one; twice is as once."""
        self._closed, self._store = True, None
        if self.engine is not None:
            self.engine.close()

    def _begin(self, rank: Rank) -> Engine:
        part = self._part(rank)
        try:
            with self._sharing():
                made = assemble(self._configuration, self._store, part, self._prefetch, self._substitutes)
                self.engine, self._rank = made, rank
        except Exception as error:
            raise shortened(error)  # noqa: B904 - it is this one
        self._store = None  # It would outlive the engine.
        return self.engine

    def _depths(self, planner: Planner) -> Depths:
        with self._sharing():
            return self._configuration.depths(planner, self._prefetch)

    def _sharing(self) -> AbstractContextManager[None]:
        """Have cores and memory shared by as many processes as the caller says, if the caller says it."""
        return shared_by(None if self._chosen is None else self._chosen.local_world_size)

    def _part(self, rank: Rank) -> Planner:
        return self._planner.for_rank(rank=rank.rank, world_size=rank.world_size)


def assemble(
    configuration: Configuration,
    store: Store | None,
    planner: Planner,
    prefetch: Prefetch,
    substitutes: Substitutes | None,
) -> Engine:
    """Put together what carries out the batches of the configuration's planner, or of a rank's part of it.

    Where memory is short, fewer of them are on their way than the configuration would have.

    Raises:
        ConfigurationError: If the parts do not fit together.
        OutOfMemoryError: If all that is needed exceeds the memory at hand.
    """
    source, recipe, kernels = configuration.source, configuration.recipe, configuration.kernels
    devices = configuration.devices
    depths = configuration.depths(planner, prefetch)
    given, store = store, store if planner.peak_slots else None
    apart = configuration.apart(planner)
    max_rows = depths.hits_per_group * planner.batch_size
    tally = Tally()
    reader = _reader(configuration, substitutes, depths, max_rows, tally)
    way = configuration.way(planner)
    partial_served = way == "fed"
    recipes = (recipe, *configuration.views)
    for each in recipes:
        compile_kernels(kernels, each, devices, final=not partial_served)
    num_samples = len(source.labels)  # Of views with versions of their own there are more.
    builders = [
        InputBuilder(each, seed=planner.seed, entering=source.image_shape, num_samples=num_samples) for each in recipes
    ]
    input_builder = builders[0]
    probes: PartialSizes | None = None
    sample_bytes: int | None = None
    if recipe.volumes:
        if isinstance(store, DeviceStore):
            raise ConfigurationError("a DeviceStore is for images, got a recipe for volumes: pass a MemoryStore")
        order = rng.permutation(len(source), planner.seed, "size probes")
        sample_bytes, probes = probed_sizes(order, reader, input_builder, recipe.partial)
    spec: StoreSpec | None = None
    if store is not None:
        spec = store_spec(store, configuration, planner, reader, probes)
    device_store = store if isinstance(store, DeviceStore) and store.device == devices.final else None
    if device_store is not None:
        _check_device(device_store)
        devices = replace(devices, entering=devices.final)
    cuda = cuda_device(device_store) if kernels == "cuda" else None
    memory = cuda.memory if cuda is not None else None if device_store is None else device_store.memory
    # An Assistant looks at partial images on the host, and so does a store there.
    stay = planner.feedback_lag is None and input_builder.partial_size is not None
    if devices.partial == "gpu" and stay and memory is not None and (store is None or device_store is not None):
        devices = replace(devices, leaving="gpu")
    taken = Taken() if store is None or spec is None else store.takes(spec)
    account = Account(configuration, planner.batch_size, devices, way, spec, taken, sample_bytes)
    depths, needs = account.fitted(depths, prefetch)
    max_rows = depths.hits_per_group * planner.batch_size
    if store is not None and spec is not None:
        store.open(spec)
    look: Look = images_in
    if devices.leaving == "gpu" and memory is not None:
        look = partial(device_images, memory)
    factory = BackendFactory(
        traced(recipe),
        kernels,
        devices,
        max_rows=max_rows,
        depths=depths,
        reserve=None if store is None else store.reserve,
        gpu=cuda,
    )
    backend, finals = _parts(way, factory, configuration, builders, look, device_store, depths)
    cache = CacheClient(reader, store, caches_encoded=recipe.caches_encoded)
    compute_now = ComputeNow(reader, input_builder, lambda: factory.build("partial", 1), max_rows=max_rows)
    assistant = Assistant.of(planner, compute_now)
    preparer = Preparer(
        reader=reader,
        cache=cache,
        backend=backend,
        most_groups=depths.partial_ahead if apart or factory.falls_back else depths.look_ahead,
        depths=depths,
        features=None if assistant is None else assistant.features,
        targets=_targets(configuration, planner.seed, reader, depths),
        tally=tally,
    )
    finisher = Finisher(
        recipes=recipes,
        cache=cache,
        finals=finals,
        most_groups=depths.look_ahead if finals and all(each.runs_ahead for each in finals) else 1,
        batches_per_group=depths.batches_per_group,
        pin_memory=configuration.pin_memory and devices.final == "cpu",
        tally=tally,
    )
    facts = Facts.of(planner, recipe, given, depths, fallback_stage(kernels, recipe, final=not partial_served))
    nbytes = needs[BESIDE_STORE].total()
    return Engine(planner, assistant, preparer, finisher, factory=factory, facts=facts, nbytes=nbytes)


def _reader(
    configuration: Configuration, substitutes: Substitutes | None, depths: Depths, max_rows: int, tally: Tally
) -> Reader:
    """Return what reads samples, and gives those of other kinds than DALI's to Pillow."""
    recipe, kernels, devices = configuration.recipe, configuration.kernels, configuration.devices
    max_pixels = configuration.bad_samples.max_pixels
    configuration.source.look_anew()
    return Reader(
        configuration.source,
        max_batch_size=max_rows,
        num_threads=depths.reading_threads,
        max_pixels=max_pixels,
        refusal=partial(configuration.refusal, max_pixels=max_pixels),
        asks_for_images=not recipe.caches_encoded,
        passes_images=done_by(kernels, recipe, devices) is not None or begun_on_gpu(kernels, recipe, devices),
        on_look=lambda images, by_pillow, seconds: tally.add(files=images, pillow_images=by_pillow, pillow_s=seconds),
        substitutes=substitutes,
        retry_s=configuration.bad_samples.retry_s,
    )


def _parts(
    way: Way,
    factory: BackendFactory,
    configuration: Configuration,
    builders: Sequence[InputBuilder],
    look: Look,
    store: DeviceStore | None,
    depths: Depths,
) -> tuple[ComputeBackend, Sequence[Final]]:
    """Return what makes images, and what finishes those of each view, if anything does; see `Configuration.way`."""
    recipe, builder = configuration.recipe, builders[0]
    recipes = (recipe, *configuration.views)
    if way == "volumes":
        runner, final = factory.build_volumes(builder, masked=len(configuration.source.volumes) > 1)
        return PartialBackend(builder, runner, Images.of, recipe.partial), [final]
    backend: ComputeBackend
    if way == "whole":
        backend = WholeBackend(builder, factory.build("whole"), falls_back=factory.falls_back)
    elif way == "both":
        backend = BothPartsBackend(builder, factory.build_both(), falls_back=factory.falls_back)
    else:
        backend = PartialBackend(builder, factory.build("partial"), look, recipe.partial)
    if way == "fed":
        return backend, [FinalFeeds(builders, most_groups=depths.groups_made)]
    if way == "together":
        return backend, factory.build_finals(recipes, builders, slice_rows=configuration.slice_rows)
    if way == "apart":
        return backend, [factory.build_final(*each, store) for each in zip(recipes, builders, strict=True)]
    return backend, [factory.build_fallback(builder)] if factory.falls_back else ()


def _targets(configuration: Configuration, seed: int, reader: Reader, depths: Depths) -> TargetMaker | None:
    """Return what moves a source's targets with its images, if it has any."""
    source = configuration.source
    if source.annotations is None:
        return None
    return TargetMaker(
        source,
        configuration.recipe,
        seed=seed,
        reader=reader,
        num_threads=depths.reading_threads,
        most_batches=depths.groups_made * depths.hits_per_group,
        slice_rows=configuration.slice_rows,
    )


def cuda_device(store: DeviceStore | None) -> CudaDevice:
    """Return the current CUDA device, on the stream of the store that is there, if there is one."""
    return CudaDevice(device_memory("gpu") if store is None else store.memory)


def _check_device(store: DeviceStore) -> None:
    """Refuse a store on another CUDA device than the one whose threads and graphs are about to be made."""
    device = store.memory.device_id
    if device is not None and device != torch.cuda.current_device():
        raise ConfigurationError(
            f"a DeviceStore must be on the CUDA device that is current when a loader begins, but it was made on device "
            f"{device} and device {torch.cuda.current_device()} is current: call torch.cuda.set_device before both"
        )
