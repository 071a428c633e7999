"""Is what the harness times made while the clock runs, and is a figure refused that cannot be?"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import claims
import experiment
import harness
import headspace
import loaders
import pytest
import smart_cache_large_images
from claims import Claim, Spread
from experiment import Experiment
from hypothesis import given
from hypothesis import strategies as st

from dalirefurb import Refurbish, SmartCache, Standard

MADE_S, RESULTS = 0.01, Path(experiment.__file__).parent / "results"


class Buffered:
    """A loader that makes a batch every 10 ms while its buffer has room, on a clock of the test's."""

    def __init__(self, room, made_s=MADE_S):
        self.room, self.made_s = room, made_s
        self.ready, self.begun = room, 0.0

    def batches(self):
        while True:
            made = int((time.perf_counter() - self.begun + 1e-9) // self.made_s)
            self.ready, self.begun = min(self.room, self.ready + made), self.begun + made * self.made_s
            if self.ready == self.room:
                self.begun = time.perf_counter()
            elif not self.ready:
                time.sleep(self.begun + self.made_s - time.perf_counter())
                self.ready, self.begun = 1, time.perf_counter()
            self.ready -= 1
            yield 1


def time_one(batches, made_ahead=0, rotation=1, step_s=None, **sizes):
    step = None if step_s is None else lambda: time.sleep(step_s)
    contender = harness.Contender("", "", made_ahead, batches, rotation, step)
    (taken,) = harness.interleave([contender], rounds=1, **{"timed_batches": 4, **sizes})
    return taken


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("room", [1, 5, 20])
@pytest.mark.parametrize("step_s", [None, 0.0, 0.5 * MADE_S, 0.9 * MADE_S, MADE_S])
def test_a_step_hides_no_batch_that_was_made_before_the_turn(room, step_s):
    """At the rate of its steps a buffer would have lasted for twice or ten times as many batches as it holds."""
    taken = time_one(Buffered(room).batches(), room, step_s=step_s, timed_batches=12)
    assert 1 / taken.images_per_s == pytest.approx(MADE_S, rel=0.01)


@pytest.mark.usefixtures("clock")
def test_a_step_that_is_longer_than_loading_is_what_is_timed():
    taken = time_one(Buffered(5).batches(), 5, step_s=1.5 * MADE_S, timed_batches=12)
    assert 1 / taken.images_per_s == pytest.approx(1.5 * MADE_S)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("rotation", "asked", "timed"), [(1, 4, 4), (3, 4, 6), (6, 4, 6), (4, 4, 4)])
def test_whole_rotations_are_timed(rotation, asked, timed):
    def in_bursts():
        while True:
            time.sleep(rotation * MADE_S)
            for _ in range(rotation):
                yield 1

    taken = time_one(in_bursts(), rotation=rotation, timed_batches=asked)
    assert len(taken.batch_s) == timed
    assert taken.images_per_s == pytest.approx(1 / MADE_S)


@pytest.mark.usefixtures("clock")
def test_a_turn_is_timed_when_its_rate_is_steady_and_what_came_before_is_kept():
    def slowing_down():
        for number in range(1000):
            time.sleep(min(number, 6) * 0.001)
            yield 1

    taken = time_one(slowing_down())
    assert taken.batch_s == [0.006] * 4
    assert taken.drained_s[:3] == [0.0, 0.001, 0.002]


@pytest.mark.usefixtures("clock")
def test_a_machine_that_never_rests_is_not_waited_for_without_end():
    def restless():
        while True:
            yield 1
            time.sleep(0.02)
            yield 1
            yield 1
            yield 1

    taken = time_one(restless())
    assert len(taken.drained_s) == harness.RAMP_BATCHES * (1 + harness.MOST_ROTATIONS)


@pytest.mark.parametrize(
    ("planner", "period"),
    [
        (Standard(96, batch_size=8), 1),
        (Refurbish(768, batch_size=64, reuse_factor=3), 1),
        (SmartCache(96, batch_size=8, num_cache_objects=48, replace_percent=0.2), 6),
    ],
)
def test_the_work_of_a_plan_repeats_after_an_epoch_unless_its_batches_are_alike(planner, period):
    assert loaders.period(planner) == period


