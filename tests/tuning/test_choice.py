"""Cases made for each verdict and each rule of choosing."""

import json
import re
from dataclasses import replace

import pytest

from dalirefurb import Refurbish
from dalirefurb.engine.verdict import Verdict
from dalirefurb.tuning import report
from dalirefurb.tuning.choice import choose
from dalirefurb.tuning.costs import Costs
from dalirefurb.tuning.tune import advise, workload_of
from tests.tuning.made import MS, PARTIAL_BYTES, costs, machine, split, workload

STANDARD_BATCH_MS = 256 * 0.7


def chosen(made, on=None, *, min_kept=0.95, num_samples=100_000, epochs=90):
    return choose(made, on or machine(), workload_of(made, num_samples, epochs=epochs), min_kept=min_kept)


@pytest.mark.parametrize(
    ("case", "made", "verdict", "reuse_factors"),
    [
        ("loader-bound", costs(step_ms=STANDARD_BATCH_MS / 4), Verdict.DETECTED, {3}),
        ("balanced", costs(step_ms=STANDARD_BATCH_MS), Verdict.NOT_DETECTED, {1}),
        ("between", costs(split(), step_ms=STANDARD_BATCH_MS / 1.3), Verdict.POTENTIAL, {2}),
        ("step-bound", costs(step_ms=3 * STANDARD_BATCH_MS), Verdict.NOT_DETECTED, {1}),
        ("slow source", costs(split(), step_ms=10, read_ms=5), Verdict.DETECTED, {3}),
        ("a noisy loader", costs(split(noise=0.11), step_ms=10), Verdict.INCONCLUSIVE, {3}),
        ("a noisy step", costs(split(), step_ms=10, step_noise=0.11), Verdict.INCONCLUSIVE, {3}),
        ("too few rounds", costs(split(), step_ms=10, n=2), Verdict.INCONCLUSIVE, {3}),
        ("no step", costs(split()), None, {3}),
    ],
)
def test_verdict_and_choice(case, made, verdict, reuse_factors):
    choice = chosen(made)
    assert choice.verdict == verdict, case
    assert choice.recommended.configuration.reuse_factor in reuse_factors
    text = report.text(choice)
    assert text.startswith("NO STEP GIVEN" if verdict is None else str(verdict))
    assert choice.leave_off == ("leave reuse off" in text) == (reuse_factors == {1})


def lines_of(*arguments, **options):
    return report.text(chosen(*arguments, **options)).splitlines()


def test_what_was_assumed_is_said_near_the_top():
    on = machine(memory_bytes=16_000_000_000, disk_bytes=100_000_000_000)
    assert lines_of(costs(split(), step_ms=50), on)[2] == (
        "assumed: batches of 256, a step of 50 ms; 90 epochs of 100,000 images; at most 16.00 GB of memory and 100.00 "
        "GB of disk for a cache"
    )
    assert "no step given (--step-ms, or step= in Python)" in lines_of(costs(split()), machine(ranks=4))[2]
    assert "batches of 256 on 4 ranks" in lines_of(costs(split()), machine(ranks=4))[2]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (costs(split(noise=0.14), step_ms=10), "rounds of standard loading differed by 14 %; measure again"),
        (costs(split(), step_ms=10, step_noise=0.2), "rounds of the step differed by 20 %; measure again"),
        (
            costs(split(noise=0.14), step_ms=10, step_noise=0.2),
            "rounds of standard loading differed by 14 % and rounds of the step differed by 20 %; ",
        ),
        (costs(split(noise=0.9), step_ms=10, n=1), "only 1 round of the step could be measured, and it takes 3; "),
    ],
)
def test_what_is_inconclusive_says_why_and_is_taken_for_now(made, why):
    verdict, taken = lines_of(made)[:2]
    assert verdict.startswith(f"INCONCLUSIVE: {why}")
    assert taken.startswith("take, for now, paper")


def test_leaving_reuse_off_is_for_now_where_nothing_is_concluded():
    slow = costs(split(hit_ms=0.699, put_ms=0, noise=0.14), step_ms=10)
    assert lines_of(slow)[1].startswith("leave reuse off, for now: ")


