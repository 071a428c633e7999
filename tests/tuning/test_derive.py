"""Costs that are derived from turns: those that went in come out."""

import pytest

from dalirefurb import rand_augment
from dalirefurb.engine.partial_sizes import PartialSizes
from dalirefurb.system.resources import usable_cores
from dalirefurb.tuning.costs import Costs, Key, Measured, Spread, costs_of
from dalirefurb.tuning.model import Configuration, predict
from tests.tuning.made import machine, workload

US = 1e-6
STANDARD, HIT, PUT, MIXED = 700 * US, 100 * US, 40 * US, 25 * US
DISK_GET, DISK_PUT, DISK_MIXED = 10 * US, 60 * US, 15 * US
NBYTES = 1000
RECIPE = rand_augment(32)
HITS = Key("paper", split=RECIPE.split, reuse_factor=None)


def reused(factor, *, on_disk=False):
    return HITS._replace(reuse_factor=factor, on_disk=on_disk)


def mixed(factor, *, on_disk=False):
    put, hit, more = PUT, HIT, MIXED
    if on_disk:
        put, hit, more = PUT + DISK_PUT, HIT + DISK_GET, MIXED + DISK_MIXED
    return (STANDARD + put) / factor + hit * (1 - 1 / factor) + more


def derived(left_out=(), hand_over_s=None, changed=None, sizes=None, recipe=RECIPE):
    image_s = {
        HITS.standard: STANDARD,
        HITS: HIT,
        reused(2): mixed(2),
        reused(4): mixed(4),
        reused(None, on_disk=True): HIT + DISK_GET,
        reused(2, on_disk=True): mixed(2, on_disk=True),
        reused(4, on_disk=True): mixed(4, on_disk=True),
        **(changed or {}),
    }
    measured = Measured(
        recipes={"paper": recipe},
        usual=HITS,
        image_s={key: Spread.of([value]) for key, value in image_s.items() if key not in left_out},
        hand_over_s=hand_over_s or {},
        sizes=sizes or {HITS: PartialSizes(None, NBYTES, 0.0, 2 * NBYTES)},
        disk_speeds=(1e9, 2e9),
    )
    others = {"cores": usable_cores(), "batch_size": 256, "read_s": 1 * US, "encoded_bytes": 100_000, "serial_s": 0.0}
    return costs_of(measured, **others)


def test_what_went_in_comes_out():
    costs = derived()
    (split,) = costs.splits
    assert split.standard_s.median == STANDARD
    assert split.hit_s == Spread(HIT, HIT, HIT, 1)
    assert split.put_s == pytest.approx(PUT)
    assert costs.mixed_s == pytest.approx(MIXED)
    assert costs.disk.get_s * NBYTES == pytest.approx(DISK_GET)
    assert costs.disk.put_s * NBYTES == pytest.approx(DISK_PUT)
    assert costs.disk.mixed_s == pytest.approx(DISK_MIXED)
    assert (costs.disk.write_bytes_per_s, costs.disk.read_bytes_per_s) == (1e9, 2e9)


@pytest.mark.parametrize("tier", ["memory", "disk"])
@pytest.mark.parametrize("factor", [2, 4])
def test_the_model_returns_what_was_measured(factor, tier):
    costs = derived()
    configuration = Configuration(costs.splits[0], factor, 1.0, tier)
    on = machine(cores=costs.cores, disk_bytes=1 << 40)
    predicted = predict(costs, on, workload(num_samples=256 * 400), configuration)
    assert 1 / predicted.images_per_s == pytest.approx(mixed(factor, on_disk=tier == "disk"), rel=1e-3)


def test_the_first_epoch_has_one_kind_of_rows():
    costs = derived()
    predicted = predict(costs, machine(cores=costs.cores), workload(), Configuration(costs.splits[0], 2, 1.0, "memory"))
    assert predicted.epoch_0_s == pytest.approx((STANDARD + PUT) * workload().num_samples)


def test_without_the_second_reuse_factor_all_is_the_puts():
    costs = derived(left_out=[reused(4)])
    assert costs.mixed_s == 0
    assert costs.splits[0].put_s == pytest.approx(PUT + 2 * MIXED)
    assert costs.disk is None


