"""Whether training waits, and what would help: from made statistics, and from loaders that are held back on purpose."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dalirefurb import (
    Arrays,
    DiskStore,
    Echo,
    FileList,
    Loader,
    MemoryStore,
    Prefetch,
    Refurbish,
    Standard,
    Stats,
    rand_augment,
    simple,
)
from dalirefurb.engine import engine as engine_module
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.diagnosis import LEAST_STEPS, Facts, diagnose, find, is_filling, model_shares_cores
from dalirefurb.engine.stats import Course, Tally, verdict_of
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning import Frozen
from dalirefurb.planning.planner import Planner, Reuse
from dalirefurb.store import Store
from dalirefurb.tuning import Diagnosis, Verdict
from tests.pictures import jpeg, picture

REUSING = Facts(reuse=Reuse(2), slots=800, store="MemoryStore", threads=4, cores=4, reading_threads=16, final_stages=1)
COMPUTED_ONCE = replace(REUSING, reuse=Reuse(), slots=0, store="")


def made(*, wait_s: float = 0.0, step_s: float = 0.1, batches: int = 100, **counts: float) -> Stats:
    """Statistics of batches of 8 rows, half of them hits, each of which training waits for, and works with, so long."""
    rows = {"samples": 8 * batches, "hits": 4 * batches, "misses": 4 * batches, "graph_wait_s": 1.0, **counts}
    times = {"consumer_wait_s": wait_s * batches, "consumer_busy_s": step_s * (batches - 1)}
    return Stats(**{"batches": batches, "steps": batches - 1, **times, **rows})


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process takes cores, whatever else is tested beside."""
    monkeypatch.setattr(engine_module, "watch_others", lambda: lambda: 0.0)


# The verdict


@given(st.floats(0, 100), st.floats(1e-3, 100), st.integers(LEAST_STEPS + 1, 10**6))
def test_the_verdict_is_that_of_how_much_faster_training_would_be_whatever_the_number_of_batches(
    wait_s: float, step_s: float, batches: int
) -> None:
    headspace = (wait_s + step_s) / step_s
    found = diagnose(made(wait_s=wait_s, step_s=step_s, batches=batches), REUSING)
    if min(abs(headspace - 1.1), abs(headspace - 1.5)) > 1e-6:
        assert found.verdict is verdict_of(headspace)
    assert found.headspace == pytest.approx(headspace)
    assert found.waiting == pytest.approx(wait_s / (wait_s + step_s), abs=1e-9)
    assert found.images_per_s == pytest.approx(8 / (wait_s + step_s))
    assert "\n" not in str(found)
    assert str(found).startswith(f"{found.verdict.value}: ")


@pytest.mark.parametrize(
    ("wait_s", "expected"),
    [(0, "NOT DETECTED"), (0.9, "NOT DETECTED"), (1.1, "POTENTIAL"), (4.9, "POTENTIAL"), (5.1, "DETECTED")],
)
def test_a_verdict_changes_where_training_would_be_more_than_a_tenth_and_a_half_faster(
    wait_s: float, expected: str
) -> None:
    assert diagnose(made(wait_s=wait_s, step_s=10), REUSING).verdict == expected


@pytest.mark.parametrize("steps", [0, 1, LEAST_STEPS - 1])
def test_few_steps_are_inconclusive(steps: int) -> None:
    found = diagnose(made(wait_s=1, batches=steps + 1), REUSING)
    assert found.verdict is Verdict.INCONCLUSIVE
    missing = LEAST_STEPS - steps
    assert f"{steps} steps of training are too few to tell: train for {missing} more" in str(found)
    enough = diagnose(made(wait_s=1, batches=steps + missing + 1), REUSING)
    assert (enough.verdict, "steps only" in enough.cause) == (Verdict.DETECTED, False)


def test_cores_that_other_processes_take_are_told() -> None:
    for others, told in ((0.39, False), (0.41, True)):
        found = diagnose(made(wait_s=1), replace(REUSING, cores=2, others=others))
        said = f"other processes took {others:.1f} of 2 cores meanwhile"
        assert (said in found.cause, found.verdict) == (told, Verdict.DETECTED)


def test_a_stage_where_kernels_end_is_named_with_what_to_take_in_its_place() -> None:
    computing = made(wait_s=9, batches=100, hits=800, misses=0, graph_wait_s=50)
    found = diagnose(computing, replace(REUSING, threads=2, cores=2, fallback_stage="blur"))
    assert "from stage 'blur' on by DALI's operators, which are slower than kernels" in found.cause
    assert found.change == "a KernelStage in the place of 'blur' would leave all to kernels"


