import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given

from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.refurbish import EvictShuffler, ReferenceCount, Refurbish, Standard
from dalirefurb.planning.shuffle import PlainShuffler
from dalirefurb.testing.plans import Replay, listed, owned, pairs
from tests.planners import digest, joined, refurbishing

GOLDEN = Path(__file__).parents[1] / "golden" / "refurbish.json"
CHI_SQUARE_7 = 24.3  # 0.1 % of draws exceed it, 7 degrees of freedom

HARDEST = Refurbish(5, batch_size=4, reuse_factor=5, shards=2, drop_last=True)


def born(planner, epochs):
    """Samples that miss in each epoch."""
    return [joined(planner, epoch, "indices")[joined(planner, epoch, "miss")] for epoch in epochs]


def horizon(planner):
    return range(3 * planner.reuse_factor + 2)


@given(planner=refurbishing())
@example(planner=HARDEST)
def test_an_epoch_serves_each_sample_at_most_once_in_len_batches(planner):
    for epoch in horizon(planner):
        plans = list(planner.epoch(epoch))
        assert len(plans) == len(planner)
        sizes = [len(plan.indices) for plan in plans]
        assert set(sizes[:-1]) <= {planner.batch_size}
        served = np.concatenate([plan.indices for plan in plans])
        assert {*joined(planner, epoch, "serving").tolist()} == {epoch}
        assert len(set(served.tolist())) == len(served)
        if planner.drop_last or planner.shards > 1:
            assert sizes[-1] == planner.batch_size
            assert len(planner) == planner.num_samples // planner.shards // (planner.batch_size // planner.shards)
        else:
            assert sorted(served) == list(range(planner.num_samples))


@given(planner=refurbishing(ablations=False))
def test_the_peak_is_all_covered_samples_but_one_group(planner):
    covered = round(planner.coverage * planner.num_samples) if planner.reuse_factor > 1 else 0
    share = covered - covered // planner.reuse_factor
    assert planner.peak_slots <= covered
    if planner.shards == 1:
        assert planner.peak_slots == share
    else:
        per_shard = 4 * (np.log2(len(planner)) / 3 + 1) + 2
        assert planner.peak_slots <= share + planner.shards * per_shard


def test_the_peak_is_reached():
    planner = Refurbish(60, batch_size=6, reuse_factor=3)
    replay = Replay()
    for epoch in range(9):
        for plan in planner.epoch(epoch):
            replay.carry_out(plan)
    assert replay.peak == planner.peak_slots == 40


@given(planner=refurbishing(waiting=False))
def test_a_cycle_evicts_every_covered_sample_exactly_once(planner):
    covered = round(planner.coverage * planner.num_samples) if planner.reuse_factor > 1 else 0
    for first in range(planner.reuse_factor + 2):
        cycle = range(first, first + planner.reuse_factor)
        evicted = Counter(np.concatenate([joined(planner, epoch, "evict") for epoch in cycle]).tolist())
        assert max(evicted.values(), default=1) == 1
        if first > 0:  # group 1 is served once in epoch 0, so it is not stored
            assert len(evicted) == covered


@given(planner=refurbishing(waiting=False, ablations=False))
def test_epochs_miss_and_evict_equally_within_one(planner):
    covered = round(planner.coverage * planner.num_samples) if planner.reuse_factor > 1 else 0
    uncovered = planner.num_samples - covered
    for epoch in horizon(planner)[1:]:
        misses = joined(planner, epoch, "miss").sum() - uncovered
        assert abs(misses - covered / planner.reuse_factor) < 1
        assert abs(len(joined(planner, epoch, "evict")) - covered / planner.reuse_factor) < 1


@given(planner=refurbishing(ablations=False))
@example(planner=HARDEST)
def test_batches_and_every_run_of_shards_miss_within_one_of_their_share(planner):
    width = planner.batch_size // planner.shards
    for epoch in horizon(planner):
        plans = list(planner.epoch(epoch))
        rows = sum(len(plan.indices) for plan in plans)
        for first in range(planner.shards):
            for last in range(first, planner.shards):
                cut = slice(first * width, (last + 1) * width)
                misses = sum(plan.miss[cut].sum() for plan in plans)
                for plan in plans:
                    assert abs(plan.miss[cut].sum() - misses * len(plan.indices) / rows) < 1


