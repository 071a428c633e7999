"""Cases made for each verdict and each rule of choosing."""

import ast
import json
import math
import re
from argparse import Namespace
from dataclasses import asdict, fields, replace
from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from dalirefurb import Refurbish
from dalirefurb.cli.tune import _code
from dalirefurb.engine.stats import Verdict
from dalirefurb.errors import ConfigurationError, DalirefurbError
from dalirefurb.show import GREY
from dalirefurb.tuning.choice import Verified, rival, settled
from dalirefurb.tuning.costs import ORDERS, Costs, StepCosts
from dalirefurb.tuning.model import Prediction
from dalirefurb.tuning.report import forms, shown, table
from dalirefurb.tuning.tune import advise, workload_of
from tests.in_turn import in_turn
from tests.tuning.made import MS, PARTIAL_BYTES, UNLIMITED, costs, machine, split, steady, workload

STANDARD_BATCH_MS = 256 * 0.7


def chosen(made, on=None, *, min_kept=0.95, num_samples=100_000, epochs=90):
    return advise(made, on or machine(), workload_of(made, num_samples, epochs=epochs), min_kept=min_kept)


@pytest.mark.parametrize(
    ("case", "made", "verdict", "reuse_factors"),
    [
        ("loader-bound", costs(split(), step_ms=STANDARD_BATCH_MS / 4), Verdict.DETECTED, {3}),
        ("loader-bound, and decoded images have room", costs(step_ms=STANDARD_BATCH_MS / 4), Verdict.DETECTED, {90}),
        ("balanced", costs(split(), step_ms=STANDARD_BATCH_MS), Verdict.NOT_DETECTED, {2}),
        ("a step that is 9 % longer", costs(split(), step_ms=1.09 * STANDARD_BATCH_MS), Verdict.NOT_DETECTED, {2}),
        ("a step that is 11 % longer", costs(split(), step_ms=1.11 * STANDARD_BATCH_MS), Verdict.NOT_DETECTED, {1}),
        ("balanced, and hits are as slow", costs(split(hit_ms=0.7), step_ms=0.18), Verdict.DETECTED, {1}),
        ("between", costs(split(), step_ms=STANDARD_BATCH_MS / 1.3), Verdict.POTENTIAL, {2}),
        ("step-bound", costs(step_ms=3 * STANDARD_BATCH_MS), Verdict.NOT_DETECTED, {1}),
        ("slow source", costs(split(), step_ms=10, read_ms=5), Verdict.DETECTED, {3}),
        ("no step", costs(split()), None, {3}),
    ],
)
def test_verdict_and_choice(case, made, verdict, reuse_factors):
    choice = chosen(made)
    assert choice.verdict == verdict, case
    assert choice.recommended.configuration.reuse_factor in reuse_factors
    text = str(choice)
    assert text.startswith("NO STEP GIVEN" if verdict is None else str(verdict))
    assert choice.leave_off == ("leave reuse off" in text) == (reuse_factors == {1})


def pasted(advice):
    """The code that the command prints, statement by statement."""
    options = Namespace(preset="rand_augment", size=224, disk=None, folder=None)
    tree = ast.parse(_code(advice, options))
    names = [each for each in ast.walk(tree) if isinstance(each, ast.Name)]
    made = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    imported = {each.name for each in ast.walk(tree) if isinstance(each, ast.alias)}
    assert {each.id for each in names} == made | imported, "it imports what it uses"
    return [ast.unparse(each) for each in tree.body]


def lines_of(*arguments, **options):
    return str(chosen(*arguments, **options)).splitlines()


def test_what_was_assumed_is_said_near_the_top():
    on = machine(memory_bytes=16_000_000_000, disk_bytes=100_000_000_000)
    assert lines_of(costs(split(), step_ms=50), on)[2] == (
        "assumed: batches of 256, a step of 50 ms; 90 epochs of 100,000 images; at most 16.00 GB of memory and 100.00 "
        "GB of disk for a cache"
    )
    assert "no step given (--step-ms, or step= in Python)" in lines_of(costs(split()), machine(ranks=4))[2]
    assert "batches of 256 on 4 ranks" in lines_of(costs(split()), machine(ranks=4))[2]
    said = lines_of(costs(split()), machine(memory_bytes=0, device_bytes=8_000_000_000))[2]
    assert said.endswith("; at most 8.00 GB of GPU memory for a cache")
    assert lines_of(costs(split()), machine(memory_bytes=0))[2].endswith("; at most nothing for a cache")


ROUNDS_OF_ONE = steady(0.1 * MS, n=1)
FEW = "measured 1 of 9 splits; needs about 140 s more: tune(limit_s=230), or --limit 230"


UNMEASURED = [
    ({"missing": FEW}, FEW),
    ({"hit": ROUNDS_OF_ONE}, "measured 1 of 2 splits in all 3 rounds; needs about 240 s more: tune(limit_s=360), "),
    ({"standard": steady(0.7 * MS, n=2)}, "measured 0 of 2 splits in all 3 rounds; "),
    (
        {"standard": steady(0.7 * MS, relative=0.11)},
        "rounds of standard loading differed by 11 %; needs about 120 s more, while "
        "nothing else works on this machine: tune(limit_s=120), or --limit 120",
    ),
    ({"step": steady(MS, relative=0.2)}, "rounds of the step differed by 20 %; needs about 120 s more"),
    ({"step": steady(MS, n=1)}, "the step was measured in 1 of 3 rounds; needs about 120 s more"),
]
"""What was changed in costs, and what is missing then."""


