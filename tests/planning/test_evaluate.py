"""Every sample once, in the source's order, over any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dalirefurb import AutoAssist, Echo, Evaluate, Standard
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning import BatchEcho
from dalirefurb.planning.batch_plan import BatchPlan

SIZES = st.tuples(st.integers(1, 300), st.integers(1, 70), st.integers(1, 9))


def parts_of(num_samples: int, batch_size: int, world_size: int, **settings: object) -> list[list[BatchPlan]]:
    planner = Evaluate(num_samples, batch_size=batch_size, **settings)  # type: ignore[arg-type]
    return [[*planner.for_rank(rank=rank, world_size=world_size).epoch(0)] for rank in range(world_size)]


def in_order(parts: list[list[BatchPlan]]) -> list[int]:
    """The samples of all ranks, batch by batch and in a batch rank by rank."""
    return [int(index) for batches in zip(*parts, strict=True) for plan in batches for index in plan.indices]


@given(sizes=SIZES)
@example(sizes=(253, 1, 4))
@example(sizes=(253, 64, 3))
@example(sizes=(257, 64, 4))
def test_ranks_together_serve_every_sample_once_and_in_the_sources_order(sizes: tuple[int, int, int]) -> None:
    num_samples, batch_size, world_size = sizes
    world_size = min(world_size, num_samples)
    parts = parts_of(num_samples, batch_size, world_size)
    assert in_order(parts) == list(range(num_samples))
    assert all(len(plan.indices) for part in parts for plan in part)


@given(sizes=SIZES)
def test_batches_are_no_larger_than_asked_for_unless_a_rank_would_have_none(sizes: tuple[int, int, int]) -> None:
    num_samples, batch_size, world_size = sizes
    world_size = min(world_size, num_samples)
    parts = parts_of(num_samples, batch_size, world_size)
    rows = [sum(len(plan.indices) for plan in batches) for batches in zip(*parts, strict=True)]
    assert max(rows) <= max(batch_size, 2 * world_size - 1)
    assert max(rows) - min(rows) <= 1
    for rank, part in enumerate(parts):
        planner = Evaluate(num_samples, batch_size=batch_size).for_rank(rank=rank, world_size=world_size)
        assert len(planner) == len(part)
        assert max(len(plan.indices) for plan in part) <= planner.batch_size == -(-max(rows) // world_size)


@given(sizes=SIZES)
@example(sizes=(10, 4, 4))
def test_larger_batches_than_asked_for_are_as_small_as_can_be(sizes: tuple[int, int, int]) -> None:
    """Where one more would leave a rank without a sample in one of them; `batch_size` of two rows a rank always do."""
    num_samples, batch_size, world_size = sizes
    world_size = min(world_size, num_samples)
    parts = parts_of(num_samples, batch_size, world_size)
    largest = max(sum(len(plan.indices) for plan in batches) for batches in zip(*parts, strict=True))
    if largest > batch_size:
        assert (len(parts[0]) + 1) * world_size > num_samples
        assert batch_size < 2 * world_size - 1


def test_ten_samples_by_four_on_four_ranks_are_two_batches_of_five() -> None:
    """As its documentation says."""
    assert "of 10\n    samples, by 4, on 4 ranks two of 5" in str(Evaluate.__doc__)
    first, second = zip(*parts_of(10, 4, 4), strict=True)
    assert [plan.indices.tolist() for plan in first] == [[0], [1], [2], [3, 4]]
    assert [plan.indices.tolist() for plan in second] == [[5], [6], [7], [8, 9]]


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize(("coverage", "world_size"), [(0.0, 7), (0.37, 1), (1.0, 1), (1.0, 7)])
def test_slots_are_told_without_looking_at_each_of_ten_billion_samples(
    pad: bool, coverage: float, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for some of them on several ranks, which are counted batch by batch."""
    monkeypatch.setattr("dalirefurb.planning.evaluate.EvaluatePart._bounds", None)
    planner = Evaluate(10**10, batch_size=64, coverage=coverage, pad=pad)
    ranks = [planner.for_rank(rank=rank, world_size=world_size) for rank in range(world_size)]
    assert sum(rank.peak_slots for rank in ranks) == planner.peak_slots == round(coverage * 10**10)