@given(planner=refurbishing(waiting=False, coverage=(1.0,)))
def test_every_version_is_used_exactly_reuse_factor_times_but_those_of_the_first_epochs(planner):
    uses = Counter()
    for epoch in range(4 * planner.reuse_factor):
        for plan in planner.epoch(epoch):
            uses.update(zip(plan.indices.tolist(), plan.version.tolist(), strict=True))
    for (_, version), count in uses.items():
        if 0 < version <= 3 * planner.reuse_factor:
            assert count == planner.reuse_factor
        assert count <= planner.reuse_factor


@given(planner=refurbishing(waiting=False, coverage=(0.5,)))
def test_uncovered_samples_miss_in_every_epoch_and_are_not_kept(planner):
    always = set(range(planner.num_samples))
    for epoch in horizon(planner):
        for plan in planner.epoch(epoch):
            fresh = plan.miss & ~plan.keep & (plan.version == epoch)
            if epoch > 0:
                always &= {*plan.indices[fresh].tolist()} | (always - {*plan.indices.tolist()})
    covered = round(planner.coverage * planner.num_samples) if planner.reuse_factor > 1 else 0
    assert len(always) == planner.num_samples - covered


@given(planner=refurbishing())
def test_reuse_factor_one_is_plain_shuffling(planner):
    arguments = {name: getattr(planner, name) for name in ("batch_size", "seed", "shards", "drop_last")}
    once = Refurbish(planner.num_samples, reuse_factor=1, coverage=planner.coverage, **arguments)
    standard = Standard(planner.num_samples, **arguments)
    assert standard.peak_slots == once.peak_slots == 0
    assert len(standard) == len(once)
    for epoch in range(3):
        plans = [listed(plan) for plan in standard.epoch(epoch)]
        assert plans == [listed(plan) for plan in once.epoch(epoch)]
        for plan in plans:
            assert set(plan["version"]) == set(plan["serving"]) == {epoch}
            assert all(plan["miss"])
            assert not any(plan["keep"])
            assert not plan["evict"]