@pytest.mark.parametrize(
    ("unmeasured", "slow", "step_ms"), in_turn(UNMEASURED, [0.1, 0.7], [None, 10, 3 * STANDARD_BATCH_MS])
)
def test_nothing_is_recommended_of_what_was_not_measured_whatever_the_costs(slow, step_ms, unmeasured):
    """Whether reuse would be faster, or as fast."""
    changed, missing = unmeasured
    first, second = split(place=1, hit_ms=slow, kept=1.0, deterministic=True), split(hit_ms=slow)
    for field in ("standard", "hit"):
        if field in changed:
            second = replace(second, **{f"{field}_s": changed[field]})
            first = replace(first, standard_s=second.standard_s)
    made = replace(costs(first, second, step_ms=step_ms), missing=changed.get("missing", ""))
    if "step" in changed:
        made = replace(made, step=StepCosts(changed["step"]))
    advice = advise(made, machine(), workload_of(made, 100_000, epochs=90))
    assert advice.verdict is Verdict.INCONCLUSIVE
    assert advice.recommended is None
    assert not advice.leave_off
    assert missing in advice.missing
    with pytest.raises(DalirefurbError, match=re.escape(f"nothing is: {advice.missing}")):
        advice.code()
    said = str(advice).splitlines()
    assert said[:2] == [f"INCONCLUSIVE: {advice.missing}", "nothing is recommended, not even to leave reuse off"]
    assert not any("images/s" in line or "what to take" in line for line in said)
    written = json.loads(json.dumps(advice.as_dict()))
    assert (written["recommended"], written["missing"], written["leave_off"]) == (None, advice.missing, False)
    assert Costs.from_dict(written["costs"]) == made
    figure = advice.figure()
    assert figure.get_suptitle().startswith("nothing is recommended: ")
    assert "what to take" not in figure.get_suptitle()
    assert not [line for axes in figure.axes for line in axes.lines if line.get_marker() == "o"]


def turned(choice, *speeds, rounds=None):
    """Turns of standard, what was chosen and the best other, of images/s, in each of three rounds."""
    wanted = [choice.standard.configuration, choice.recommended.configuration, rival(choice)]
    taken = [each for place, each in enumerate(wanted) if each not in wanted[:place]]
    rows = [row for each in taken for row in choice.rows if row.configuration == each]
    return [
        Verified(row, choice.name_of(row.configuration), row.images_per_s, tuple(speed)[:rounds])
        for row, speed in zip(rows, speeds, strict=True)
    ]


TURNS = costs(split(), split("crop_last", 3, hit_ms=0.1), step_ms=10)


@pytest.mark.parametrize(
    ("speeds", "taken"),
    [
        ([(1000, 1010, 1000), (2000, 2010, 2000), (2000, 2020, 1990)], 1),
        ([(1000, 1010, 1000), (2000, 2010, 2000), (2100, 2130, 2105)], 2),
        ([(1000, 1010, 1000), (2000, 2010, 2000), (2020, 2031, 2020)], 1),  # as fast
        # One round by luck is no reason, nor are two of three.
        ([(1000, 1010, 1000), (2000, 2010, 2000), (2000, 2070, 2080)], 1),
        ([(1000, 1010, 1000), (2000, 2010, 2000), (1990, 2010, 2300)], 1),
        ([(1000, 1010, 1000), (1005, 1010, 1000), (1000, 1000, 1000)], 0),
        ([(3000, 3010, 3000), (2000, 2010, 2000), (2100, 2130, 2105)], 0),
        # Standard keeps up with the step here, so that reuse is a reserve.
        ([(25_600, 25_700, 25_600), (25_600, 25_600, 25_600), (25_500, 25_600, 25_600)], 1),
        ([(25_200, 25_300, 25_200), (25_200, 25_200, 25_200), (25_100, 25_200, 25_200)], 1),
    ],
)
def test_what_is_recommended_was_as_fast_as_the_best_other_in_turns(speeds, taken):
    choice = chosen(TURNS)
    verified = turned(choice, *speeds)
    assert {each.prediction.configuration.split.recipe for each in verified[1:]} == {"paper", "crop_last"}
    found = settled(choice, verified, 120)
    assert found.recommended == verified[taken].prediction
    assert found.leave_off == (taken == 0)
    said = str(found)
    computed, reached = verified[1].predicted, verified[1].reached
    told = f"{computed:,.0f} images/s, achieved {reached:,.0f} (predicted: {computed / reached:.2f} times that)"
    assert f"{verified[1].name}: predicted {told}" in said
    if taken:
        reached, usual = verified[taken].reached, verified[0].reached
        assert f"{reached:,.0f} images/s reached, {reached / usual:.2f} times standard loading" in said.splitlines()[1]


@pytest.mark.parametrize(
    ("speeds", "rounds", "limit_s", "missing"),
    [
        ([(1000,) * 3, (2000,) * 3, (2000,) * 3], 2, 120, "had 2 of 3 turns beside the best other; needs about 60 s"),
        ([(1000,) * 3, (2000,) * 3, (2000,) * 3], 2, 95, "needs about 55 s more: tune(limit_s=150)"),  # in whole tens
        ([(1000,) * 3, (2000,) * 3, (2000,) * 3], 0, 120, "had 0 of 3 turns beside the best other; needs about 120 s"),
        ([(1000,) * 3, (1500, 2000, 2500), (2000,) * 3], 3, 120, "beside each other differed by 25 %; needs about 120"),
        ([(1000,) * 3, (2000,) * 3, (1500, 2000, 2500)], 3, 120, "beside each other differed by 25 %; needs about 120"),
        ([(1000,) * 3, (2000,) * 3, (2000,) * 2], 3, 120, "had 2 of 3 turns beside the best other; needs about 60 s"),
    ],
)
def test_nothing_is_recommended_where_turns_were_too_few_or_differed(speeds, rounds, limit_s, missing):
    choice = chosen(TURNS)
    found = settled(choice, turned(choice, *speeds, rounds=rounds) if rounds else [], limit_s)
    assert (found.recommended, found.verdict) == (None, Verdict.INCONCLUSIVE)
    assert missing in found.missing