def test_epochs_that_took_less_together_cost_nothing_beside_the_puts():
    faster = mixed(4) - 2 * MIXED
    costs = derived(changed={reused(4): faster})
    assert costs.mixed_s == 0
    more = {2: mixed(2) - STANDARD / 2 - HIT / 2, 4: faster - STANDARD / 4 - HIT * 3 / 4}
    assert costs.splits[0].put_s == pytest.approx((more[2] / 2 + more[4] / 4) / (1 / 4 + 1 / 16))


def test_what_is_between_steps_is_the_median_of_rounds_and_that_of_standard_where_reuse_was_not_measured():
    costs = derived(hand_over_s={HITS.standard: [3e-4, 1e-4, 2e-4], reused(2): [5e-4]})
    assert (costs.hand_over_s, costs.reused_hand_over_s) == (2e-4, 5e-4)
    costs = derived(hand_over_s={HITS.standard: [3e-4]})
    assert (costs.hand_over_s, costs.reused_hand_over_s) == (3e-4, 3e-4)
    configuration = Configuration(costs.splits[0], 2, 1.0, "memory")
    at_step = predict(costs, machine(), workload(step_s=1.0), configuration)
    assert at_step.images_per_s == pytest.approx(256 / (1.0 + 3e-4))
    assert Costs.from_dict(costs.as_dict()) == costs


def test_each_split_has_its_own_costs_and_the_puts_of_images_of_about_as_many_bytes():
    """Puts were measured at two splits; what is kept as it was read costs the cores what standard does."""
    files, decoded, cropped = (HITS._replace(split=split) for split in (0, 1, 2))
    on_gpu = cropped._replace(devices=("cpu", "gpu"))
    sizes = {HITS: (1000, 0, 1000), files: (400, 50, 600), decoded: (5000, 300, 9000), cropped: (4000, 0, 4000)}
    more = {
        decoded: 200 * US,
        decoded._replace(reuse_factor=2): (STANDARD + 90 * US) / 2 + 200 * US / 2 + MIXED,
        cropped: 150 * US,
        on_gpu: 50 * US,
        on_gpu.standard: 500 * US,
    }
    made = {key: PartialSizes(None, *each) for key, each in (sizes | {on_gpu: (2000, 0, 2000)}).items()}
    usual, *others = derived(changed=more, sizes=made).splits
    assert (usual.put_s, usual.hit_s.median) == (pytest.approx(PUT), HIT)
    found = [(each.standard_s.median, each.hit_s.median, each.put_s) for each in others]
    assert found == [
        (STANDARD, STANDARD, pytest.approx(PUT * 400 / 1000)),
        (STANDARD, 200 * US, pytest.approx(90 * US)),
        (STANDARD, 150 * US, pytest.approx(90 * US * 4000 / 5000)),
        (500 * US, 50 * US, pytest.approx(PUT * 2000 / 1000)),
    ]
    assert [(each.cached, each.final) for each in others[:3]] == [
        ("", "decode"),
        ("decode", "random_resized_crop"),
        ("random_resized_crop", "flip"),
    ]
    assert [each.deterministic for each in others] == [True, True, False, False]
    assert [each.devices for each in others] == [("cpu", "cpu")] * 3 + [("cpu", "gpu")]
    told = [(each.image_bytes, each.image_std_bytes, each.largest_bytes) for each in others[:3]]
    assert told == [*sizes.values()][1:]
    assert [sorted(each.kept) for each in others[:2]] == [[1, 2, 3, 4, 5]] * 2
    arrays = derived(sizes={files: made[files], HITS: made[HITS]}, recipe=rand_augment(32, raw=True)).splits
    assert [sorted(each.kept) for each in arrays] == [[1], [1, 2, 3, 4, 5]]


def test_what_a_disk_takes_less_than_memory_is_noise():
    """Its fetches and puts took less, by luck: none is a gain of the disk's."""
    costs = derived(
        changed={
            reused(None, on_disk=True): HIT - DISK_GET,
            reused(2, on_disk=True): mixed(2) - 2 * DISK_GET,
            reused(4, on_disk=True): mixed(4) - DISK_GET,
        }
    )
    assert (costs.disk.get_s, costs.disk.put_s) == (0, 0)
