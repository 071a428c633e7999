"""Storage that is away for a moment costs that moment: no sample is bad, nothing else is served, and a log tells."""

from __future__ import annotations

import asyncio
import errno
import gzip
import http.client
import io
import json
import logging
import os
import re
import threading
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import (
    BadSamplePolicy,
    FileList,
    ImageFolder,
    Loader,
    MemoryStore,
    Prefetch,
    Refurbish,
    Standard,
    simple,
)
from dalirefurb.errors import (
    ConfigurationError,
    LoaderError,
    ReadError,
    SampleError,
    StateMismatchError,
)
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Source, TarShards, TorchDataset, storage
from dalirefurb.source.storage import Patience, is_outage, is_page
from tests.bad_files import Batches, assert_same, spoil
from tests.faults import limited
from tests.in_turn import in_turn
from tests.pictures import jpeg, picture, write_folder
from tests.source.test_tar_shards import as_shards

NUM_SAMPLES, EPOCHS, LONG_S = 24, 3, 600.0
RECIPE = simple(32)
REFURBISH = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=2, seed=7)
STANDARD = Standard(NUM_SAMPLES, batch_size=6, seed=7)
AHEAD = Prefetch(num_threads=1, look_ahead=1, batches_per_group=1)
BEGUN, OVER, BLOCKED = "is asked for again for up to", "is no longer waited for", "has not returned for"


@pytest.fixture
def source(tmp_path: Path) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path / "photos", num_samples=NUM_SAMPLES))


