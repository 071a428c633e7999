"""Samples that cannot be used: what a loader does about them, what replaces them, and those of earlier runs.

A quarantine has one line of JSON for each, which says what source it is about: several processes may append to one
file, and a person may read it, or delete a line to have the sample tried again.

For version v of a bad sample i samples are drawn from i's shard, keyed by (seed, i, v), until one is good. So it
depends on which samples are bad, and on nothing else: not on when that was found, nor in which batch, nor on what a
store holds. Rows that share a version share what replaces it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from dalirefurb.calls import TakesNumbers
from dalirefurb.checks import integer, number, path_of, require
from dalirefurb.errors import ConfigurationError, LoaderError, SampleError, StateMismatchError, warn
from dalirefurb.planning.batch_plan import Indices, Mask
from dalirefurb.planning.planner import Planner
from dalirefurb.rng import uniforms
from dalirefurb.source.storage import RETRY_S


@dataclass(frozen=True)
class BadSample:
    """A sample that cannot be used.

    Attributes:
        index: Index of the sample.
        name: Name of the sample, which tells where the source has it.
        reason: Reason why the sample cannot be used.
    """

    index: int
    name: str
    reason: str


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse what can be no file: perhaps it has no end.

    Raises:
        ConfigurationError: If there is something else, or no folder for it.
    """
    try:
        file = path_of(path)
        there = file.exists()
        reason = "it is no regular file" if there and not file.is_file() else ""
        reason = reason or ("" if there or file.parent.is_dir() else "its folder is not there")
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        raise _unfit(path, reason)


def _unfit(path: str | os.PathLike[str], reason: object) -> ConfigurationError:
    """Return the error of what is no such file."""
    said = f"must be a text file that can be read and written, but {path} is not: {reason}"
    return ConfigurationError(said, argument="quarantine", remedy="pass the path of a file in a folder that is there")


class Quarantine:
    """Bad samples of one source, which has such a fingerprint, in a file, which is made if it is not there.

    Raises:
        ConfigurationError: If the file cannot be written, is of another kind, or belongs to another source.
    """

    def __init__(self, path: str | os.PathLike[str], *, num_samples: int, source: Mapping[str, Any]) -> None:
        self._path = path_of(path)
        self._num_samples = num_samples
        self._source = hashlib.blake2b(json.dumps(source, sort_keys=True).encode(), digest_size=8).hexdigest()
        self._writable = True
        check_path(self._path)
        try:
            with self._path.open("a+", encoding="utf-8") as file:
                file.seek(0)
                lines = file.readlines()
        except (OSError, UnicodeDecodeError) as error:
            raise _unfit(self._path, error) from error
        self.samples = [self._parsed(number, line) for number, line in enumerate(lines, 1) if not _is_torn(line)]

    def add(self, sample: BadSample) -> None:
        """Append a sample. A file that cannot be written any more costs one warning."""
        line = json.dumps({"source": self._source, **asdict(sample)}) + "\n"
        try:
            with self._path.open("ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    # A line that a person or a full disk left without its end is ended first.
                    line = line if file.read(1) == b"\n" else f"\n{line}"
                file.write(line.encode())
        except OSError as error:
            if self._writable:
                warn(
                    f"{self._path} cannot be written ({error}): bad samples found from now on will be decoded in vain "
                    f"by the next run, too",
                )
            self._writable = False

    def _parsed(self, number: int, line: str) -> BadSample:
        try:
            values = json.loads(line)
            source = values.pop("source")
            sample = BadSample(**values)
            known = 0 <= sample.index < self._num_samples
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ConfigurationError(
                f"every line of a quarantine must be JSON with source, index, name and reason, but line {number} of "
                f"{self._path} is {line.strip()[:80]!r}: delete the line, or pass the path of another file"
            ) from error
        if source != self._source or not known:
            raise ConfigurationError(
                f"a quarantine must belong to the loader's source, {self._source}, but line {number} of {self._path} "
                f"is about sample {sample.index} ({sample.name}) of another one, {source}: pass another path, or "
                f"delete the file if the source has changed"
            )
        return sample


def _is_torn(line: str) -> bool:
    """Tell whether there is no more of a line than a full disk, or who was killed, left: nothing, or its beginning."""
    try:
        json.loads(line)
    except ValueError:
        begins = '{"source": "'
        return line.startswith(begins) or begins.startswith(line.strip())
    return False


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


OnBadSample = Literal["raise", "replace"]


@dataclass(frozen=True)
class BadSamplePolicy(metaclass=TakesNumbers):
    """What a loader does about samples that cannot be used, and about storage that fails.

    Attributes:
        on_bad_sample: What happens if a sample is gone or cannot be decoded, or is too large, or of a size that a stage
            cannot take. "raise": a `SampleError` names it. "replace": a good sample of the same shard is served
            instead, drawn anew for each version, with its own label and index. Which one that is depends on which
            samples are bad, and on nothing else. See `Loader.bad_samples`.
        quarantine: With "replace", a file of samples that are bad from the beginning: none is read or decoded. It is
            made if it is not there, and those whose contents are found to be bad are appended, one line of JSON each.
            Ranks may share it.
        max_pixels: Pixels of one encoded image at most, which takes 3 bytes a pixel when it is decoded, and of what a
            stage makes of it, as a `Resize` does of a very long one; a larger one, perhaps a decompression bomb, is a
            bad sample. Of what is resized and cropped right after, in the same part, the crop's window alone is made,
            and counts. None: any size.
        retry_s: Seconds for which a sample is asked for again, with growing pauses, where its storage fails, which says
            nothing of the sample; at last it is a `ReadError`, with "replace", too. 0: it is asked for once.

    Raises:
        ConfigurationError: If one of them cannot work.
    """

    on_bad_sample: OnBadSample = "raise"
    quarantine: str | os.PathLike[str] | None = None
    max_pixels: int | None = 100_000_000
    retry_s: float = RETRY_S

    def __post_init__(self) -> None:
        name, given = "on_bad_sample", self.on_bad_sample
        remedy = "'replace' serves a good sample in the place of a bad one, so that batches stay full"
        require(given in ("raise", "replace"), name, "'raise' or 'replace'", given, remedy)
        remedy = "pass on_bad_sample='replace', or leave the quarantine out"
        require(self.quarantine is None or given == "replace", name, "'replace' with a quarantine", given, remedy)
        if self.quarantine is not None:
            check_path(self.quarantine)
        if self.max_pixels is not None:
            integer("max_pixels", self.max_pixels, 1, None, "None for any size")
        number("retry_s", self.retry_s, "of at least 0", lambda seconds: seconds >= 0, "0: never ask again")

    def substitutes(self, planner: Planner, *, source: dict[str, Any]) -> Substitutes | None:
        """Return what replaces bad samples, or None where they raise, given the planner of all ranks together.

        Raises:
            ConfigurationError: If the quarantine cannot be used.
        """
        if self.on_bad_sample == "raise":
            return None
        if self.quarantine is None:
            return Substitutes(planner)
        return Substitutes(planner, Quarantine(self.quarantine, num_samples=planner.num_samples, source=source))

    def fingerprint(self) -> dict[str, Any]:
        """What of it decides the batches, as JSON values."""
        if self.on_bad_sample == "raise":
            return {}
        return {"on_bad_sample": self.on_bad_sample, "max_pixels": self.max_pixels}
