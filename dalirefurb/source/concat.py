"""Concat: the samples of several sources, one source after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.image_batch import Images
from dalirefurb.source.contract import Source, renumbered


class Concat(Source):
    """The samples of several sources, one source after the other.

    Args:
        sources: The sources, at least one; all encoded or none, with labels of one shape, and with the same classes.

    Raises:
        ConfigurationError: If they do not fit together.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        if isinstance(sources, Source):
            raise ConfigurationError("sources must be several in a list, got one by itself: pass [source, ...]")
        sources = [*sources]
        if not sources:
            raise ConfigurationError("there must be a source to put together, got none: pass at least one")
        first = sources[0]
        for number, source in enumerate(sources):
            if not isinstance(source, Source):
                raise ConfigurationError(
                    f"what is put together must be sources, but number {number} is a {type(source).__name__}: pass "
                    f"such as ImageFolder(path), or TorchDataset(dataset)"
                )
            for what, given, wanted, remedy in (
                ("be encoded alike", source.encoded, first.encoded, "TorchDataset(source) is one with decoded images"),
                ("have labels of one shape", source.labels.shape[1:], first.labels.shape[1:], "reshape the one's"),
                ("have the same classes", source.classes, first.classes, "if all mean the same, assign the one's"),
                ("have the same value_range", source.value_range, first.value_range, "pass it to both"),
            ):
                if given != wanted:
                    raise ConfigurationError(
                        f"sources that are put together must {what}, but number {number} has {given!r:.80} and the "
                        f"first one {wanted!r:.80}: {remedy}"
                    )
        self._sources = tuple(sources)
        self._ends = np.cumsum([len(source) for source in sources])
        # Of uint64 and int64 NumPy would make floats.
        labels = [source.labels for source in sources]
        self.labels = np.concatenate([each.astype(np.int64) if each.dtype.kind == "u" else each for each in labels])
        shapes = {source.image_shape for source in sources}
        self.encoded, self.classes, self.value_range = first.encoded, first.classes, first.value_range
        self.image_shape = first.image_shape if len(shapes) == 1 else None

    def read(self, indices: NDArray[np.int64]) -> Any:
        """Read samples, each from its source; images stay where their sources have them."""
        rows = np.array(self._checked(indices), np.int64)
        parts = []
        owners = np.searchsorted(self._ends, rows, side="right")
        for owner in np.unique(owners).tolist():
            places = np.flatnonzero(owners == owner)
            own = rows[places] - self._start(owner)
            try:
                read = self._sources[owner].read(own)
            except SampleError as error:
                raise renumbered(error, own, rows[places]) from error
            parts.append((places, Images.of(read)))
        samples = Images.joined(len(rows), parts)
        return list(samples) if self.encoded else samples

    def name(self, index: int) -> str:
        """Tell where sample `index` is, as its source does."""
        owner = int(np.searchsorted(self._ends, index, side="right"))
        return self._sources[owner].name(index - self._start(owner))

    def fingerprint(self) -> dict[str, Any]:
        """Identify the samples and their order, as JSON values."""
        return {"source": "Concat", "of": [source.fingerprint() for source in self._sources]}

    def content(self) -> dict[str, Any]:
        """Identify what is behind the sources now."""
        contents = [source.content() for source in self._sources]
        return {"of": contents} if any(contents) else {}

    def _start(self, owner: int) -> int:
        """Return where a source's samples begin."""
        return int(self._ends[owner]) - len(self._sources[owner])