class Heard(logging.Handler):
    """Warnings of the package, which can be waited for."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []
        self._news = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._news:
            self.said.append(record.getMessage())
            self._news.notify_all()

    def count(self, phrase: str) -> int:
        return sum(phrase in each for each in self.said)

    def wait(self, phrase: str, count: int = 1) -> None:
        """Wait until something was said so often."""
        with self._news:
            assert self._news.wait_for(lambda: self.count(phrase) >= count, timeout=LONG_S)


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler, log = Heard(), logging.getLogger("dalirefurb")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


@contextmanager
def meanwhile(heard: Heard, phrase: str, act: Callable[[], object]) -> Iterator[None]:
    """Act in another thread once something was said, while a block is carried out."""

    def wait_and_act() -> None:
        heard.wait(phrase)
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    yield
    thread.join()


def loader_of(
    source: Source, planner: Planner, store: MemoryStore | None = None, *, prefetch: Prefetch = AHEAD, **policy: Any
) -> Loader:
    policy = {"on_bad_sample": "replace", "retry_s": LONG_S, **policy}
    return Loader(
        source, RECIPE, planner, store, bad_samples=BadSamplePolicy(**policy), prefetch=prefetch, with_indices=True
    )


def endless(loader: Loader) -> Iterator[tuple[torch.Tensor, ...]]:
    while True:
        for batch in loader:
            yield tuple(part.clone() for part in batch)


def served(loader: Loader, batches: int) -> Batches:
    return [*islice(endless(loader), batches)]


def undisturbed(source: Source, planner: Planner) -> Batches:
    with loader_of(source, planner) as loader:
        return served(loader, EPOCHS * len(planner))


# A folder


@pytest.mark.parametrize(
    ("policy", "store", "mount_point"),
    [
        # Each pair of the three is always tried, and all triples weekly.
        pytest.param(
            *(policy, store, mount_point),
            marks=[] if (policy == "raise") ^ (store is None) ^ mount_point else pytest.mark.weekly,
        )
        for policy, store, mount_point in product(("raise", "replace"), (None, MemoryStore), (False, True))
    ],
)
def test_a_folder_that_is_away_in_mid_epoch_costs_that_time_and_nothing_else(
    policy: str, store: type[MemoryStore] | None, mount_point: bool, source: ImageFolder, tmp_path: Path, heard: Heard
) -> None:
    wanted = undisturbed(source, REFURBISH)
    folder, elsewhere = tmp_path / "photos", tmp_path / "elsewhere"

    def come_back() -> None:
        if mount_point:
            folder.rmdir()
        elsewhere.rename(folder)

    with limited(), loader_of(source, REFURBISH, store and store(), on_bad_sample=policy) as loader:
        batches = endless(loader)
        found = [next(batches)]
        folder.rename(elsewhere)
        if mount_point:
            folder.mkdir()
        with meanwhile(heard, BEGUN, come_back):
            found += islice(batches, len(wanted) - 1)
        assert_same(wanted, found)
        assert loader.bad_samples() == []
        assert "bad_samples" not in loader.state_dict()
    assert heard.count(BEGUN) == heard.count(OVER) == 1


def test_storage_is_asked_again_after_pauses_that_grow_until_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    patience = Patience(0.4)
    monkeypatch.setattr(storage, "time", SimpleNamespace(monotonic=lambda: sum(pauses)))
    monkeypatch.setattr(patience, "closed", SimpleNamespace(wait=pauses.append))

    def fail() -> None:
        raise OSError(errno.EIO, "no answer")

    with pytest.raises(ReadError, match=r"tried 5 times in 0\.4 s"):
        patience.of(fail, "a.jpg")
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.05])


@pytest.mark.parametrize("policy", ["raise", "replace"])
def test_after_the_limit_the_error_says_what_failed_and_nothing_is_remembered(
    policy: str, source: ImageFolder, tmp_path: Path
) -> None:
    wanted = undisturbed(source, STANDARD)
    quarantine = tmp_path / "bad.jsonl" if policy == "replace" else None
    with limited(), loader_of(source, STANDARD, on_bad_sample=policy, retry_s=0.4, quarantine=quarantine) as loader:
        batches = endless(loader)
        found = [next(batches)]
        (tmp_path / "photos").rename(tmp_path / "elsewhere")
        with pytest.raises(ReadError) as caught:
            found.extend(batches)
        message, cause = str(caught.value), caught.value.__cause__
        assert isinstance(cause, FileNotFoundError)
        assert str(cause.filename) in message
        assert str(tmp_path / "photos") in message
        assert "No such file or directory" in message
        told = re.search(r"tried ([0-9]+) times in ([0-9.]+) s", message)
        assert told is not None
        assert 2 <= int(told[1]) <= 5
        assert float(told[2]) >= 0.4
        assert loader.bad_samples() == []
        assert quarantine is None or not quarantine.read_text()
        (tmp_path / "elsewhere").rename(tmp_path / "photos")
        loader.load_state_dict(loader.state_dict())
        assert_same(wanted, found + served(loader, len(wanted) - len(found)))


def test_with_no_patience_a_sample_is_asked_for_once() -> None:
    source = Faulty(lambda _: OSError("away"), {3})
    with limited(), loader_of(source, STANDARD, retry_s=0) as loader, pytest.raises(ReadError, match="tried 1 times"):
        served(loader, len(STANDARD))
    assert [each for each in source.asked if each == [3]] == [[3]]


def test_a_group_of_several_batches_is_waited_for_once() -> None:
    """It fails, and is made again batch by batch."""
    source = Faulty(lambda _: OSError("away"), set(range(NUM_SAMPLES)))
    ahead = Prefetch(num_threads=1, look_ahead=1, batches_per_group=4)
    with (
        limited(),
        loader_of(source, STANDARD, retry_s=0.4, prefetch=ahead) as loader,
        pytest.raises(ReadError, match=r"tried 1 times in 0\.0 s"),
    ):
        served(loader, 1)


def test_shards_whose_folder_is_away_are_served_as_they_are_mapped(source: ImageFolder, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for number, shard in enumerate(as_shards(source, 2)):
        (tmp_path / "shards" / f"{number}.tar").write_bytes(shard)
    shards = TarShards(f"{tmp_path}/shards/{{0..1}}.tar")
    wanted = undisturbed(shards, STANDARD)
    (tmp_path / "shards").rename(tmp_path / "elsewhere")
    with limited(), loader_of(shards, STANDARD) as loader:
        assert_same(wanted, served(loader, len(wanted)))


def test_a_shard_that_has_been_cut_is_said_to_be_and_none_of_its_samples_is_bad(
    source: ImageFolder, tmp_path: Path
) -> None:
    path = tmp_path / "0.tar"
    path.write_bytes(as_shards(source, 1)[0])
    shards = TarShards(path)
    os.truncate(path, 5000)
    with (
        limited(),
        loader_of(shards, STANDARD, retry_s=0.1) as loader,
        pytest.raises(ReadError, match=r"0\.tar:.*its shard has been cut; start again"),
    ):
        served(loader, len(STANDARD))
    assert loader.bad_samples() == []


def test_a_single_file_that_is_gone_is_bad_at_once_and_by_name(source: ImageFolder) -> None:
    spoil(Path(source.name(5)), "missing")
    with limited(), loader_of(source, STANDARD) as loader:
        assert 5 not in torch.cat([batch[2] for batch in served(loader, len(STANDARD))]).tolist()
        assert [(each.index, each.name) for each in loader.bad_samples()] == [(5, source.name(5))]
    with pytest.raises(SampleError, match=r"sample 5 .*: cannot be read: No such file"):
        source.read(np.array([5]))


def test_a_link_into_storage_that_is_away_is_waited_for(source: ImageFolder, tmp_path: Path) -> None:
    link = tmp_path / "link.jpg"
    link.symlink_to(tmp_path / "unmounted" / "0.jpg")
    with pytest.raises(FileNotFoundError):
        FileList([link], [0]).read(np.array([0]))
    (tmp_path / "unmounted").mkdir()  # As empty as a mount point.
    with pytest.raises(FileNotFoundError):
        FileList([link], [0]).read(np.array([0]))
    (tmp_path / "unmounted" / "1.jpg").touch()
    with pytest.raises(SampleError):
        FileList([link], [0]).read(np.array([0]))


# Sources of any kind


class Faulty(Source):
    """Encoded pictures, of which some cannot be read: those of `bad`, whenever `faulty` says so."""

    encoded = True

    def __init__(
        self, fault: Callable[[int], Exception], bad: set[int], *, faulty: Callable[[], bool] = lambda: True
    ) -> None:
        self.labels = np.arange(NUM_SAMPLES)
        self.asked: list[list[int]] = []
        self._fault, self._bad, self._faulty = fault, bad, faulty

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        self.asked.append(indices.tolist())
        for index in indices.tolist():
            if index in self._bad and self._faulty():
                raise self._fault(index)
        return [FILES[index] for index in indices.tolist()]

    def name(self, index: int) -> str:
        return f"http://host/{index}.jpg"

    def fingerprint(self) -> dict[str, Any]:
        return {"source": "Faulty"}


FILES = [np.frombuffer(jpeg(picture(index, height=40, width=48)), np.uint8) for index in range(NUM_SAMPLES)]
GOOD = Faulty(lambda _: OSError(), set())
ALL = set(range(NUM_SAMPLES))


class OwnClientError(Exception):
    """A client's error that is no `OSError`."""

    __module__ = "aiohttp.client_exceptions"

    def __init__(self, status: int) -> None:
        super().__init__(f"{status}, message='what the server says'")
        self.status = status


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def raised_by_pillow(content: bytes) -> Exception:
    try:
        Image.open(io.BytesIO(content)).load()
    except OSError as error:
        return error
    raise AssertionError


