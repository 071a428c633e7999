import base64
import gc
import json
import threading
import weakref
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from dalirefurb.errors import ConfigurationError, StateMismatchError
from dalirefurb.planning.assistant import Assistant, _unpacked
from dalirefurb.planning.auto_assist import AutoAssist
from dalirefurb.planning.echo import BatchEcho, Echo
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.rng import uniforms
from dalirefurb.testing.plans import FIELDS, listed, owned
from tests.in_turn import in_turn
from tests.planners import FEWER, joined

EPOCHS = range(5)


@st.composite
def planners(draw):
    batch_size = draw(st.integers(1, 6))
    num_samples = draw(st.integers(batch_size, batch_size + 24))
    arguments = {"batch_size": batch_size, "seed": draw(st.integers(0, 9))}
    kind = draw(st.sampled_from(["standard", "refurbish", "refurbish", "smart cache"]))
    if kind == "smart cache":
        window = batch_size * draw(st.integers(1, num_samples // batch_size))
        inner = SmartCache(num_samples, num_cache_objects=window, replace_percent=0.4, **arguments)
    elif kind == "standard":
        inner = Standard(num_samples, drop_last=draw(st.booleans()), **arguments)
    else:
        reuse_factor, coverage = draw(st.integers(1, 4)), draw(st.sampled_from([1.0, 0.6]))
        arguments["drop_last"] = draw(st.booleans())
        inner = Refurbish(num_samples, reuse_factor=reuse_factor, coverage=coverage, **arguments)
    if draw(st.booleans()):
        factor, buffer_size = draw(st.sampled_from([1, 1.5, 2.25])), draw(st.integers(0, 20))
        inner = Echo(inner, echoing_factor=factor, buffer_size=buffer_size)
    return AutoAssist(inner, lag=draw(st.integers(1, 5)), accuracy_momentum=draw(st.sampled_from([0.0, 0.9])))


TINY = AutoAssist(Refurbish(5, batch_size=4, reuse_factor=2), lag=3, accuracy_momentum=0.5)  # epochs in every batch
SHORT = AutoAssist(Refurbish(23, batch_size=4, reuse_factor=2, seed=3), lag=3, accuracy_momentum=0.5)
ECHOED = AutoAssist(
    Echo(Refurbish(23, batch_size=4, reuse_factor=2, seed=3), echoing_factor=2.5, buffer_size=6),
    lag=3,
    accuracy_momentum=0.5,
)
AT_ONCE = AutoAssist(Echo(Standard(23, batch_size=4), echoing_factor=3, buffer_size=0), lag=3, accuracy_momentum=0.5)
PLAIN = AutoAssist(Standard(23, batch_size=4), lag=2, accuracy_momentum=0.5)


def image(index):
    """Grey, the brighter the higher the index."""
    return np.full((2, 3, 3), 7 * index % 256, np.uint8)


def new_assistant(planner, picture=image):
    return Assistant(planner, lambda indices: [picture(index) for index in indices.tolist()])


def losses_of(indices, number=0):
    """A loss that depends on brightness, on the sample and on the batch, above 0."""
    noise = uniforms(1, "loss", indices, np.full(len(indices), number), 1)[:, 0]
    return (7 * indices % 256 < 60) + 0.4 * noise


def serve(assistant, batches, loss=losses_of):
    """Plan, serve and observe batches one by one."""
    plans = []
    for _ in range(batches):
        plans.append(assistant.plan())
        number = assistant.served
        assistant.serve()
        assistant.observe(loss(plans[-1].indices, number))
    return plans


def learn_nothing(assistant):
    assistant._difficulty.learned = lambda belief, *_, **__: belief


def believe(assistant, *, accuracy, bias, slope=0.0):
    """Fix what an Assistant believes of an image's mean, and go on from the second inner epoch."""
    moment = assistant._moment
    weights = np.full_like(moment.belief.weights, slope)
    weights[-1] = bias
    assistant._moment = replace(moment, epoch=1, belief=replace(moment.belief, weights=weights, accuracy=accuracy))
    learn_nothing(assistant)


class Replay:
    """What is stored, as a plan says: frees, then stores, after each batch."""

    def __init__(self):
        self.stored = {}
        self.peak = 0

    def carry_out(self, plan):
        rows = zip(plan.indices.tolist(), plan.version.tolist(), plan.miss.tolist(), plan.keep.tolist(), strict=True)
        rows = list(rows)
        computed = set()
        for index, version, miss, _ in rows:
            assert miss or (index, version) in computed or self.stored[index] == version
            computed |= {(index, version)} if miss else set()
        for index in plan.evict.tolist():
            self.stored.pop(index, None)
        for index, version, _, keep in rows:
            if keep:
                assert self.stored.setdefault(index, version) == version
        self.peak = max(self.peak, len(self.stored))


# What is planned if nothing is rejected.


@FEWER
@given(planner=planners())
@example(planner=TINY)
def test_epochs_cut_the_inner_epochs_into_full_batches_without_a_gap(planner):
    plans = [plan for epoch in EPOCHS for plan in planner.epoch(epoch)]
    assert len(plans) == len(EPOCHS) * len(planner)
    assert {len(plan.indices) for plan in plans} == {planner.batch_size}
    inner_epochs = range(2 * len(planner) * len(EPOCHS) * planner.batch_size)
    for name in ("indices", "version", "serving"):
        served = np.concatenate([getattr(plan, name) for plan in plans])
        expected = []
        for epoch in inner_epochs:
            expected += [value for plan in planner.planner.epoch(epoch) for value in getattr(plan, name).tolist()]
            if len(expected) >= len(served):
                break
        assert served.tolist() == expected[: len(served)]


@FEWER
@given(planner=planners())
@example(planner=TINY)
def test_an_assistant_without_confidence_plans_the_epochs(planner):
    assistant = new_assistant(planner)
    learn_nothing(assistant)
    expected = [listed(plan) for epoch in EPOCHS for plan in planner.epoch(epoch)]
    assert [listed(plan) for plan in serve(assistant, len(expected))] == expected
    report = assistant.report()
    assert report.candidates == report.accepted == len(EPOCHS) * len(planner) * planner.batch_size
    assert assistant.upcoming == divmod(report.candidates, planner.planner.rows_per_epoch)


@FEWER
@given(planner=planners())
def test_the_first_inner_epoch_is_accepted_whole_and_needs_no_features_to_choose(planner):
    assistant = new_assistant(planner)
    believe(assistant, accuracy=1.0, bias=-9.0)
    assistant._moment = replace(assistant._moment, epoch=0)
    assistant._difficulty._compute = None  # nothing to call
    candidates = joined(planner.planner, 0, "indices")
    plans = serve(assistant, len(candidates) // planner.batch_size)
    served = [index for plan in plans for index in plan.indices.tolist()]
    assert served == candidates[: len(served)].tolist()


# Algorithm 1.


@pytest.mark.parametrize(("accuracy", "bias"), [(0.3, -1.0), (0.6, 0.0), (0.9, -2.0), (1.0, -1.0), (0.8, 1.5)])
def test_a_candidate_is_accepted_as_often_as_algorithm_1_says(accuracy, bias):
    expected = 1 - accuracy + accuracy / (1 + np.exp(-bias))
    assistant = new_assistant(AutoAssist(Standard(500, batch_size=100), lag=1))
    believe(assistant, accuracy=accuracy, bias=bias)
    serve(assistant, 60)
    report = assistant.report()
    assert report.accepted == 6000
    # The candidates after the last one accepted do not count, so it is a negative binomial but for the last one.
    assert binomtest(report.accepted - 1, report.candidates - 1, expected).pvalue > 1e-3


def test_candidates_are_accepted_in_proportion_to_what_is_expected_of_them():
    """Four kinds of image that the Assistant gives probabilities of its own, by chi-square."""
    planner = AutoAssist(Standard(400, batch_size=100), lag=1)
    shades = np.array([0, 85, 170, 255])
    assistant = new_assistant(planner, lambda index: np.full((1, 1, 3), shades[index % 4], np.uint8))
    accuracy, slope, bias = 0.7, -0.1, -0.5
    believe(assistant, accuracy=accuracy, bias=bias, slope=slope)
    logits = bias + slope * np.sqrt(192) * (shades / 127.5 - 1)  # 192 equal features over their root
    rates = 1 - accuracy + accuracy / (1 + np.exp(-logits))
    batches = 400
    kinds = np.concatenate([plan.indices for plan in serve(assistant, batches)]) % 4
    observed = np.bincount(kinds, minlength=4)
    passes = assistant.report().candidates / 400
    expected = rates * 100 * passes
    assert np.ptp(expected) > 0.3 * expected.mean()
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_acceptance_is_drawn_afresh_for_each_serving_of_a_sample():
    assistant = new_assistant(AutoAssist(Standard(200, batch_size=100), lag=1))
    believe(assistant, accuracy=1.0, bias=0.0)
    plans = serve(assistant, 200)
    counts = np.bincount(np.concatenate([plan.indices for plan in plans]), minlength=200)
    passes = assistant.report().candidates / 200
    assert abs(counts.var() / (passes / 4) - 1) < 0.4  # binomial: each accepted in half of the passes


def test_a_batch_fills_even_if_every_candidate_seems_easy():
    planner = AutoAssist(Refurbish(7, batch_size=5, reuse_factor=2), lag=1)
    assistant = new_assistant(planner)
    believe(assistant, accuracy=1.0, bias=-60.0)
    serve(assistant, 20)
    assert assistant.report().candidates == 20 * (7 + 5)  # each batch accepts after num_samples candidates


def test_only_candidates_that_confidence_does_not_let_in_need_features():
    planner = AutoAssist(Standard(1000, batch_size=500), lag=1)
    needed = []
    assistant = Assistant(planner, lambda indices: [needed.append(i) or image(i) for i in indices.tolist()])
    believe(assistant, accuracy=0.25, bias=-60.0)
    plan = assistant.plan()
    assert needed
    assert not set(needed) & set(plan.indices.tolist())
    assert len(needed) == len(set(needed))


# The lag.


@FEWER
@given(planner=planners(), data=st.data())
@example(planner=SHORT, data=None)
def test_plans_are_the_same_whenever_the_losses_come_within_the_lag(planner, data):
    batches = 6 * len(planner) + planner.lag
    expected = serve(new_assistant(planner), batches)
    assistant = new_assistant(planner)
    plans = []
    while len(plans) < batches:
        steps = ["plan"] if assistant.ready() else []
        steps += ["serve"] if assistant.served < assistant.planned else []
        steps += ["observe"] if assistant.observed < assistant.served else []
        step = steps[0] if data is None else data.draw(st.sampled_from(steps))
        if step == "plan":
            plans.append(assistant.plan())
        elif step == "serve":
            assistant.serve()
        else:
            assistant.observe(losses_of(plans[assistant.observed].indices, assistant.observed))
    assert [listed(plan) for plan in plans] == [listed(plan) for plan in expected]


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_a_loss_acts_lag_batches_later_and_not_before(lag):
    planner = AutoAssist(Standard(200, batch_size=20), lag=lag, accuracy_momentum=0.0)
    changed = 25

    def other_loss(indices, number):
        return losses_of(indices, number) if number != changed else (indices % 2).astype(float) * 9

    same = [listed(plan) for plan in serve(new_assistant(planner), 40)]
    other = [listed(plan) for plan in serve(new_assistant(planner), 40, other_loss)]
    assert same[: changed + lag] == other[: changed + lag]
    assert same[changed + lag] != other[changed + lag]


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_as_many_batches_as_the_lag_can_be_planned_ahead_of_the_losses(lag):
    assistant = new_assistant(AutoAssist(Standard(23, batch_size=4), lag=lag))
    for number in range(lag):
        assert assistant.ready()
        assistant.plan()
        assert assistant.planned == number + 1
    assert not assistant.ready()
    with pytest.raises(ConfigurationError) as refusal:
        assistant.plan()
    assert str(refusal.value) == (
        f"batch {lag} needs the losses of batch 0 (lag={lag}), got those of the first 0 batches: observe the losses of "
        f"each batch that is served, or pass a larger lag"
    )
    assistant.serve()
    assert not assistant.ready()
    assistant.observe(np.ones(4))
    assert assistant.ready()
    assert (assistant.planned, assistant.served, assistant.observed) == (lag, 1, 1)


# What is carried out.


@FEWER
@given(planner=planners())
@example(planner=TINY)
@example(planner=SHORT)
@example(planner=ECHOED)
@example(planner=AT_ONCE)
def test_executing_the_plans_never_exceeds_the_peak_and_every_planned_hit_is_stored(planner):
    assistant, replay = new_assistant(planner), Replay()
    hits = misses = 0
    for plan in serve(assistant, min(12 * len(planner), 90)):
        assert len(plan.indices) == planner.batch_size
        replay.carry_out(plan)
        hits, misses = hits + int((~plan.miss).sum()), misses + int(plan.miss.sum())
    assert replay.peak <= planner.peak_slots <= planner.num_samples
    if planner == SHORT:
        assert hits > 0.1 * misses
    report = assistant.report()
    assert report.accepted == hits + misses
    assert planner not in (TINY, SHORT) or report.candidates > 1.2 * report.accepted


def all_seem_easy(planner, *, accuracy):
    assistant = new_assistant(planner)
    believe(assistant, accuracy=accuracy, bias=-3.0)
    assistant._moment = replace(assistant._moment, epoch=0)
    return assistant


@FEWER
@given(planner=planners(), accuracy=st.sampled_from([0.5, 0.9, 1.0]))
@example(planner=TINY, accuracy=0.9)
@example(planner=SHORT, accuracy=0.9)
@example(planner=ECHOED, accuracy=0.9)
@example(planner=AT_ONCE, accuracy=0.9)
def test_slots_and_hits_hold_when_most_candidates_are_rejected(planner, accuracy):
    replay = Replay()
    for plan in serve(all_seem_easy(planner, accuracy=accuracy), min(12 * len(planner), 90)):
        replay.carry_out(plan)
    assert replay.peak <= planner.peak_slots


@FEWER
@given(planner=planners(), accuracy=st.sampled_from([0.5, 1.0]))
@example(planner=SHORT, accuracy=0.9)
@example(planner=ECHOED, accuracy=0.9)
@example(planner=AT_ONCE, accuracy=0.9)
def test_what_can_never_be_served_again_is_not_stored(planner, accuracy):
    """After each batch, the stored versions are among those that the inner planner may still serve."""
    assistant, replay = all_seem_easy(planner, accuracy=accuracy), Replay()
    candidates = cache(
        lambda epoch: [
            *zip(*(joined(planner.planner, epoch, name).tolist() for name in ("indices", "version")), strict=True)
        ]
    )
    for _ in range(min(8 * len(planner), 60)):
        replay.carry_out(*serve(assistant, 1))
        epoch, row = assistant._moment.epoch, assistant._moment.row
        parts = [candidates(epoch + later) for later in range(6)]
        coming = set()
        for later, part in enumerate(parts):
            coming |= set(part[0 if later else row - row % planner.batch_size :])
        assert replay.stored.items() <= coming


@FEWER
@given(planner=planners())
@example(planner=TINY)
def test_no_serving_of_a_sample_comes_twice(planner):
    plans = serve(new_assistant(planner), min(12 * len(planner), 90))
    servings = [pair for plan in plans for pair in zip(plan.indices.tolist(), plan.serving.tolist(), strict=True)]
    assert len(set(servings)) == len(servings)


@pytest.mark.parametrize(
    "inner",
    [
        Refurbish(40, batch_size=4, reuse_factor=3),
        Echo(Refurbish(40, batch_size=4, reuse_factor=2), echoing_factor=2, buffer_size=9),
        Echo(Standard(40, batch_size=4), echoing_factor=3, buffer_size=1),
    ],
)
def test_a_rejected_birth_is_a_miss_at_the_first_use_that_is_accepted(inner):
    planner = AutoAssist(inner, lag=1)
    assistant = all_seem_easy(planner, accuracy=0.8)
    served = set()
    late = 0
    for plan in serve(assistant, 200):
        pairs = list(zip(plan.indices.tolist(), plan.version.tolist(), strict=True))
        assert plan.miss.tolist() == [pair not in served.union(pairs[:row]) for row, pair in enumerate(pairs)]
        born = plan.version == plan.serving
        late += int((plan.miss & ~born).sum())
        served |= set(pairs)
    assert late > 20


# Going back.


def test_after_a_rewind_at_any_batch_the_plans_come_again():
    expected = [listed(plan) for plan in serve(new_assistant(SHORT), 3 * len(SHORT) + SHORT.lag)]
    assistant = new_assistant(SHORT)
    for number in range(3 * len(SHORT)):
        for _ in range(2):
            ahead = []
            while assistant.ready():
                ahead.append(listed(assistant.plan()))
            assert ahead == expected[number : number + SHORT.lag]
            assistant.rewind()
            assert assistant.planned == assistant.served == number
        plan = assistant.plan()
        assistant.serve()
        assistant.observe(losses_of(plan.indices, number))


@pytest.mark.parametrize(("planner", "observed_late"), in_turn([TINY, SHORT, PLAIN], [False, True]))
def test_an_assistant_restored_at_any_batch_plans_the_same_but_for_misses(planner, observed_late):
    """A row is a miss, too, if its version was served only before the state was taken; else nothing differs."""
    batches = 6 * len(planner)
    expected = serve(new_assistant(planner), batches)
    assistant = new_assistant(planner)
    for number in range(batches - len(planner)):
        while assistant.ready() and assistant.planned < number + 2:
            assistant.plan()  # what is planned ahead is no part of the state
        state = json.loads(json.dumps(assistant.state()))
        resumed = new_assistant(planner)
        resumed.restore(state)
        counts = (resumed.served, resumed.observed, resumed.planned)
        assert counts == (assistant.served, assistant.observed, assistant.served)
        assert resumed.report() == assistant.report()
        if observed_late and number:
            resumed.observe(losses_of(expected[number - 1].indices, number - 1))
        served = set()
        for old, new in zip(expected[number:], serve(resumed, len(planner)), strict=False):
            assert listed(new, "miss") == listed(old, "miss")
            pairs = list(zip(new.indices.tolist(), new.version.tolist(), strict=True))
            unknown = np.array([pair not in served.union(pairs[:row]) for row, pair in enumerate(pairs)])
            assert new.miss.tolist() == (old.miss | unknown).tolist()
            served |= set(pairs)
        if assistant.observed < assistant.served:
            assistant.observe(losses_of(expected[number - 1].indices, number - 1))
        plan = assistant.plan() if assistant.planned == assistant.served else expected[number]
        assistant.serve()
        if not observed_late:
            assistant.observe(losses_of(plan.indices, number))


def packed(values, dtype):
    return base64.b64encode(np.array(values, dtype).tobytes()).decode()


@pytest.mark.parametrize(
    "change",
    [
        {"row": 24},
        {"epoch": -1},
        {"candidates": -1},
        {"observed": 10},
        {"served": 8},
        {"threshold": -0.1},
        {"threshold": float("nan")},
        {"threshold": 1e99},
        {"accuracy": True},
        {"weights": packed([np.inf] * 193, "<f8")},
        {"weights": packed([0] * 192, "<f8")},
        {"indices": packed([23] * 12, "<i4")},
        {"indices": packed([-1] * 12, "<i4")},
        {"indices": packed([1] * 8, "<i4")},
        {"indices": packed([1] * 40, "<i4")},
        {"losses": packed([np.nan] * 12, "<f4")},
        {"losses": packed([1] * 8, "<f4")},
        {"losses": packed([1] * 40, "<f4")},
    ],
    ids=str,
)
def test_a_state_that_cannot_be_is_refused_and_changes_nothing(change):
    """After nine batches of 4 rows, of which the last three still act, in epochs of 23 samples."""
    assistant = new_assistant(SHORT)
    serve(assistant, 9)
    before = assistant.state()
    assert (before["served"], before["observed"], len(_unpacked(before["losses"], "<f4"))) == (9, 9, 12)
    with pytest.raises(StateMismatchError, match="must be what state_dict returned, but it is damaged"):
        assistant.restore({**before, **change})
    assert assistant.state() == before
    assistant.restore(before)
    assert assistant.state() == before


def test_a_state_is_json_below_64_kb_at_4096_rows_of_lag():
    assistant = new_assistant(AutoAssist(Refurbish(1024, batch_size=256, reuse_factor=3), lag=16))
    serve(assistant, 30)
    text = json.dumps(assistant.state(), allow_nan=False)
    assert 40_000 < len(text) < 64_000


def test_what_was_served_is_let_go_of_but_for_the_indices_whose_losses_may_be_needed():
    assistant = new_assistant(SHORT)
    served = serve(assistant, 3 * SHORT.lag)
    versions, indices = ([weakref.ref(getattr(plan, name)) for plan in served] for name in ("version", "indices"))
    del served
    gc.collect()
    assert [each() is not None for each in versions] == [False] * 3 * SHORT.lag
    assert [each() is not None for each in indices] == [False] * 2 * SHORT.lag + [True] * SHORT.lag


def test_planning_and_observing_may_be_done_by_two_threads():
    expected = [listed(plan) for plan in serve(new_assistant(SHORT), 60)]
    assistant, plans = new_assistant(SHORT), []
    planned = threading.Semaphore(0)
    observed = threading.Semaphore(SHORT.lag)

    def owner():
        while len(plans) < 60:
            assert observed.acquire(timeout=600)
            plans.append(assistant.plan())
            planned.release()

    thread = threading.Thread(target=owner)
    thread.start()
    for number in range(60):
        assert planned.acquire(timeout=600)
        assistant.serve()
        assistant.state()
        assistant.report()
        assistant.observe(losses_of(plans[number].indices, number))
        observed.release()
    thread.join()
    assert [listed(plan) for plan in plans] == expected


# What is learned.


def test_an_assistant_learns_which_images_are_hard_and_chooses_them():
    """Dark images, a quarter, have losses around 1; the others around 0.2."""
    planner = AutoAssist(Standard(1000, batch_size=50), lag=4)

    def loss(indices, number):
        noise = uniforms(3, "noise", indices, np.full(len(indices), number), 1)[:, 0]
        return np.where(indices < 250, 0.7, 0.0) + 0.4 * noise

    assistant = new_assistant(planner, lambda index: np.full((4, 4, 3), 30 if index < 250 else 200, np.uint8))
    serve(assistant, 20, loss)  # the first pass
    first = assistant.report()
    assert first.accepted_fraction == 1.0
    serve(assistant, 40, loss)
    before = assistant.report()
    last = np.concatenate([plan.indices for plan in serve(assistant, 20, loss)])
    report = assistant.report()
    assert report.accuracy > 0.85 > first.accuracy
    late = 20 * 50 / (report.candidates - before.candidates)
    assert late < 0.6
    assert np.mean(last < 250) > 0.5  # a quarter of all candidates
    assert report.saved == pytest.approx(1 - report.accepted / report.candidates) == 1 - report.accepted_fraction


def test_an_assistant_that_nothing_can_teach_stays_unsure():
    planner = AutoAssist(Standard(1000, batch_size=50), lag=4)
    assistant = new_assistant(planner)
    serve(assistant, 100, lambda indices, number: uniforms(4, "noise", indices, 0 * indices + number, 1)[:, 0])
    report = assistant.report()
    assert 0.3 < report.accuracy < 0.7
    assert report.threshold == pytest.approx(0.5, abs=0.1)
    assert 0.6 < report.accepted_fraction < 0.85  # 1 - gamma / 2, and all of the first 20 batches


def test_learning_follows_the_threshold_the_averages_and_the_gradient():
    """Three batches by hand: three features, losses in float32, one step each. The bias does not decay."""
    planner = AutoAssist(
        Standard(4, batch_size=2),
        lag=1,
        resolution=1,
        learning_rate=0.5,
        weight_decay=0.1,
        loss_momentum=0.75,
        accuracy_momentum=0.5,
    )
    pictures = np.array([[[[0, 51, 255]]], [[[255, 102, 0]]], [[[255, 0, 0]]], [[[0, 0, 255]]]], np.uint8)
    assistant = new_assistant(planner, lambda index: pictures[index])
    weights, threshold, gamma = np.zeros(4), None, 0.0
    for losses in ([1.0, 3.0], [0.5, 2.5], [4.0, 1.0], [2.0, 2.0]):
        plan = assistant.plan()
        belief = assistant._moment.belief
        assert (belief.threshold, belief.accuracy) == pytest.approx((threshold or 0.0, gamma))
        assert belief.weights == pytest.approx(weights)
        assistant.serve()
        assistant.observe(losses)
        threshold = 2.0 if threshold is None else 0.75 * threshold + 0.25 * np.mean(losses)
        inputs = [[*(pictures[index].ravel() / 127.5 - 1) / np.sqrt(3), 1.0] for index in plan.indices.tolist()]
        gradient, right = 0.1 * weights * [1, 1, 1, 0], 0
        for row, loss in zip(inputs, losses, strict=True):
            probability = 1 / (1 + np.exp(-np.dot(row, weights)))
            right += (probability > 0.5) == (loss > threshold)
            gradient = gradient + (probability - (loss > threshold)) * np.array(row) / 2
        gamma = 0.5 * gamma + 0.5 * right / 2
        weights = weights - 0.5 * gradient


def test_a_report_before_anything_was_served_is_empty():
    assistant = new_assistant(SHORT)
    assistant.plan()
    report = assistant.report()
    assert (report.candidates, report.accepted, report.accuracy, report.threshold) == (0, 0, 0.0, 0.0)
    assert (report.accepted_fraction, report.saved) == (1.0, 0.0)


def test_as_many_samples_as_there_may_be_are_taken():
    assert AutoAssist(Standard(2**31, batch_size=4), lag=1).num_samples == 2**31
    assert len(Standard(2**40, batch_size=4).plan(0, 2**38 - 1).indices) == 4


# What is refused.

STANDARD = Standard(8, batch_size=4)


@pytest.mark.parametrize(
    ("planner", "message"),
    [
        (8, "planner must be a planner, got 8: pass Standard(...) or Refurbish(...)"),
        (
            AutoAssist(STANDARD, lag=2),
            f"planner must be one that knows its batches before an epoch begins, not by losses that come meanwhile, "
            f"got {AutoAssist(STANDARD, lag=2)!r}: pass its inner planner",
        ),
        (
            BatchEcho(STANDARD, echoing_factor=2),
            f"planner must be one that repeats samples, not batches, since each is chosen by itself and no batch "
            f"stays whole, got {BatchEcho(STANDARD, echoing_factor=2)!r}: pass Echo(planner, ...)",
        ),
        (
            Standard(2**31 + 1, batch_size=4),
            f"planner must be one of at most {2**31} samples, of each of which an Assistant keeps features, got "
            f"{Standard(2**31 + 1, batch_size=4)!r}: train on parts of the source one after the other",
        ),
    ],
)
def test_what_gives_no_candidates_is_refused(planner, message):
    with pytest.raises(ConfigurationError) as refusal:
        AutoAssist(planner, lag=1)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lag": 0}, "lag must be an int of at least 1, got 0: pass more than the batches that the loader plans ahead"),
        (
            {"resolution": 0},
            "resolution must be an int of at least 1, got 0: pass the pixels a side to judge images by",
        ),
        ({"learning_rate": 0}, "learning_rate must be a number above 0, got 0: leave it out for the default"),
        ({"learning_rate": True}, "learning_rate must be a number above 0, got True: leave it out for the default"),
        ({"learning_rate": np.inf}, "learning_rate must be a number above 0, got inf: leave it out for the default"),
        ({"weight_decay": -1}, "weight_decay must be a number of at least 0, got -1: leave it out for the default"),
        ({"loss_momentum": 1}, "loss_momentum must be a number in [0, 1), got 1: leave it out for the default"),
        (
            {"accuracy_momentum": -0.1},
            "accuracy_momentum must be a number in [0, 1), got -0.1: leave it out for the default",
        ),
    ],
)
def test_an_argument_that_cannot_work_is_refused_with_its_value_and_a_remedy(arguments, message):
    with pytest.raises(ConfigurationError) as refusal:
        AutoAssist(STANDARD, **{"lag": 1, **arguments})
    assert str(refusal.value) == message


@pytest.mark.parametrize(("world_size", "reuse_factor", "echoed"), in_turn([1, 2, 4], [1, 3], [False, True]))
def test_an_assistant_on_each_rank_fills_its_rows_from_its_own_shards(world_size, reuse_factor, echoed):
    inner = Refurbish(103, batch_size=12, reuse_factor=reuse_factor, shards=4, seed=3)
    if echoed:
        inner = Echo(inner, echoing_factor=2.5, buffer_size=30)
    planner = AutoAssist(inner, lag=2, accuracy_momentum=0.5)
    for rank in range(world_size):
        part = planner.for_rank(rank=rank, world_size=world_size)
        share = 4 // world_size
        assistant, replay = new_assistant(part), Replay()
        mine = set(np.concatenate([owned(inner, shard) for shard in range(rank * share, (rank + 1) * share)]).tolist())
        for plan in serve(assistant, 4 * len(planner)):
            assert len(plan.indices) == 12 // world_size
            assert set(plan.indices.tolist()) <= mine
            replay.carry_out(plan)
        assert replay.peak <= part.peak_slots
        assert assistant.report().saved > 0


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (
            [1.0, 2.0, 3.0],
            "losses must be one number for each row of the batch, shape (4,), got shape (3,): pass each sample's own "
            "loss (reduction='none')",
        ),
        (
            2.0,
            "losses must be one number for each row of the batch, shape (4,), got shape (): pass each sample's own "
            "loss (reduction='none')",
        ),
        (
            [1.0, 2.0, np.nan, np.inf],
            "losses must be finite, got nan in row 2 of batch 0: stop training, or lower its learning rate",
        ),
    ],
)
def test_losses_that_are_not_one_finite_number_a_row_are_refused(losses, message):
    assistant = new_assistant(SHORT)
    assistant.plan()
    assistant.serve()
    with pytest.raises(ConfigurationError) as refusal:
        assistant.observe(losses)
    assert str(refusal.value) == message
    assert assistant.observed == 0