def test_what_takes_turns_beside_it_is_of_another_split_keeps_enough_and_reuses():
    others = split("crop_last", 3, hit_ms=0.3), split("crop_last", 4, hit_ms=0.2, kept=0.5)
    choice = chosen(costs(split(), *others, step_ms=10))
    found = rival(choice)
    assert choice.recommended.configuration.split.recipe == "paper"
    assert (found.split, found.reuse_factor) == (choice.costs.splits[1], 3)
    alone = chosen(costs(split(), step_ms=10))
    assert [each.reuse_factor for each in (alone.recommended.configuration, rival(alone))] == [3, 2]
    least = chosen(costs(split(kept=0.5), split("crop_last", kept=0.5), step_ms=10))
    assert (least.leave_off, rival(least)) == (True, None)
    # With this step all three are as fast, with one a tenth shorter the last two are not.
    alike = split(hit_ms=0.01), split("crop_last", hit_ms=0.0625), split("crop_last", 3, hit_ms=0.01)
    assert rival(chosen(costs(*alike, step_ms=256 * 0.3))).split == alike[2]


def test_leaving_reuse_off_was_tried_beside_the_best_other_too():
    choice = chosen(costs(split(), step_ms=3 * STANDARD_BATCH_MS))
    assert choice.leave_off
    assert settled(choice, turned(choice, (480, 470, 480), (480, 480, 480)), 120).leave_off
    assert not settled(choice, turned(choice, (480, 470, 480), (500, 510, 500)), 120).leave_off


def test_what_is_only_computed_is_said_to_be_so():
    assert "images/s computed, not run, " in lines_of(costs(split(), step_ms=10))[1]


def test_the_verdict_says_by_how_much_and_that_nothing_else_was_faster_that_it_was_computed():
    assert lines_of(costs(split(), step_ms=STANDARD_BATCH_MS / 4))[0] == (
        "DETECTED: with batches at hand training would be 4.00 times as fast as with standard loading (crop first), "
        "which reaches 1,429 images/s"
    )
    assert lines_of(costs(split()))[0] == (
        "NO STEP GIVEN: whether training waits cannot be told; loading alone serves 1,429 images/s without reuse"
    )
    choice = chosen(costs(split(), step_ms=3 * STANDARD_BATCH_MS))
    off = "leave reuse off: no configuration that fits and keeps enough is more than 2 % faster than standard loading"
    assert str(choice).splitlines()[1] == f"{off} (crop first), as computed"
    done = settled(choice, turned(choice, (480, 470, 480), (480, 480, 480)), 120)
    assert str(done).splitlines()[1] == f"{off} (crop first)"
    _, turns = str(done).split("\n\nin turns:\n")
    assert len(turns.splitlines()) == 2
    noted = chosen(replace(costs(split()), notes=("the disk was busy", "a file was bad")))
    assert str(noted).splitlines()[-2:] == ["note: the disk was busy", "note: a file was bad"]
    assert "in turns" not in str(noted)
    assert repr(noted) == str(noted)


def test_the_code_says_of_what_is_kept_for_all_epochs_why_it_may_be():
    decoded = split(place=2, hit_ms=0.1, kept=1.0, deterministic=True, cached="resize")
    code = chosen(costs(decoded, step_ms=1)).code()
    assert "reuse_factor=90)  # all epochs: what is kept is not random\n" in code
    assert "# all epochs" not in chosen(costs(split(), step_ms=1)).code()


