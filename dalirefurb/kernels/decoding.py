"""How is a batch decoded? By one pipeline, or where there are threads enough by two, half of its bytes by each.

Between two batches the threads of a pipeline have nothing to do: they wait for the batch's last sample, and then while
DALI prepares the next batch. Those of the other one work meanwhile. Most of the time goes by bytes, so that halves of
these are done at about the same time. On two cores a second pipeline gains nothing: it would only decode the next batch
before this one is done, at times more of it and at times less, so that batches came at less regular times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dalirefurb.graph import Feed, GraphError, Runner, views
from dalirefurb.images import Images

_SHARES = 2
_LEAST_THREADS = 2


def shared_out(num_threads: int) -> tuple[int, int]:
    """Return how many pipelines decode, and the threads of each.

    More pipelines would add work to each batch, and no work to do meanwhile; one with a single thread takes more of its
    core for the same images.
    """
    shares = _SHARES if num_threads >= _SHARES * _LEAST_THREADS else 1
    return shares, -(-num_threads // shares)


class Decoding:
    """Divides each batch among pipelines. It has one owner thread; `submit` does not block, `collect` does.

    Args:
        replicas: The pipelines, which take what they are given in turn.
        shares: How many there are.
    """

    def __init__(self, replicas: Runner, shares: int) -> None:
        self._replicas = replicas
        self.shares = shares
        self._running: deque[list[slice]] = deque()

    def submit(self, feeds: Mapping[str, Feed]) -> None:
        """Start one batch."""
        sizes = np.array([sample.nbytes for sample in feeds["sample"]])
        middles = np.cumsum(sizes) - sizes / 2
        shares = sizes.sum() * np.arange(1, self.shares) / self.shares
        bounds = [0, *np.searchsorted(middles, shares).tolist(), len(sizes)]
        rows = [slice(start, stop) for start, stop in pairwise(bounds) if start < stop]
        for part in rows:
            self._replicas.submit({name: feed[part] for name, feed in feeds.items()})
        self._running.append(rows)

    def collect(self) -> Images:
        """Wait for the oldest batch.

        Raises:
            GraphError: If decoding failed; that batch is lost.
        """
        rows = self._running.popleft()
        parts: list[tuple[NDArray[np.int64], Images]] = []
        try:
            for part in rows:
                images = views(self._replicas.collect())
                parts.append((np.arange(part.start, part.stop), images))
        except GraphError as error:
            failed = len(parts)
            for _ in rows[failed + 1 :]:
                with suppress(GraphError):
                    self._replicas.collect()
            if error.row is not None:
                error.row += rows[failed].start
            raise
        return Images.joined(rows[-1].stop, parts)

    def restart(self) -> None:
        """Forget all batches in flight."""
        self._running.clear()
        self._replicas.restart()