def test_losses_of_a_batch_that_was_not_served_are_refused():
    assistant = new_assistant(SHORT)
    assistant.plan()
    for _ in range(2):
        with pytest.raises(ConfigurationError) as refusal:
            assistant.observe(np.ones(4))
        batch = assistant.served
        assert str(refusal.value) == (
            f"losses must be those of a served batch, got losses for batch {batch} when {batch} were served: call "
            f"observe once after each batch"
        )
        if not batch:
            assistant.serve()
            assistant.observe(np.ones(4))


def test_a_batch_that_was_not_planned_cannot_be_served():
    assistant = new_assistant(SHORT)
    assistant.plan()
    assistant.serve()
    with pytest.raises(ConfigurationError) as refusal:
        assistant.serve()
    assert str(refusal.value) == "a batch must be planned to be served, got 1 served of 1 planned: call plan first"


def test_losses_are_copied():
    losses = np.ones(4, np.float32)
    assistant, other = new_assistant(SHORT), new_assistant(SHORT)
    for each in (assistant, other):
        each.plan()
        each.serve()
        each.observe(losses)
    losses[:] = 7
    assert assistant.state() == other.state()
    assert assistant.state()["losses"] == "AACAPwAAgD8AAIA/AACAPw=="


def test_plans_cannot_be_written_to_and_have_the_types_of_the_contract():
    for plan in (*SHORT.epoch(1), *serve(new_assistant(SHORT), 12)):
        arrays = [getattr(plan, name) for name in FIELDS]
        assert not any(array.flags.writeable for array in arrays)
        assert [array.dtype for array in arrays] == [np.int64, np.int64, np.int64, np.bool_, np.bool_, np.int64]


def test_a_fingerprint_is_json_and_names_every_argument():
    planner = AutoAssist(Standard(9, batch_size=3, seed=4), lag=np.int64(2), learning_rate=1)
    assert json.loads(json.dumps(planner.fingerprint())) == {
        "planner": "AutoAssist",
        "version": 2,
        "num_samples": 9,
        "batch_size": 3,
        "seed": 4,
        "shards": 1,
        "drop_last": False,
        "lag": 2,
        "learning_rate": 1.0,
        "weight_decay": 1e-4,
        "loss_momentum": 0.9,
        "accuracy_momentum": 0.9,
        "resolution": 8,
        "inner": Standard(9, batch_size=3, seed=4).fingerprint(),
    }