def test_a_picture_has_a_panel_for_each_recipe_with_the_dot_in_its_own():
    other = split("crop_last", 3, hit_ms=0.05, standard_ms=0.35, kept=0.96)
    made = costs(split(kept=0.97), other, split("crop_last", hit_ms=0.3))
    advice = advise(made, machine(), workload(), min_kept=0.97)
    figure = advice.figure()
    first, last = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["crop first", "crop last"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["images/s, loading alone", ""]
    assert {axes.get_xlabel() for axes in figure.axes} == {"reuse factor"}
    assert figure.get_suptitle().endswith("full where at least 0.97 of the different images are kept")
    dots = [[line.get_marker() for line in axes.lines if line.get_marker() == "o"] for axes in figure.axes]
    assert advice.recommended.configuration.split.recipe == "crop_last"
    assert dots == [[], ["o"]]
    # Dotted lines are of all factors, full ones of those that keep enough.
    assert [(line.get_linestyle(), len(line.get_xdata())) for line in first.lines[:2]] == [(":", 5), ("-", 3)]
    assert [(line.get_linestyle(), len(line.get_xdata())) for line in last.lines[:4]] == [
        *((":", 5), ("-", 2)),
        *((":", 5), ("-", 2)),
    ]
    assert [line.get_color() for line in last.lines[:4]] == ["C0", "C0", "C1", "C1"]
    assert {text.get_text(): text.get_color() for text in last.texts} == {
        "after the flip": "C0",
        "after operation 1 of rand_augment": "C1",
    }
    assert first.get_ylim() == last.get_ylim()
    assert first.get_ylim()[1] >= 1.1 * max(float(max(line.get_ydata())) for line in (*first.lines, *last.lines))


def test_a_reserve_is_told():
    assert (
        "in reserve: a step is not 1.1 times as long" in lines_of(costs(split(), step_ms=1.05 * STANDARD_BATCH_MS))[1]
    )
    assert "in reserve" not in lines_of(costs(split(), step_ms=10))[1]


@pytest.mark.parametrize("step_ms", [None, 10, 50, STANDARD_BATCH_MS, 3 * STANDARD_BATCH_MS])
def test_no_text_names_a_split_by_what_is_not_cached_or_an_order_by_its_argument(step_ms):
    made = costs(
        *(split(order, place, kept=1 - place / 100) for order in ORDERS for place in range(1, 6)), step_ms=step_ms
    )
    advice = advise(made, machine(), workload_of(made, 100_000, epochs=90), min_kept=0.9)
    drawn = [text.get_text() for text in advice.figure().findobj(Text)]
    for said in (str(advice), advice.code(recipes=dict.fromkeys(ORDERS, "made")), *drawn):
        assert not re.search(r"\bpaper\b|crop_last|\bfinal (from|part)\b|standard of|stage_", said), said
    assert {"crop first", "crop last", "after the decode", "after operation 1 of rand_augment"} <= set(drawn)


def test_what_is_kept_for_the_whole_run_is_said_in_words_and_not_by_a_reuse_factor():
    decoded = split(place=1, hit_ms=0.1, kept=1.0, deterministic=True)
    choice = chosen(costs(decoded, step_ms=1))
    assert choice.recommended.configuration.reuse_factor == 90
    said = str(choice)
    assert "reuse factor 90" not in said
    assert said.count("crop first, cached after the decode, kept for the whole run, memory") == 2
    taken = said.splitlines()[1]
    assert "; every epoch is as fresh as standard's" in taken
    assert "different images" not in taken
    code = choice.code(path="x")
    assert pasted(choice)[0] == "from dalirefurb import ImageFolder, Kept, Loader, Standard, rand_augment"
    assert "source = Kept(source, '/dev/shm/dalirefurb-keep', size=" in code
    assert "planner = Standard(source, batch_size=256)" in code
    assert ".at(" not in code
    on_disk = chosen(costs(decoded, step_ms=1, disk=True), machine(memory_bytes=0, disk_bytes=10**12))
    assert "source = Kept(source, 'x', size=1000000000000)" in on_disk.code(path="x")
    as_read = chosen(costs(replace(decoded, split=0, cached="", final="decode"), step_ms=1))
    assert "cached before the decode, kept for the whole run" in str(as_read)
    assert "recipe = paper.at(0)" in as_read.code()
    assert "Kept(" not in as_read.code()


def test_decoded_images_are_kept_before_anything_is_reused_where_all_have_room():
    made = costs(step_ms=10, disk=False)
    advice = chosen(made)
    keep, fastest = advice.recommended, advice.rows[0]
    assert keep.configuration.is_keep(advice.workload)
    assert fastest.run_images_per_s > 1.2 * keep.run_images_per_s
    assert fastest.kept < 1
    assert "every epoch is as fresh as standard's; reuse can go on top of it" in str(advice)
    small = chosen(made, machine(memory_bytes=int(0.9 * keep.memory_bytes))).recommended
    assert not small.configuration.is_keep(advice.workload)
    slow = costs(split(place=1, hit_ms=0.69, kept=1.0, deterministic=True), split(), step_ms=10)
    assert chosen(slow).recommended.configuration.reuse_factor == 3


@pytest.mark.parametrize(
    ("speeds", "taken"),
    [
        ([(1000, 1010, 1000), (2000, 2010, 2000), (2500, 2530, 2505)], 1),
        ([(2100, 2110, 2100), (2000, 2010, 2000), (2500, 2530, 2505)], 2),
    ],
    ids=["reuse is faster", "standard is, too"],
)
def test_turns_do_not_give_diversity_up_for_speed(speeds, taken):
    choice = chosen(costs(step_ms=10))
    turns = turned(choice, *speeds)
    assert choice.recommended.configuration.is_keep(choice.workload)
    assert turns[2].prediction.kept < 1
    assert settled(choice, turns, 100).recommended == turns[taken].prediction


def test_what_each_form_takes_and_brings_is_said():
    on = machine(memory_bytes=12_000_000_000, disk_bytes=10**12)
    lines = lines_of(costs(step_ms=45), on)
    place = next(number for number, line in enumerate(lines) if line.startswith("what can be kept"))
    rows = [re.split(r"  +", line) for line in lines[place : place + 4]]
    assert rows[0] == ["what can be kept", "bytes", "has room in", "images/s", "of standard"]
    assert rows[1] == ["files, form='encoded'", "11.00 GB", "memory, disk", "-", "-"]
    assert rows[2][:3] == ["decoded images", "15.05 GB", "disk"]
    assert rows[3][:3] == ["partial images", "10.04 GB", "memory, disk"]
    assert float(rows[2][4]) > 1.5


MANY = costs(
    split(place=1, hit_ms=0.4, kept=1.0, deterministic=True),
    split("crop_last", 3, hit_ms=0.05, standard_ms=0.6),
    split(),
    split(place=5, hit_ms=0.01, kept=0.4),
    split(place=4, devices=("gpu", "gpu"), hit_ms=0.02, kept=0.99),
    step_ms=30,
)
"""On the GPU 100,000 samples' versions, cached, take 12.04 GB at reuse factor 5: a share of 0.996 of them fits 12."""


def test_the_table_has_what_was_computed_of_the_best_of_each_kind_that_keeps_enough():
    on = {"memory_bytes": 4_000_000_000, "disk_bytes": 5_000_000_000, "device_bytes": 12_000_000_000}
    choice = chosen(MANY, machine(**on, page_cache_bytes=0), epochs=20)
    head, *rows, last = (re.split(r"  +", line.strip()) for line in table(choice).splitlines())
    assert head == ["images/s", "of standard", "kept", "memory", "disk", "device", "epoch 0", "run", "limited by"]
    assert last == [
        "computed; of standard: as a multiple of standard loading (crop first); run: 20 epochs; * what to take"
    ]
    on_gpu, behind = "crop first on gpu/gpu", "cached after operation 1 of rand_augment, reuse factor"
    # 6,092 is 1 / (0.2032 x 0.7 + 0.1992 x 0.03 + 0.7968 x 0.02 ms), and 6.4 min 73 s + 19 x 100,000 / 6,092.
    standard = "-  -  -  {}  {}  cores"
    assert ["  ".join(row) for row in rows] == [
        "standard loading (crop first)  1,429  1.00  1.000  " + standard.format("70.0 s", "23.3 min"),
        f"* {on_gpu}, {behind} 5, device, 99.6% of the samples  "
        "6,092  4.26  0.980  -  -  11.99 GB  73.0 s  6.4 min  cores",
        "standard loading (crop last)  1,667  1.17  1.000  " + standard.format("60.0 s", "20.0 min"),
        f"standard loading ({on_gpu})  1,429  1.00  1.000  " + standard.format("70.0 s", "23.3 min"),
        "crop last, cached after the flip, reuse factor 2, tiered  "
        "2,878  2.01  0.975  4.00 GB  3.55 GB  -  64.4 s  12.1 min  cores",
        f"{on_gpu}, {behind} 3, device  3,896  2.73  0.990  -  -  10.04 GB  73.0 s  9.3 min  cores",
        f"{on_gpu}, {behind} 4, device  5,063  3.54  0.985  -  -  11.29 GB  73.0 s  7.5 min  cores",
        "crop first, cached after the decode, kept for the whole run, tiered, 62.6% of the samples  "
        "1,910  1.34  1.000  4.00 GB  4.99 GB  -  72.9 s  17.8 min  cores",
    ]
    code = choice.code(recipes={"paper": "first()", "crop_last": "last()"})
    assert "recipe = first().at(4)  # cached after operation 1" in code
    assert "reuse_factor=5, coverage=0.996)\n" in code
    alone = replace(MANY, splits=(MANY.splits[0], MANY.splits[1]))
    code = chosen(alone, machine(memory_bytes=4_000_000_000)).code(recipes={"paper": "first()", "crop_last": "last()"})
    assert "recipe = last().at(3)  # cached after the flip" in code
    assert MANY.splits[3].kept[2] < 0.95


def test_all_that_was_computed_is_written():
    on = machine(memory_bytes=4_000_000_000, disk_bytes=5_000_000_000, device_bytes=12_000_000_000)
    choice = chosen(MANY, on, min_kept=0.9)
    choice = settled(choice, turned(choice, (1400,) * 3, (6000, 6010, 6000), (2900,) * 3), 120)
    written = choice.as_dict()
    assert (written["min_kept"], written["headspace"]) == (0.9, choice.headspace)
    assert len(written["rows"]) == len(choice.rows) > 10
    assert list(written) == [
        *("verdict", "headspace", "leave_off", "min_kept", "recommended", "missing", "verified"),
        *("standard", "rows", "machine", "workload", "costs"),
    ]
    assert (written["machine"], written["workload"]) == (asdict(on), asdict(choice.workload))
    first = {"recipe": "paper", "split": 1, "final": "stage_1", "reuse_factor": 1, "devices": ["cpu", "cpu"]}
    assert (first | {"coverage": 1, "tier": "none", "misses": 1}).items() <= written["standard"].items()
    assert written["standard"]["images_per_s"] == choice.standard.images_per_s != written["rows"][0]["images_per_s"]
    where = {"recipe": "paper", "split": 4, "final": "stage_4", "devices": ["gpu", "gpu"]}
    what = {"reuse_factor": 5, "coverage": 0.996, "tier": "device"}
    reached = {field.name: getattr(choice.recommended, field.name) for field in fields(Prediction)[1:]}
    assert written["recommended"] == where | what | reached
    standard, recommended, other = written["verified"]
    assert (standard["achieved"], recommended["achieved"]) == ((1400,) * 3, (6000, 6010, 6000))
    assert (standard["prediction"], recommended["prediction"]) == (written["standard"], written["recommended"])
    assert other["prediction"]["recipe"] != "paper" or other["prediction"]["devices"] == ["cpu", "cpu"]


@pytest.mark.parametrize("devices", [("cpu", "gpu"), ("gpu", "gpu")])
def test_the_code_says_which_part_is_where(devices):
    decoded = split(place=1, hit_ms=0.1, kept=1.0, deterministic=True, devices=devices)
    choice = chosen(costs(decoded, step_ms=1), machine(device_bytes=UNLIMITED))
    code, (partial, final) = choice.code(path="x"), devices
    assert f'partial_device="{partial}", final_device="{final}")' in code
    # A keep's images are on the CPU.
    assert ("Kept(source" in code) == (partial == "cpu")


def test_a_split_that_keeps_too_little_at_every_reuse_factor_has_its_name_beside_its_dotted_line():
    made = costs(split(kept=0.99), split(place=5, kept=0.3))
    axes = chosen(made, min_kept=0.95).figure().axes[0]
    colours = {text.get_text(): text.get_color() for text in axes.texts}
    assert colours == {made.splits[0].place: "C0", made.splits[1].place: "C1"}
    full = {line.get_color(): len(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "-"}
    assert full["C1"] == 1 < full["C0"], "one use of each is no reuse"


def test_of_several_ranks_each_has_its_shard_and_without_reuse_too():
    on = machine(cores=8, ranks=2)
    assert "reuse_factor=3, shards=2)\n" in chosen(costs(split(), step_ms=1), on).code()
    standard = chosen(costs(split(hit_ms=0.7), step_ms=1), on).code()
    assert "planner = Standard(source, batch_size=256, shards=2)\n" in standard
    drawn = chosen(costs(split(), step_ms=100), on).figure().axes[0].lines
    assert [line.get_ydata() for line in drawn if line.get_color() == GREY] == [[2560, 2560]]


def test_what_was_reached_is_compared_with_what_standard_reached():
    choice = chosen(costs(split(), step_ms=10))
    done = settled(choice, turned(choice, (1000,) * 3, (2500,) * 3, (2400,) * 3), 120)
    taken = str(done).splitlines()[1]
    assert "2,500 images/s reached, 2.50 times standard loading (crop first); " in taken
    assert "in reserve" not in taken


def test_partial_images_have_room_where_they_are_and_are_those_that_keep_enough():
    lost = split(place=5, hit_ms=0.001, kept=0.4, image_bytes=5_000)
    choice = chosen(costs(split(), lost), machine(memory_bytes=2_000_000_000, disk_bytes=20_000_000_000))
    rows = [re.split(r"  +", line) for line in forms(choice).splitlines()]
    assert rows[1] == ["files, form='encoded'", "11.00 GB", "disk", "-", "-"]
    assert [row[0] for row in rows[2:]] == ["partial images"]
    # 2 GB are in memory; the other 53,380 partial images take 37 pages and a record of 64 bytes each.
    assert rows[2][1:3] == ["10.09 GB", "disk"]
    files = split(place=0, hit_ms=0.5, kept=1.0, deterministic=True)
    with_files = forms(chosen(costs(files, split()))).splitlines()[1]
    assert re.split(r"  +", with_files)[1:3] == ["11.00 GB", "memory"]
    assert float(re.split(r"  +", with_files)[4]) == pytest.approx(1.38, abs=0.02)


def test_another_order_is_said_to_be_one_and_compared_with_standard_of_both():
    other = split("crop_last", hit_ms=0.05, standard_ms=0.35)
    taken = lines_of(costs(split(), other, step_ms=1))[1]
    assert "this changes the order of operations, from crop first to crop last" in taken
    both = r"(\d\.\d+) times standard loading \(crop first\), (\d\.\d+) times standard loading \(crop last\);"
    of_first, of_own = map(float, re.search(both, taken).groups())
    assert of_first == pytest.approx(2 * of_own, rel=0.02)
    taken = lines_of(costs(split(), replace(other, recipe="mine"), step_ms=1))[1]
    assert "this changes the recipe, from crop first to mine" in taken
    taken = lines_of(costs(split(), step_ms=1))[1]
    assert "this changes" not in taken
    assert taken.count(" times standard loading ") == 1


def test_standard_of_another_order_may_be_what_to_take():
    other = split("crop_last", hit_ms=0.34, standard_ms=0.35)
    taken = lines_of(costs(split(), other, step_ms=1), min_kept=1.0)[1]
    assert taken.startswith("leave reuse off, and take standard loading (crop last): ")
    assert "2.00 times standard loading (crop first); this changes" in taken
    assert "this changes the order" in taken
    assert "fresh" not in taken


def test_with_too_little_memory_a_share_is_covered_and_the_code_says_so():
    choice = chosen(costs(split(), step_ms=10), machine(memory_bytes=2_000_000_000))
    taken = choice.recommended
    assert 0 < taken.configuration.coverage < 1
    assert taken.memory_bytes <= 2_000_000_000
    assert f"coverage={taken.configuration.coverage}" in choice.code(path="x")


def test_with_no_memory_and_no_disk_reuse_is_left_off():
    assert chosen(costs(step_ms=10), machine(memory_bytes=0)).leave_off


def test_a_tiered_store_is_told_by_what_it_has_in_each_place():
    on = machine(memory_bytes=2_000_000_000, disk_bytes=1 << 50, page_cache_bytes=0, disk_read_bytes_per_s=1e9)
    choice = chosen(costs(split(), step_ms=10), on)
    taken = choice.recommended
    slots = Refurbish(100_000, batch_size=256, reuse_factor=taken.configuration.reuse_factor).peak_slots
    in_memory = 2_000_000_000 / PARTIAL_BYTES  # Those on the disk take 37 pages and a record of 64 bytes each.
    on_disk = (slots - in_memory) * (37 * 4096 + 64)
    assert (taken.configuration.tier, taken.memory_bytes, taken.disk_bytes) == (
        "tiered",
        2_000_000_000,
        pytest.approx(on_disk, rel=1e-5),
    )
    assert all(row.memory_bytes <= on.memory_bytes and row.disk_bytes <= on.disk_bytes for row in choice.rows)
    (line,) = (line for line in table(choice).splitlines() if line.startswith("* "))
    assert ", tiered  " in line
    assert f"  2.00 GB  {on_disk / 1e9:.2f} GB  " in line
    code = choice.code(path="x")
    assert "TieredStore(memory=2000000000, path='x')" in code
    assert pasted(choice)[0] == "from dalirefurb import ImageFolder, Loader, Refurbish, TieredStore, rand_augment"
    assert choice.as_dict()["recommended"]["tier"] == "tiered"


def test_each_place_is_tried_that_is_there_and_was_measured():
    def tiers(made, on):
        return sorted({row.configuration.tier for row in chosen(made, on).rows})

    room = machine(disk_bytes=1 << 50, device_bytes=1 << 50)
    on_device = split(devices=("gpu", "gpu"))
    assert tiers(costs(split()), room) == ["disk", "memory", "none", "tiered"]
    assert tiers(costs(split()), machine()) == ["memory", "none"]
    assert tiers(costs(split(), disk=False), room) == ["memory", "none"]
    assert tiers(costs(on_device), room) == ["device", "none"]
    arrays = split(place=0, deterministic=True)
    assert tiers(costs(replace(arrays, kept={1: 1.0})), room) == ["none"]


def test_less_than_two_percent_of_the_samples_are_not_worth_a_cache():
    enough = Refurbish(100_000, batch_size=256, reuse_factor=2, coverage=0.02).peak_slots * PARTIAL_BYTES
    for nbytes, coverages in ((enough, [0.02]), (enough - 1, [])):
        rows = chosen(costs(split()), machine(memory_bytes=nbytes)).rows
        found = [row.configuration for row in rows if row.configuration.reuse_factor == 2]
        assert [each.coverage for each in found] == coverages


def test_headspace_is_of_all_ranks_together_and_1_at_least():
    four = chosen(costs(split(), step_ms=STANDARD_BATCH_MS / 16), machine(cores=8, ranks=4))
    assert (four.headspace, four.verdict) == (pytest.approx(4), Verdict.DETECTED)
    assert chosen(costs(split(), step_ms=3 * STANDARD_BATCH_MS)).headspace == 1


def test_rounds_that_differ_by_less_than_a_tenth_are_good_enough():
    assert chosen(costs(split(noise=0.09), step_ms=10, step_noise=0.09)).recommended is not None


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
    made = costs(split(kept=1.0), step_ms=256 * 0.46)
    assert chosen(made).recommended.configuration.reuse_factor == 2
    assert chosen(costs(split(hit_ms=0.699, put_ms=0, kept=1.0), step_ms=10)).leave_off


def test_of_equals_what_keeps_more_is_taken_then_what_takes_less():
    less, more = split(place=3, kept=0.955), split(place=4, kept=0.995)
    assert chosen(costs(less, more, step_ms=60)).recommended.configuration.split.split == 4
    small = replace(split(place=5, kept=0.995), image_bytes=1000)
    assert chosen(costs(more, small, step_ms=60)).recommended.configuration.split.split == 5


def test_a_hundredth_of_what_is_kept_does_not_count_and_all_bytes_do_wherever_they_are():
    more, small = split(place=4, kept=0.976), split(place=5, kept=0.974, image_bytes=1000)
    for on in (machine(), machine(memory_bytes=0, disk_bytes=1 << 50)):
        taken = chosen(costs(more, small, step_ms=STANDARD_BATCH_MS / 1.3), on).recommended
        assert taken.configuration.split == small, taken.configuration.tier


def test_files_that_are_kept_lose_nothing_and_are_taken_where_that_is_as_fast():
    """However often they are used: at reuse factor 2 images are as fast here, of files it takes 3."""
    files = split(place=0, hit_ms=0.35, kept=1.0, deterministic=True)
    choice = chosen(costs(files, split(), step_ms=STANDARD_BATCH_MS / 1.3))
    assert (choice.recommended.configuration.split, choice.recommended.kept) == (files, 1)
    assert choice.prefix is None  # which is decoded, at least


def test_what_loses_nothing_is_taken_where_it_is_as_fast():
    taken = chosen(costs(step_ms=STANDARD_BATCH_MS / 1.3)).recommended
    assert taken.configuration.split.deterministic
    assert taken.kept == 1


def test_the_deterministic_prefix_for_ever_is_a_row_of_the_table():
    choice = chosen(costs(step_ms=10))
    assert choice.prefix is not None
    configuration = choice.prefix.configuration
    assert (configuration.split.split, configuration.reuse_factor, choice.prefix.kept) == (1, 90, 1.0)
    assert choice.prefix in shown(choice)
    assert chosen(costs(step_ms=10), machine(memory_bytes=0)).prefix is None


def test_a_short_run_pays_its_first_epoch():
    # In one epoch nothing is reused.
    assert chosen(costs(split(put_ms=0.1), step_ms=10), epochs=1).leave_off
    rows = chosen(costs(split(put_ms=1.0, hit_ms=0.01), split("crop_last", put_ms=0.0, hit_ms=0.3)), epochs=3).rows
    runs, epochs = [row.run_images_per_s for row in rows], [row.images_per_s for row in rows]
    assert runs == sorted(runs, reverse=True)
    assert epochs != sorted(epochs, reverse=True)


@pytest.mark.parametrize("epochs", [7, 30, 90])
def test_what_is_not_random_is_kept_for_the_whole_run_however_many_epochs_that_has(epochs):
    decoded = split(place=1, hit_ms=0.1, kept=1.0, deterministic=True)
    choice = chosen(costs(decoded, step_ms=1), epochs=epochs)
    assert choice.recommended.configuration.is_keep(choice.workload)
    assert choice.recommended.kept == 1


def test_a_run_of_one_epoch_has_one_row_of_standard():
    choice = chosen(costs(step_ms=1), epochs=1)
    usual = [row.configuration for row in choice.rows if row.configuration.reuse_factor == 1]
    assert usual == [choice.standard.configuration]


def places(values, place):
    """Yield all places in JSON values, with what they are in and their keys."""
    named = isinstance(values, dict)
    for key, each in values.items() if named else enumerate(values) if isinstance(values, list) else ():
        name = f"{place}.{key}" if named else f"{place}[{key}]"
        yield name, values, key
        yield from places(each, name)


def test_costs_that_were_edited_are_refused_by_the_place_of_what_does_not_fit():
    values = json.loads(json.dumps(costs(step_ms=10).as_dict()))
    found = [*places(values, "costs")]
    assert len(found) > 50
    for place, holder, key in found:
        for wrong in (3, [3], {"x": 3}) if isinstance(holder[key], str) else ("x", math.nan):
            usual, holder[key] = holder[key], wrong
            with pytest.raises(ConfigurationError, match=rf"^{re.escape(place)}(\.\w+)? must be "):
                Costs.from_dict(values)
            holder[key] = usual
    assert Costs.from_dict(values) == costs(step_ms=10)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda values: values.update(cores=0), "costs.cores must be at least 1, got 0"),
        (lambda values: values.update(splits=[]), "costs.splits must be of a split at least"),
        (lambda values: values.update(speed=1), "costs must be of cores, batch_size, .*, got 'speed'"),
        (lambda values: values.pop("read_s"), "costs.read_s must be there, got 'nothing'"),
        (lambda values: values.update(serial_s=-1), "costs.serial_s must be a number of at least 0, got -1"),
        (lambda values: values["disk"].update(read_bytes_per_s=0), r"read_bytes_per_s must be a number above 0, got 0"),
        (lambda values: values["splits"][0]["devices"].append("cpu"), r"\[0\].devices must be a list of 2, got"),
        (lambda values: values["splits"][0]["hit_s"].update(median=0), "hit_s.median must be a number above 0, got 0"),
    ],
)
def test_costs_that_cannot_be_are_refused_by_name(change, told):
    values = json.loads(json.dumps(costs().as_dict()))
    change(values)
    with pytest.raises(ConfigurationError, match=told):
        Costs.from_dict(values)


