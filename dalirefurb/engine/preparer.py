"""Prepare thread: plans, pins hits, reads misses, and has batch groups computed; and what is computed beside these.

    plans ─▶ look up ──────────▶ submit ─────────▶ collect ─────────▶ the finish thread
             pin hits,           draw, begin to    images, partial
             read misses         compute           or final ones

Groups pass every step in plan order. What computes them, and which images are there then, see `backends`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.dali import GraphError, PipelineRunner, images_in
from dalirefurb.engine.backends import ComputeBackend
from dalirefurb.engine.batch_group import UpcomingGroups
from dalirefurb.engine.cache_client import CacheClient, CachePlan
from dalirefurb.engine.closable_queue import ClosableQueue, Stopped
from dalirefurb.engine.in_flight import known
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.engine.prefetch import Depths
from dalirefurb.engine.stats import Tally
from dalirefurb.engine.target_maker import GroupTargets, TargetMaker
from dalirefurb.errors import LoaderError, SampleError
from dalirefurb.image_batch import Images
from dalirefurb.kernels.host import StageRaised
from dalirefurb.planning.difficulty import FeatureTable
from dalirefurb.reading.reader import Reader, Samples

Computed = tuple[NDArray[np.int64], Images]


@dataclass(eq=False)
class ComputeNow:
    """Makes partial images of version 0; of samples that are replaced, black ones.

    Needed seldom: for features that an Assistant does not have, which is after a resume, and at its first epoch's end.

    Attributes:
        reader: Reader of the samples.
        input_builder: Builder of the graph's inputs.
        build: Function that makes replicas of the partial graph; called when they are first needed.
        max_rows: Largest number of rows in one batch.
    """

    reader: Reader
    input_builder: InputBuilder
    build: Callable[[], PipelineRunner]
    max_rows: int
    _replicas: PipelineRunner | None = field(default=None, init=False)

    def __call__(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Compute the images of these samples, shape (n,).

        Raises:
            SampleError: If one cannot be read or decoded, and is not replaced.
            LoaderError: If the graph fails for another reason.
        """
        images: list[NDArray[np.uint8]] = []
        for start in range(0, len(indices), self.max_rows):
            some = indices[start : start + self.max_rows]
            computed: Computed | None = None
            while computed is None:
                computed = self._computed(some)
            images += unless_replaced(some, *computed)
        return images

    def _computed(self, indices: NDArray[np.int64]) -> Computed | None:
        """Return the samples shown, and their images; None if there are bad ones among them, which are known now."""
        self._replicas = self._replicas or self.build()
        versions = np.zeros_like(indices)
        samples = self.reader.read_now(indices, versions)
        feeds, _ = self.input_builder.partial(indices, versions, samples)
        try:
            self._replicas.submit(feeds)
            return samples.indices, images_in(self._replicas.collect())
        except GraphError as error:
            if not isinstance(error, StageRaised) and self.reader.reconsider(samples, error):
                return None
            raise LoaderError(f"computing features failed in the graph: {error.reason}") from error.__cause__
        except BaseException:  # What was submitted may be there still, and would be taken for what comes next.
            self._replicas.restart()
            raise


def unless_replaced(
    indices: NDArray[np.int64], shown: NDArray[np.int64], images: Sequence[NDArray[np.uint8]]
) -> list[NDArray[np.uint8]]:
    """Return images of the samples asked for, shape (n,), black where another one is shown."""
    return [
        image if good else np.zeros_like(image) for image, good in zip(images, (indices == shown).tolist(), strict=True)
    ]


_POLL_S = 1.0


class Prepared(NamedTuple):
    """A batch group that is computed, as far as the prepare thread does it.

    Attributes:
        cache_plan: Cache plan of the group, of which everything is known.
        images: Final images of the group, a DALI tensor list or what can be used like one, where one graph, or kernels,
            make both parts; what `FinalGraph` is fed, where these leave it stages; otherwise None.
        targets: Targets of its batches, which are begun; None: there are none.
    """

    cache_plan: CachePlan
    images: Any
    targets: GroupTargets | None = None


