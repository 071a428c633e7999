"""Errors tell the same in another process."""

import dataclasses
import inspect
import json
import math
import pickle
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from dalirefurb.checks import (
    LAST_EPOCH,
    Positive,
    Signed,
    dataclass_of,
    epoch_of,
    integer,
    interval,
    is_list,
    number,
    require,
)
from dalirefurb.errors import (
    ConfigurationError,
    DalirefurbError,
    LoaderError,
    OutOfMemoryError,
    ReadError,
    SampleError,
    StateMismatchError,
    StoreError,
)
from dalirefurb.planning import SmartCache

ERRORS = [
    ConfigurationError(argument="batch_size", requirement="positive", given="0", remedy="pass 64"),
    SampleError(3, "cat/1.jpg", "is empty", lasting=True),
    StoreError("is closed"),
    OutOfMemoryError("needs 9 GB", remedy="use smaller batches", in_code="a DiskStore"),
    StateMismatchError(("planner", "source"), "the state is of another planner"),
    LoaderError("is closed"),
    ReadError("storage must give samples, but a.jpg cannot be read"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: DalirefurbError) -> None:
    sent = pickle.loads(pickle.dumps(error))
    assert type(sent) is type(error)
    assert str(sent) == str(error)
    assert vars(sent) == vars(error)


def test_every_error_is_tried() -> None:
    def kinds(error: type[DalirefurbError]) -> set[type[DalirefurbError]]:
        own = {kind for kind in error.__subclasses__() if kind.__module__.startswith("dalirefurb.")}
        return own.union(*map(kinds, own))

    assert kinds(DalirefurbError) == {type(error) for error in ERRORS}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConfigurationError("there is none"), "there is none"),
        (
            ConfigurationError(argument="size", requirement="an int", given="'a'", remedy="pass 224"),
            "size must be an int, got 'a': pass 224",
        ),
        (ConfigurationError("must be there, but is not", argument="root"), "root must be there, but is not"),
        (
            OutOfMemoryError("needs 9 GB", remedy="use less", in_code="a DiskStore"),
            "needs 9 GB: use less, or a DiskStore",
        ),
    ],
)
def test_a_message_is_made_of_the_parts_that_there_are(error: DalirefurbError, message: str) -> None:
    assert (str(error), error.args) == (message, (message,))


def test_a_message_can_be_told_in_other_words() -> None:
    error = ConfigurationError(argument="lag", requirement="at least 3", given="1", remedy="pass lag=3", in_code="wait")
    assert error.told("--lag", "pass --lag 3") == "--lag must be at least 3, got 1: pass --lag 3"
    assert LoaderError("is closed").told(None, None) == "is closed"


def test_what_is_checked_of_an_argument_is_told_in_parts() -> None:
    def parts(check: Callable[[], object]) -> tuple[str | None, ...]:
        with pytest.raises(ConfigurationError) as refusal:
            check()
        error = refusal.value
        return error.argument, error.requirement, error.given, error.remedy

    assert parts(lambda: require(False, "pad", "a bool", 3, "pass one")) == ("pad", "a bool", "3", "pass one")
    assert parts(lambda: integer("n", 9, 1, 8, "less")) == ("n", "an int in 1..8", "9", "less")
    assert parts(lambda: number("p", "1", "in 0..1", bool, "0.5")) == ("p", "a number in 0..1", "'1'", "0.5")
    assert parts(lambda: interval("s", 2, "two", lambda *_: True, "0, 1")) == ("s", "two", "2", "0, 1")


def test_a_number_that_no_float_can_hold_is_refused_as_any_other() -> None:
    far = 10**400
    for refused in (
        lambda: number("p", far, "above 0", lambda p: p > 0, "1"),
        lambda: number("p", -far, "finite", lambda p: True, "1"),
        lambda: interval("s", (1, far), "rising", lambda low, high: low < high, "0, 1"),
    ):
        with pytest.raises(ConfigurationError, match=r"must be .*000"):
            refused()
    assert number("p", float("inf"), "above 0", lambda p: p > 0, "1") == float("inf")


def test_a_warning_names_the_line_that_called_the_package_once_for_each(recwarn: pytest.WarningsRecorder) -> None:
    warnings.simplefilter("default")
    first_line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    for _ in range(2):
        SmartCache(8, batch_size=2, num_cache_objects=5, replace_percent=0.5)
    dataclasses.replace(SmartCache(8, batch_size=2, num_cache_objects=4, replace_percent=0.5), num_cache_objects=5)
    assert [(each.filename, each.lineno) for each in recwarn] == [(__file__, first_line), (__file__, first_line + 1)]


def test_a_warning_of_a_thread_of_the_package_names_the_place_that_warns() -> None:
    with ThreadPoolExecutor(1) as threads, pytest.warns(UserWarning, match="is no multiple of batch_size=2") as told:
        threads.submit(SmartCache, 8, batch_size=2, num_cache_objects=5, replace_percent=0.5).result()
    assert [Path(each.filename).name for each in told] == ["smart_cache.py"]