def test_all_of_it_is_json_and_the_costs_are_read_again():
    advice = advise(costs(step_ms=10), machine(), workload(step_s=10 * MS))
    written = json.loads(json.dumps(advice.as_dict()))
    assert Costs.from_dict(written["costs"]) == advice.costs
    assert written["verdict"] == "DETECTED"
    assert written["recommended"] in written["rows"]
    assert written["headspace"] == pytest.approx(STANDARD_BATCH_MS / 10, rel=1e-6)


def test_the_picture_has_a_line_for_each_split_and_the_step(tmp_path):
    figure = advise(costs(step_ms=100), machine(), workload(step_s=0.1)).figure()
    figure.savefig(tmp_path / "plan.png")
    (axes,) = figure.axes
    said = {text.get_text().strip() for text in axes.texts}
    assert said == {"after the decode", "after operation 1 of rand_augment", "a step can use 2,560"}
    assert "the dot is what to take: crop first, cached" in figure.get_suptitle()
    assert [len(line.get_xdata()) for line in axes.lines[:4]] == [5, 5, 5, 3]
    (dot,) = (line for line in axes.lines if line.get_marker() == "o")
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (
        5,
        pytest.approx(1 / (0.73 * MS / 90 + 0.4 * MS * 89 / 90), 1e-4),
    )
    # Loading alone: no step is in them.
    assert axes.lines[2].get_ydata()[[0, -1]].tolist() == pytest.approx([1 / 0.7e-3, 1 / (0.73e-3 / 5 + 0.08e-3)], 1e-3)
    (limit,) = (line for line in axes.lines if line.get_color() == GREY)
    assert limit.get_ydata() == [2560, 2560]