def test_standard_serves_a_sample_in_every_batch_equally_often():
    planner = Standard(64, batch_size=8)
    counts = np.zeros(8)
    for epoch in range(400):
        counts[np.flatnonzero(joined(planner, epoch, "indices") == 5) // 8] += 1
    assert ((counts - 50) ** 2 / 50).sum() < CHI_SQUARE_7


def test_refurbish_serves_a_sample_in_every_batch_equally_often():
    planner = Refurbish(64, batch_size=8, reuse_factor=2, shards=2)
    counts = np.zeros(8)
    for epoch in range(400):
        counts[np.flatnonzero(joined(planner, epoch, "indices") == 5) // 8] += 1
    assert ((counts - 50) ** 2 / 50).sum() < CHI_SQUARE_7


def test_samples_of_two_shards_meet_in_a_batch_no_more_often_than_by_chance():
    planner = Standard(64, batch_size=8, shards=2)
    first, second = owned(planner, 0), owned(planner, 1)
    met = 0
    for epoch in range(20):
        batch = np.empty(64, np.int64)
        batch[joined(planner, epoch, "indices")] = np.arange(64) // 8
        met += (batch[first] == batch[second]).sum()
    assert met < 120  # 80 are expected, with a deviation of 9


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {
        tuple(joined(Refurbish(50, batch_size=5, reuse_factor=3, seed=seed), epoch, "indices").tolist())
        for seed in range(4)
        for epoch in range(12)
    }
    assert len(orders) == 48


@given(planner=refurbishing(waiting=False, ablations=False))
def test_groups_that_end_together_are_equal_within_one_in_all_and_in_each_shard(planner):
    if planner.reuse_factor == 1:
        return
    covered = round(planner.coverage * planner.num_samples)
    uncovered = set(range(planner.num_samples)) - set(
        np.concatenate([joined(planner, epoch, "evict") for epoch in range(1, 1 + planner.reuse_factor)]).tolist()
    )
    groups = [set(group.tolist()) - uncovered for group in born(planner, range(1, 1 + planner.reuse_factor))]
    assert sum(map(len, groups)) == covered
    for members in (set(range(planner.num_samples)), *(set(owned(planner, each)) for each in range(planner.shards))):
        sizes = [len(group & members) for group in groups]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("coverage", [1.0, 0.6])
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_only_hits_wait_after_the_first_epoch_and_no_version_is_lost(shards, coverage):
    planner = Refurbish(95, batch_size=8, reuse_factor=3, shards=shards, coverage=coverage, drop_last=True)
    births = [set(indices) for indices in born(planner, range(1, 10))]
    for epoch in range(3, 9):
        assert births[epoch] == births[epoch - 3]
    assert len(set().union(*births)) == 95
    uses = Counter()
    for epoch in range(10):
        uses.update(zip(joined(planner, epoch, "indices"), joined(planner, epoch, "version"), strict=True))
    covered = set().union(*(joined(planner, epoch, "indices")[joined(planner, epoch, "keep")] for epoch in range(3)))
    for (index, version), count in uses.items():
        if version > 0 and index in covered:
            assert count in (2, 3) if version < 8 else count <= 2


def uses_of(planner, epochs, *, born_until):
    """How often each version born in epochs 1 to `born_until` is served in so many epochs."""
    uses = Counter()
    for epoch in range(epochs):
        uses.update(zip(joined(planner, epoch, "indices"), joined(planner, epoch, "version"), strict=True))
    return [count for (_, version), count in uses.items() if 1 <= version <= born_until]


def test_where_samples_wait_91_of_142_versions_have_two_uses_instead_of_three():
    """The figure of `Refurbish`."""
    uses = uses_of(Refurbish(61, batch_size=16, reuse_factor=3, drop_last=True), 10, born_until=7)
    assert Counter(uses) == {2: 91, 3: 51}


@pytest.mark.parametrize(("num_samples", "batch_size", "shards"), [(61, 16, 1), (95, 8, 4), (3001, 128, 1)])
def test_where_samples_wait_the_mean_number_of_uses_falls_by_the_share_that_waits(num_samples, batch_size, shards):
    planner = Refurbish(num_samples, batch_size=batch_size, reuse_factor=3, shards=shards, drop_last=True)
    uses = uses_of(planner, 15, born_until=12)
    assert np.mean(uses) == pytest.approx(3 * len(planner) * batch_size / num_samples, rel=0.01)
    for epoch in range(1, 12):
        assert abs(joined(planner, epoch, "miss").sum() - num_samples / 3) < 1


@given(planner=refurbishing())
@example(planner=Refurbish(13, batch_size=7, reuse_factor=13, drop_last=True))  # some wait in five epochs on end
def test_a_version_is_kept_if_and_only_if_it_is_served_again_however_long_its_sample_waits(planner):
    last = planner.reuse_factor + 4
    plans = [plan for epoch in range(2 * last) for plan in planner.epoch(epoch)]
    served = [{*pairs(plan)} for plan in plans]
    for batch in range(last * len(planner)):
        earlier, later = set().union(*served[:batch]), set().union(*served[batch + 1 :])
        assert plans[batch].miss.tolist() == [pair not in earlier for pair in pairs(plans[batch])]
        assert plans[batch].keep.tolist() == [pair in later for pair in pairs(plans[batch])]


@pytest.mark.parametrize("drop_last", [False, True])
def test_with_the_largest_reuse_factor_each_version_but_the_first_outlives_training(drop_last):
    planner = Refurbish(61, batch_size=16, reuse_factor=10_000, drop_last=drop_last)
    assert joined(planner, 0, "miss").all()
    assert not joined(planner, 100, "miss").any()
    assert joined(planner, 100, "keep").all()
    assert planner.peak_slots == 61


@pytest.mark.parametrize("evict_shuffler", [EvictShuffler(), ReferenceCount()])
@pytest.mark.parametrize("reuse_factor", [1, 2, 3, 5])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("num_samples", [46, 61])
def test_waiting_goes_round_each_group_of_a_shard(num_samples, shards, reuse_factor, evict_shuffler):
    planner = Refurbish(
        num_samples,
        batch_size=8,
        reuse_factor=reuse_factor,
        shards=shards,
        drop_last=True,
        evict_shuffler=evict_shuffler,
    )
    waits = np.zeros(num_samples, np.int64)
    before = np.zeros(num_samples, np.bool_)
    for epoch in range(12 * reuse_factor):
        waiting = np.ones(num_samples, np.bool_)
        waiting[joined(planner, epoch, "indices")] = False
        assert waiting.sum() == num_samples % 8
        assert not (waiting & before).any()
        waits += waiting
        before = waiting
    owners = planner.owners(np.arange(num_samples))
    if evict_shuffler == ReferenceCount():
        groups = [np.arange(num_samples)]
    else:
        groups = born(planner, range(1, reuse_factor + 1))
    for group in groups:
        for shard in range(shards):
            assert np.ptp(waits[group[owners[group] == shard]]) <= 1


def test_evicting_by_reference_count_makes_misses_burst():
    planner = Refurbish(60, batch_size=6, reuse_factor=3, evict_shuffler=ReferenceCount())
    assert [joined(planner, epoch, "miss").sum() for epoch in range(7)] == [60, 0, 0, 60, 0, 0, 60]
    assert planner.peak_slots == 60


def test_a_plain_shuffle_varies_more_in_misses_per_batch():
    ranges = [
        np.ptp([plan.miss.sum() for plan in planner.epoch(4)])
        for planner in (
            Refurbish(3000, batch_size=60, reuse_factor=3),
            Refurbish(3000, batch_size=60, reuse_factor=3, batch_shuffler=PlainShuffler()),
        )
    ]
    assert ranges[0] == 0
    assert ranges[1] > 10


@pytest.mark.parametrize(
    "options", [{}, {"coverage": 0.5}, {"batch_shuffler": PlainShuffler()}, {"evict_shuffler": ReferenceCount()}]
)
def test_which_share_of_rows_misses_and_whether_batches_do_equally_is_told_without_planning(options):
    planner = Refurbish(60, batch_size=6, reuse_factor=3, **options)
    misses = [int(plan.miss.sum()) for epoch in range(3, 6) for plan in planner.epoch(epoch)]
    assert sum(misses) == round(3 * 60 * planner.reuse.misses)
    assert planner.reuse.even == (max(misses) - min(misses) <= 1)
    assert replace(planner, num_samples=61, coverage=0.5).reuse.coverage == 30 / 61  # as many as there can be
    assert replace(planner, shards=2).for_rank(rank=1, world_size=2).reuse == planner.reuse


def test_slots_in_use_stay_constant_within_an_epoch():
    planner = Refurbish(3000, batch_size=60, reuse_factor=3)
    for epoch in range(1, 5):
        assert {int((plan.miss & plan.keep).sum()) - len(plan.evict) for plan in planner.epoch(epoch)} == {0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"reuse_factor": 0},
            "reuse_factor must be an int of at least 1, got 0: pass 1 to reuse nothing, 2 or",
        ),
        ({"reuse_factor": 2.5}, "reuse_factor must be an int of at least 1, got 2.5"),
        ({"reuse_factor": True}, "reuse_factor must be an int of at least 1, got True"),
        ({"reuse_factor": 10**20}, "reuse_factor must be at most 10000, got 100000000000000000000: pass Frozen(...), "),
        (
            {"coverage": 0},
            "coverage must be a number above 0 and at most 1, got 0: pass the share of samples",
        ),
        ({"coverage": 1.5}, "coverage must be a number above 0 and at most 1, got 1.5"),
        ({"coverage": float("nan")}, "coverage must be a number above 0 and at most 1, got nan"),
        ({"coverage": True}, "coverage must be a number above 0 and at most 1, got True"),
        (
            {"batch_shuffler": PlainShuffler},
            "batch_shuffler must be an instance of BatchOrder, got "
            "<class 'dalirefurb.planning.shuffle.PlainShuffler'>: pass an object",
        ),
        (
            {"evict_shuffler": None},
            "evict_shuffler must be an instance of EvictOrder, got None: pass an object",
        ),
    ],
)
def test_an_argument_that_cannot_work_is_refused_with_its_value_and_a_remedy(arguments, message):
    with pytest.raises(ConfigurationError) as refusal:
        Refurbish(8, **{"batch_size": 4, "reuse_factor": 2, **arguments})
    assert str(refusal.value).startswith(message)


