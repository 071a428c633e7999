"""BadSamplePolicy: what a loader does about samples that it cannot use, as its user says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from dalirefurb.calls import TakesNumbers
from dalirefurb.checks import integer, number, require
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.quarantine import Quarantine, check_path
from dalirefurb.reading.substitutes import Substitutes
from dalirefurb.source.outage import RETRY_S

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
