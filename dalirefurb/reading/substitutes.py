"""Substitutes for samples that cannot be used: good ones of the same shard, drawn by a key.

For version v of a bad sample i samples are drawn from i's shard, keyed by (seed, i, v), until one is good. So it
depends on which samples are bad, and on nothing else: not on when that was found, nor in which batch, nor on what a
store holds. Rows that share a version share what replaces it.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np

from dalirefurb.checks import integer
from dalirefurb.errors import LoaderError, SampleError, StateMismatchError
from dalirefurb.planning.batch_plan import Indices, Mask
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.quarantine import BadSample, Quarantine
from dalirefurb.rng import uniforms

_DRAWS = 128
"""With 9 of 10 samples bad, all of so many are in one of 700,000 cases."""

_NAMED = 3

_log = logging.getLogger("dalirefurb.reading")


class Substitutes:
    """Remembers which samples are bad, and names others for them. Thread-safe.

    Args:
        planner: Planner, which says which samples belong to one shard.
        quarantine: Quarantine that names samples that are bad from the beginning, and where samples found to be bad are
            written down if another run cannot use them either; None: there is none.
    """

    def __init__(self, planner: Planner, quarantine: Quarantine | None = None) -> None:
        self._planner = planner
        self._quarantine = quarantine
        self._lock = threading.Lock()
        self._found = {sample.index: sample for sample in (quarantine.samples if quarantine else ())}
        self._bad = np.array(sorted(self._found), np.int64)
        if self._found:
            _log.info("%d samples that the quarantine names are replaced by others", len(self._found))

    def add(self, error: SampleError) -> None:
        """Remember a bad sample; one that will be so in another run, too, belongs into the quarantine."""
        with self._lock:
            if error.index in self._found:
                return
            sample = BadSample(error.index, error.name, error.reason)
            self._found[error.index] = sample
            self._bad = np.insert(self._bad, np.searchsorted(self._bad, error.index), error.index)
            if error.lasting and self._quarantine is not None:
                self._quarantine.add(sample)
            count = len(self._found)
        # Now, and whenever there are ten times as many; where all are bad an error tells it.
        if str(count).strip("0") == "1" and count < self._planner.num_samples:
            _log.warning(
                "bad samples are replaced by others, %d of %d so far, the last one sample %d (%s): %s; "
                "Loader.bad_samples() lists them, and `dalirefurb train` in the end; Stats.replaced counts rows",
                *(count, self._planner.num_samples, error.index, error.name, error.reason),
            )

    def told(self, samples: Any) -> list[SampleError]:
        """Return the samples, to `add`, that were bad where a state was saved: index, name and reason of each.

        Raises:
            StateMismatchError: If they are damaged.
        """
        try:
            last = self._planner.num_samples - 1
            return [
                SampleError(integer("index", i, 0, last, "in a state"), name, reason) for i, name, reason in samples
            ]
        except (TypeError, ValueError) as error:
            raise StateMismatchError(
                ("bad_samples",),
                f"bad_samples of a state must be triples of index, name and reason ({error}): load an earlier state",
            ) from error

    def bad(self, indices: Indices) -> Mask:
        """Tell which samples are known to be bad, of the same shape."""
        bad = self._bad
        if not len(bad):
            return np.zeros(indices.shape, np.bool_)
        found: Mask = bad[np.minimum(np.searchsorted(bad, indices), len(bad) - 1)] == indices
        return found

    def report(self) -> list[BadSample]:
        """List the samples that are known to be bad, by index."""
        with self._lock:
            return sorted(self._found.values(), key=lambda sample: sample.index)

    def of(self, indices: Indices, versions: Indices) -> Indices:
        """Return what to read for versions of samples, shape (n,): themselves, or what replaces those known to be bad.

        Raises:
            LoaderError: If nothing good is found for one of them.
        """
        rows = np.flatnonzero(self.bad(indices))
        if not len(rows):
            return indices
        read = indices.copy()
        owners = self._planner.owners(indices[rows])
        for shard in np.unique(owners).tolist():
            mine, samples = rows[owners == shard], self._planner.shard_samples[shard]
            numbers = uniforms(self._planner.seed, "replacement", indices[mine], versions[mine], _DRAWS)
            places = np.minimum((numbers * samples).astype(np.int64), samples - 1)  # the product is rounded
            candidates = self._planner.members(shard, places.reshape(-1)).reshape(places.shape)  # (rows, draws)
            good = ~self.bad(candidates)
            if not good.any(axis=1).all():
                raise self._nothing_good(int(indices[mine[np.argmin(good.any(axis=1))]]), shard)
            read[mine] = candidates[np.arange(len(mine)), good.argmax(axis=1)]
        return read

    def _nothing_good(self, index: int, shard: int) -> LoaderError:
        bad = [each for each in self.report() if self._planner.owners(np.array([each.index]))[0] == shard]
        named = "; ".join(f"sample {each.index} ({each.name}): {each.reason}" for each in bad[:_NAMED])
        return LoaderError(
            f"a good sample must be found to replace sample {index}, but {_DRAWS} that were drawn are bad, as are at "
            f"least {len(bad)} of the {self._planner.shard_samples[shard]} samples of its shard "
            f"({named}{'; ...' * (len(bad) > _NAMED)}): see to it that samples can be read, or leave the bad ones out "
            f"of the source"
        )