@pytest.mark.parametrize("batches", [2, 3, 5, 16])
def test_of_a_short_epoch_its_own_steps_suffice_and_how_few_they_are_is_said(batches: int) -> None:
    facts = replace(COMPUTED_ONCE, batches=batches)
    for wait_s, verdict in ((0.0, Verdict.NOT_DETECTED), (0.3, Verdict.DETECTED)):
        found = diagnose(made(wait_s=wait_s, batches=batches), facts)
        assert found.verdict is verdict
        assert f"known from {batches - 1} steps only" in str(found)
        assert "steps only" not in str(diagnose(made(wait_s=wait_s, batches=LEAST_STEPS + 1), facts))
    if batches > 2:
        found = diagnose(made(batches=2), facts)
        assert f"1 steps of training are too few to tell: train for {batches - 2} more" in str(found)


def test_where_an_epoch_has_one_batch_no_step_is_ever_known_and_the_remedy_is_said() -> None:
    found = diagnose(made(batches=1), replace(COMPUTED_ONCE, batches=1))
    assert str(found) == (
        "INCONCLUSIVE: an epoch of one batch has no step between two: smaller batches would give it more"
    )


def test_nothing_at_all_is_inconclusive_and_says_no_figures() -> None:
    found = diagnose(Stats(), Facts())
    assert str(found) == "INCONCLUSIVE: 0 steps of training are too few to tell: train for 16 more"
    assert math.isnan(found.waiting)
    assert math.isnan(found.headspace)


def test_a_step_that_takes_no_time_is_waited_for_all_the_time() -> None:
    found = diagnose(made(wait_s=0.1, step_s=0.0), REUSING)
    assert found.verdict is Verdict.DETECTED
    assert found.waiting == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("waits", "verdict"),
    [
        ((0, 0, 0.1, 0.1), "INCONCLUSIVE"),  # Half of the time it waits as long as it works.
        ((0, 0.1, 0.1, 0.1), "DETECTED"),  # What happens once changes no quartile.
        ((0.09, 0.1, 0.11, 0.12), "DETECTED"),
        ((0.005, 0.01, 0.012, 0.012), "POTENTIAL"),  # Two verdicts, but hardly apart.
        ((0, 0.2, 0.2), "DETECTED"),  # Too few parts to have quartiles.
    ],
)
def test_parts_that_differ_by_verdict_and_by_a_tenth_are_inconclusive(waits: Sequence[float], verdict: str) -> None:
    parts = [made(wait_s=wait_s) for wait_s in waits]
    whole = made(wait_s=max(sum(waits) / len(waits), 0.0101), batches=100 * len(waits))
    found = diagnose(whole, REUSING, parts)
    assert found.verdict == verdict
    assert ("dalirefurb doctor" in found.change) == (verdict == "INCONCLUSIVE")


# The first epoch


@pytest.mark.parametrize(("reuse_factor", "coverage"), [(2, 1.0), (3, 1.0), (2, 0.1), (4, 0.5)])
def test_an_epoch_that_fills_the_store_says_nothing_of_waiting_in_later_ones(
    reuse_factor: int, coverage: float
) -> None:
    facts = replace(REUSING, reuse=Reuse(reuse_factor, coverage))
    filling, later = made(wait_s=1, hits=0, misses=800), round(800 * (1 - coverage + coverage / reuse_factor))
    found = diagnose(filling, facts)
    assert found.verdict is Verdict.INCONCLUSIVE
    halfway = (later + 800) // 2
    for misses, verdict in ((halfway + 4, Verdict.INCONCLUSIVE), (halfway - 4, Verdict.DETECTED)):
        assert diagnose(made(wait_s=1, hits=800 - misses, misses=misses), facts).verdict is verdict
    assert found.change == "train for another epoch"
    assert diagnose(made(wait_s=1, hits=800 - later, misses=later), facts).verdict is Verdict.DETECTED


@pytest.mark.parametrize(("misses", "verdict"), [(764, "INCONCLUSIVE"), (756, "DETECTED")])
def test_where_no_formula_says_what_is_reused_an_epoch_that_computes_nearly_all_is_a_first_one(
    misses: int, verdict: str
) -> None:
    found = diagnose(made(wait_s=1, hits=800 - misses, misses=misses), replace(REUSING, reuse=None))
    assert found.verdict == verdict


def test_misses_that_the_plan_expected_to_hit_do_not_make_it_a_first_epoch() -> None:
    lost = made(wait_s=1, hits=0, misses=800, recomputed=400)
    assert not is_filling(lost, REUSING)
    assert diagnose(lost, REUSING).verdict is Verdict.DETECTED


def test_where_nothing_is_reused_the_first_epoch_is_as_all_others() -> None:
    assert diagnose(made(wait_s=1, hits=0, misses=800), COMPUTED_ONCE).verdict is Verdict.DETECTED


def test_where_the_first_epoch_was_as_fast_reuse_is_left_off() -> None:
    found = diagnose(made(), REUSING, first_epoch=made(hits=0, misses=800))
    assert found.change.startswith("reuse_factor=1 would be as fast")


def test_where_the_first_epoch_was_slower_though_it_did_not_wait_reuse_stays() -> None:
    """So it is where the model works on the loader's cores."""
    found = diagnose(made(), REUSING, first_epoch=made(step_s=0.25, hits=0, misses=800))
    assert (found.verdict, found.change) == (
        Verdict.NOT_DETECTED,
        "leave the loader as it is: training is 2.5 times as fast as in the first epoch, which computed all",
    )


