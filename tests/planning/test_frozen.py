import numpy as np
import pytest
from hypothesis import given

from dalirefurb import ImageFolder, Loader, MemoryStore, Prefetch, Standard, evaluate
from dalirefurb.planning import Frozen
from dalirefurb.testing.plans import Replay, listed
from tests.pictures import write_folder
from tests.planners import frozen, joined

EPOCHS = range(6)


@given(planner=frozen())
def test_every_row_is_version_0_and_is_kept_and_nothing_is_ever_evicted(planner):
    for epoch in EPOCHS:
        for plan in planner.epoch(epoch):
            assert not plan.version.any()
            assert plan.keep.all()
            assert len(plan.evict) == 0


@given(planner=frozen())
def test_every_sample_is_computed_exactly_once_in_one_of_the_first_two_epochs(planner):
    computed = [joined(planner, epoch, "indices")[joined(planner, epoch, "miss")].tolist() for epoch in EPOCHS]
    assert sorted(computed[0] + computed[1]) == list(range(planner.num_samples))
    assert computed[2:] == [[], [], [], []]
    assert len(computed[0]) == len(joined(planner, 0, "indices"))


@given(planner=frozen())
def test_the_same_samples_are_served_in_the_same_batches_as_without_a_cache(planner):
    arguments = {name: getattr(planner, name) for name in ("batch_size", "seed", "shards", "drop_last")}
    standard = Standard(planner.num_samples, **arguments)
    for epoch in EPOCHS:
        for plan, theirs in zip(planner.epoch(epoch), standard.epoch(epoch), strict=True):
            for name in ("indices", "serving"):
                assert listed(plan)[name] == listed(theirs)[name]


@given(planner=frozen())
def test_in_the_end_every_shards_slots_are_full(planner):
    replay = Replay()
    for epoch in EPOCHS:
        for plan in planner.epoch(epoch):
            replay.carry_out(plan)
    assert replay.stored == dict.fromkeys(range(planner.num_samples), 0)
    assert replay.peak == planner.peak_slots == planner.num_samples
    assert np.bincount(planner.owners(np.arange(planner.num_samples))).tolist() == list(planner.shard_slots)


@pytest.mark.parametrize("drop_last", [False, True])
def test_images_to_evaluate_on_are_the_same_in_every_epoch_and_are_decoded_once(tmp_path, drop_last):
    source = ImageFolder(write_folder(tmp_path, num_samples=23))
    planner = Frozen(len(source), batch_size=4, drop_last=drop_last)
    seen: dict[int, bytes] = {}
    with Loader(
        source, evaluate(32), planner, MemoryStore(), prefetch=Prefetch(num_threads=2), with_indices=True
    ) as loader:
        for _ in range(4):
            for images, _, indices in loader:
                for image, index in zip(images, indices.tolist(), strict=True):
                    assert seen.setdefault(index, image.numpy().tobytes()) == image.numpy().tobytes()
        stats = loader.stats()
    assert len(seen) == 23
    assert stats.misses == 23
    assert stats.recomputed == 0
