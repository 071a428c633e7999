"""Finish thread: finishes batch groups, hands batches over, brings the store to where the plan wants it.

the prepare thread ─▶ submit ─────────▶ collect ──────▶ hand over ──────▶ the training loop
                      draw, feed the    final images    commit to the store
                      final graph

Where final images are there already it only hands over and commits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from dalirefurb.augment.recipe import Recipe
from dalirefurb.dali import GraphError
from dalirefurb.engine.backends import names
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.cache_client import CacheClient, CachePlan
from dalirefurb.engine.closable_queue import ClosableQueue
from dalirefurb.engine.finals import Final, FinalFeed
from dalirefurb.engine.preparer import Prepared, failed_in_graph
from dalirefurb.engine.stats import Tally
from dalirefurb.engine.target_maker import BatchTargets
from dalirefurb.engine.volumes import VolumeBatch
from dalirefurb.errors import LoaderError

_DLPACK_CUDA = 2
"""DLPack's number of CUDA devices, whose name differs between versions of torch."""


@dataclass(frozen=True)
class Served:
    """One batch as the training loop gets it.

    Attributes:
        position: Position of the batch in the stream of batches.
        images: Final images of shape (B, 3, H, W), on the final part's device, of the output's dtype; float32 for
            bfloat16 by DALI on a GPU. Of views a tuple of such; of volumes a `VolumeBatch`; where somebody else's graph
            does the final part, what that is fed.
        shown: Indices of the samples that are shown, in serving order, int64 of shape (B,); where another sample
            replaces a bad one, the index of that other sample.
        misses: Number of rows whose partial image was computed for them.
        recomputed: Number of rows whose partial image was computed though the plan expected to hit, rows of replaced
            samples excepted.
        replaced: Number of rows that show another sample than the plan's.
        targets: What belongs to the images beside labels; None: the source has none.
    """

    position: Position
    images: Any
    shown: NDArray[np.int64]
    misses: int
    recomputed: int
    replaced: int
    targets: BatchTargets | None = None

    def told_indices(self, padding: int) -> NDArray[np.int64]:
        """Return the indices as the training loop gets them: -1 in the last rows, so many, that only fill it up."""
        indices = self.shown.copy()
        indices[len(indices) - padding :] = -1
        return indices