@pytest.mark.parametrize(
    ("stats", "facts", "first_epoch"),
    [
        (made(), REUSING, None),
        (made(), REUSING, made(batches=LEAST_STEPS, hits=0, misses=800)),
        (made(hits=0, misses=800), REUSING, made(hits=0, misses=800)),
        (made(), COMPUTED_ONCE, made()),
        (made(), replace(REUSING, reuse=None), made()),
    ],
)
def test_otherwise_a_loader_that_is_not_waited_for_is_left_as_it_is(
    stats: Stats, facts: Facts, first_epoch: Stats | None
) -> None:
    found = diagnose(stats, facts, first_epoch=first_epoch)
    assert (found.verdict, found.change) == (Verdict.NOT_DETECTED, "leave the loader as it is")


# The one change


COMPUTING, FILES, STORING, DRAWING, PLANNING = (
    {"graph_wait_s": 0.0, name: 9.0}
    for name in ("graph_wait_s", "reading_wait_s", "storing_s", "preparing_s", "planning_s")
)


@pytest.mark.parametrize(
    ("counts", "facts", "cause", "change"),
    [
        (COMPUTING, REUSING, "computed images, 50 %", "reuse_factor=3 would leave 33 % of the images, not 50 %,"),
        (COMPUTING, COMPUTED_ONCE, "computed images", "reuse_factor=2 with a MemoryStore() would leave 50 %"),
        (
            COMPUTING,
            replace(COMPUTED_ONCE, store="MemoryStore"),
            "computed images",
            "reuse_factor=2 would leave 50 % of the images, not 50 %",
        ),
        (COMPUTING, replace(REUSING, threads=2), "computed images", "num_threads=4) would use all cores, not 2"),
        (COMPUTING, replace(REUSING, reuse=Reuse(2, 0.5)), "computed images", "coverage=1 would leave 50 %"),
        (COMPUTING, replace(REUSING, reuse=Reuse(2, 0.9)), "computed images", "reuse_factor=3 would leave 40 %"),
        (COMPUTING, replace(REUSING, reuse=Reuse(3)), "computed images", "a later split"),
        (
            COMPUTING,
            replace(REUSING, reuse=Reuse(3), later_split=False),
            "computed images",
            "a preset's order='crop_last'",
        ),
        (COMPUTING, replace(REUSING, reuse=Reuse(4), caches_encoded=True), "computed images", "recipe.at(1)"),
        (COMPUTING, replace(REUSING, reuse=Reuse(4), final_stages=0), "computed images", "more cores"),
        (COMPUTING, replace(REUSING, reuse=None), "computed images", "a planner that reuses more"),
        ({**COMPUTING, "hits": 700, "misses": 100}, REUSING, "computed final images, 12 %", "a later split"),
        (FILES, replace(REUSING, reading_threads=4), "waited for files", "Prefetch(reading_threads=16)"),
        (FILES, replace(REUSING, reading_threads=3), "waited for files", "Prefetch(reading_threads=12)"),
        (FILES, replace(REUSING, reading_threads=15), "waited for files", "Prefetch(reading_threads=16)"),
        (FILES, REUSING, "waited for files", "reuse_factor=3 would leave 33 %"),
        (FILES, replace(REUSING, reuse=None), "waited for files", "recipe.at(0)"),
        (
            {**FILES, "pillow_images": 300, "pillow_s": 5.0},
            replace(REUSING, reading_threads=4),
            "waited for files to be decoded",
            "files of a kind that DALI decodes, JPEG, PNG or WebP of 8 bits, would leave this to its threads",
        ),
        (
            {**FILES, "pillow_images": 9, "pillow_s": 4.0},
            REUSING,
            "waited for files",
            "reuse_factor=3 would leave 33 %",
        ),
        (STORING, REUSING, "worked on the MemoryStore", "an earlier crop"),
        (STORING, replace(REUSING, store="DiskStore"), "worked on the DiskStore", "TieredStore"),
        (STORING, replace(REUSING, store="Compressed"), "worked on the Compressed", "without Compressed"),
        (STORING, replace(REUSING, store="TieredStore"), "worked on the TieredStore", "its first tier"),
        (DRAWING, REUSING, "planned batches and drew", "batches_per_group"),
        (PLANNING, REUSING, "planned batches and drew", "batches_per_group"),
        ({**FILES, "stored": 70, "declined": 30}, REUSING, "no room for 30 %", "room for all 800 images"),
        ({**FILES, "stored": 390, "declined": 10}, REUSING, "waited for files", "reuse_factor=3"),
        ({**FILES, "recomputed": 20}, REUSING, "waited for files", "reuse_factor=3"),
        ({**FILES, "recomputed": 24}, REUSING, "6 % of the images to be reused were not in the store", "empties it"),
        ({**FILES, "stored": 96, "declined": 4}, REUSING, "waited for files", "reuse_factor=3"),
        ({**FILES, "stored": 94, "declined": 6}, REUSING, "no room for 6 %", "room for all 800 images"),
        ({**COMPUTING, "hits": 608, "misses": 192}, REUSING, "computed final images, 24 %", "a later split"),
        ({**COMPUTING, "hits": 592, "misses": 208}, REUSING, "computed images, 26 %", "reuse_factor=3"),
        ({**FILES, "stored": 300, "declined": 100}, REUSING, "no room for 25 %", "room for all 800 images"),
        ({**FILES, "recomputed": 100}, REUSING, "20 % of the images to be reused were not in the store", "empties it"),
        ({**FILES, "pillow_s": 9.0}, REUSING, "waited for files to be decoded", "JPEG, PNG or WebP of 8 bits"),
        (FILES, replace(REUSING, store=""), "there is no store", "a MemoryStore() would keep the 800 images"),
    ],
)
def test_the_change_is_that_of_what_held_the_loader_back(
    counts: dict[str, float], facts: Facts, cause: str, change: str
) -> None:
    found = diagnose(made(wait_s=1, **counts), facts)
    assert found.verdict is Verdict.DETECTED
    assert cause in found.cause
    assert change in found.change