def test_what_is_kept_for_the_whole_run_is_said_in_words_and_not_by_a_reuse_factor():
    decoded = split(place=1, hit_ms=0.1, kept=1.0, deterministic=True)
    choice = chosen(costs(decoded, step_ms=1))
    assert choice.recommended.configuration.reuse_factor == 90
    said = report.text(choice)
    assert "reuse factor 90" not in said
    assert said.count("paper, final from stage_1, decoded images kept for the whole run, memory") == 2
    taken = said.splitlines()[1]
    assert "; every epoch is as fresh as standard's" in taken
    assert "different images" not in taken
    assert "reuse_factor=90)  # all epochs" in report.code(choice, source="source", recipes={}, path="x")
    as_read = chosen(costs(replace(decoded, split=0), step_ms=1))
    assert "final from stage_1, images as they were read kept for the whole run" in report.text(as_read)


def test_another_order_is_said_to_be_one_and_compared_with_standard_of_both():
    other = split("crop_last", hit_ms=0.05, standard_ms=0.35)
    taken = lines_of(costs(split(), other, step_ms=1))[1]
    assert "this changes the order of operations, from paper to crop_last" in taken
    both = r"(\d\.\d+) times standard of paper, (\d\.\d+) times standard of crop_last;"
    of_first, of_own = map(float, re.search(both, taken).groups())
    assert of_first == pytest.approx(2 * of_own, rel=0.02)
    taken = lines_of(costs(split(), replace(other, recipe="mine"), step_ms=1))[1]
    assert "this changes the recipe, from paper to mine" in taken
    taken = lines_of(costs(split(), step_ms=1))[1]
    assert "this changes" not in taken
    assert taken.count(" times standard of ") == 1


def test_standard_of_another_order_may_be_what_to_take():
    other = split("crop_last", hit_ms=0.34, standard_ms=0.35)
    taken = lines_of(costs(split(), other, step_ms=1), min_kept=1.0)[1]
    assert taken.startswith("leave reuse off, and take standard, crop_last: ")
    assert "this changes the order" in taken
    assert "fresh" not in taken


def test_with_too_little_memory_a_share_is_covered_and_the_code_says_so():
    choice = chosen(costs(split(), step_ms=10), machine(memory_bytes=2_000_000_000))
    taken = choice.recommended
    assert 0 < taken.configuration.coverage < 1
    assert taken.memory_bytes <= 2_000_000_000
    assert f"coverage={taken.configuration.coverage}" in report.code(choice, source="source", recipes={}, path="x")


def test_with_no_memory_and_no_disk_reuse_is_left_off():
    assert chosen(costs(step_ms=10), machine(memory_bytes=0)).leave_off


def test_a_tiered_store_is_told_by_what_it_has_in_each_place():
    on = machine(memory_bytes=2_000_000_000, disk_bytes=1 << 50, page_cache_bytes=0, disk_read_bytes_per_s=1e9)
    choice = chosen(costs(split(), step_ms=10), on)
    taken = choice.recommended
    slots = Refurbish(100_000, batch_size=256, reuse_factor=taken.configuration.reuse_factor).peak_slots
    on_disk = slots * PARTIAL_BYTES - 2_000_000_000
    assert (taken.configuration.tier, taken.memory_bytes, taken.disk_bytes) == ("tiered", 2_000_000_000, on_disk)
    (line,) = (line for line in report.table(choice).splitlines() if line.startswith("* "))
    assert ", tiered  " in line
    assert f"  2.00 GB  {on_disk / 1e9:.2f} GB  " in line
    code = report.code(choice, source="source", recipes={}, path="x")
    assert "TieredStore(memory=2000000000, path='x')" in code
    assert report.names_of(choice) == ["Loader", "Refurbish", "TieredStore"]
    assert report.as_dict(choice)["recommended"]["tier"] == "tiered"


def test_a_disk_takes_what_memory_cannot():
    on = machine(memory_bytes=2_000_000_000, disk_bytes=1 << 50)
    choice = chosen(costs(split(), step_ms=10), on)
    assert choice.recommended.configuration.tier in ("disk", "tiered")
    assert choice.recommended.configuration.coverage == 1


def test_nothing_below_the_floor_is_taken():
    fast = split(place=5, hit_ms=0.01, kept=0.4)
    assert chosen(costs(split(), fast, step_ms=10)).recommended.configuration.split.split == 4
    assert chosen(costs(split(), fast, step_ms=10), min_kept=0.1).recommended.configuration.split.split == 5


