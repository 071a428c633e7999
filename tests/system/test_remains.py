"""What owners leave behind, whatever interrupts."""

import gc
import sys
import weakref

import pytest

from dalirefurb.system.resources import Remains


class Owner:
    pass


class Value:
    pass


def test_a_value_is_left_once_nobody_refers_to_its_owner():
    remains = Remains()
    owners = [Owner() for _ in range(3)]
    for number, owner in enumerate(owners):
        remains.expect(owner, number)
    del owner
    with pytest.raises(IndexError):
        remains.take()
    del owners[1]
    assert remains.take() == 1
    del owners[:]
    assert {remains.take(), remains.take()} == {0, 2}
    with pytest.raises(IndexError):
        remains.take()


def test_what_is_more_than_kept_goes_at_once_the_earliest_first():
    remains, values = Remains(2), [Value() for _ in range(4)]
    present = [weakref.ref(value) for value in values]
    owners = [Owner() for _ in values]
    for owner in owners:
        remains.expect(owner, values.pop(0))
    del owner
    while owners:
        owners.pop(0)
    assert [value() is not None for value in present] == [False, False, True, True]
    assert remains.take() is present[3]()


def test_nothing_is_kept_for_remains_that_are_gone():
    remains, owner, value = Remains(), Owner(), Value()
    present = weakref.ref(value)
    remains.expect(owner, value)
    del remains, value
    gc.collect()
    assert present() is None


def test_no_line_of_python_runs_when_an_owner_goes():
    """An interrupt from the keyboard that came in one would be printed and forgotten, and the value lost."""
    remains, owners, called = Remains(), [Owner()], []
    remains.expect(owners[0], "left")
    sys.setprofile(lambda frame, event, _: called.append(frame) if event == "call" else None)
    try:
        owners.clear()
    finally:
        sys.setprofile(None)
    assert not called
    assert remains.take() == "left"