def golden():
    """Plans that pin the stream: small ones whole, a larger one by its hash."""
    small = [
        {"num_samples": 11, "batch_size": 4, "reuse_factor": 1},
        {"num_samples": 10, "batch_size": 4, "reuse_factor": 3, "seed": 7},
        {"num_samples": 13, "batch_size": 4, "reuse_factor": 2, "shards": 2, "coverage": 0.7},
        {"num_samples": 11, "batch_size": 4, "reuse_factor": 3, "drop_last": True},
    ]
    large = {
        "num_samples": 50021,
        "batch_size": 128,
        "reuse_factor": 3,
        "shards": 4,
        "coverage": 0.9,
        "seed": 1,
    }
    return {
        "small": [
            {
                "arguments": arguments,
                "epochs": [[listed(plan) for plan in Refurbish(**arguments).epoch(epoch)] for epoch in range(4)],
            }
            for arguments in small
        ],
        "large": {"arguments": large, "epochs": [0, 1, 5], "sha256": digest(Refurbish(**large), (0, 1, 5))},
    }


def test_plans_are_those_on_record():
    """A change here is a breaking change; `python -m tests.planning.test_refurbish` records the new plans."""
    assert golden() == json.loads(GOLDEN.read_text())


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden(), indent=None, separators=(",", ":")) + "\n")