def test_of_the_fastest_the_smallest_reuse_factor_is_taken_and_standard_wins_ties():
    made = costs(split(kept=1.0), step_ms=256 * 0.41)
    assert chosen(made).recommended.configuration.reuse_factor == 2
    assert chosen(costs(split(hit_ms=0.699, put_ms=0, kept=1.0), step_ms=10)).leave_off


def test_of_equals_what_keeps_more_is_taken_then_what_takes_less():
    less, more = split(place=3, kept=0.955), split(place=4, kept=0.995)
    assert chosen(costs(less, more, step_ms=60)).recommended.configuration.split.split == 4
    small = replace(split(place=5, kept=0.995), image_bytes=1000)
    assert chosen(costs(more, small, step_ms=60)).recommended.configuration.split.split == 5


def test_what_loses_nothing_is_taken_where_it_is_as_fast():
    taken = chosen(costs(step_ms=STANDARD_BATCH_MS / 1.3)).recommended
    assert taken.configuration.split.deterministic
    assert taken.kept == 1


def test_the_deterministic_prefix_for_ever_is_a_row_of_the_table():
    choice = chosen(costs(step_ms=10))
    assert choice.prefix is not None
    configuration = choice.prefix.configuration
    assert (configuration.split.split, configuration.reuse_factor, choice.prefix.kept) == (1, 90, 1.0)
    assert choice.prefix in report.shown(choice)
    assert chosen(costs(step_ms=10), machine(memory_bytes=0)).prefix is None


def test_a_short_run_pays_its_first_epoch():
    # In one epoch nothing is reused.
    assert chosen(costs(split(put_ms=0.1), step_ms=10), epochs=1).leave_off


def test_all_of_it_is_json_and_the_costs_are_read_again():
    advice = advise(costs(step_ms=10), machine(), workload(step_s=10 * MS))
    written = json.loads(json.dumps(advice.as_dict()))
    assert Costs.from_dict(written["costs"]) == advice.choice.costs
    assert written["verdict"] == "DETECTED"
    assert written["recommended"] in written["rows"]
    assert written["headspace"] == pytest.approx(STANDARD_BATCH_MS / 10, rel=1e-6)


def test_the_picture_has_a_line_for_each_split_and_the_step(tmp_path):
    figure = advise(costs(step_ms=100), machine(), workload(step_s=0.1)).figure()
    figure.savefig(tmp_path / "plan.png")
    (axes,) = figure.axes
    said = {text.get_text().strip() for text in axes.texts}
    assert {"stage_1", "stage_4", "what the step can use", "take"} <= said
    assert [len(line.get_xdata()) for line in axes.lines[:4]] == [5, 5, 5, 3]


def test_a_gpu_that_does_both_parts_keeps_its_cache_in_its_own_memory():
    on_device = split("paper", 3, hit_ms=0.01, standard_ms=0.1, devices=("gpu", "gpu"))
    choice = chosen(costs(split(), on_device, step_ms=1), machine(device_bytes=4_000_000_000))
    taken = choice.recommended
    assert taken.configuration.tier == "device"
    assert (taken.memory_bytes, taken.disk_bytes) == (0, 0)
    assert 0 < taken.device_bytes <= 4_000_000_000
    assert 0 < taken.configuration.coverage < 1
    code = report.code(choice, source="source", recipes={}, path="x")
    assert "DeviceStore()" in code
    assert 'partial_device="gpu", final_device="gpu"' in code
    assert "paper on gpu/gpu" in report.text(choice)
    nothing = chosen(costs(split(), on_device, step_ms=1), machine(device_bytes=0))
    assert nothing.recommended.device_bytes == 0


def test_what_is_finished_on_the_cpu_is_copied_and_what_is_finished_on_a_gpu_is_not():
    made = replace(costs(split(), split(devices=("cpu", "gpu"))), copy_s=0.002)
    rows = {row.configuration.split.devices: row for row in chosen(made).rows if row.configuration.reuse_factor == 3}
    assert (rows["cpu", "cpu"].bound, rows["cpu", "cpu"].images_per_s) == ("copies", 500)
    assert rows["cpu", "gpu"].bound == "cores"