def test_files_that_a_store_has_already_are_not_to_be_kept_once_more() -> None:
    held = replace(REUSING, reuse=None, caches_encoded=True)
    assert find(made(**FILES), held)[1] == "a faster disk would help"


@given(
    counts=st.fixed_dictionaries(
        {name: st.integers(0, 1000) for name in ("hits", "misses", "recomputed", "stored", "declined")}
    ),
    times=st.fixed_dictionaries(
        {
            name: st.floats(0, 10)
            for name in ("planning_s", "preparing_s", "storing_s", "reading_wait_s", "graph_wait_s", "pillow_s")
        }
    ),
    facts=st.builds(
        Facts,
        reuse=st.none() | st.builds(Reuse, st.integers(1, 6), st.floats(0.01, 1)),
        slots=st.integers(0, 100),
        store=st.sampled_from(["", "MemoryStore", "DiskStore", "TieredStore", "Compressed", "Mine"]),
        caches_encoded=st.booleans(),
        final_stages=st.integers(0, 3),
        threads=st.integers(1, 8),
        reading_threads=st.integers(1, 32),
        cores=st.integers(1, 8),
    ),
)
def test_there_is_always_one_cause_and_one_change(
    counts: dict[str, int], times: dict[str, float], facts: Facts
) -> None:
    found = find(Stats(samples=counts["hits"] + counts["misses"], **counts, **times), facts)
    assert all(text and "\n" not in text and "nan" not in text for text in found)


def test_a_line_names_share_speed_cause_and_change() -> None:
    assert str(diagnose(made(wait_s=0.1), REUSING)) == (
        "DETECTED: training waited for data in 50 % of its time (40 images/s, at most 80); the loader's threads mostly "
        "computed images, 50 % of them from the start: reuse_factor=3 would leave 33 % of the images, not 50 %, to "
        "compute"
    )


def test_a_line_names_what_pillow_decoded() -> None:
    found = diagnose(made(wait_s=0.1, files=400, pillow_images=100, pillow_s=3.25), REUSING)
    assert found.cause.endswith("; Pillow decoded 25 % of the files that were read, in 3.2 s of their threads' time")
    assert "Pillow" not in str(diagnose(made(wait_s=0.1), REUSING))


def test_a_summary_names_what_each_time_went_to_the_largest_first() -> None:
    times = {"planning_s": 1.0, "preparing_s": 2.0, "storing_s": 3.0, "reading_wait_s": 5.0, "graph_wait_s": 4.0}
    stats = Stats(samples=2000, hits=500, misses=1500, consumer_wait_s=6.0, consumer_busy_s=7.0, pillow_s=8.0, **times)
    assert str(stats) == (
        "25 % of 2,000 samples hit; training waited 6.0 s; the loader's threads: files 5.0 s, computing 4.0 s, the "
        "store 3.0 s, drawing 2.0 s, planning 1.0 s"
    )


# A model on the loader's cores

SHARING = replace(REUSING, shared=True)


@pytest.mark.parametrize(
    ("facts", "first_epoch", "change"),
    [
        (SHARING, None, "compare images/s with those of reuse_factor=1"),
        (
            SHARING,
            made(step_s=0.25, hits=0, misses=800),
            "compare images/s with those of reuse_factor=1 (now 2.5 times those of the first epoch, which computed "
            "all)",
        ),
        (replace(SHARING, reuse=None), None, "compare images/s with those of standard training"),
        (
            replace(COMPUTED_ONCE, shared=True),
            made(),
            "compare images/s with those of refurbishing with reuse_factor=3",
        ),
    ],
)
def test_a_model_on_the_loaders_cores_that_does_not_wait_says_little(
    facts: Facts, first_epoch: Stats | None, change: str
) -> None:
    found = diagnose(made(), facts, first_epoch=first_epoch)
    assert str(found) == (
        "INCONCLUSIVE: training waited for data in 0 % of its time (80 images/s); but the model shares the loader's "
        f"cores, so that waiting says little: {change}"
    )