# images/s of each round, as they were taken before batches that were made ahead were drained.
OLD_HEADSPACE = {
    "standard, 2 cores": [1360, 1396, 1501],
    "reuse factor 3, 2 cores": [3215, 3559, 3883],
    "from memory, step 0.5": [2506, 2512, 2511],
    "standard, 2 cores, step 0.5": [1793, 2104, 2016],
    "reuse factor 3, 2 cores, step 0.5": [2496, 2505, 2505],
}
OLD_SMART_CACHE = {"no cache": [58.19, 43.67, 61.95], "SmartCache": [621.06, 506.02, 561.47]}


def test_figures_above_what_loading_alone_achieves_are_refused(monkeypatch):
    monkeypatch.setattr(harness, "cores", lambda: 2)
    config = headspace.Config(epoch_batches=12, rounds=3, cores=(2,), steps=(0.5,), network=False)
    made = headspace.claims(config, OLD_HEADSPACE, [0.5])
    assert [each.name for each in claims.impossible(made)] == ["2 cores, step 0.5: standard / loading alone"]


def test_a_gain_above_what_is_computed_less_is_refused():
    (claim,) = smart_cache_large_images.claims(OLD_SMART_CACHE, {"no cache": 1.0, "SmartCache": 0.1})
    assert claim.figure.median > 10.2
    assert claim.impossible


@pytest.mark.parametrize(("ratio", "impossible"), [(0.5, False), (1.0, False), (1.019, False), (1.03, True)])
def test_a_bound_is_held_to_within_what_a_measurement_differs(ratio, impossible):
    claim = Claim.possible("", [ratio] * 3, [1.0] * 3, least=0.4)
    assert claim.impossible == impossible
    assert ("IMPOSSIBLE" in claim.verdict) == impossible


@dataclass(frozen=True)
class Config:
    rounds: int = 5


def script(tmp_path, monkeypatch, ratio):
    """Make a script whose only figure is a ratio that cannot exceed 1."""
    monkeypatch.setattr(experiment, "RESULTS", tmp_path)

    def measure(config, options):
        figures = [ratio] * config.rounds
        return {"cases": [{"claims": [Claim.possible("it / what is possible", figures, [1.0] * config.rounds)]}]}

    return Experiment(measure, Config(), quick=Config(rounds=1), data=None, name="bounded")


def test_a_result_above_its_bound_ends_the_script_with_1_and_is_written_as_refused(tmp_path, monkeypatch, capsys):
    assert script(tmp_path, monkeypatch, 1.4).main([]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bounded.refused.json"]
    assert "it / what is possible cannot exceed 1, but is 1.40" in capsys.readouterr().err


def test_a_result_below_its_bound_is_written(tmp_path, monkeypatch):
    assert script(tmp_path, monkeypatch, 0.9).main([]) == 0
    (path,) = tmp_path.iterdir()
    written = json.loads(path.read_text())
    assert path.name == "bounded.json"
    assert "draft" not in written
    assert written["environment"]["harness"] == harness.VERSION


def test_fewer_rounds_than_the_scripts_own_are_a_draft_that_is_written_only_where_it_is_asked_for(
    tmp_path, monkeypatch
):
    made = script(tmp_path, monkeypatch, 0.9)
    assert made.main(["--rounds", "2"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert made.main(["--rounds", "2", "--out", str(tmp_path / "draft.json")]) == 0
    assert json.loads((tmp_path / "draft.json").read_text())["draft"] is True


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=9))
def test_two_rounds_have_no_quartiles(values):
    spread = Spread.of(values)
    assert (spread.lower is None) == (spread.upper is None) == (len(values) < 3)
    assert ("too few rounds" in f"{spread:2}") == (len(values) < 3)


BESIDE_CHANGES = {"accuracy_reduced"}
"""Files that hours were needed for, while what does not decide their numbers was changed: their pages say what."""


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_committed_file_has_the_rounds_of_its_script_and_nothing_impossible(path):
    run = json.loads(path.read_text())
    if run["environment"].get("harness") != harness.VERSION:
        return  # Taken by the harness of before, as its page says.
    assert "draft" not in run
    assert run["environment"]["uncommitted_changes"] == (path.stem in BESIDE_CHANGES)
    assert not [claim for claim in read(run["results"]) if claim.impossible]


def read(results):
    """Find the claims of a file."""
    if isinstance(results, dict):
        own = {"name", "figure", "least", "most"} <= set(results) and "median" in results["figure"]
        return [Claim.read(results)] if own else [claim for each in results.values() for claim in read(each)]
    return [claim for each in results for claim in read(each)] if isinstance(results, list) else []