def raised_by_gzip(content: bytes) -> Exception:
    try:
        gzip.decompress(content)
    except OSError as error:
        return error
    raise AssertionError


OUTAGES: list[Exception] = [
    OSError("it cannot be read"),
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.ESTALE, "Stale file handle"),
    OSError(errno.ENOTCONN, "Transport endpoint is not connected", "/mnt/a.jpg"),
    FileNotFoundError(errno.ENOENT, "No such file", "/no/such/mount/a.jpg"),
    FileNotFoundError(errno.ENOENT, "No such file", "no_such_mount/a.jpg"),
    FileNotFoundError("/no/such/mount/a.jpg"),
    PermissionError(errno.EACCES, "Permission denied", b"/no/such/mount/a.jpg"),
    TimeoutError("timed out"),
    asyncio.TimeoutError(),
    ConnectionResetError("reset by peer"),
    http.client.IncompleteRead(b"half", 4),
    urllib.error.URLError("unreachable"),
    urllib.error.HTTPError("http://host/a", 503, "Service Unavailable", http.client.HTTPMessage(), None),
    OwnClientError(429),
    OwnClientError(500),
    caused(RuntimeError("cannot load"), ConnectionError("reset")),
    caused(FileNotFoundError("http://host/a"), OwnClientError(503)),
]
OF_SAMPLES: list[Exception] = [
    ValueError("bad header"),
    KeyError("key"),
    SampleError(0, "a", "is bad"),
    FileNotFoundError(errno.ENOENT, "No such file", f"{Path(__file__).parent}/gone.jpg"),
    PermissionError(errno.EACCES, "Permission denied", f"{Path(__file__).parent}/protected.jpg"),
    IsADirectoryError(errno.EISDIR, "Is a directory", str(Path(__file__).parent)),
    FileNotFoundError("bucket/gone.jpg"),
    FileNotFoundError(errno.ENOENT, "No such file", os.path.relpath(f"{Path(__file__).parent}/gone.jpg")),
    OwnClientError(404),
    OwnClientError(410),
    urllib.error.HTTPError("http://host/a", 404, "Not Found", http.client.HTTPMessage(), None),
    raised_by_pillow(b"no image"),
    raised_by_pillow(jpeg(picture(0, height=40, width=48))[:-200]),
    raised_by_gzip(b"no archive"),
    caused(RuntimeError("cannot load"), ValueError("bad header")),
]


