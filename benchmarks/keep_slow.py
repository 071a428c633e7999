"""What does a keep of half of the files save where storage is slow? Bytes and time of each epoch, with it and without.

    no keep       every file is fetched in every epoch
    half kept     `Kept(source, folder, form="encoded", size=half of the bytes)`, empty when each round begins

Claims, on any machine where storage is slower than the processor: the first epoch, which fills the keep, is at least
0.95 times as fast as one without a keep; each later epoch fetches at most 0.51 of the bytes.
Bound: a later epoch takes no less than what it fetches does, so it is at most twice as fast; what was fetched ahead in
the epoch before is not waited for, so the figure of one epoch can lie a little above.
n: 5 rounds (`--rounds`), each an epoch without a keep and three with one, in turns.

Two sources, both of which give a sample every 20 ms, however many threads ask:

    slow        files of this machine behind a line
    http        a shard of the same files at a web server of this process, read by requests for ranges

Bytes are counted where they are fetched: what the line lets through, or what the server sends. A loader fetches ahead,
so what is fetched of a sample for the n-th time counts as of epoch n.

    python benchmarks/keep_slow.py                        about 6 minutes
"""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from claims import Claim, Spread, claim_table, say, table
from experiment import Experiment, Options
from loaders import Loading
from numpy.typing import NDArray
from sources import Line, SlowSource

from dalirefurb import FileList, Kept, Loader, Standard, TarShards
from dalirefurb.keep.upkeep import inspect
from dalirefurb.source import Source

SLOW, HTTP = "slow", "http"
LEAST_IN_FIRST_EPOCH = 0.95
MOST_BYTES_LATER = 0.51

_SHARD = "/train.tar"


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        wait_s: Seconds that a sample takes to be fetched, however many threads ask.
        share: Of the bytes that the keep may take.
        epochs: Of each round with a keep.
    """

    wait_s: float = 0.02
    share: float = 0.5
    epochs: int = 4


class Fetched:
    """Bytes that were fetched of each sample, each time."""

    def __init__(self) -> None:
        self._times: defaultdict[Hashable, list[int]] = defaultdict(list)

    def note(self, sample: Hashable, nbytes: int) -> None:
        """Count a sample; from any thread, but one sample is fetched once at a time."""
        self._times[sample].append(nbytes)

    def of_epoch(self, epoch: int) -> int:
        """Return the bytes of all samples that were fetched for the n-th time, n from 0."""
        return sum(times[epoch] for times in [*self._times.values()] if len(times) > epoch)

    def clear(self) -> None:
        """Begin anew."""
        self._times.clear()


class CountedSource(SlowSource):
    """Another source behind a line, with what the line lets through."""

    def __init__(self, source: Source, wait_s: float, fetched: Fetched) -> None:
        super().__init__(source, wait_s)
        self._fetched = fetched

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Wait in line for each sample, between those of others who read; count and return them."""
        samples = [*self._source.read(indices)]
        for index, sample in zip(indices.tolist(), samples, strict=True):
            self.line.wait()
            self._fetched.note(index, sample.nbytes)
        return samples

    def stamps(self, indices: NDArray[np.int64]) -> NDArray[np.uint64] | None:
        """Tell files from what they were, which needs no line."""
        return self._source.stamps(indices)


@contextmanager
def served(shard: bytes, line: Line, fetched: Fetched) -> Iterator[tuple[str, Callable[[], None]]]:
    """Serve a shard at an address of this machine, and count ranges by where they begin.

    Yields:
        The address, and a function that has requests from then on wait in line.
    """
    slow = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(200, b"", Content_Length=str(len(shard)))

        def do_GET(self) -> None:
            first, last = (int(number) for number in self.headers["Range"].removeprefix("bytes=").split("-"))
            part = shard[first : last + 1]
            if slow.is_set():
                line.wait()
                fetched.note(first, len(part))
            where = f"bytes {first}-{first + len(part) - 1}/{len(shard)}"
            self._answer(206, part, Content_Length=str(len(part)), Content_Range=where)

        def _answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            with suppress(ConnectionError):  # Whoever asked may be closed.
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{_SHARD}", slow.set
    finally:
        server.shutdown()
        server.server_close()