@given(sizes=SIZES)
@example(sizes=(1, 1, 4))
@example(sizes=(5, 4, 3))
def test_padded_batches_are_all_alike_and_their_padding_comes_last(sizes: tuple[int, int, int]) -> None:
    num_samples, batch_size, world_size = sizes
    planner = Evaluate(num_samples, batch_size=batch_size, pad=True)
    real: list[tuple[int, bool]] = []
    ranks = [planner.for_rank(rank=rank, world_size=world_size) for rank in range(world_size)]
    for batch, plans in enumerate(zip(*(rank.epoch(0) for rank in ranks), strict=True)):
        for rank, plan in zip(ranks, plans, strict=True):
            assert len(plan.indices) == rank.batch_size == -(-batch_size // world_size)
            padding = rank.padding(batch)
            places = np.arange(len(plan.indices)) < len(plan.indices) - padding
            real += zip(plan.indices.tolist(), places.tolist(), strict=True)
    assert [index for index, is_real in real if is_real] == list(range(num_samples))
    assert [is_real for _, is_real in real] == sorted((is_real for _, is_real in real), reverse=True)


@given(sizes=SIZES, coverage=st.floats(0, 1), pad=st.booleans())
@example(sizes=(1, 1, 4), coverage=1.0, pad=True)
@example(sizes=(9, 4, 4), coverage=0.5, pad=True)
def test_carrying_the_plans_out_each_sample_is_computed_once_if_it_is_cached(
    sizes: tuple[int, int, int], coverage: float, pad: bool
) -> None:
    """With a store of the rank's slots: what is planned as a hit is there, or computed by another row of the batch."""
    num_samples, batch_size, world_size = sizes
    world_size = world_size if pad else min(world_size, num_samples)
    planner = Evaluate(num_samples, batch_size=batch_size, coverage=coverage, pad=pad)
    slots = 0
    for rank in range(world_size):
        part = planner.for_rank(rank=rank, world_size=world_size)
        slots += part.peak_slots
        store: set[int] = set()
        for epoch in range(3):
            for plan in part.epoch(epoch):
                computed: set[int] = set()
                for index, miss in zip(plan.indices.tolist(), plan.miss.tolist(), strict=True):
                    assert miss == (index not in store | computed)
                    computed |= {index} if miss else set()
                store |= set(plan.indices[plan.keep].tolist())
                assert not len(plan.evict)
                assert set(plan.serving.tolist()) == {epoch}
                assert not plan.version.any()
            assert len(store) == part.peak_slots
    assert slots == planner.peak_slots == round(coverage * num_samples)


def test_what_is_cached_is_spread_over_the_source() -> None:
    (plan,) = Evaluate(10, batch_size=10, coverage=0.3).epoch(0)
    assert np.flatnonzero(plan.keep).tolist() == [3, 6, 9]


def test_a_batch_larger_than_the_source_is_one_batch() -> None:
    planner = Evaluate(10, batch_size=64)
    assert [plan.indices.tolist() for plan in planner.epoch(0)] == [list(range(10))]
    parts = [planner.for_rank(rank=rank, world_size=4) for rank in range(4)]
    assert [part.plan(0, 0).indices.tolist() for part in parts] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
    assert {part.batch_size for part in parts} == {3}


def test_in_one_process_the_whole_is_the_part() -> None:
    planner = Evaluate(10, batch_size=4)
    assert len(planner) == 3
    assert [plan.indices.tolist() for plan in planner.epoch(7)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert planner.for_rank(rank=1, world_size=2).fingerprint() == planner.fingerprint()
    assert not planner.padded
    assert planner.padding(2) == 0
    assert Evaluate(10, batch_size=4, pad=True).padding(2) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shards": 2}, "shards and drop_last must be left out, since any number of ranks .* got shards=2"),
        ({"drop_last": True}, "drop_last=True"),
        ({"coverage": 1.5}, "coverage must be a number in 0..1, got 1.5: pass a share, such as 0.5"),
        ({"pad": 1}, "pad must be True or False, got 1"),
        ({"batch_size": 0}, "batch_size must be an int of at least 1, got 0: a batch has a row at least$"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Evaluate(10, **{"batch_size": 4, **settings})  # type: ignore[arg-type]


def test_an_assistant_chooses_among_what_any_number_of_ranks_evaluates() -> None:
    planner = AutoAssist(Evaluate(13, batch_size=4), lag=2)
    assert planner.any_world_size
    assert [planner.for_rank(rank=rank, world_size=3).num_samples for rank in range(3)] == [13] * 3
    assert not AutoAssist(Standard(13, batch_size=4), lag=2).any_world_size


def test_rows_of_padding_are_neither_echoed_nor_chosen_from() -> None:
    padded = Evaluate(10, batch_size=4, pad=True)
    assert padded.for_rank(rank=1, world_size=2).padded
    for make in (
        lambda: Echo(padded, echoing_factor=2, buffer_size=4),
        lambda: BatchEcho(padded, echoing_factor=2),
        lambda: AutoAssist(padded, lag=20),
    ):
        with pytest.raises(ConfigurationError, match=r"served as samples, got Evaluate\(.*: leave pad out"):
            make()


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (0, 11, "each rank must have a sample to evaluate, got world_size=11 and num_samples=10: .*pass pad=True"),
        (2, 2, "rank must be an int in 0..1, got 2: ranks count from 0"),
        (0, 0, "world_size must be an int of at least 1, got 0"),
    ],
)
def test_ranks_that_there_cannot_be_are_refused(rank: int, world_size: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Evaluate(10, batch_size=4).for_rank(rank=rank, world_size=world_size)


@pytest.mark.parametrize("pad", [False, True])
def test_what_is_wanted_is_known_without_planning_a_batch(pad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Evaluate(103, batch_size=10, coverage=0.5, pad=pad)
    ranks = [whole.for_rank(rank=rank, world_size=3) for rank in range(3)]
    cached = [
        {int(index) for plan in rank.epoch(1) for index in plan.indices[plan.keep].tolist()} for rank in [*ranks, whole]
    ]
    monkeypatch.setattr("dalirefurb.planning.evaluate.EvaluatePart.plan", None)
    indices = np.arange(103)
    for planner, kept in zip([*ranks, whole], cached, strict=True):
        wanted = planner.wanted(1, 2, indices, np.zeros(103, np.int64))
        assert {*np.flatnonzero(wanted).tolist()} == kept
        assert not planner.wanted(1, 2, indices, np.ones(103, np.int64)).any()
    assert not set.intersection(*cached[:3])


@given(sizes=SIZES, pad=st.booleans())
@example(sizes=(5, 2, 3), pad=False)  # of the larger batches a rank has a row less
def test_the_batch_of_a_row_is_a_formula(sizes: tuple[int, int, int], pad: bool) -> None:
    num_samples, batch_size, world_size = sizes
    planner = Evaluate(num_samples, batch_size=batch_size, pad=pad)
    world_size = world_size if pad else min(world_size, num_samples)
    for rank in range(world_size):
        part = planner.for_rank(rank=rank, world_size=world_size)
        rows = [(batch, row) for batch, plan in enumerate(part.epoch(0)) for row in range(len(plan.indices))]
        assert part.rows_per_epoch == len(rows)
        batches, numbers = part.batches_of(np.arange(len(rows)))
        assert [*zip(batches.tolist(), numbers.tolist(), strict=True)] == rows


def test_the_batch_of_a_row_is_found_without_an_array_of_all_batches() -> None:
    part = Evaluate(2**40 - 3, batch_size=16).for_rank(rank=1, world_size=8)
    batches, numbers = part.batches_of(np.array([10**11, part.rows_per_epoch - 1]))
    assert batches.tolist() == [5 * 10**10, len(part) - 1]
    assert numbers.tolist() == [0, 1]