@pytest.mark.parametrize("error", OUTAGES, ids=lambda error: type(error).__name__)
def test_what_comes_of_files_and_networks_is_an_outage(error: Exception) -> None:
    assert is_outage(error)


@pytest.mark.parametrize(
    "package",
    ["aiohttp", "asyncio", "azure", "botocore", "concurrent", "fsspec", "http", "httpcore", "httpx", "urllib3"],
)
def test_what_a_package_of_networks_raises_is_an_outage(package: str) -> None:
    assert is_outage(type("Error", (Exception,), {"__module__": f"{package}.of.it"})())
    assert not is_outage(type("Error", (Exception,), {"__module__": f"its.{package}"})())


@pytest.mark.parametrize("package", ["PIL", "gzip", "imageio", "tifffile"])
def test_what_a_package_of_decoders_cannot_decode_is_no_outage(package: str) -> None:
    """Whatever class of error it raises: by where it does."""
    for module, expected in ((f"{package}.of.it", False), (f"its.{package}", True)):
        scope: dict[str, Any] = {"__name__": module}
        exec("def decode(error):\n    raise error", scope)
        with pytest.raises(OSError, match="no image") as raised:
            scope["decode"](OSError("no image"))
        assert is_outage(raised.value) == expected
        with pytest.raises(OSError, match="5") as failed:
            scope["decode"](OSError(5, "the disk fails"))
        assert is_outage(failed.value)


def test_each_outage_is_told_once_when_it_begins_and_when_it_ends(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = Patience(1000)
    monkeypatch.setattr(patience.closed, "wait", lambda seconds: False)
    for name in ("a.jpg", "b.jpg"):
        failing = iter([OSError("away")] * 4)

        def read(failing: Iterator[OSError] = failing) -> None:
            if error := next(failing, None):
                raise error

        patience.of(read, name)
    begun, over = "cannot be read (OSError: away) and is asked for again", "is no longer waited for"
    told = [f"{name} {what}" for name in ("a.jpg", "b.jpg") for what in (begun, over)]
    assert [said[: len(each)] for said, each in zip(heard.said, told, strict=True)] == told


def test_pauses_grow_to_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    patience, failing, pauses = Patience(1000), iter([OSError("away")] * 9), []
    monkeypatch.setattr(patience.closed, "wait", lambda seconds: pauses.append(seconds) or False)

    def read() -> int:
        if error := next(failing, None):
            raise error
        return 7

    assert patience.of(read, "a.jpg") == 7
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5])


def test_what_begins_as_a_page_and_is_none_is_no_page() -> None:
    assert all(map(is_page, (b"<html>", b"\n\n <!DOCTYPE html>", b' {"error": 1}')))
    assert not any(map(is_page, (b"", b"\n\xff\xd8", b" text", b"\xff\xd8<", b"[1]", b"\n" * 64 + b"<")))


@pytest.mark.parametrize("error", OF_SAMPLES, ids=lambda error: type(error).__name__)
def test_what_storage_answers_or_a_decoder_says_is_of_the_sample(error: Exception) -> None:
    assert not is_outage(error)


def by_chance(share: float) -> Callable[[], bool]:
    rng, lock = np.random.default_rng(0), threading.Lock()

    def faulty() -> bool:
        with lock:
            return bool(rng.random() < share)

    return faulty


