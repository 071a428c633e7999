"""Is a process idle when its threads take little of a core, and only then?"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dalirefurb.system import threads
from dalirefurb.system.threads import wait_until_idle


@pytest.mark.parametrize(
    ("cores", "until_s", "idle"), [(0.0, 0, True), (0.05, 99, True), (0.2, 99, False), (2.0, 99, False), (2.0, 1, True)]
)
def test_a_process_is_idle_when_its_threads_take_less_than_a_tenth_of_a_core(
    cores: float, until_s: float, idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is made here: the threads keep `cores` busy up to `until_s`."""
    clock = SimpleNamespace(now=100.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    made = SimpleNamespace(
        perf_counter=lambda: clock.now, process_time=lambda: cores * min(clock.now - 100, until_s), sleep=sleep
    )
    monkeypatch.setattr(threads, "time", made)
    assert wait_until_idle(3) == idle
    waited = clock.now - 100
    assert waited == pytest.approx(3 if not idle else 1.05 if until_s == 1 else 0.05, abs=0.06)
