import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dalirefurb import DiskStore, Refurbish
from dalirefurb.engine.partial_sizes import PartialSizes
from dalirefurb.errors import ConfigurationError
from dalirefurb.store.spec import StoreSpec
from dalirefurb.tuning.costs import Costs, DiskCosts
from dalirefurb.tuning.model import Configuration, largest_coverage, predict
from tests.tuning.made import MS, PARTIAL_BYTES, UNLIMITED, costs, machine, split, workload

STANDARD = Configuration(split(), 1, 1.0, "none")
REUSED = Configuration(split(), 3, 1.0, "memory")
THREE_RANKS = machine(cores=6, ranks=3)


def speed(configuration=REUSED, *, of=None, on=None, **trained):
    return predict(of or costs(), on or machine(), workload(**trained), configuration).images_per_s


def test_standard_takes_what_standard_was_measured_to_take():
    assert speed(STANDARD) == pytest.approx(1 / 0.7e-3)


def test_standard_takes_no_memory_whatever_the_sizes_of_partial_images():
    of_files = split(image_std_bytes=50_000.0, largest_bytes=400_000)
    predicted = predict(costs(), machine(), workload(), replace(STANDARD, split=of_files))
    assert (predicted.memory_bytes, predicted.disk_bytes, predicted.device_bytes) == (0, 0, 0)


def test_reuse_takes_misses_puts_and_hits_in_the_shares_of_the_plan():
    assert speed(REUSED) == pytest.approx(1 / ((0.7e-3 + 0.03e-3) / 3 + 0.1e-3 * 2 / 3), rel=1e-3)


def test_a_miss_takes_nothing_at_least_however_little_was_measured():
    noisy = Costs.from_dict(costs(split(put_ms=-2.0)).as_dict())
    assert speed(replace(REUSED, split=noisy.splits[0]), of=noisy) == pytest.approx(1 / (0.1e-3 * 2 / 3), rel=1e-3)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("coverage", [1.0, 0.4])
@pytest.mark.parametrize("reuse_factor", [2, 3, 5])
def test_misses_and_slots_are_those_of_the_plan(reuse_factor, coverage, shards):
    split_costs = split()
    made = Configuration(split_costs, reuse_factor, coverage, "memory")
    predicted = predict(costs(), machine(ranks=shards), workload(num_samples=1003, batch_size=64), made)
    planner = Refurbish(1003, batch_size=64, shards=shards, reuse_factor=reuse_factor, coverage=coverage)
    plans = [plan for epoch in range(reuse_factor, 2 * reuse_factor) for plan in planner.epoch(epoch)]
    rows, misses = sum(len(plan.indices) for plan in plans), sum(int(plan.miss.sum()) for plan in plans)
    assert predicted.misses == pytest.approx(misses / rows, abs=1e-12)
    assert predicted.memory_bytes == planner.peak_slots * PARTIAL_BYTES


@pytest.mark.parametrize(
    ("bound", "changed", "images_per_s"),
    [
        ("step", {"step_s": 0.256}, 1000),
        ("source", {"on": machine(source_bytes_per_s=11e6)}, 300),
        ("source", {"on": machine(source_bytes_per_s=11e6, cores=6, ranks=3), "batch_size": 255}, 300),  # they share it
        ("loader", {"of": costs(serial_ms=2)}, 500),
        ("loader", {"of": costs(serial_ms=2), "on": THREE_RANKS, "batch_size": 255}, 1500),
        ("cores", {"step_cpu_s": 0.256, "step_s": 0.01}, 1 / (0.31e-3 + 0.5e-3)),
        (
            "cores",
            {"step_cpu_s": 0.085, "step_s": 0.01, "on": THREE_RANKS, "batch_size": 255},
            3 / (0.31e-3 + 0.5e-3),
        ),
    ],
)
def test_the_slowest_part_is_the_bound(bound, changed, images_per_s):
    of, on = changed.pop("of", costs()), changed.pop("on", machine())
    predicted = predict(of, on, workload(num_samples=99_999, **changed), REUSED)
    assert predicted.bound == bound
    assert predicted.images_per_s == pytest.approx(images_per_s, rel=1e-3)