@given(st.floats(0, 1), st.sampled_from([SHARING, replace(COMPUTED_ONCE, shared=True)]))
def test_a_model_on_the_loaders_cores_has_no_limit_and_never_leaves_all_as_it_is(wait_s: float, facts: Facts) -> None:
    line = str(diagnose(made(wait_s=wait_s), facts))
    assert "at most" not in line
    assert "leave the loader" not in line
    assert "shares the loader's cores" in line
    assert "compare images/s with" in line


@pytest.mark.parametrize(("wait_s", "verdict"), [(1, Verdict.DETECTED), (0.02, Verdict.POTENTIAL)])
def test_a_model_on_the_loaders_cores_that_waits_is_still_told_what_would_help(wait_s: float, verdict: Verdict) -> None:
    found = diagnose(made(wait_s=wait_s), SHARING)
    assert found.verdict is verdict
    assert "mostly computed images" in found.cause
    assert "reuse_factor=3 would leave" in found.change


def test_without_a_cuda_device_the_model_shares_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert model_shares_cores() is not there


def compute(cpu_s: float = 0.02) -> None:
    """Compute in this thread, for so long however many others want its core."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


@contextmanager
def steps_of(kind: str) -> Iterator[Callable[[], object]]:
    """Steps of a model without a CUDA device."""
    if kind == "torch":
        layer, images = torch.nn.Conv2d(3, 32, 3), torch.ones(8, 3, 64, 64)
        yield lambda: [layer(images).sum().backward() for _ in range(3)]
    elif kind == "another thread":
        with ThreadPoolExecutor(1) as pool:
            yield lambda: pool.submit(compute).result()
    else:
        yield {"sleeps": lambda: time.sleep(0.03), "computes": compute}[kind]


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        ("sleeps", False),
        ("computes", True),
        ("another thread", True),
        pytest.param("torch", True, marks=pytest.mark.weekly),
    ],
)
def test_a_model_shares_the_cores_if_it_computes_on_whatever_threads(
    kind: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that sleeps stands for one that waits for another machine."""
    monkeypatch.setattr("dalirefurb.engine.diagnosis.model_shares_cores", lambda: True)
    with Loader(arrays(), simple(SIZE, raw=True), standard()) as loader, steps_of(kind) as step:
        for _ in loader:
            step()
        found = loader.diagnose()
    assert found.shared is shared
    assert ("shares the loader's cores" in str(found)) is shared


def test_beside_a_cuda_device_a_loop_that_computes_shares_nothing() -> None:
    with Loader(arrays(), simple(SIZE, raw=True), standard()) as loader:
        for _ in loader:
            compute(0.002)
        assert not loader.diagnose().shared


# The course of training, by a clock of its own


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Watch:
    """Says that steps have computed, and have waited for a core, so long.

    Attributes:
        steps: Numbers of the batches whose steps were watched, from 0.
    """

    def __init__(self, times: Callable[[int], tuple[float, float]] = lambda _: (0.0, 0.0)) -> None:
        self.number = 0
        self.steps: list[int] = []
        self._times = times

    def __call__(self) -> Callable[[], tuple[float, float]]:
        return partial(self._told, self.number)

    def _told(self, number: int) -> tuple[float, float]:
        self.steps.append(number)
        return self._times(number)


def trained(
    waits: Sequence[float],
    steps: Sequence[float],
    *,
    pause_s: float = 0.0,
    epoch: int = 0,
    batches: int = 10,
    watch: Watch | None = None,
) -> Course:
    """Epochs of 10 batches, between which there is a pause; each batch is waited for, and then worked with, so long."""
    clock, watch = Clock(), watch or Watch()
    course = Course(Tally(), watch, clock)
    for number, (wait_s, step_s) in enumerate(zip(waits, steps, strict=True), batches * epoch):
        position, following = Position(*divmod(number, batches)), Position(*divmod(number + 1, batches))
        watch.number = number
        course.ask(position)
        clock.now_s += wait_s
        course.hand(position, following, samples=4)
        clock.now_s += step_s + (pause_s if following.batch == 0 else 0.0)
    return course


def test_pauses_between_epochs_are_nobodys_time() -> None:
    stats = trained([0.5] * 20, [2.0] * 20, pause_s=1e6).steady(Stats()).stats
    assert (stats.batches, stats.steps) == (20, 18)
    assert (stats.step_s, stats.wait_s, stats.headspace) == (2.0, 0.5, 1.25)


def test_the_first_batch_for_which_all_is_begun_is_left_out() -> None:
    steady = trained([1e6] + [0.5] * 8, [2.0] * 9).steady()
    assert (steady.stats.batches, steady.stats.wait_s) == (8, 0.5)
    assert steady.first_epoch is None


