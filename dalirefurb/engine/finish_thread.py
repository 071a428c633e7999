"""Finish thread: finishes runs, hands batches over, brings the store to where the plan wants it.

the prepare thread ─▶ submit ─────────▶ collect ──────▶ hand over ──────▶ the training loop
                      draw, feed the    final images    commit to the store
                      final graph

Where final images are there already it only hands over and commits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from numpy.typing import NDArray

from dalirefurb.augment.recipe import Recipe
from dalirefurb.dali import GraphError, PipelineRunner
from dalirefurb.engine.backends import names
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.cache_client import CacheClient
from dalirefurb.engine.closable_queue import ClosableQueue, Stopped
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.engine.prepare_thread import failed_in_graph
from dalirefurb.engine.stats import Tally
from dalirefurb.engine.ticket import Ticket
from dalirefurb.errors import LoaderError
from dalirefurb.store.device.batch_buffer import BatchBuffer
from dalirefurb.store.device.store import DeviceLease


@dataclass(frozen=True)
class Served:
    """One batch as the training loop gets it.

    Attributes:
        position: Position of the batch in the stream of batches.
        images: Final images, float32 or float16 of shape (B, 3, H, W), on the final part's device.
        indices: Indices of the samples that are shown, in serving order, int64 of shape (B,); where another sample
            replaces a bad one, the index of that other sample.
        misses: Number of rows whose partial image was computed for them.
        recomputed: Number of rows whose partial image was computed though the plan expected to hit, rows of replaced
            samples excepted.
        replaced: Number of rows that show another sample than the plan's.
    """

    position: Position
    images: torch.Tensor
    indices: NDArray[np.int64]
    misses: int
    recomputed: int
    replaced: int


class FinishThread:
    """Turns tickets into batches.

    Args:
        recipe: Recipe for which the final part is done.
        cache: Cache client, which commits to the store.
        input_builder: Builder of the graph's inputs.
        replicas: Replicas of the final graph; None where images are ready already.
        buffer: Buffer where runs are laid out for the graph, if the store's samples are to stay on their device;
            otherwise None.
        in_flight: Number of runs that are begun, finished ones included, before the training loop takes them.
        batches_per_run: Number of batches in a run that counts once for `in_flight`; a run of n times as many batches
            counts n times.
        pin_memory: Whether images are copied into pinned memory.
        tally: Counter of what the thread does, see `Stats`.
    """

    def __init__(
        self,
        *,
        recipe: Recipe,
        cache: CacheClient,
        input_builder: InputBuilder,
        replicas: PipelineRunner | None,
        buffer: BatchBuffer | None,
        in_flight: int,
        batches_per_run: int,
        pin_memory: bool,
        tally: Tally,
    ) -> None:
        self._recipe = recipe
        self._cache = cache
        self._input_builder = input_builder
        self._replicas = replicas
        self._buffer = buffer
        self._in_flight = in_flight
        self._batches_per_run = batches_per_run
        self._pin_memory = pin_memory
        self._tally = tally

    def work(self, tickets: ClosableQueue[Ticket], batches: ClosableQueue[Served]) -> None:
        """Make batches until stopped, or until a ticket is an error: it follows the batches before it.

        For a run of several batches see `Run.fail`.
        """
        try:
            self._carry_out(tickets, batches)
        except Stopped:
            pass
        except BaseException as error:  # Whatever happened belongs to the training loop.
            batches.fail(error)

    def abandon(self, tickets: ClosableQueue[Ticket]) -> None:
        """Give back what runs that nobody will finish have; there are any if no thread came to do it."""
        self._cache.abandon(tickets.close())

    def _carry_out(self, tickets: ClosableQueue[Ticket], batches: ClosableQueue[Served]) -> None:
        """Make batches without end; leave no ticket behind."""
        running: deque[Ticket] = deque()
        try:
            while True:
                self._fill(tickets, running, batches)
                self._finish(running, batches)
        finally:
            self._cache.abandon((*running, *tickets.close()))
            if self._replicas is not None:
                self._replicas.restart()

    def _fill(self, tickets: ClosableQueue[Ticket], running: deque[Ticket], batches: ClosableQueue[Served]) -> None:
        """Submit what is there, and at least one run."""
        try:
            while not running or (self._begun(running) < self._in_flight and len(tickets)):
                ticket = tickets.take()
                try:
                    self._submit(ticket)
                except BaseException as error:
                    self._cache.abandon([ticket])
                    ticket.run.fail(error)
                running.append(ticket)
        except Stopped:
            raise
        except Exception:
            while running:
                self._finish(running, batches)
            raise

    def _begun(self, running: Iterable[Ticket]) -> int:
        """Count the runs, in units of as many batches as most have."""
        return sum(-(-len(ticket.run.plans) // self._batches_per_run) for ticket in running)

    def _submit(self, ticket: Ticket) -> None:
        if self._replicas is None:
            return
        began = time.perf_counter()
        plan = ticket.plan
        if self._buffer is None:
            self._replicas.submit(self._input_builder.final(plan, ticket.partial_images(), ticket.shown))
        else:
            assert isinstance(ticket.lease, DeviceLease)
            with self._buffer.on_stream():
                images = self._buffer.fill(len(plan.indices), ticket.lease, ticket.leased, ticket.computed_images())
                self._replicas.submit(self._input_builder.final(plan, images, ticket.shown))
        self._tally.add(preparing_s=time.perf_counter() - began)

    def _finish(self, running: deque[Ticket], batches: ClosableQueue[Served]) -> None:
        """Hand the oldest run over, then bring the store to where the plan wants it."""
        ticket = running[0]
        began = time.perf_counter()
        try:
            images = self._collect(ticket)
        except Exception as error:
            ticket.run.fail(error)
        waited = time.perf_counter() - began
        self._hand_over(ticket, images, batches)
        began = time.perf_counter()
        stored = self._cache.commit(ticket)
        running.popleft()
        self._tally.add(
            graph_wait_s=waited,
            stored=int(np.count_nonzero(stored)),
            declined=int(np.count_nonzero(~stored)),
            storing_s=time.perf_counter() - began,
        )

    def _collect(self, ticket: Ticket) -> torch.Tensor:
        """Wait for a run's images, as the training loop wants them."""
        try:
            images = ticket.images if self._replicas is None else self._replicas.collect()
            tensor = _as_torch(images.as_tensor())
        except (GraphError, RuntimeError) as error:
            reason = error.reason if isinstance(error, GraphError) else str(error)
            raise failed_in_graph(ticket, reason) from error
        ticket.images = None
        self._check(tensor)
        return self._tensor(tensor)

    def _check(self, images: torch.Tensor) -> None:
        """Refuse what a stage made of another size than it declares."""
        size = self._recipe.output.size
        sides = images.shape[1:3] if self._recipe.output.channels_last else images.shape[2:]
        if sides != (size, size):
            raise LoaderError(
                f"the last stage must leave images of the output's size {size} x {size}, got "
                f"{' x '.join(map(str, sides))}; one of the stages ({names(self._recipe.stages)}) "
                f"makes another size than it declares"
            )

    def _tensor(self, images: torch.Tensor) -> torch.Tensor:
        """Return a run's images as the training loop wants them: a view, or a copy in pinned memory."""
        if self._recipe.output.channels_last:
            images = images.permute(0, 3, 1, 2)
        return images.pin_memory() if self._pin_memory else images

    def _hand_over(self, ticket: Ticket, images: torch.Tensor, batches: ClosableQueue[Served]) -> None:
        """Part a run into its batches, views of its images, once the batches before it are taken."""
        epoch, first = ticket.position
        plans, missed, served, start = ticket.run.plans, ticket.missed, [], 0
        for batch, plan in enumerate(plans, first):
            stop = start + len(plan.indices)
            shown = ticket.shown[start:stop]
            replaced = shown != plan.indices
            misses = recomputed = 0
            if len(missed):
                first_row, end = np.searchsorted(missed, (start, stop)).tolist()
                misses = end - first_row
                computed = missed[first_row:end] - start
                recomputed = int(np.count_nonzero(~(plan.miss | replaced)[computed]))
            served.append(
                Served(
                    position=Position(epoch, batch),
                    images=images if len(plans) == 1 else images[start:stop],
                    indices=shown,
                    misses=misses,
                    recomputed=recomputed,
                    replaced=int(np.count_nonzero(replaced)),
                )
            )
            start = stop
        batches.put(served)


def _as_torch(images: Any) -> torch.Tensor:
    """View images, an array or a DALI tensor, as torch sees them."""
    return torch.from_numpy(images) if isinstance(images, np.ndarray) else torch.utils.dlpack.from_dlpack(images)