class _Submitted(NamedTuple):
    """A batch group that the backend has, the samples that it computes from, and targets, if there are any."""

    cache_plan: CachePlan
    samples: Samples
    targets: GroupTargets | None


class _ReadAgain(Exception):  # noqa: N818 - it is no error
    """Bad samples were found, so that groups begun are to be carried out again."""


@dataclass(eq=False, kw_only=True)
class Preparer:
    """Turns batch groups into prepared ones.

    Attributes:
        reader: Reader of the samples, which finds out which of them a graph cannot decode.
        cache: Cache client, which says what is to be computed.
        backend: Backend that computes the images.
        most_groups: Largest number of groups that the backend has at a time.
        depths: Numbers of groups that are admitted, and for which something is read, before the backend has them.
        features: Table of features of each sample's version 0, if an Assistant plans; otherwise None.
        targets: Maker of what belongs to the images beside labels; None: the source has none.
        tally: Counter of what the thread does, see `Stats`.
    """

    reader: Reader
    cache: CacheClient
    backend: ComputeBackend
    most_groups: int
    depths: Depths
    features: FeatureTable | None
    targets: TargetMaker | None
    tally: Tally

    def work(self, groups: UpcomingGroups, prepared: ClosableQueue[Prepared]) -> None:
        """Prepare groups until stopped, or until one cannot be: that one's error follows those before it.

        Where bad samples are replaced, groups are made again without those that were found. For a group of several
        batches see `BatchGroup.fail`.
        """
        while True:
            self._carry_out(groups, prepared)

    def _carry_out(self, groups: UpcomingGroups, prepared: ClosableQueue[Prepared]) -> None:
        """Prepare groups until bad samples are found."""
        admitted: deque[CachePlan] = deque()
        running: deque[_Submitted] = deque()
        try:
            while True:
                self._fill(groups, admitted, running, prepared)
                self._pass_on(running, prepared)
        except _ReadAgain:
            groups.put_back(cache_plan.group for cache_plan in _unfinished(running, admitted))
        except Exception as error:
            if unfinished := _unfinished(running, admitted):
                unfinished[0].group.fail(error)
            raise
        finally:
            for submitted in running:
                if submitted.targets is not None:
                    submitted.targets.cancel()
            try:
                self.backend.restart()
            finally:
                self.cache.abandon(_unfinished(running, admitted))

    def _fill(
        self,
        groups: UpcomingGroups,
        admitted: deque[CachePlan],
        running: deque[_Submitted],
        prepared: ClosableQueue[Prepared],
    ) -> None:
        """Submit and admit as much as may be ahead. An error waits until the groups before it are through.

        What is read is submitted first: files read meanwhile would ask for Python's lock at each step.
        """
        self._submit_some(admitted, running, prepared)
        try:
            reads = self.depths.read_ahead + self.most_groups - len(running)
            # Of groups for which something is read.
            while len(admitted) < self.depths.admitted and sum(len(each.compute) > 0 for each in admitted) < reads:
                admitted.append(self._admit(groups))
        except Exception:
            while admitted or running:
                self._submit_some(admitted, running, prepared)
                self._pass_on(running, prepared)
            raise
        if not running:
            self._submit_some(admitted, running, prepared)

    def _submit_some(
        self, admitted: deque[CachePlan], running: deque[_Submitted], prepared: ClosableQueue[Prepared]
    ) -> None:
        """Submit at least one group, if none is running, and those whose files are read."""
        try:
            while admitted and len(running) < self.most_groups and (not running or admitted[0].reading.done()):
                running.append(self._submit(admitted[0], prepared))
                admitted.popleft()
        except Exception:
            while running:
                self._pass_on(running, prepared)
            raise

    def _admit(self, groups: UpcomingGroups) -> CachePlan:
        """Plan a group, and pin or read what it needs; one that cannot be admitted is not lost."""
        began, announcing_s = time.perf_counter(), groups.announcing_s
        group = next(groups)
        planned, announcing_s = time.perf_counter(), groups.announcing_s - announcing_s
        try:
            cache_plan = self.cache.lookup(group)
        except Exception:
            groups.put_back([group])
            raise
        looking_s = time.perf_counter() - planned
        self.tally.add(planning_s=planned - began - announcing_s, storing_s=announcing_s + looking_s)
        return cache_plan

    def _submit(self, cache_plan: CachePlan, prepared: ClosableQueue[Prepared]) -> _Submitted:
        """Have a group computed."""
        samples = self._samples(cache_plan, prepared)
        began = time.perf_counter()
        samples = cache_plan.begin(samples)
        self.backend.submit(cache_plan, samples)
        try:  # While images are made.
            targets = None if self.targets is None else self.targets.begin(cache_plan)
        except SampleError as error:
            if self.reader.bad(np.array([error.index])).any():  # It is in a store, and was not read before.
                raise _ReadAgain from error
            raise
        self.tally.add(preparing_s=time.perf_counter() - began)
        return _Submitted(cache_plan, samples, targets)

    def _samples(self, cache_plan: CachePlan, prepared: ClosableQueue[Prepared]) -> Samples:
        """Wait for the files of a group."""
        began = time.perf_counter()
        while not cache_plan.reading.done():
            if not wait([cache_plan.reading], timeout=_POLL_S).done:
                self.reader.patience.look()
            if prepared.stopping:
                raise Stopped
        self.tally.add(reading_wait_s=time.perf_counter() - began)
        return cache_plan.reading.result()

    def _pass_on(self, running: deque[_Submitted], prepared: ClosableQueue[Prepared]) -> None:
        """Let the oldest group go on, once it is computed; until somebody has it, it is among those to be abandoned."""
        images = self._collect(running[0])
        prepared.put([Prepared(running[0].cache_plan, images, running[0].targets)])
        running.popleft()
        self.backend.handed_over()

    def _collect(self, submitted: _Submitted) -> Any:
        """Wait until what a group needs is computed; return its final images, if they are made here."""
        cache_plan = submitted.cache_plan
        began = time.perf_counter()
        try:
            images = self.backend.collect(cache_plan)
        except GraphError as error:
            if not isinstance(error, StageRaised) and self.reader.reconsider(submitted.samples, error):
                raise _ReadAgain from error
            raise failed_in_graph(cache_plan, error.reason) from error.__cause__
        self.tally.add(graph_wait_s=time.perf_counter() - began)
        if self.features is not None and len(cache_plan.compute):
            _fill_features(self.features, cache_plan)
        return images


def failed_in_graph(cache_plan: CachePlan, reason: str) -> LoaderError:
    """Say which batch failed."""
    epoch, batch = cache_plan.group.position
    return LoaderError(f"batch {batch} of epoch {epoch} failed in the graph: {reason}")


def _unfinished(running: Iterable[_Submitted], admitted: Iterable[CachePlan]) -> list[CachePlan]:
    """List the groups that nobody has taken over yet, in order."""
    return [*(submitted.cache_plan for submitted in running), *admitted]


def _fill_features(features: FeatureTable, cache_plan: CachePlan) -> None:
    """Put the features of each sample's version 0 into their table; those of a replaced one are of a black image."""
    plan, rows, computed = cache_plan.plan, cache_plan.compute, cache_plan.computed
    places = np.flatnonzero(plan.version[rows] == 0)
    if len(places):
        images, shown = known(computed.images), known(computed.shown)[places]
        indices = plan.indices[rows[places]]
        features.fill(indices, unless_replaced(indices, shown, [images[place] for place in places.tolist()]))