@pytest.mark.parametrize("epoch", [0, 3])
def test_from_the_second_epoch_on_the_first_one_is_apart(epoch: int) -> None:
    steady = trained([9.0] * 10 + [0.5] * 20, [2.0] * 30, epoch=epoch).steady()
    assert (steady.stats.batches, steady.stats.wait_s, steady.stats.samples) == (20, 0.5, 80)
    assert steady.first_epoch is not None
    assert (steady.first_epoch.batches, steady.first_epoch.wait_s) == (9, 9.0)


@given(st.integers(10, 400))
def test_parts_are_equally_long_and_cover_all_but_the_last_batches(batches: int) -> None:
    steady = trained([0.5] * batches, [2.0] * batches).steady()
    lengths = [part.batches for part in steady.parts]
    assert len({*lengths}) <= 1
    assert len(lengths) <= 8
    assert steady.stats.batches == (batches - 10 if batches > 10 else 9)
    left = steady.stats.batches - sum(lengths)
    assert 0 <= left < (lengths[0] if lengths else 8)
    assert len(lengths) >= 4 or steady.stats.batches < 32


def test_what_is_asked_since_a_snapshot_is_of_later_batches_only() -> None:
    course = trained([0.5] * 10 + [3.0] * 30, [2.0] * 40)
    since = trained([0.5] * 10, [2.0] * 10).steady(Stats()).stats
    assert course.steady(since).stats.wait_s == 3.0
    assert [(part.batches, part.wait_s) for part in course.steady(since).parts] == [(8, 3.0)] * 3


def test_after_a_long_first_epoch_parts_are_as_short_as_after_a_short_one() -> None:
    steady = trained([0.5] * 300, [2.0] * 300, batches=260).steady()
    assert [part.batches for part in steady.parts] == [8] * 5


def test_a_batch_that_is_jumped_to_has_no_step_before_it() -> None:
    clock = Clock()
    course = Course(Tally(), Watch(), clock)
    for position in (Position(0, 0), Position(0, 1), Position(0, 5), Position(0, 6)):
        course.ask(position)
        course.hand(position, Position(0, position.batch + 1), samples=4)
        clock.now_s += 2.0
    course.ask(None)
    course.hand(Position(0, 7), Position(0, 8), samples=4)
    assert course.steady(Stats()).stats.steps == 2


@pytest.mark.parametrize("batches", [2, 3, 8, 9, 10, 10_000])
def test_the_threads_of_the_first_steps_are_watched_and_of_fewer_and_fewer_of_the_others(batches: int) -> None:
    watch = Watch()
    trained([0.5] * 2000, [2.0] * 2000, batches=batches, watch=watch)
    watched = np.array(watch.steps)
    first = [number for number in range(3) if (number + 1) % batches]
    assert watched[: len(first)].tolist() == first
    assert all((watched + 1) % batches)  # after an epoch's last batch comes what is no step
    assert len(watched) < 60
    assert (watched > 1000).any()


@pytest.mark.parametrize(
    ("times", "computes"),
    [
        ((0.0, 0.0), False),
        ((0.15, 0.0), False),
        ((0.25, 0.0), True),
        ((2.0, 0.0), True),
        ((8.0, 0.0), True),  # On four threads.
        ((0.1, 1.9), True),  # Others had the cores.
        ((0.01, 1.0), False),  # So they had when it woke up.
    ],
)
def test_a_step_of_two_seconds_computes_if_it_would_for_a_tenth_of_its_time_had_it_cores_of_its_own(
    times: tuple[float, float], computes: bool
) -> None:
    assert trained([0.5] * 50, [2.0] * 50, watch=Watch(lambda _: times)).steady().computes is computes


def test_what_only_the_first_step_computes_is_left_out_once_another_is_known() -> None:
    def warming_up(number: int) -> tuple[float, float]:
        return (2.0, 0.0) if number == 0 else (0.0, 0.0)

    assert trained([0.5] * 2, [2.0] * 2, watch=Watch(warming_up)).steady().computes
    assert not trained([0.5] * 3, [2.0] * 3, watch=Watch(warming_up)).steady().computes


def test_as_long_as_no_step_is_known_it_is_taken_to_compute() -> None:
    assert trained([], []).steady().computes
    assert trained([0.5] * 4, [2.0] * 4, batches=1).steady(Stats()).computes


# Few steps


def test_a_first_epoch_counts_until_those_after_it_have_steps_enough() -> None:
    with Loader(arrays(), simple(SIZE, raw=True), standard()) as loader:
        for _ in loader:
            pass
        assert loader.diagnose().steps == 23
        first = loader.stats()
        steps = [(loader.diagnose().steps, loader.diagnose(first).steps) for _ in loader]
    assert steps == [(each if each >= LEAST_STEPS else 23 + each, each) for each in range(24)]


def test_what_is_asked_since_a_snapshot_counts_no_first_epoch_and_says_how_many_steps_are_missing() -> None:
    with Loader(arrays(), simple(SIZE, raw=True), standard()) as loader:
        for _ in loader:
            pass
        first = loader.stats()
        for _ in islice(loader, 3):
            pass
        assert "2 steps of training are too few to tell: train for 14 more" in str(loader.diagnose(first))