def test_a_disk_that_is_not_in_the_page_cache_is_read():
    disk = replace(REUSED, tier="disk")
    cold = machine(disk_bytes=UNLIMITED, page_cache_bytes=0, disk_read_bytes_per_s=1e8)
    predicted = predict(costs(), cold, workload(), disk)
    assert predicted.bound == "disk"
    assert predicted.images_per_s == pytest.approx(1 / (PARTIAL_BYTES * (2 / 3 / 1e8 + 1 / 3 / 5e8)), rel=1e-3)
    assert predict(costs(), replace(cold, page_cache_bytes=UNLIMITED), workload(), disk).bound == "cores"
    assert predicted.disk_bytes > 0 == predicted.memory_bytes
    ranks = predict(costs(), replace(cold, cores=6, ranks=3), workload(num_samples=99_999, batch_size=255), disk)
    assert ranks.images_per_s == pytest.approx(predicted.images_per_s, rel=1e-3)  # They share it.


def test_a_fifth_of_the_page_cache_takes_writes_at_once():
    """The kernel's own default, `vm.dirty_ratio`: what is evicted while it waits there is never written."""
    disk = replace(REUSED, tier="disk", reuse_factor=2)
    slow = machine(disk_bytes=UNLIMITED, page_cache_bytes=0, disk_read_bytes_per_s=1e15, disk_write_bytes_per_s=1e7)
    whole = predict(costs(), slow, workload(), disk)
    unwritten = 1 / (PARTIAL_BYTES / 2 / 1e7)
    assert whole.images_per_s == pytest.approx(unwritten, rel=1e-3)
    for share, written in ((0.5, 0.9), (1, 0.8), (2.5, 0.5)):
        some = predict(costs(), replace(slow, page_cache_bytes=int(share * whole.disk_bytes)), workload(), disk)
        assert some.bound == "disk"
        assert some.images_per_s == pytest.approx(unwritten / written, rel=1e-3), share
    large = replace(slow, page_cache_bytes=5 * whole.disk_bytes)
    assert predict(costs(), large, workload(), disk).bound == "cores"


def test_a_tiered_cache_fills_memory_first():
    some = machine(memory_bytes=4_000_000_000, disk_bytes=UNLIMITED)
    predicted = predict(costs(), some, workload(), replace(REUSED, tier="tiered"))
    whole = predict(costs(), machine(), workload(), REUSED)
    assert predicted.memory_bytes == pytest.approx(4_000_000_000, rel=1e-6)
    # What is on the disk has whole pages, 151,552 bytes, and a record of 64.
    on_disk = whole.memory_bytes - 4_000_000_000
    assert predicted.disk_bytes == pytest.approx(on_disk / PARTIAL_BYTES * (151_552 + 64), rel=2e-5)
    assert predicted.memory_bytes <= some.memory_bytes