ALIKE = [split(order, place, kept=1 - place / 100) for order in ORDERS for place in range(1, 6)]
DIFFERENT = [split(order, place, hit_ms=0.5 / place, kept=1 - place / 50) for order in ORDERS for place in range(1, 6)]


def _pictures():
    """Yield curves with each step, whose line lies among them, in turn where something is recommended and where not.

    The dot of what is recommended changes the title and one label, whatever the others are: all pairs run every week.
    """
    for place, splits in enumerate([ALIKE, DIFFERENT, ALIKE[:5], DIFFERENT[:1]]):
        for number, step_ms in enumerate([None, 27, 600]):
            for n, said in ((1, "nothing recommended"), (3, "recommended")):
                marks = [] if (place + number) % 4 == (n == 3) else [pytest.mark.weekly]
                yield pytest.param(splits, step_ms, n, id=f"{said}-{place}-{step_ms}", marks=marks)


@pytest.mark.parametrize(("splits", "step_ms", "n"), [*_pictures()])
def test_labels_of_the_picture_do_not_overlap_and_are_in_it(splits, step_ms, n):
    splits = [replace(each, hit_s=replace(each.hit_s, n=n)) for each in splits]
    made = costs(*splits, step_ms=step_ms)
    figure = advise(made, machine(), workload_of(made, 100_000, epochs=90)).figure()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [each for each in figure.findobj(Text) if each.get_visible() and each.get_text().strip()]
    boxes = {each: each.get_window_extent(canvas.get_renderer()) for each in texts}
    overlapping = [
        (one.get_text(), two.get_text()) for one, two in combinations(texts, 2) if boxes[one].overlaps(boxes[two])
    ]
    assert overlapping == []
    whole = figure.bbox
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= whole.x1 and box.y1 <= whole.y1 for box in boxes.values())