@dataclass(eq=False, kw_only=True)
class Finisher:
    """Turns prepared groups into batches.

    Attributes:
        recipes: Recipes that say what the model receives, of each view one.
        cache: Cache client, which commits to the store.
        finals: What does the final part, of each view one; empty where images are final already.
        most_groups: Number of groups that are begun, finished ones included, before the training loop takes them.
        batches_per_group: Number of batches in a group that counts once for `most_groups`; a group of n times as many
            batches counts n times.
        pin_memory: Whether images are copied into pinned memory.
        tally: Counter of what the thread does, see `Stats`.
    """

    recipes: tuple[Recipe, ...]
    cache: CacheClient
    finals: Sequence[Final]
    most_groups: int
    batches_per_group: int
    pin_memory: bool
    tally: Tally

    def abandon(self, prepared: Iterable[Prepared]) -> None:
        """Give back what groups that nobody will finish have; there are any if no thread came to do it."""
        given = [*prepared]
        for each in given:
            if each.targets is not None:
                each.targets.cancel()
        self.cache.abandon(each.cache_plan for each in given)

    def work(self, prepared: ClosableQueue[Prepared], batches: ClosableQueue[Served]) -> None:
        """Make batches until stopped, or until a group is an error, which follows the batches before it.

        For a group of several batches see `BatchGroup.fail`. No group is left behind.
        """
        running: deque[Prepared] = deque()
        try:
            while True:
                self._fill(prepared, running, batches)
                self._finish(running, batches)
        finally:
            self.abandon((*running, *prepared.close()))
            for final in self.finals:
                final.restart()

    def _fill(
        self, prepared: ClosableQueue[Prepared], running: deque[Prepared], batches: ClosableQueue[Served]
    ) -> None:
        """Submit what is there, and at least one group."""
        try:
            while not running or (self._begun(running) < self.most_groups and len(prepared)):
                taken = prepared.take()
                try:
                    self._submit(taken)
                except BaseException as error:
                    self.abandon([taken])
                    taken.cache_plan.group.fail(error)
                running.append(taken)
        except Exception:
            while running:
                self._finish(running, batches)
            raise

    def _begun(self, running: Iterable[Prepared]) -> int:
        """Count the groups, in units of as many batches as most have."""
        return sum(-(-len(each.cache_plan.group.plans) // self.batches_per_group) for each in running)

    def _submit(self, prepared: Prepared) -> None:
        began = time.perf_counter()
        for final in self.finals:
            final.submit(prepared.cache_plan, prepared.images)
        self.tally.add(preparing_s=time.perf_counter() - began)

    def _finish(self, running: deque[Prepared], batches: ClosableQueue[Served]) -> None:
        """Hand the oldest group over, then bring the store to where the plan wants it."""
        cache_plan = running[0].cache_plan
        began = time.perf_counter()
        try:
            images = self._collect(running[0])
        except Exception as error:
            cache_plan.group.fail(error)
        waited = time.perf_counter() - began
        targets = self._targets_of(running[0], batches)
        self._hand_over(cache_plan, images, targets, batches)
        began = time.perf_counter()
        stored = self.cache.commit(cache_plan)
        running.popleft()
        self.tally.add(
            graph_wait_s=waited,
            stored=int(np.count_nonzero(stored)),
            declined=int(np.count_nonzero(~stored)),
            storing_s=time.perf_counter() - began,
        )

    def _targets_of(self, prepared: Prepared, batches: ClosableQueue[Served]) -> list[BatchTargets]:
        """Wait for the targets of a group's batches, if there are any."""
        if prepared.targets is None:
            return []
        began = time.perf_counter()
        try:
            targets = prepared.targets.result(lambda: batches.stopping)
        except Exception as error:
            prepared.cache_plan.group.fail(error)
        self.tally.add(reading_wait_s=time.perf_counter() - began)
        return targets

    def _collect(self, prepared: Prepared) -> Any:
        """Wait for a group's images, as the training loop wants them; see `Served`."""
        try:
            made: list[Any] = [final.collect() for final in self.finals] or [prepared.images]
            if isinstance(made[0], (FinalFeed, VolumeBatch)):
                return made[0]
            views = [each if isinstance(each, torch.Tensor) else _as_torch(each.as_tensor()) for each in made]
        except (GraphError, RuntimeError) as error:
            reason = error.reason if isinstance(error, GraphError) else str(error)
            raise failed_in_graph(prepared.cache_plan, reason) from error.__cause__ or error
        tensors = tuple(map(self._tensor, views, self.recipes))
        return tensors if len(tensors) > 1 else tensors[0]

    def _tensor(self, images: torch.Tensor, recipe: Recipe) -> torch.Tensor:
        """Return a group's images as the training loop wants them: a view, or a copy in pinned memory.

        Raises:
            LoaderError: If a stage made another size than it declares.
        """
        output = recipe.output
        sides = images.shape[1:3] if output.channels_last else images.shape[2:]
        if sides != output.sides:
            raise LoaderError(
                f"the last stage must leave images of the output's size {output.sides_text}, got "
                f"{' x '.join(map(str, sides))}; one of the stages ({names(recipe.stages)}) "
                f"makes another size than it declares"
            )
        # NumPy and DALI have no bfloat16: bits of it, or float32, come. On a GPU the stream that reads it makes it: see
        # `BatchTensors`.
        if output.dtype == "bfloat16" and not images.is_cuda:
            images = images.view(torch.bfloat16) if images.dtype == torch.uint16 else images.to(torch.bfloat16)
        if output.channels_last:
            images = images.permute(0, 3, 1, 2)
        return images.pin_memory() if self.pin_memory else images

    def _hand_over(
        self, cache_plan: CachePlan, images: Any, targets: Sequence[BatchTargets], batches: ClosableQueue[Served]
    ) -> None:
        """Part a group into its batches, views of its images, once the batches before it are taken."""
        epoch, first = cache_plan.group.position
        plans, missed, served, start = cache_plan.group.plans, cache_plan.missed, [], 0
        for batch, plan in enumerate(plans, first):
            stop = start + len(plan.indices)
            shown = cache_plan.shown[start:stop]
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
                    images=images if len(plans) == 1 else _some(images, slice(start, stop)),
                    shown=shown,
                    misses=misses,
                    recomputed=recomputed,
                    replaced=int(np.count_nonzero(replaced)),
                    targets=targets[batch - first] if targets else None,
                )
            )
            start = stop
        batches.put(served)


def _some(images: Any, rows: slice) -> Any:
    """Return some rows of a group's images, or of those of each view."""
    return tuple(each[rows] for each in images) if isinstance(images, tuple) else images[rows]


def _as_torch(images: Any) -> torch.Tensor:
    """View images, an array or a DALI tensor, as torch sees them.

    On a GPU no stream waits: else the training loop's would wait for the later groups that DALI's has in its queue.
    """
    if isinstance(images, np.ndarray):
        return torch.from_numpy(images)
    if int(images.__dlpack_device__()[0]) != _DLPACK_CUDA:
        return from_dlpack(images)
    # They are there: `share_outputs` has waited for them on the host. Nor are they written while somebody reads: once
    # torch lets them go, DALI takes their memory back behind all that the device was given by then.
    return from_dlpack(images.__dlpack__(stream=-1))