# One step an epoch, and several.
@pytest.mark.parametrize("batches", [2, *(pytest.param(each, marks=pytest.mark.weekly) for each in (3, 4)), 5])
@pytest.mark.parametrize("planned", ["standard", "refurbished"])
def test_one_epoch_of_few_batches_gets_an_answer(planned: str, batches: int) -> None:
    sizes: dict[str, Any] = {"num_samples": NUM_SAMPLES, "batch_size": -(-NUM_SAMPLES // batches)}
    planner = Standard(**sizes) if planned == "standard" else Refurbish(**sizes, reuse_factor=2)
    with Loader(arrays(), simple(SIZE, raw=True), planner, MemoryStore() if planner.peak_slots else None) as loader:
        assert len(loader) == batches
        for epoch in range(3):
            for _ in loader:
                time.sleep(0.02)
            found = loader.diagnose()
            assert found.steps == max(1, epoch) * (batches - 1)
            assert math.isfinite(found.waiting)
            assert f"known from {found.steps} steps only" in found.cause
            if planned == "standard" or epoch:
                assert found.verdict is not Verdict.INCONCLUSIVE


# Loaders that are held back


SIZE = 32
NUM_SAMPLES = 192


@pytest.fixture(autouse=True)
def _cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that sleeps takes no core from the loader."""
    monkeypatch.setattr("dalirefurb.engine.diagnosis.model_shares_cores", lambda: False)


class SlowArrays(Arrays):
    """Arrays of which each is read in a while.

    Attributes:
        read_s: Seconds for a call.
    """

    read_s = 0.0

    def read(self, indices: np.ndarray) -> Sequence[np.ndarray]:
        time.sleep(self.read_s)
        return super().read(indices)


def arrays(read_s: float = 0.0, size: int = SIZE) -> SlowArrays:
    images = np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, size, size, 3), np.uint8)
    source = SlowArrays(images, np.zeros(NUM_SAMPLES, np.int64))
    source.read_s = read_s
    return source


def diagnosed(
    planner: Planner, store: Store | None, *, read_s: float = 0.0, step_s: float = 0.0, epochs: int = 3
) -> tuple[Diagnosis, Stats]:
    """Train on small images, two batches of 8 rows together, and ask."""
    recipe, prefetch = simple(SIZE, raw=True), Prefetch(num_threads=1, reading_threads=1, batches_per_group=2)
    with Loader(arrays(read_s), recipe, planner, store, prefetch=prefetch) as loader:
        for _ in range(epochs):
            for _ in loader:
                time.sleep(step_s)
        return loader.diagnose(), loader.stats()


def standard() -> Standard:
    return Standard(NUM_SAMPLES, batch_size=8)


def refurbish() -> Refurbish:
    return Refurbish(NUM_SAMPLES, batch_size=8, reuse_factor=2)


def test_a_loop_that_takes_long_does_not_wait() -> None:
    found, stats = diagnosed(standard(), None, step_s=0.05, epochs=2)
    assert found.verdict is Verdict.NOT_DETECTED
    assert found.change == "leave the loader as it is"
    assert stats.consumer_busy_s >= 0.05 * stats.steps == 0.05 * 46


def test_a_slow_source_is_what_is_waited_for() -> None:
    found, _ = diagnosed(standard(), None, read_s=0.1, step_s=0.001, epochs=2)
    assert found.verdict is Verdict.DETECTED
    assert found.cause == "the loader's threads mostly waited for files"
    assert found.change.startswith("Prefetch(reading_threads=4)")


def test_decoding_large_images_is_what_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    path.write_bytes(jpeg(picture(0, height=1200, width=1200)))
    source = FileList([path] * 36, [0] * 36)
    with Loader(source, simple(SIZE), Standard(source, batch_size=2), prefetch=Prefetch(num_threads=1)) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        found = loader.diagnose()
    assert found.verdict is Verdict.DETECTED
    assert found.cause == "the loader's threads mostly computed images, 100 % of them from the start"


@pytest.mark.parametrize("wait_s", [0.0, 1.0])
def test_which_share_pillow_decodes_is_said_whatever_the_verdict(wait_s: float) -> None:
    found = diagnose(made(wait_s=wait_s, files=400, pillow_images=100, pillow_s=1.25), REUSING)
    assert found.cause.endswith("Pillow decoded 25 % of the files that were read, in 1.2 s of their threads' time")
    assert "Pillow" not in diagnose(made(wait_s=wait_s), REUSING).cause


def test_a_loader_counts_what_pillow_decodes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.{ending}" for number in range(4) for ending in ("tif", "png")]
    for number, path in enumerate(paths):
        picture(number, height=40, width=50).save(path)
    source = FileList(paths, range(8))
    with Loader(source, simple(SIZE), Standard(source, batch_size=4), prefetch=Prefetch(num_threads=1)) as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    assert 4 <= stats.pillow_images <= stats.files - 4
    assert stats.pillow_s > 0


def test_a_store_that_is_too_small_is_said_to_be() -> None:
    with pytest.warns(UserWarning, match="slots"):
        found, stats = diagnosed(refurbish(), MemoryStore(max_bytes=10 * SIZE * SIZE * 3), read_s=0.05)
    assert stats.declined > 0
    assert found.verdict is Verdict.DETECTED
    assert "the store had no room" in found.cause
    assert "room for all 96 images" in found.change


def test_a_step_that_takes_as_long_as_all_images_needs_no_reuse() -> None:
    found, _ = diagnosed(refurbish(), MemoryStore(), step_s=0.05, epochs=2)
    assert found.verdict is Verdict.NOT_DETECTED
    # Beside other processes the first epoch can take longer than the second by chance.
    advice = ("reuse_factor=1 would be as fast", "leave the loader as it is: training is 1.")
    assert found.change.startswith(advice)


def test_a_loader_that_has_served_nothing_knows_nothing_and_one_that_is_closed_still_knows() -> None:
    with Loader(arrays(), simple(SIZE, raw=True), standard()) as loader:
        assert loader.diagnose().verdict is Verdict.INCONCLUSIVE
        for _ in range(2):
            for _ in loader:
                pass
    assert "too few" not in loader.diagnose().cause


@pytest.mark.parametrize("processes", [1, 2])
def test_of_several_trainings_on_a_machine_none_is_told_of_the_cores_that_others_take(
    processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "watch_others", lambda: lambda: 99.0)
    monkeypatch.setattr(engine_module, "local_processes", lambda: processes)
    with Loader(arrays(), simple(SIZE, raw=True), standard()) as loader:
        for _ in loader:
            pass
        assert ("other processes took 99.0 of" in str(loader.diagnose())) == (processes == 1)


def test_a_store_that_the_plan_does_not_need_is_known() -> None:
    """Advice to reuse more is not to make another one."""
    with Loader(arrays(), simple(SIZE, raw=True), standard(), MemoryStore()) as loader:
        assert loader._assembler.get()._facts.store == "MemoryStore"


def test_what_is_no_snapshot_is_refused() -> None:
    with Loader(arrays(), simple(SIZE, raw=True), standard()) as loader:
        with pytest.raises(
            ConfigurationError, match=r"since must be Stats, got 3: pass what loader.stats\(\) returned"
        ):
            loader.diagnose(3)  # type: ignore[arg-type]
        assert loader.diagnose(loader.stats()).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("planner", "expected"),
    [
        (refurbish(), (Reuse(2), 96)),
        (Refurbish(NUM_SAMPLES, batch_size=8, reuse_factor=3, coverage=0.5), (Reuse(3, 0.5), 64)),
        (standard(), (Reuse(1), 0)),
        (Frozen(NUM_SAMPLES, batch_size=8), (None, NUM_SAMPLES)),
        (Echo(standard(), echoing_factor=2, buffer_size=16), (None, 16)),
    ],
)
def test_the_facts_are_those_of_the_plan(planner: Planner, expected: tuple[Reuse | None, int]) -> None:
    depths = Prefetch(num_threads=3, replicas=1).depths(planner)
    facts = Facts.of(planner, simple(SIZE), MemoryStore(), depths)
    assert (facts.reuse, facts.slots) == expected
    assert (facts.store, facts.threads, facts.caches_encoded) == ("MemoryStore", 3, False)


@pytest.mark.parametrize(("split", "final_stages", "later_split"), [("flip", 3, True), (4, 1, False), (5, 0, False)])
def test_the_facts_are_those_of_the_machine_and_of_the_final_part(
    split: Any, final_stages: int, later_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cores are shared by the processes of a machine."""
    monkeypatch.setattr("dalirefurb.engine.diagnosis.usable_cores", lambda: 9)
    monkeypatch.setattr("dalirefurb.engine.diagnosis.local_processes", lambda: 4)
    depths = Prefetch(num_threads=6, replicas=3, reading_threads=5).depths(standard())
    facts = Facts.of(standard(), rand_augment(SIZE).at(split), None, depths, "blur")
    assert (facts.final_stages, facts.later_split) == (final_stages, later_split)
    assert (facts.cores, facts.threads, facts.reading_threads, facts.batches) == (2, 6, 5, 24)
    assert (facts.store, facts.fallback_stage) == ("", "blur")


def test_the_facts_of_a_rank_are_of_its_share(tmp_path: Path) -> None:
    planner = Refurbish(NUM_SAMPLES, batch_size=8, reuse_factor=2, shards=2).for_rank(rank=1, world_size=2)
    store = DiskStore(tmp_path / "store")
    facts = Facts.of(planner, simple(SIZE).at(0), store, Prefetch().depths(planner))
    assert (facts.reuse, facts.slots, facts.store, facts.caches_encoded) == (
        Reuse(2),
        planner.peak_slots,
        "DiskStore",
        True,
    )
