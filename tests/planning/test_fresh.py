import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dalirefurb import AutoAssist, Echo, Evaluate, ImageFolder, Loader, Refurbish, SmartCache, Standard, simple
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning import BatchEcho, Fresh
from dalirefurb.testing.plans import listed
from tests.pictures import write_folder
from tests.planners import batch_echoes, example_echoes, frozen, joined, refurbishing, smartcaches, standards

EPOCHS = range(6)
STANDARD = Standard(8, batch_size=4)
REUSING = st.one_of(refurbishing(), frozen(), example_echoes(), batch_echoes(), smartcaches())


@given(planner=REUSING)
def test_samples_batches_order_and_final_augmentation_are_those_of_the_planner(planner):
    for epoch in EPOCHS:
        for plan, theirs in zip(Fresh(planner).epoch(epoch), planner.epoch(epoch), strict=True):
            for name in ("indices", "serving"):
                assert listed(plan)[name] == listed(theirs)[name]


@given(planner=REUSING)
def test_no_version_of_a_sample_is_served_twice_and_none_is_cached(planner):
    control = Fresh(planner)
    rows = [np.stack([plan.indices, plan.version]) for epoch in EPOCHS for plan in control.epoch(epoch)]
    assert len(np.unique(np.concatenate(rows, axis=1), axis=1).T) == sum(each.shape[1] for each in rows)
    assert control.shard_slots == (0,) * planner.shards
    assert control.reuse.misses == 1
    for epoch in EPOCHS:
        for plan in control.epoch(epoch):
            assert (plan.miss.all(), plan.keep.any(), len(plan.evict)) == (True, False, 0)


@given(planner=refurbishing())
def test_a_version_that_refurbishing_makes_anew_is_the_controls_too(planner):
    """But of samples that waited in the epoch of the version's birth: it is older then."""
    for epoch in EPOCHS:
        born = joined(planner, epoch, "version") == epoch
        for name in ("indices", "version"):
            assert joined(Fresh(planner), epoch, name)[born].tolist() == joined(planner, epoch, name)[born].tolist()


@given(planner=standards())
def test_where_nothing_is_reused_the_plans_are_the_planners_own(planner):
    for epoch in EPOCHS:
        assert [*map(listed, Fresh(planner).epoch(epoch))] == [*map(listed, planner.epoch(epoch))]


def test_an_image_is_another_one_exactly_where_a_random_partial_part_would_have_been_reused(tmp_path):
    source = ImageFolder(write_folder(tmp_path, num_samples=12))
    planner = Refurbish(len(source), batch_size=4, reuse_factor=3, seed=1)

    def images(recipe, planner):
        with Loader(source, recipe, planner) as loader:
            return torch.cat([batch for _ in range(4) for batch, _ in loader])

    decoded, all_but_flips = (simple(32, split=split) for split in (1, 2))
    assert torch.equal(images(decoded, Fresh(planner)), images(decoded, planner))
    assert torch.equal(images(all_but_flips, Fresh(planner)), images(decoded, planner))
    same = (images(all_but_flips, Fresh(planner)) == images(all_but_flips, planner)).flatten(1).all(dim=1)
    anew = np.concatenate([plan.version == plan.serving for epoch in range(4) for plan in planner.epoch(epoch)])
    assert same.tolist() == anew.tolist()


ASSISTED = AutoAssist(STANDARD, lag=2)
CONTROL = Fresh(Refurbish(8, batch_size=4, reuse_factor=2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fresh(8), "planner must be a planner, got 8: pass Standard(...) or Refurbish(...)"),
        (
            lambda: Fresh(ASSISTED),
            f"planner must be one that knows its batches before an epoch begins, not by losses that come meanwhile, "
            f"got {ASSISTED!r}: pass AutoAssist(Standard(...), lag=...) alone, which reuses nothing",
        ),
        (
            lambda: Fresh(Evaluate(8, batch_size=4)),
            f"planner must be one to train with, since in evaluation nothing is drawn that could be fresh, got "
            f"{Evaluate(8, batch_size=4)!r}: pass Evaluate(..., coverage=0) alone, which computes every image anew",
        ),
        (
            lambda: AutoAssist(CONTROL, lag=2),
            f"planner must be one that is no control, since no other training has the order that losses decide, got "
            f"{CONTROL!r}: pass Standard(...)",
        ),
        *(
            (
                make,
                f"planner must be one that may reuse versions, as repeats do, got {CONTROL!r}: pass "
                f"Fresh(Echo(planner, ...)), or its inner planner",
            )
            for make in (
                lambda: Echo(CONTROL, echoing_factor=2, buffer_size=4),
                lambda: BatchEcho(CONTROL, echoing_factor=2),
            )
        ),
    ],
)
def test_what_can_have_no_control_and_what_cannot_build_on_one_is_refused(make, message):
    with pytest.raises(ConfigurationError) as refusal:
        make()
    assert str(refusal.value) == message


def test_a_control_of_a_control_is_the_same():
    assert [*map(listed, Fresh(CONTROL).epoch(3))] == [*map(listed, CONTROL.epoch(3))]


def test_the_fingerprint_names_the_planner_and_what_is_in_it():
    inner = SmartCache(10, batch_size=5, num_cache_objects=10, replace_percent=0.3)
    said = Fresh(inner).fingerprint()
    assert (said["planner"], said["inner"]) == ("Fresh", inner.fingerprint())
