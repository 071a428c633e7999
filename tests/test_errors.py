"""Errors tell the same in another process."""

import pickle

import pytest

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
    ConfigurationError("batch_size must be positive"),
    SampleError(3, "cat/1.jpg", "is empty", lasting=True),
    StoreError("is closed"),
    OutOfMemoryError("needs 9 GB"),
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


def test_a_bad_sample_has_a_remedy() -> None:
    remedy = 'see to it, or have the loader serve another in its place: bad_samples=BadSamplePolicy("replace")'
    assert str(SampleError(3, "cat/1.jpg", "is empty")) == f"sample 3 (cat/1.jpg): is empty; {remedy}"
    broken = SampleError(3, "cat/1.jpg", "not an image", lasting=True)
    assert str(broken) == f"sample 3 (cat/1.jpg): not an image; {remedy}"
