"""The remembered index of a shard: a JSON file, beside it or in a folder of such files."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from dalirefurb.source.tar_scan import Scan

_FORMAT = 3


class IndexFiles:
    """Index files of shards. One is believed if shard and question are the same as when it was written.

    Args:
        folder: Folder of the index files; if None, they are beside their shards, or where that cannot be, in the user's
            cache folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, url: str, key: dict[str, Any]) -> Scan | None:
        """Return what was saved for a shard under an equal key, if anything."""
        for path in self._paths(url):
            # There is none, or it is damaged.
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                content = json.loads(path.read_text("ascii"))
                if content.pop("key") == {"format": _FORMAT, **key}:
                    return Scan(**content)
        return None

    def save(self, url: str, key: dict[str, Any], scan: Scan) -> OSError | None:
        """Save where it is possible; return why it was nowhere possible."""
        content = json.dumps({"key": {"format": _FORMAT, **key}, **vars(scan)})
        failure = None
        for path in self._paths(url):
            failure = _write(path, content)
            if failure is None:
                break
        return failure

    def forget(self, url: str) -> None:
        """Remove what was saved for a shard, where that is possible."""
        for path in self._paths(url):
            with suppress(OSError):
                path.unlink()

    def _paths(self, url: str) -> list[Path]:
        """Return where a shard's index may be, best first."""
        whole = url if "://" in url else os.path.abspath(url)  # noqa: PTH100
        digest = hashlib.blake2b(os.fsencode(whole), digest_size=8).hexdigest()
        name = url.rpartition("/")[2]
        if self._folder is not None:
            return [self._folder / f"{name}.{digest}.index.json"]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cached = cache / "dalirefurb" / "shards" / f"{name}.{digest}.index.json"
        return [cached] if "://" in url else [Path(f"{url}.index.json"), cached]


def _write(path: Path, content: str) -> OSError | None:
    """Write so that others see the whole file or none; return why it is not possible."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(content, "ascii")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        return error
    return None