def test_what_of_a_cache_is_on_the_disk_has_the_speeds_that_were_measured_there():
    made = replace(costs(), disk=DiskCosts(0.0, 0.0, read_bytes_per_s=1e8, write_bytes_per_s=5e7, mixed_s=0.4 * MS))
    whole, tiered = predict(made, machine(), workload(), REUSED).memory_bytes, replace(REUSED, tier="tiered")
    half = machine(memory_bytes=whole // 2, disk_bytes=UNLIMITED)
    assert speed(tiered, of=made, on=half) == pytest.approx(1 / (0.31 * MS + 0.2 * MS), rel=1e-3)
    cold = replace(half, page_cache_bytes=0)
    moved_s = PARTIAL_BYTES / 2 * (2 / 3 / 1e8 + 1 / 3 / 5e7)
    assert speed(tiered, of=made, on=cold) == pytest.approx(1 / moved_s, rel=1e-3)
    # Of samples that are not covered no miss is written.
    some = replace(REUSED, tier="disk", reuse_factor=2, coverage=0.5)
    assert speed(some, of=made, on=cold) == pytest.approx(1 / (PARTIAL_BYTES / 4 * (1 / 1e8 + 1 / 5e7)), rel=1e-3)


def test_the_page_cache_has_to_hold_what_of_a_tiered_cache_is_on_the_disk():
    slow = {"disk_bytes": UNLIMITED, "disk_read_bytes_per_s": 1e6, "disk_write_bytes_per_s": 1e15}
    cold = machine(memory_bytes=4_000_000_000, page_cache_bytes=0, **slow)
    tiered = replace(REUSED, tier="tiered")
    predicted = predict(costs(), cold, workload(), tiered)
    assert predicted.bound == "disk"
    warm = replace(cold, page_cache_bytes=predicted.disk_bytes)
    assert predict(costs(), warm, workload(), tiered).bound == "cores"


def test_the_stall_is_what_is_left_of_the_time():
    predicted = predict(costs(), machine(), workload(step_s=0.5 * 256 * 0.7e-3), STANDARD)
    assert predicted.stall == pytest.approx(0.5)
    assert predict(costs(), machine(), workload(step_s=256 * MS), STANDARD).stall == 0
    ranks = predict(costs(), THREE_RANKS, workload(step_s=0.5 * 85 * 0.7e-3, batch_size=255), STANDARD)
    assert ranks.stall == pytest.approx(0.5)


def test_the_first_epoch_computes_all_and_the_run_is_all_epochs():
    predicted = predict(costs(), machine(), workload(num_samples=99_999, epochs=10), REUSED)
    assert predicted.epoch_0_s == pytest.approx(99_999 * 0.73e-3)
    assert predicted.run_s == pytest.approx(predicted.epoch_0_s + 9 * 99_999 / predicted.images_per_s)
    assert predicted.run_images_per_s == pytest.approx(999_990 / predicted.run_s)
    ranks = predict(costs(), THREE_RANKS, workload(num_samples=99_999, batch_size=255, epochs=10), REUSED)
    assert ranks.epoch_0_s == pytest.approx(predicted.epoch_0_s / 3)
    assert ranks.run_s == pytest.approx(predicted.run_s / 3, rel=1e-3)
    assert ranks.run_images_per_s == pytest.approx(999_990 / ranks.run_s)


def test_what_is_not_covered_keeps_everything():
    half = predict(costs(), machine(), workload(), replace(REUSED, coverage=0.5))
    assert half.kept == pytest.approx(0.5 * 0.95 + 0.5)


def test_ranks_share_the_machine():
    one = predict(costs(), machine(), workload(num_samples=204_800), REUSED)
    eight = predict(costs(), machine(cores=16, ranks=8), workload(num_samples=204_800, batch_size=2048), REUSED)
    assert eight.images_per_s == pytest.approx(8 * one.images_per_s, rel=1e-2)


def test_a_faster_core_takes_less_for_images_and_in_the_loaders_own_threads_but_not_in_a_gpus():
    fast, on_device = machine(core_speed=2.0), replace(REUSED, split=split(devices=("gpu", "gpu")), tier="device")
    assert speed(REUSED, on=fast) == pytest.approx(2 * speed(REUSED))
    assert speed(REUSED, of=costs(serial_ms=2), on=fast) == pytest.approx(1000)
    assert speed(on_device, on=replace(fast, cores=4)) == pytest.approx(speed(on_device))


def test_a_billion_samples_are_computed_at_once():
    predicted = predict(costs(), machine(cores=96, ranks=8), workload(num_samples=10**9, batch_size=2048), REUSED)
    assert predicted.misses == pytest.approx(1 / 3, rel=1e-3)


def test_the_largest_coverage_is_the_largest():
    small = machine(memory_bytes=1_000_000_000)
    coverage = largest_coverage(small, workload(), REUSED)
    fitting, larger = (
        predict(costs(), small, workload(), replace(REUSED, coverage=share)) for share in (coverage, coverage + 0.001)
    )
    assert fitting.memory_bytes <= small.memory_bytes < larger.memory_bytes
    assert largest_coverage(machine(memory_bytes=10), workload(), REUSED) == 0
    assert largest_coverage(machine(), workload(), REUSED) == 1
    # A sample takes 0.7 % more on a disk, for which 0.099 of them leave no room where all are there.
    for tier, room, most in (
        ("disk", (0, 10**9, 0), coverage - 0.001),
        ("tiered", (3 * 10**8, 7 * 10**8, 0), coverage),
        ("device", (0, 0, 10**9), coverage),
    ):
        on = machine(**dict(zip(("memory_bytes", "disk_bytes", "device_bytes"), room, strict=True)))
        assert largest_coverage(on, workload(), replace(REUSED, tier=tier)) == pytest.approx(most, abs=1e-9), tier
    varied = replace(REUSED, split=split(image_std_bytes=50_000.0, largest_bytes=10**8))
    of_files = largest_coverage(small, workload(), varied)
    slots = Refurbish(100_000, batch_size=256, reuse_factor=3, coverage=of_files).peak_slots
    # As a store takes it that is made for a mean of 256 samples.
    sizes = PartialSizes(None, PARTIAL_BYTES, 50_000.0, 10**8, 50_000 / 256**0.5)
    assert 0.99 * 10**9 < sizes.arena_bytes(slots) <= 10**9
    few = predict(costs(), small, workload(num_samples=256), replace(varied, reuse_factor=2))
    slots = Refurbish(256, batch_size=256, reuse_factor=2).peak_slots
    assert few.memory_bytes == replace(sizes, mean_error_bytes=0.0).arena_bytes(slots)


@pytest.mark.parametrize("std", [0.0, 700.0])
def test_a_cache_on_the_disk_takes_what_the_ranks_files_take(tmp_path, std):
    """Blocks begin at whole pages, or multiples of 64 bytes, behind a header, and each has a record."""
    sizes = PartialSizes(None if std else (1, 1, 5000), 5000.0, std, 9000.0, std / 256**0.5)
    made = replace(REUSED, split=split(image_bytes=5000, image_std_bytes=std, largest_bytes=9000), tier="disk")
    on, trained = machine(memory_bytes=0, disk_bytes=UNLIMITED, ranks=3), workload(num_samples=300, batch_size=30)
    planner = Refurbish(300, batch_size=30, shards=3, reuse_factor=3)
    for rank, slots in enumerate(planner.shard_slots):
        with DiskStore(tmp_path / str(rank)) as store:
            store.open(StoreSpec(sizes.slot_shape, slots, {}, sizes.arena_bytes(slots)))
    taken = sum(path.stat().st_size for path in tmp_path.iterdir())
    predicted = predict(costs(), on, trained, made)
    assert (predicted.memory_bytes, predicted.disk_bytes) == (0, taken)
    assert taken > predict(costs(), on, trained, replace(made, tier="memory")).memory_bytes
    some = largest_coverage(replace(on, disk_bytes=taken - 1), trained, made)
    assert 0.9 < some < 1
    assert predict(costs(), on, trained, replace(made, coverage=some)).disk_bytes < taken
    assert largest_coverage(replace(on, disk_bytes=taken), trained, made) == 1


def test_a_keep_is_of_all_decoded_samples_for_the_whole_run_without_anything_random():
    decoded = {"place": 1, "deterministic": True, "kept": 1.0}
    for for_ever, keep, made, reuse_factor, coverage in (
        (True, True, split(**decoded), 5, 1.0),
        (True, False, split(**decoded | {"place": 0}), 5, 1.0),  # files, which are decoded anew
        (True, False, split(**decoded), 5, 0.999),
        (False, False, split(**decoded), 4, 1.0),
        (False, False, split(**decoded | {"deterministic": False}), 5, 1.0),
    ):
        configuration = Configuration(made, reuse_factor, coverage, "memory")
        assert configuration.is_for_ever(workload(epochs=5)) == for_ever
        assert configuration.is_keep(workload(epochs=5)) == keep
    assert not Configuration(split(**decoded), 1, 1.0, "none").is_for_ever(workload(epochs=1))


def test_a_configuration_is_named_in_a_few_words():
    on_gpu = split("crop_last", 1, devices=("cpu", "gpu"))
    found = {
        Configuration(made, *of).name
        for made, of in (
            (split("recipe"), (1, 1.0, "none")),
            (split("paper"), (1, 1.0, "none")),
            (on_gpu, (1, 1.0, "none")),
            (split("recipe"), (3, 1.0, "memory")),
            (split("mine", 0), (2, 0.25, "disk")),
            (on_gpu, (5, 0.999, "tiered")),
        )
    }
    assert found == {
        "standard loading",
        "standard loading (crop first)",
        "standard loading (crop last on cpu/gpu)",
        "recipe, cached after operation 1 of rand_augment, reuse factor 3, memory",
        "mine, cached before the stage_0, reuse factor 2, disk, 25.0% of the samples",
        "crop last on cpu/gpu, cached after the decode, reuse factor 5, tiered, 99.9% of the samples",
    }


CONFIGURATIONS = st.builds(
    Configuration,
    st.builds(
        split,
        hit_ms=st.floats(0.01, 2),
        standard_ms=st.floats(0.1, 5),
        put_ms=st.floats(0, 0.5),
        kept=st.floats(0.3, 1),
    ),
    st.sampled_from([1, 2, 3, 4, 5]),
    st.sampled_from([0.05, 0.5, 1.0]),
    st.sampled_from(["memory", "disk", "tiered"]),
)


@given(CONFIGURATIONS, st.floats(1, 10), st.integers(0, 10**11), st.integers(1, 10**10))
def test_more_of_anything_is_never_slower(configuration, more, memory, page_cache):
    least = machine(cores=4, memory_bytes=memory, disk_bytes=UNLIMITED, page_cache_bytes=page_cache)
    trained = {"step_s": 0.05}
    before = speed(configuration, on=least, **trained)
    for changed in (
        {"cores": int(4 * more)},
        {"core_speed": more},
        {"page_cache_bytes": int(page_cache * more)},
        {"memory_bytes": int(memory * more)},
        {"disk_read_bytes_per_s": 1e9 * more},
        {"disk_write_bytes_per_s": 5e8 * more},
    ):
        assert speed(configuration, on=replace(least, **changed), **trained) >= before * (1 - 1e-9), changed
    assert speed(configuration, on=least, step_s=0.05 * more) <= before * (1 + 1e-9)


@given(CONFIGURATIONS, st.integers(1, 4))
def test_more_reuse_is_never_slower_and_never_keeps_more(configuration, factor):
    # Where a hit costs no more than a miss.
    if configuration.split.hit_s.median > configuration.split.standard_s.median:
        return
    in_memory = replace(configuration, tier="memory")
    less, more = (replace(in_memory, reuse_factor=each) for each in (max(2, factor), factor + 1))
    assert speed(more) >= speed(less) * (1 - 1e-9)
    kept = [predict(costs(), machine(), workload(), each).kept for each in (less, more)]
    assert kept[1] <= kept[0] + 1e-12


@pytest.mark.parametrize(
    ("made", "changed", "said"),
    [
        (machine, {"cores": 0}, "cores must be an int of at least 1, got 0"),
        (machine, {"ranks": -1}, "ranks must be an int of at least 1, got -1"),
        (machine, {"memory_bytes": -1}, "memory_bytes must be an int of at least 0, got -1"),
        (machine, {"disk_bytes": 1.5}, "disk_bytes must be an int of at least 0, got 1.5"),
        (machine, {"device_bytes": -1}, "device_bytes must be an int of at least 0, got -1"),
        (machine, {"page_cache_bytes": "1GB"}, "page_cache_bytes must be an int of at least 0, got '1GB'"),
        (machine, {"core_speed": math.inf}, "core_speed must be a number above 0, got inf"),
        (machine, {"source_bytes_per_s": 0}, "source_bytes_per_s must be a number above 0, got 0"),
        (machine, {"disk_read_bytes_per_s": 0}, "disk_read_bytes_per_s must be a number above 0, got 0"),
        (machine, {"disk_write_bytes_per_s": -1}, "disk_write_bytes_per_s must be a number above 0, got -1"),
        (workload, {"batch_size": 0}, "batch_size must be an int of at least 1, got 0"),
        (workload, {"num_samples": 0}, "num_samples must be an int of at least 1, got 0"),
        (workload, {"epochs": 1.5}, "epochs must be an int of at least 1, got 1.5"),
        (workload, {"step_s": -1.0}, "step_s must be a number of at least 0, got -1.0"),
        (workload, {"step_cpu_s": math.nan}, "step_cpu_s must be a number of at least 0, got nan"),
    ],
)
def test_a_machine_or_a_run_that_cannot_be_is_refused(made, changed, said):
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        made(**changed)


def test_costs_are_the_same_once_they_were_json():
    made = costs(step_ms=100)
    assert Costs.from_dict(made.as_dict()) == made
    assert np.isfinite(made.splits[0].standard_s.relative)