def packed(files: FileList) -> bytes:
    """Write files and their labels into a shard."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for index, label in enumerate(files.labels.tolist()):
            (image,) = files.read(np.array([index]))
            for ending, content in (("jpg", image.tobytes()), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{index:06d}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return written.getvalue()


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Compare with both sources."""
    files = config.source(options.data)
    with Loader(files, config.recipe(), planner(config)) as loader:  # Compiles what is not compiled yet.
        for _ in islice(loader, 2):
            pass
    fetched = Fetched()
    nbytes = sum(Path(files.name(index)).stat().st_size for index in range(len(files)))
    slow = CountedSource(files, config.wait_s, fetched)
    measured = {SLOW: compare(config, SLOW, slow, slow.line, fetched, nbytes)}
    if find_spec("aiohttp") is None:
        say(f"{HTTP} is left out: fsspec reads it by aiohttp, which is not installed")
    else:
        line = Line(config.wait_s)
        with TemporaryDirectory() as index, served(packed(files), line, fetched) as (url, begin):
            shards = TarShards(url, index=index)
            shards.read(np.zeros(1, np.int64))  # Which loads what asks, and connects.
            begin()
            measured[HTTP] = compare(config, HTTP, shards, line, fetched, nbytes)
    return {"claims": [claim for each in measured.values() for claim in each.pop("claims")], **measured}


def planner(config: Config) -> Standard:
    """Return a plan of every sample once an epoch."""
    return Standard(config.samples, batch_size=config.batch_size)


def compare(config: Config, name: str, source: Source, line: Line, fetched: Fetched, nbytes: int) -> dict[str, Any]:
    """Let a loader without a keep and one with a keep of half of the bytes take turns."""
    rounds = []
    for number in range(config.rounds):
        taken: dict[str, Any] = {}
        for way in ("none", "half")[:: 1 if number % 2 == 0 else -1]:
            with TemporaryDirectory() as folder:
                fetched.clear()
                if way == "none":
                    taken[way] = epochs(config, source, 1, line, fetched)
                    continue
                kept = Kept(source, Path(folder), form="encoded", size=int(config.share * nbytes))
                taken[way] = epochs(config, kept, config.epochs, line, fetched)
                taken["kept"] = inspect(Path(folder)).kept
        rounds.append({"round": number, **taken})
    claims = judged(name, rounds)
    named = {"no keep": ("none", 0), **{f"half kept, epoch {epoch}": ("half", epoch) for epoch in range(config.epochs)}}
    rows = [[label, *_row(config, [each[way][epoch] for each in rounds])] for label, (way, epoch) in named.items()]
    say(
        f"{name}: {1e3 * config.wait_s:.0f} ms a sample, {nbytes / config.samples / 1e3:.0f} KB each",
        table(["epoch", "images/s [quartiles]", "MB fetched [quartiles]"], rows),
        claim_table(claims, "with half of the bytes kept"),
    )
    return {"file_bytes": nbytes, "claims": claims, "rounds": rounds}


def epochs(config: Config, source: Source, count: int, line: Line, fetched: Fetched) -> list[dict[str, float]]:
    """Serve epochs, and leave the line empty; return the seconds of each, and the bytes that were fetched for it."""
    seconds = []
    with Loader(source, config.recipe(), planner(config)) as loader:
        for _ in range(count):
            began = time.perf_counter()
            for _ in loader:
                pass
            seconds.append(time.perf_counter() - began)
        nbytes = [fetched.of_epoch(epoch) for epoch in range(count)]
    line.rest()
    return [{"seconds": one, "bytes": other} for one, other in zip(seconds, nbytes, strict=True)]


def judged(name: str, rounds: list[dict[str, Any]]) -> list[Claim]:
    """Divide figures of one round by each other."""
    without, first = ([each[way][0] for each in rounds] for way in ("none", "half"))
    later = [each["half"][1:] for each in rounds]
    whole = [each["bytes"] for each in without]
    fetched = [max(each["bytes"] for each in own) for own in later]
    seconds = [sum(each["seconds"] for each in own) / len(own) for own in later]
    claims = [
        Claim.ratio(
            "first epoch / no keep, images/s",
            [each["seconds"] for each in without],
            [each["seconds"] for each in first],
            LEAST_IN_FIRST_EPOCH,
        ),
        Claim.ratio("later epochs / no keep, bytes", fetched, whole, most=MOST_BYTES_LATER),
        Claim.ratio("later epochs / no keep, images/s", [each["seconds"] for each in without], seconds),
    ]
    return [replace(claim, name=f"{name}: {claim.name}") for claim in claims]


def _row(config: Config, taken: list[dict[str, float]]) -> list[str]:
    speeds, nbytes = [config.samples / each["seconds"] for each in taken], [each["bytes"] / 1e6 for each in taken]
    return [f"{Spread.of(speeds):1}", f"{Spread.of(nbytes):2}"]


EXPERIMENT = Experiment(
    measure,
    Config(batch_size=32, epoch_batches=12, rounds=5),
    quick=Config(layers=0, size=32, batch_size=4, epoch_batches=3, rounds=1, wait_s=0.002, epochs=2),
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
