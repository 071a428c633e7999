"""Errors tell the same in another process."""

import pickle
from collections.abc import Callable

import pytest

from dalirefurb.checks import integer, interval, number, require
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