@pytest.mark.parametrize(
    ("error", "policy"),
    in_turn(OUTAGES[::3], ["raise", "replace"]),
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_random_faults_lose_no_sample_in_three_epochs(policy: str, error: Exception) -> None:
    source = Faulty(lambda _: error, ALL, faulty=by_chance(0.15))
    wanted = undisturbed(GOOD, STANDARD)
    ahead = Prefetch(num_threads=2, batches_per_group=2)
    with limited(), loader_of(source, STANDARD, on_bad_sample=policy, prefetch=ahead) as loader:
        assert_same(wanted, served(loader, len(wanted)))
        assert loader.bad_samples() == []


class FaultyItems:
    """A dataset of encoded images."""

    def __init__(self, faulty: Callable[[], bool]) -> None:
        self._faulty = faulty

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        if self._faulty():
            raise OSError("away")
        return FILES[index].tobytes(), index


def test_random_faults_of_a_dataset_lose_no_sample_either_from_the_first_read_on() -> None:
    with limited(), loader_of(TorchDataset(FaultyItems(lambda: False)), STANDARD) as loader:
        wanted = served(loader, EPOCHS * len(STANDARD))
        state = loader.state_dict()
    source = TorchDataset(FaultyItems(by_chance(0.15)))
    with limited(), loader_of(source, STANDARD) as loader:
        assert_same(wanted, served(loader, len(wanted)))
        assert loader.bad_samples() == []
        assert loader.state_dict() == state


def test_a_dataset_whose_storage_is_away_is_no_other_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its fingerprint would say that its images cannot be decoded, and a state of it would be refused."""

    class Away:
        away = False

        def __len__(self) -> int:
            return NUM_SAMPLES

        def __getitem__(self, index: int) -> tuple[bytes, int]:
            if self.away:
                raise TimeoutError("the server does not answer")
            return FILES[index].tobytes(), index

    monkeypatch.setattr("dalirefurb.source.contract.Patience", lambda: Patience(0.0))
    dataset = Away()
    source = TorchDataset(dataset, labels=np.arange(NUM_SAMPLES), thread_safe=True)
    dataset.away = True
    with pytest.raises(ReadError, match=r"Away\[0\] cannot be read \(TimeoutError"):
        source.fingerprint()


def test_what_pillow_cannot_decode_in_a_dataset_is_bad_and_not_waited_for() -> None:
    class Pictures:
        def __len__(self) -> int:
            return NUM_SAMPLES

        def __getitem__(self, index: int) -> tuple[Image.Image, int]:
            content = FILES[index].tobytes()
            return Image.open(io.BytesIO({3: b"no image", 4: content[:-300]}.get(index, content))), index

    source = TorchDataset(Pictures(), labels=np.arange(NUM_SAMPLES))
    policy = BadSamplePolicy("replace", retry_s=LONG_S)
    with limited(), Loader(source, simple(32).for_arrays(), STANDARD, bad_samples=policy) as loader:
        list(loader)
        assert [each.index for each in loader.bad_samples()] == [3, 4]


@pytest.mark.parametrize("page", [b"<!DOCTYPE html><title>503", b"\n <html>", b'{"error": "slow down"}', b"<?xml?>"])
def test_a_page_where_an_image_was_is_no_bad_sample(page: bytes, heard: Heard) -> None:
    away = threading.Event()

    class Pages(Faulty):
        def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
            return [np.frombuffer(page, np.uint8)] * len(indices) if away.is_set() else super().read(indices)

    wanted = undisturbed(GOOD, STANDARD)
    with limited(), loader_of(Pages(OSError, set()), STANDARD) as loader:
        batches = endless(loader)
        found = [*islice(batches, len(STANDARD) + 2)]  # All were images.
        away.set()
        with meanwhile(heard, BEGUN, away.clear):
            found += islice(batches, len(wanted) - len(found))
        assert_same(wanted, found)
        assert loader.bad_samples() == []
    assert heard.count("a page came where an image was") == 1


def test_a_page_is_told_of_an_address_too_long_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Faulty(OSError, set())
    source.name = lambda index: f"http://host/{index}.jpg?signature={'0' * 5000}"  # type: ignore[method-assign]
    with closing(Reader(source, max_batch_size=4, num_threads=1, retry_s=0)) as reader:
        reader.sizes(np.arange(2))
        monkeypatch.setattr(source, "read", lambda indices: [np.frombuffer(b"<html>503", np.uint8)] * len(indices))
        with pytest.raises(ReadError, match="a page came where an image was: b'<html>503'"):
            reader.sizes(np.arange(2))


def test_a_page_where_no_image_was_is_a_bad_sample() -> None:
    class Pages(Faulty):
        def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
            return [
                np.frombuffer(b"<html>there is none" if index == 5 else FILES[index], np.uint8) for index in indices
            ]

    reader = Reader(Pages(OSError, set()), max_batch_size=4, num_threads=1, retry_s=0)
    with closing(reader), pytest.raises(SampleError, match=r"sample 5 .*not an image that can be decoded"):
        reader.sizes(np.arange(8))


def test_a_file_that_became_a_page_is_bad(source: ImageFolder) -> None:
    with limited(), loader_of(source, STANDARD) as loader:
        served(loader, len(STANDARD))
        spoil(Path(source.name(5)), "text")
        served(loader, 4 * len(STANDARD))
        assert [each.index for each in loader.bad_samples()] == [5]


def test_closing_ends_the_pauses_at_once(heard: Heard) -> None:
    source = Faulty(lambda _: OSError("away"), ALL)
    raised: list[BaseException] = []

    def train(loader: Loader) -> None:
        try:
            list(loader)
        except BaseException as error:
            raised.append(error)

    with limited(), loader_of(source, STANDARD, retry_s=1e6) as loader:
        thread = threading.Thread(target=train, args=(loader,))
        thread.start()
        heard.wait(BEGUN)
        loader.close()
        assert not any(each.name.startswith("dalirefurb-read") and each.is_alive() for each in threading.enumerate())
        thread.join()
    assert isinstance(raised[0], LoaderError)
    assert not isinstance(raised[0], ReadError)


# Reads that do not return


def block_at(index: int) -> tuple[Source, str]:
    class Blocking(Faulty):
        def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
            return [self._file(each) for each in indices.tolist()]

        def _file(self, index: int) -> NDArray[np.uint8]:
            if index == 7:
                GATE.wait()
            return FILES[index]

    class Items:
        def __len__(self) -> int:
            return NUM_SAMPLES

        def __getitem__(self, number: int) -> tuple[bytes, int]:
            if number == 7:
                GATE.wait()
            return FILES[number].tobytes(), number

    GATE.set()
    sources: list[tuple[Source, str]] = [
        (Blocking(OSError, set()), "http://host/7.jpg"),
        (Blocking(OSError, set()).subset(np.arange(NUM_SAMPLES)[::-1]), "http://host/7.jpg"),
        (TorchDataset(Items(), thread_safe=True), "Items[7]"),
    ]
    return sources[index]


GATE = threading.Event()


@pytest.mark.parametrize("kind", [0, *(pytest.param(kind, marks=pytest.mark.weekly) for kind in (1, 2))])
def test_a_read_that_does_not_return_is_named_again_and_again_after_twice_as_long(
    kind: int, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, name = block_at(kind)
    monkeypatch.setattr("dalirefurb.source.storage.BLOCKED_S", 0.2)
    monkeypatch.setattr("dalirefurb.engine.preparer._POLL_S", 0.05)
    with limited(), loader_of(source, STANDARD) as loader:
        GATE.clear()
        with meanwhile(heard, BLOCKED, lambda: (heard.wait(BLOCKED, 3), GATE.set())):
            assert len(served(loader, len(STANDARD))) == len(STANDARD)
        assert loader.bad_samples() == []
    told = [each for each in heard.said if BLOCKED in each]
    assert all(each.endswith(f" s from reading {name}") for each in told)
    assert len(told) == 3


def test_reads_that_return_are_named_by_nobody(source: ImageFolder, heard: Heard) -> None:
    with loader_of(source, STANDARD) as loader:
        served(loader, len(STANDARD))
    assert heard.said == []


# What is bad is in the state


def test_a_run_with_faults_that_is_killed_and_resumed_is_the_one_that_was_not(source: ImageFolder) -> None:
    for index in (2, 9, 17):
        spoil(Path(source.name(index)), {2: "text", 9: "JPEG cut short", 17: "missing"}[index])

    class Unsteady(ImageFolder):
        def __init__(self, faulty: Callable[[], bool]) -> None:
            vars(self).update(vars(source))
            self._faulty = faulty

        def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
            if self._faulty():
                raise TimeoutError("timed out")
            return super().read(indices)

        def fingerprint(self) -> dict[str, Any]:
            return source.fingerprint()

    wanted = undisturbed(source, REFURBISH)
    found: Batches = []
    state: str | None = None
    while len(found) < len(wanted):
        with limited(), loader_of(Unsteady(by_chance(0.3)), REFURBISH, MemoryStore()) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(state))
            found += served(loader, min(3, len(wanted) - len(found)))
            state = json.dumps(loader.state_dict())
    assert_same(wanted, found)


class Judged(Faulty):
    """Some samples are judged to be bad, as long as `faulty` says so."""

    def __init__(self, faulty: bool) -> None:
        super().__init__(lambda index: ValueError("no such key"), {2, 9, 17}, faulty=lambda: faulty)


def test_what_was_judged_bad_stays_so_in_the_next_process(tmp_path: Path) -> None:
    """The source would give it there."""
    with loader_of(Judged(True), STANDARD) as loader:
        wanted = served(loader, EPOCHS * len(STANDARD))
        judged = loader.bad_samples()
    assert [each.index for each in judged] == [2, 9, 17]
    with loader_of(Judged(True), STANDARD) as loader:
        found = served(loader, len(STANDARD) + 1)
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["bad_samples"] == [[each.index, each.name, each.reason] for each in judged]
    quarantine = tmp_path / "bad.jsonl"
    with loader_of(Judged(False), STANDARD, quarantine=quarantine) as loader:
        loader.load_state_dict(state)
        assert loader.bad_samples() == judged
        assert_same(wanted, found + served(loader, len(wanted) - len(found)))
        assert loader.state_dict()["bad_samples"] == state["bad_samples"]
    assert not quarantine.read_text()


def test_a_state_from_before_that_tells_of_none_is_loaded_and_another_is_not(source: ImageFolder) -> None:
    with loader_of(Judged(True), STANDARD) as loader:
        served(loader, len(STANDARD))
        state = loader.state_dict()
        older = {key: value for key, value in state.items() if key != "bad_samples"}
        loader.load_state_dict(older)
        assert len(loader.bad_samples()) == 3
    damaged: list[Any] = [
        [[NUM_SAMPLES, "a", "b"]],
        [[-1, "a", "b"]],
        [[0.5, "a", "b"]],
        [[1]],
        [3],
        3,
        [["1", "", ""]],
    ]
    for bad in damaged:
        with loader_of(GOOD, STANDARD) as loader:
            with pytest.raises(StateMismatchError, match="bad_samples of a state must be triples") as caught:
                loader.load_state_dict({**state, "batch": 2, "bad_samples": bad})
            assert caught.value.keys == ("bad_samples",)
            assert loader.state_dict()["batch"] == 0
            assert loader.bad_samples() == []


def test_another_number_of_ranks_goes_on_from_the_state_of_one() -> None:
    planner = Standard(NUM_SAMPLES, batch_size=6, seed=7, shards=2)
    policy = BadSamplePolicy("replace")
    states, rest = [], []
    for rank in range(2):
        with Loader(
            Judged(True), RECIPE, planner, bad_samples=policy, rank=(rank, 2), with_indices=True, prefetch=AHEAD
        ) as loader:
            served(loader, len(planner))
            states.append(loader.state_dict())
            rest.append(served(loader, len(planner)))
    assert sum(len(state.get("bad_samples", ())) for state in states) == 3
    for state in states:
        with loader_of(Judged(True), planner) as loader:
            loader.load_state_dict(state)
            for number, batch in enumerate(served(loader, len(planner))):
                of_ranks = [torch.cat(parts) for parts in zip(*(each[number] for each in rest), strict=True)]
                order = [torch.argsort(each[2]) for each in (batch, of_ranks)]
                assert_same([tuple(each[order[0]] for each in batch)], [tuple(each[order[1]] for each in of_ranks)])


# What is said of it


@pytest.mark.parametrize("seconds", [-1, float("nan"), "60", None, True])
def test_a_limit_that_is_no_number_of_seconds_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="retry_s must be a number of at least 0, got"):
        BadSamplePolicy(retry_s=seconds)


# Servers


class Server:
    """A web server of some files on this machine, with faults.

    Attributes:
        fault: How a request for a range is answered; None: as it should be.
        asked: Number of such requests.
    """

    def __init__(self, files: Mapping[str, bytes], *, ranges: bool = True) -> None:
        self.fault: Callable[[Any, bytes], bytes | None] | None = None
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(200, b"", length=len(files[self.path]))

            def do_GET(self) -> None:
                content, wanted = files[self.path], self.headers.get("Range")
                if wanted is None or not ranges:
                    self._answer(200, content)
                    return
                outer.asked += 1
                start, end = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
                part = content[start : end + 1]
                if outer.fault is not None:
                    outer.fault(self, part)
                    return
                self._answer(206, part, Content_Range=f"bytes {start}-{end}/{len(content)}")

            def _answer(self, status: int, body: bytes, *, length: int | None = None, **headers: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.files = files
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def unavailable(handler: Any, _: bytes) -> None:
    handler._answer(503, b"<html>503 Service Unavailable</html>")


def too_many(handler: Any, _: bytes) -> None:
    handler._answer(429, b"slow down", Retry_After="1")


def short(handler: Any, part: bytes) -> None:
    handler._answer(206, part[:-7])


def broken_off(handler: Any, part: bytes) -> None:
    handler._answer(206, part[:-7], length=len(part))
    handler.close_connection = True


def whole(handler: Any, _: bytes) -> None:
    handler._answer(
        200, next(iter(handler.server.files.values())) if hasattr(handler.server, "files") else b"x" * 99999
    )


def page(handler: Any, _: bytes) -> None:
    handler._answer(200, b"<!DOCTYPE html><title>Back soon</title>")


def page_of_that_length(handler: Any, part: bytes) -> None:
    handler._answer(206, b"<!DOCTYPE html>".ljust(len(part)))


def hang_up(handler: Any, _: bytes) -> None:
    handler.close_connection = True


FAULTS = [unavailable, too_many, short, broken_off, whole, page, page_of_that_length, hang_up]


@pytest.fixture
def server(source: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shards = as_shards(source, 2)
    server = Server({f"/{number}.tar": shard for number, shard in enumerate(shards)})
    yield server
    server.close()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("policy", ["raise", "replace"])
def test_a_server_that_fails_for_a_while_costs_that_time_and_nothing_else(
    fault: Callable[[Any, bytes], None], policy: str, server: Server, source: ImageFolder, heard: Heard
) -> None:
    shards = TarShards(f"{server.url}/{{0..1}}.tar")
    wanted = undisturbed(shards, STANDARD)
    with limited(), loader_of(shards, STANDARD, on_bad_sample=policy) as loader:
        batches = endless(loader)
        found = [next(batches)]
        server.fault = fault
        with meanwhile(heard, BEGUN, lambda: setattr(server, "fault", None)):
            found += islice(batches, len(wanted) - 1)
        assert_same(wanted, found)
        assert loader.bad_samples() == []
    assert not any("has been cut" in each for each in heard.said)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (unavailable, "ClientResponseError: 503"),
        (too_many, "ClientResponseError: 429"),
        (short, "the rest is lost"),
        (whole, "shards need one that gives ranges"),
        (page, "a page came: b'<!DOCTYPE html><title>Back soon"),
    ],
)
def test_a_server_that_fails_for_longer_is_an_error_with_the_address(
    fault: Callable[[Any, bytes], None], said: str, server: Server
) -> None:
    shards = TarShards(f"{server.url}/{{0..1}}.tar")
    server.fault = fault
    with limited(), loader_of(shards, STANDARD, retry_s=0.2) as loader:
        with pytest.raises(ReadError) as caught:
            served(loader, 1)
        assert server.url in str(caught.value)
        assert said in str(caught.value)
        assert "has been cut" not in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)
        assert loader.bad_samples() == []


def test_random_faults_of_a_server_lose_no_sample_in_three_epochs(server: Server) -> None:
    shards = TarShards(f"{server.url}/{{0..1}}.tar")
    wanted = undisturbed(shards, STANDARD)
    faulty, rng = by_chance(0.15), np.random.default_rng(1)

    def sometimes(handler: Any, part: bytes) -> None:
        if faulty():
            FAULTS[rng.integers(len(FAULTS))](handler, part)
        else:
            handler._answer(206, part)

    server.fault = sometimes
    with limited(), loader_of(shards, STANDARD, prefetch=Prefetch(num_threads=2, batches_per_group=2)) as loader:
        assert_same(wanted, served(loader, len(wanted)))
        assert loader.bad_samples() == []


def test_a_server_without_ranges_is_said_to_be_one(source: ImageFolder, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    shards = as_shards(source, 1)
    server = Server({"/0.tar": shards[0]}, ranges=False)
    try:
        read = TarShards(f"{server.url}/0.tar", index=tmp_path)
        with limited(), loader_of(read, STANDARD, retry_s=0.2) as loader, pytest.raises(ReadError) as caught:
            served(loader, 1)
        assert "shards need one that gives ranges" in str(caught.value)
    finally:
        server.close()
