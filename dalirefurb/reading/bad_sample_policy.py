"""BadSamplePolicy: what a loader does about samples that it cannot use, as its user says."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dalirefurb.calls import TakesNumbers
from dalirefurb.checks import integer, number
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.substitutes import Substitutes
from dalirefurb.source.outage import RETRY_S

OnBadSample = Literal["raise", "replace"]


@dataclass(frozen=True)
class BadSamplePolicy(metaclass=TakesNumbers):
    """What a loader does about samples that cannot be used, and about storage that fails.

    Attributes:
        on_bad_sample: What happens if a sample is gone or cannot be decoded, or is too large, or of a size that a stage
            cannot take. "raise": a `SampleError` names it. "replace": a good sample of the same shard is served
            instead, drawn anew for each version, with its own label and index, augmented as it never is in its own
            place. Which one that is depends on which samples are bad, and on nothing else. See `Loader.bad_samples`.
        quarantine: With "replace", a file of samples that are bad from the beginning: none is read or decoded. It is
            made if it is not there, and those whose contents are found to be bad are appended, one line of JSON each;
            what is gone, or has a size that this recipe cannot take, is not, as another run may use it. Ranks may share
            it.
        fallback_decoder: No longer of use, and warned of: Pillow decodes what DALI is not given, whatever is said here.
        max_pixels: Pixels of one encoded image at most, which takes 3 bytes a pixel when it is decoded, and of what a
            stage makes of it, as a `Resize` does of a very long one; a larger one, perhaps a decompression bomb, is a
            bad sample. Of what is resized and cropped right after, in the same part, the crop's window alone is made,
            and counts. None: any size.
        retry_s: Seconds for which a sample is asked for again, with growing pauses, where its storage fails: by an
            `OSError`, a time-out, a server's refusal, or bytes that are not all there. That says nothing of the sample;
            at last it is a `ReadError`, with "replace", too. 0: it is asked for once.

    Raises:
        ConfigurationError: If one of them cannot work.
    """

    on_bad_sample: OnBadSample = "raise"
    quarantine: str | os.PathLike[str] | None = None
    fallback_decoder: Literal["pillow"] | None = None
    max_pixels: int | None = 100_000_000
    retry_s: float = RETRY_S

    def __post_init__(self) -> None:
        if self.on_bad_sample not in ("raise", "replace"):
            raise ConfigurationError(
                f"on_bad_sample must be 'raise' or 'replace', got {self.on_bad_sample!r}: 'replace' serves a good "
                f"sample in the place of a bad one, so that batches stay full"
            )
        if self.quarantine is not None and self.on_bad_sample == "raise":
            raise ConfigurationError(
                f"quarantine is for bad samples that are replaced, but on_bad_sample is 'raise' and quarantine "
                f"{os.fspath(self.quarantine)!r}: pass on_bad_sample='replace', or leave quarantine out"
            )
        if self.fallback_decoder is not None:
            warnings.warn(
                "fallback_decoder is no longer of use, since Pillow decodes what DALI is not given: leave it out",
                DeprecationWarning,
                stacklevel=5,
            )
        if self.max_pixels is not None:
            integer("max_pixels", self.max_pixels, 1, None, "None for any size")
        number("retry_s", self.retry_s, "of at least 0", lambda seconds: seconds >= 0, "0: never ask again")

    def substitutes(self, planner: Planner, *, source: dict[str, Any]) -> Substitutes | None:
        """Return what replaces bad samples, or None where they raise.

        Args:
            planner: Planner of all ranks together.
            source: Fingerprint of the source.

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


class Quarantine:
    """Bad samples of one source in a file, which is made if it is not there.

    Args:
        path: Path of the file.
        num_samples: Number of samples in the source.
        source: Fingerprint of the source.

    Raises:
        ConfigurationError: If the file cannot be written, is of another kind, or belongs to another source.
    """

    def __init__(self, path: str | os.PathLike[str], *, num_samples: int, source: Mapping[str, Any]) -> None:
        self._path = Path(path)
        self._num_samples = num_samples
        self._source = hashlib.blake2b(json.dumps(source, sort_keys=True).encode(), digest_size=8).hexdigest()
        self._writable = True
        try:
            with self._path.open("a+", encoding="utf-8") as file:
                file.seek(0)
                lines = file.readlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"quarantine must be a text file that can be read and written, but {self._path} is not: {error}: pass "
                f"the path of a file in a folder that is there"
            ) from error
        self.samples = [self._parsed(number, line) for number, line in enumerate(lines, 1) if line.strip()]

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
                warnings.warn(
                    f"{self._path} cannot be written ({error}): bad samples found from now on will be decoded in vain "
                    f"by the next run, too",
                    stacklevel=2,
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