def test_a_gpu_that_does_both_parts_keeps_its_cache_in_its_own_memory():
    on_device = split("paper", 3, hit_ms=0.01, standard_ms=0.1, devices=("gpu", "gpu"))
    choice = chosen(costs(split(), on_device, step_ms=1), machine(device_bytes=4_000_000_000))
    taken = choice.recommended
    assert taken.configuration.tier == "device"
    assert (taken.memory_bytes, taken.disk_bytes) == (0, 0)
    assert 0 < taken.device_bytes <= 4_000_000_000
    assert 0 < taken.configuration.coverage < 1
    code = choice.code(path="x")
    assert "DeviceStore()" in code
    assert 'partial_device="gpu", final_device="gpu"' in code
    assert "crop first on gpu/gpu" in str(choice)
    assert pasted(choice)[:2] == [
        "from dalirefurb import ImageFolder, Loader, Refurbish, rand_augment",
        "from dalirefurb.store import DeviceStore",
    ]
    nothing = chosen(costs(split(), on_device, step_ms=1), machine(device_bytes=0))
    assert nothing.recommended.device_bytes == 0


def test_what_is_finished_on_the_cpu_is_copied_and_what_is_finished_on_a_gpu_is_not():
    made = replace(costs(split(), split(devices=("cpu", "gpu"))), copy_s=0.002)
    rows = {row.configuration.split.devices: row for row in chosen(made).rows if row.configuration.reuse_factor == 3}
    assert (rows["cpu", "cpu"].bound, rows["cpu", "cpu"].images_per_s) == ("copies", 500)
    assert rows["cpu", "gpu"].bound == "cores"