def test_a_bad_sample_has_a_remedy() -> None:
    remedy = 'see to it, or have the loader serve another in its place: bad_samples=BadSamplePolicy("replace")'
    assert str(SampleError(3, "cat/1.jpg", "is empty")) == f"sample 3 (cat/1.jpg): is empty; {remedy}"
    broken = SampleError(3, "cat/1.jpg", "not an image", lasting=True)
    assert str(broken) == f"sample 3 (cat/1.jpg): not an image; {remedy}"


@pytest.mark.parametrize(("least", "most", "wanted"), [(0, None, "an int of at least 0"), (0, 3, r"an int in 0\.\.3")])
def test_a_limit_of_0_is_one(least: int, most: int | None, wanted: str) -> None:
    assert integer("count", 0, least, most, "pass more") == 0
    with pytest.raises(ConfigurationError, match=f"^count must be {wanted}, got -1: pass more$"):
        integer("count", -1, least, most, "pass more")


def test_the_last_epoch_is_one() -> None:
    assert epoch_of(LAST_EPOCH) == 2**31 - 1
    with pytest.raises(
        ConfigurationError, match=r"^epoch must be at most 2147483647, got 2147483648: epochs are count"
    ):
        epoch_of(LAST_EPOCH + 1)


def test_what_has_entries_in_an_order_is_a_list() -> None:
    lists = [[1], (1,), range(3), np.zeros(1), [], np.zeros((0, 2))]
    assert [*map(is_list, lists)] == [True] * len(lists)
    assert [*map(is_list, ["ab", b"ab", {1: 2}, {1}, 3, None, np.array(3)])] == [False] * 7


@dataclass(frozen=True)
class Inner:
    """A part of what is written down."""

    rate: Positive


@dataclass(frozen=True)
class Written:
    """What is written down, with a field of each type."""

    cores: int
    name: str
    shares: Mapping[int, float]
    pair: tuple[int, str]
    many: tuple[float, ...] = field(default_factory=tuple)
    kind: Literal["one", "other"] = "one"
    done: bool = False
    shift: Signed = 0.0
    inner: Inner | None = None


WRITTEN = Written(3, "a", {2: 0.5, 30: 1.0}, (0, "b"), (0.0, 2.5), "other", True, -4.5, Inner(0.25))


def test_what_was_written_down_is_read_as_it_was() -> None:
    assert dataclass_of(Written, json.loads(json.dumps(asdict(WRITTEN))), "file") == WRITTEN
    least = Written(0, "", {}, (1, ""))
    assert dataclass_of(Written, {"cores": 0, "name": "", "shares": {}, "pair": [1, ""]}, "file") == least
    assert dataclass_of(Written, {**asdict(least), "inner": None}, "file") == least


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("cores", -1, "file.cores must be an int of at least 0, got -1"),
        ("cores", True, "file.cores must be an int of at least 0, got True"),
        ("name", 3, "file.name must be a text, got 3"),
        ("name", [0] * 100, f"file.name must be a text, got {[0] * 100!r:.80}: "),
        ("shares", [1], r"file.shares must be a mapping, got [1]"),
        ("shares", {"a": 1}, "file.shares must be a mapping by integers, got {'a': 1}"),
        ("shares", {"-2": 1}, "file.shares must be a mapping by integers, got {'-2': 1}"),
        ("shares", {"2": 1, "3": "b"}, "file.shares.3 must be a number of at least 0, got 'b'"),
        ("pair", "ab", "file.pair must be a list, got 'ab'"),
        ("pair", [1], "file.pair must be a list of 2, got [1]"),
        ("pair", [1, "a", 2], "file.pair must be a list of 2, got [1, 'a', 2]"),
        ("pair", [1, 2], "file.pair[1] must be a text, got 2"),
        ("many", [0, -0.5], "file.many[1] must be a number of at least 0, got -0.5"),
        ("many", [math.inf], "file.many[0] must be a number of at least 0, got inf"),
        ("kind", "none", 'file.kind must be "one" or "other", got \'none\''),
        ("done", 1, "file.done must be True or False, got 1"),
        ("shift", -math.inf, "file.shift must be a number that is finite, got -inf"),
        ("inner", 3, "file.inner must be a mapping, got 3"),
        ("inner", {"rate": 0}, "file.inner.rate must be a number above 0, got 0"),
        ("inner", {"rate": math.inf}, "file.inner.rate must be a number above 0, got inf"),
        ("inner", {}, "file.inner.rate must be there, got 'nothing'"),
        ("inner", {"rate": 1, "more": 2}, "file.inner must be of rate, got 'more'"),
    ],
)
def test_what_somebody_has_edited_is_named_by_its_place(name: str, value: Any, told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        dataclass_of(Written, {**asdict(WRITTEN), name: value}, "file")
    assert str(refused.value).startswith(told)
    assert str(refused.value).endswith(": leave it as it was written")


@pytest.mark.parametrize("name", ["cores", "name", "shares", "pair"])
def test_what_is_missing_and_has_no_default_is_named(name: str) -> None:
    left = {other: value for other, value in asdict(WRITTEN).items() if other != name}
    with pytest.raises(
        ConfigurationError, match=f"^file.{name} must be there, got 'nothing': leave it as it was writt"
    ):
        dataclass_of(Written, left, "file")
