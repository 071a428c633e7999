"""Do the pictures show what the library does?"""

from __future__ import annotations

import io
import logging
import re
import time
from collections import Counter
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image, ImageColor

from dalirefurb import Output, Prefetch, Recipe, augment
from dalirefurb.augment import HorizontalFlip
from dalirefurb.augment.presets import auto_augment, evaluate, rand_augment, simple, trivial_augment
from dalirefurb.augment.stage import Stage
from dalirefurb.cli import main
from dalirefurb.cli.limits import whole_photographs
from dalirefurb.cli.techniques import TECHNIQUES
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.loader import Loader
from dalirefurb.planning.echo import BatchEcho, Echo
from dalirefurb.planning.refurbish import Frozen, ReferenceCount, Refurbish, Standard
from dalirefurb.planning.shuffle import PlainShuffler
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.show import CACHED, COMPARED, FRESH, INK, LINE, operations
from dalirefurb.show.files import check_file, check_folder, check_writable, folder_made
from dalirefurb.show.operations import MAGNITUDES, TABLES, Row, draws, operate, stages_for
from dalirefurb.show.pictures import Versions, levels, of_good_samples, square_image, take_pictures
from dalirefurb.show.plots import compare_plans, history, history_plot, plan_plot
from dalirefurb.show.sheet import (
    CELL,
    _columns,
    _draw_picture,
    _first_picture,
    _paper,
    _rows_sheet,
    operations_sheet,
    pictures_sheet,
)
from dalirefurb.source import Arrays, ImageFolder
from dalirefurb.store import MemoryStore
from tests.in_turn import weekly
from tests.pictures import jpeg, picture, write_folder

pytestmark = pytest.mark.usefixtures("traced_once")
SEED = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("show"), num_samples=6)


@pytest.fixture(scope="module")
def source(folder):
    return ImageFolder(folder)


@pytest.fixture(scope="module")
def pictures(source):
    """Of samples 4 and 1, with crops of random size and the second layer fresh."""
    return take_pictures(source, rand_augment(48), [4, 1], reuse_factor=3, seed=SEED)


def arrays(*, size):
    return Arrays(np.stack([np.asarray(picture(seed, height=size, width=size)) for seed in range(3)]), range(3))


def read(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image)


def drawn(figure):
    """Return the pixels of a figure, whatever somebody has set in Matplotlib."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi="figure", pil_kwargs={"compress_level": 0})
    return np.asarray(Image.open(content).convert("RGB"))


def colours(sheet):
    """Return the colours on a sheet, one number each."""
    return np.unique(sheet[..., :3].astype(np.int64) @ (65536, 256, 1))


def frames(part, sheet):
    """Return the colours just outside the corner of a picture, wherever it is on a sheet, pixel by pixel."""
    height, width = part.shape[:2]
    places = np.ones((sheet.shape[0] - height, sheet.shape[1] - width), bool)
    for y, x in ((0, 0), (height // 2, width // 2)):
        places &= (sheet[y:, x:][: places.shape[0], : places.shape[1]] == part[y, x]).all(axis=-1)
    found = [
        place for place in np.argwhere(places) if np.array_equal(sheet[place[0] :, place[1] :][:height, :width], part)
    ]
    return {tuple(sheet[y - 1, x - 1].tolist()) for y, x in found}


def training(source):
    """Plans under which versions 0 and 3 of every sample are used in epochs 0 .. 2 and 3 .. 5."""
    return Refurbish(len(source), batch_size=len(source), reuse_factor=3, seed=SEED, evict_shuffler=ReferenceCount())


def test_cached_pictures_are_exactly_what_the_store_holds_in_training(source, pictures):
    store = MemoryStore()
    with (
        store,
        Loader(
            source, rand_augment(48), training(source), store, prefetch=Prefetch(look_ahead=1, replicas=1)
        ) as loader,
    ):
        for place, birth in enumerate((0, 3)):
            loader.set_epoch(birth)
            next(iter(loader))
            # It is stored a moment after it is served, and evicted when two batches more are taken.
            deadline = time.monotonic() + 600
            while len(store) < len(source) and time.monotonic() < deadline:
                time.sleep(0.01)
            with store.get(np.array([4, 1]), np.full(2, birth)) as lease:
                assert lease.found.all()
                for each, held in zip(pictures, lease.samples, strict=True):
                    assert np.array_equal(each.versions[place].cached, held)


def test_served_pictures_are_exactly_what_training_serves(source, pictures):
    recipe = rand_augment(48)
    with Loader(source, recipe, training(source), MemoryStore(), with_indices=True) as loader:
        for epoch in range(6):
            ((images, _, indices),) = loader
            served = levels(recipe.output, images.numpy())
            for sample, each in zip((4, 1), pictures, strict=True):
                row = indices.tolist().index(sample)
                assert np.array_equal(each.versions[epoch // 3].served[epoch % 3], served[row])


def test_the_pictures_of_one_version_differ_while_the_cached_one_is_one(pictures):
    for each in pictures:
        assert len(each.versions) == 2
        assert not np.array_equal(each.versions[0].cached, each.versions[1].cached)
        for version in each.versions:
            assert len(version.served) == 3
    different = {image.tobytes() for each in pictures for version in each.versions for image in version.served}
    assert len(different) > 8


def test_without_a_final_stage_what_is_served_is_what_is_cached(source):
    (each,) = take_pictures(source, evaluate(32), [2], reuse_factor=2)
    for version in each.versions:
        for image in version.served:
            assert np.array_equal(image, version.cached)


@pytest.mark.parametrize("output", [Output(32, dtype="bfloat16"), Output(32, dtype="float16", channels=1)])
def test_of_any_output_the_levels_that_the_network_sees_are_shown_in_their_colours(source, output):
    (each,) = take_pictures(source, Recipe(evaluate(32).stages, output), [2], reuse_factor=2)
    for version in each.versions:
        seen = Image.fromarray(version.cached).convert("L" if output.channels == 1 else "RGB").convert("RGB")
        for image in version.served:
            assert image.shape == (32, 32, 3)
            assert abs(image.astype(int) - np.asarray(seen)).max() <= 1


def test_a_split_after_decoding_caches_the_original(source):
    for each in take_pictures(source, simple(32, split=1), [0, 5], reuse_factor=2):
        for version in each.versions:
            assert np.array_equal(version.cached, each.original)


def test_a_sample_that_is_not_shown_may_be_bad(tmp_path):
    """Sizes of partial images are those of some samples, which may be bad; of those that are shown an error is."""
    folder = write_folder(tmp_path, num_samples=6)
    source = ImageFolder(folder)
    bad = Path(source.name(3))
    bad.write_bytes(bad.read_bytes()[:100])
    taken = take_pictures(source, simple(32, split=1), [0, 5], reuse_factor=2)
    assert [each.sample for each in taken] == [0, 5]
    assert not logging.getLogger("dalirefurb.reading").disabled
    with pytest.raises(SampleError, match=re.escape(str(bad))):
        take_pictures(source, simple(32, split=1), [0, 3], reuse_factor=2)


@pytest.mark.parametrize("check", [check_writable, partial(check_file, option="--json")])
def test_a_file_that_can_be_written_is_left_as_it_is_until_it_is(check, tmp_path):
    (tmp_path / "there.png").write_bytes(b"what is there")
    for name in ("there.png", "new.png", "NEW.PNG", "new"):
        check(tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"there.png": b"what is there"}


def test_originals_are_whole_and_the_right_way_up(tmp_path):
    portrait = picture(0, height=60, width=40)
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "class").mkdir()
    lying = portrait.transpose(Image.Transpose.ROTATE_90)
    (tmp_path / "class" / "turned.jpg").write_bytes(jpeg(lying, exif=exif, subsampling=0, quality=100))
    original, _ = ImageFolder(tmp_path)[0]
    assert original.shape == (60, 40, 3)
    assert abs(original.astype(int) - np.asarray(portrait)).mean() < 2


def test_arrays_are_their_own_originals():
    source = arrays(size=32)
    each, other = take_pictures(source, trivial_augment(32, raw=True), [0, 2], reuse_factor=2)
    assert np.array_equal(each.original, source.read(np.array([0]))[0])
    assert np.array_equal(other.original, source.read(np.array([2]))[0])
    assert each.versions[0].cached.shape == (32, 32, 3)


@pytest.mark.parametrize("reuse_factor", [1, 2, 3])
def test_versions_are_those_of_the_group_of_refurbishing_that_begins_anew_in_epoch_0(reuse_factor):
    refurbish = Refurbish(12, batch_size=12, reuse_factor=reuse_factor, evict_shuffler=ReferenceCount())
    mine = Versions(12, batch_size=2, samples=(3, 8), reuse_factor=reuse_factor)
    for epoch in range(2 * reuse_factor):
        (theirs,), (plan,) = refurbish.epoch(epoch), mine.epoch(epoch)
        rows = [theirs.indices.tolist().index(sample) for sample in (3, 8)]
        for name in ("indices", "version", "serving", "miss"):
            assert getattr(plan, name).tolist() == getattr(theirs, name)[rows].tolist()


@pytest.mark.parametrize(("size", "factor"), [*weekly((CELL, 1), (100, 1)), (32, 4)])
def test_a_sheet_has_every_pixel_of_a_picture_and_tells_cached_from_fresh_by_the_colour_of_its_frame(size, factor):
    recipe = trivial_augment(size, raw=True)
    (taken,) = take_pictures(arrays(size=size), recipe, [1], reuse_factor=2)
    sheet = drawn(pictures_sheet(arrays(size=size), recipe, name="trivial_augment", reuse_factor=2))

    def frames_of(image):
        return frames(image.repeat(factor, axis=0).repeat(factor, axis=1), sheet)

    assert len(frames_of(taken.original)) == 1
    for version in taken.versions:
        assert ImageColor.getrgb(CACHED) in frames_of(version.cached)
        for image in version.served:
            assert ImageColor.getrgb(FRESH) in frames_of(image)
    served = [image for version in taken.versions for image in version.served]
    changed = [image for image in served if not any(np.array_equal(image, each.cached) for each in taken.versions)]
    assert changed
    assert all(frames_of(image) == {ImageColor.getrgb(FRESH)} for image in changed)


@pytest.mark.parametrize(
    ("recipe", "reuse_factor", "drawn_anew", "share"),
    [
        (auto_augment(32), 3, "auto_augment_2", "keeps 0.68 at reuse factor 3: of 100 images served, 68 are different"),
        (simple(32), 2, "flip", "keeps 0.75 at reuse factor 2: of 100 images served, 75 are different"),
        (simple(32).at(3), 3, "nothing", "keeps 0.33 at reuse factor 3: of 100 images served, 33 are different"),
        (simple(32), 1, "random_resized_crop, flip", "keeps 1.00 at reuse factor 1: of 100 images served, 100 are"),
        (evaluate(32), 3, "nothing", "draws nothing: every use serves the same image"),
        # Of a flip alone standard training, too, makes few different images.
        (
            Recipe([HorizontalFlip()], Output(32), 0),
            3,
            "flip",
            "keeps 1.00 at reuse factor 3: of 100 images served, 58",
        ),
    ],
)
def test_a_sheet_says_what_is_drawn_anew_and_which_share_of_the_images_differs(
    source, recipe, reuse_factor, drawn_anew, share
):
    of = source if recipe.encoded else arrays(size=32)
    sheet = pictures_sheet(of, recipe, name="it", reuse_factor=reuse_factor)
    said = " ".join(text.get_text() for text in sheet.axes[0].texts)
    assert f" drawn anew at every use: {drawn_anew} it {share}" in said


def test_a_picture_that_came_out_as_an_earlier_one_says_so(source):
    """Its final part is a flip: of three uses two are the same."""
    sheet = pictures_sheet(source, simple(32), name="simple", reuse_factor=3, seed=SEED)
    names = [text.get_text() for text in sheet.axes[0].texts if text.get_text().startswith("epoch ")]
    for sample in range(4):
        taken = names[6 * sample : 6 * sample + 6]
        assert [name.split(",")[0] for name in taken] == [f"epoch {epoch}" for epoch in range(6)]
        for uses in (taken[:3], taken[3:]):
            assert "," not in uses[0]
            assert any(re.fullmatch(r"epoch \d, as in \d", name) for name in uses[1:])
            for name in uses:
                epoch, *earlier = map(int, re.findall(r"\d", name))
                assert all(3 * (epoch // 3) <= each < epoch for each in earlier), name


@pytest.mark.parametrize("reuse_factor", [0, 13, 2.5])
def test_a_sheet_of_other_reuse_factors_than_fit_is_refused(source, reuse_factor):
    with pytest.raises(
        ConfigurationError, match=rf"reuse_factor must be an int in 1\.\.12, got {reuse_factor}: 2 or 3"
    ):
        pictures_sheet(source, simple(32), name="simple", reuse_factor=reuse_factor)


def test_a_sheet_of_reuse_factor_1_shows_nothing_as_cached(source):
    sheet = drawn(pictures_sheet(source, simple(32), name="simple", reuse_factor=1))
    assert int(CACHED[1:], 16) not in colours(sheet)
    assert int(FRESH[1:], 16) in colours(sheet)


@pytest.mark.parametrize("reuse_factor", [1, pytest.param(12, marks=pytest.mark.weekly)])
def test_no_text_leaves_its_sheet(reuse_factor):
    recipe = trivial_augment(32, raw=True)
    sheet = pictures_sheet(arrays(size=32), recipe, name="auto_augment_cifar10", reuse_factor=reuse_factor)
    for text in sheet.axes[0].texts:
        box = text.get_window_extent()
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= sheet.bbox.x1, text
        assert box.y1 <= sheet.bbox.y1, text


def test_operations_are_shown_from_the_most_negative_magnitude_to_the_most_positive():
    image = np.asarray(picture(3, height=64, width=64))
    rows = {row.name: row for row in operate(image, TABLES["rand_augment"][0])}
    assert list(rows)[:2] == ["Identity", "ShearX"]
    assert rows["Rotate"].magnitudes == ["-30", "-20", "-9", "0", "+9", "+20", "+30"]
    assert rows["Brightness"].magnitudes == ["0.10", "0.40", "0.73", "1.00", "1.27", "1.60", "1.90"]
    assert rows["TranslateX"].magnitudes[0] == "-45 %"
    assert [rows[f"Translate{axis}"].unit for axis in "XY"] == ["share of the width", "share of the height"]
    wide = {row.name: row for row in operate(image, TABLES["trivial_augment"][0])}["TranslateX"]
    assert (wide.unit, wide.magnitudes) == ("pixels", ["-32", "-21", "-10", "0", "+10", "+21", "+32"])
    assert rows["Posterize"].magnitudes == ["8", "7", "6", "5", "4"]
    brightness = [float(each.mean()) for each in rows["Brightness"].pictures]
    assert brightness == sorted(brightness)
    assert np.array_equal(rows["Identity"].pictures[0], image)
    for name in ("ShearX", "Rotate", "Brightness", "Color", "TranslateY"):
        assert len(rows[name].pictures) == MAGNITUDES
        assert np.array_equal(rows[name].pictures[MAGNITUDES // 2], image)
    left, right = (rows["TranslateX"].pictures[place] for place in (0, -1))
    offset = 64 * 150 // 331
    assert np.array_equal(left[:, : 64 - offset], image[:, offset:])
    assert np.array_equal(right[:, offset:], image[:, : 64 - offset])
    assert not (rows["Posterize"].pictures[-1] % 16).any()
    assert np.array_equal(rows["Solarize"].pictures[-1], 255 - image)


def test_misses_of_the_plan_plot_are_the_planners():
    plain = {"num_samples": 100, "batch_size": 8, "reuse_factor": 3, "seed": SEED}
    comparison = compare_plans(Refurbish(**plain), 7)
    for misses, changes in (
        (comparison.refurbish, {}),
        (comparison.reference_count, {"evict_shuffler": ReferenceCount()}),
        (comparison.plain_shuffle, {"batch_shuffler": PlainShuffler()}),
    ):
        planner = Refurbish(**plain, **changes)
        assert misses.shape == (7, len(planner))
        assert misses.tolist() == [[int(plan.miss.sum()) for plan in planner.epoch(epoch)] for epoch in range(7)]
    assert comparison.reference_count.sum(axis=1).tolist() == [100, 0, 0, 100, 0, 0, 100]
    assert set(comparison.refurbish[1:].sum(axis=1).tolist()) == {33, 34}
    assert np.ptp(comparison.refurbish[1:, :-1]) <= 1 < np.ptp(comparison.plain_shuffle[1:, :-1])


def test_the_plan_plot_draws_the_counts_and_its_axes_begin_at_0():
    comparison = compare_plans(Refurbish(60, batch_size=8, reuse_factor=2), 5)
    epochs, batches = plan_plot(comparison).axes
    heights = [round(bar.get_height()) for bar in epochs.patches]
    assert heights == [*comparison.reference_count.sum(axis=1), *comparison.refurbish.sum(axis=1)]
    drawn = {line.get_label(): list(line.get_ydata()) for line in batches.lines}
    assert drawn["plain shuffle"] == comparison.plain_shuffle[1:3].ravel().tolist()
    assert drawn["batch shuffler"] == comparison.refurbish[1:3].ravel().tolist()
    assert epochs.get_ylim()[0] == batches.get_ylim()[0] == 0
    # All that is drawn has room below the legend.
    assert epochs.get_ylim()[1] == pytest.approx(1.2 * 60)
    assert batches.get_ylim()[1] == pytest.approx(1.2 * comparison.plain_shuffle[1:3].max())
    assert comparison.plain_shuffle[1:3].max() > comparison.refurbish[1:3].max()
    assert all(old.get_x() < new.get_x() for old, new in zip(epochs.patches[:5], epochs.patches[5:], strict=True))
    assert [text.get_text() for text in batches.texts] == ["epoch 1", "epoch 2"]
    assert batches.get_xlabel() == "batch (the last of an epoch has 4 rows)"
    assert plan_plot(comparison).get_suptitle().endswith(": 60 samples, batches of 8, reuse factor 2")
    assert [axes.get_title() for axes in (epochs, batches)] == ["Over epochs", "Within epochs, balanced eviction"]
    assert [epochs.get_xlabel(), epochs.get_ylabel(), batches.get_ylabel()] == [
        *("epoch", "misses of an epoch", "misses of a batch")
    ]
    assert [to_hex(bar.get_facecolor()) for bar in epochs.patches] == [COMPARED] * 5 + [CACHED] * 5
    legend = epochs.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["reference counts", "balanced eviction"]
    assert [to_hex(each.get_facecolor()) for each in legend.get_patches()] == [COMPARED, CACHED]
    *points, between = batches.lines
    assert [to_hex(line.get_color()) for line in points] == [COMPARED, CACHED]
    # Epochs of eight batches: a line between the last of one and the first of the other, and their names in the middle.
    assert list(between.get_xdata()) == [7.5, 7.5]
    assert [text.xy for text in batches.texts] == [(4, 0), (12, 0)]
    assert batches.get_xlim()[0] < 0 < 15 < batches.get_xlim()[1]
    first = plan_plot(compare_plans(Refurbish(64, batch_size=8, reuse_factor=2), 1)).axes[1]
    assert [text.get_text() for text in first.texts] == ["epoch 0"]
    assert first.get_xlabel() == "batch"


HISTORIES = {
    "standard": Standard(90, batch_size=8),
    "refurbish": Refurbish(90, batch_size=8, reuse_factor=3),
    "echo": Echo(Standard(90, batch_size=8), echoing_factor=1.5, buffer_size=24),
    "batch_echo": BatchEcho(Standard(90, batch_size=8), echoing_factor=2),
    "smartcache": SmartCache(90, batch_size=8, num_cache_objects=40, replace_percent=0.1),
    "frozen": Frozen(90, batch_size=8, drop_last=True),
}


@pytest.mark.parametrize("planner", HISTORIES.values(), ids=HISTORIES)
def test_a_history_counts_what_the_planner_serves_and_computes(planner):
    counted = history(planner, 5)
    for epoch in range(5):
        plans = list(planner.epoch(epoch))
        served = Counter(index for plan in plans for index in plan.indices.tolist())
        computed = Counter(index for plan in plans for index in plan.indices[plan.miss].tolist())
        assert counted.served[epoch].tolist() == [served[index] for index in range(90)]
        assert counted.computed[epoch].tolist() == [computed[index] for index in range(90)]
        assert counted.misses[epoch].tolist() == [plan.miss.mean() for plan in plans]


def test_a_history_plot_draws_the_samples_the_batches_and_the_sums():
    counted = history(HISTORIES["smartcache"], 5)
    samples, batches, sums, bar = history_plot(counted, title="smartcache").axes
    drawn = samples.images[0].get_array()
    assert drawn.shape == (5, 90)
    assert [(drawn == kind).sum(axis=1).tolist() for kind in (0, 1, 2)] == [
        [50, 50, 50, 50, 50],
        [0, 36, 36, 36, 36],
        [40, 4, 4, 4, 4],
    ]
    assert drawn[0].tolist() == [2] * 40 + [0] * 50
    assert drawn[:, -1].tolist() == [0] * 5
    assert np.array_equal(batches.images[0].get_array(), counted.misses)
    lines = {line.get_label(): line.get_ydata().tolist() for line in sums.lines}
    assert lines == {
        "served: 2.2 in 5 epochs": pytest.approx([epoch * 40 / 90 for epoch in range(6)]),
        "computed: 0.6 in 5 epochs": pytest.approx([0, *((40 + 4 * epoch) / 90 for epoch in range(5))]),
    }
    assert samples.images[0].get_extent() == [0, 90, 4.5, -0.5]
    assert [to_hex(line.get_color()) for line in sums.lines] == [CACHED, FRESH]
    assert [to_hex(each.get_facecolor()) for each in sums.collections] == [CACHED, FRESH]
    assert [sums.get_xlabel(), sums.get_ylabel()] == ["epochs done", "times a sample was served or computed"]
    titles = ["Samples", "Share of computed rows in a batch", "A sample: mean, least and most"]
    assert [axes.get_title() for axes in (samples, batches, sums)] == titles
    assert samples.get_xlabel() == "samples, in the order of their first epochs"
    assert {axes.get_ylabel() for axes in (samples, batches)} == {"epoch"}
    assert bar.yaxis.get_major_formatter()(0.25) == "25%"
    assert samples.xaxis.get_major_formatter()(12_000) == sums.yaxis.get_major_formatter()(12_000) == "12,000"
    colours = [to_hex(samples.images[0].cmap(kind)) for kind in range(3)]
    legend = samples.get_legend()
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["not served", "from the cache", "computed"]
    assert colours == [to_hex(patch.get_facecolor()) for patch in legend.get_patches()]
    assert colours[1:] == [to_hex(batches.images[0].cmap(share)) for share in (0.0, 1.0)] == [CACHED, FRESH]
    # The range is that from the sample that is served least to the one that is served most.
    served = sums.collections[0].get_paths()[0].vertices
    assert {y for x, y in served.tolist() if x == 5} == {0, 5}
    assert sums.get_ylim() == (0, pytest.approx(1.2 * 5))
    assert history_plot(counted, title="it").get_suptitle() == "it: 90 samples, batches of 8, at most 36 cached"
    assert history_plot(history(HISTORIES["standard"], 1), title="it").get_suptitle().endswith(", none cached")


def test_a_history_plot_draws_so_many_batches_and_samples_as_can_be_seen():
    counted = history(BatchEcho(Standard(2100, batch_size=10), echoing_factor=2), 2)
    samples, batches, *_ = history_plot(counted, title="batch_echo").axes
    assert samples.images[0].get_array().shape == (2, 1000)
    assert samples.get_xlim() == (0, 2100)
    assert (samples.images[0].get_array() == 2).all()  # Each is computed, then served again.
    assert batches.images[0].get_array().tolist() == [[1, 0] * 50] * 2
    assert batches.get_xlabel() == "batches, the first 100 of 420"
    _, batches, *_ = history_plot(history(Standard(200, batch_size=2), 1), title="standard").axes
    assert batches.get_xlabel() == "batches"


DRAWN = ("refurbish", "smartcache")
"""Of techniques, which are planned and trained with elsewhere, those whose plans look most different."""


@pytest.mark.parametrize(
    "technique", [pytest.param(name, marks=[] if name in DRAWN else pytest.mark.weekly) for name in TECHNIQUES]
)
def test_show_draws_the_plan_of_every_technique(technique, tmp_path, capsys):
    out = tmp_path / "plan.png"
    options = ["--num-samples", "200", "--batch-size", "20", "--epochs", "3"]
    assert main(["show", "--plan", "--technique", technique, *options, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == f"drawn: {out}\n"
    assert said.err == ""
    assert int(FRESH[1:], 16) in colours(read(out))


def test_show_writes_a_png_and_prints_the_recipe(folder, tmp_path, capsys):
    out = tmp_path / "pictures.png"
    assert main(["show", str(folder), "--size", "48", "--reuse-factor", "2", "--out", str(out)]) == 0
    said = capsys.readouterr()
    differs = (
        "drawn anew at every use: rand_augment_2\n"
        "rand_augment keeps 0.98 at reuse factor 2: of 100 images served, 98 are different\n"
    )
    assert said.out == f"{rand_augment(48)}\n\n{differs}\ndrawn: {out}\n"
    assert said.err == ""
    sheet = read(out)
    lines = 2 * 4
    assert sheet.shape[1] == 754
    assert lines * CELL < sheet.shape[0] < 2 * lines * CELL
    assert len(colours(sheet)) > 1000


@pytest.mark.weekly
def test_show_takes_every_preset_order_and_split(folder, tmp_path, capsys):
    for arguments, told in (
        (["--preset", "auto_augment_cifar10", "--order", "crop_last"], "random_crop"),
        (["--preset", "trivial_augment", "--split", "flip"], "flip                     final"),
        (["--preset", "evaluate"], "center_crop"),
        (["--preset", "yolo"], "mosaic                   final"),
    ):
        assert main(["show", str(folder), "--size", "32", "--out", str(tmp_path / "a.png"), *arguments]) == 0
        assert told in capsys.readouterr().out


def test_show_draws_the_same_for_the_same_seed(folder, tmp_path, capsys):
    def drawn(seed):
        out = tmp_path / "seed.png"
        options = ["--preset", "simple", "--size", "32", "--seed", seed]
        assert main(["show", str(folder), *options, "--out", str(out)]) == 0
        return out.read_bytes()

    assert drawn("1") == drawn("1") != drawn("2")
    capsys.readouterr()


def test_show_operations_writes_a_row_for_each(folder, tmp_path, capsys):
    out = tmp_path / "operations.png"
    assert main(["show", str(folder), "--operations", "--size", "32", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"drawing the operations of rand_augment\ndrawn: {out}\n"
    sheet = read(out)
    assert sheet.shape[1] > MAGNITUDES * 128
    assert sheet.shape[0] > 14 * 128
    assert len(colours(sheet)) > 1000


@cache
def colours_of_operations(preset):
    """Return the colours on the sheet of a preset's operations."""
    return colours(drawn(operations_sheet(arrays(size=32), preset, size=32)))


@pytest.mark.parametrize(
    ("preset", "name", "used"),
    [
        ("rand_augment", "Rotate", ["-9", "+9"]),
        ("rand_augment", "Posterize", ["7"]),
        ("rand_augment", "Equalize", []),
        ("auto_augment", "Rotate", ["-30", "-10", "+10", "+30"]),
        ("auto_augment", "Solarize", ["170", "142", "29"]),
        ("auto_augment_cifar10", "Rotate", ["-7", "+7"]),
        ("auto_augment_svhn", "Solarize", ["199", "170", "85", "29"]),
        ("trivial_augment", "Rotate", []),
    ],
)
def test_the_magnitudes_that_training_uses_are_marked(preset, name, used):
    image = np.asarray(picture(3, height=32, width=32))
    (row,) = [row for row in operate(image, TABLES[preset][0]) if row.name == name]
    marked = [magnitude for magnitude, each in zip(row.magnitudes, row.used, strict=True) if each]
    assert marked == used


@pytest.mark.parametrize("preset", ["rand_augment", *weekly("auto_augment", "trivial_augment")])
def test_what_is_marked_is_drawn_in_a_colour_of_its_own(preset):
    assert (int(FRESH[1:], 16) in colours_of_operations(preset)) == (preset != "trivial_augment")


@pytest.mark.parametrize(
    ("split", "reuse_factor", "headings"),
    [
        (2, 2, ["original", "cached:", "fresh at every use:"]),
        (5, 2, ["original", "cached:", "the same at every use:"]),
        (5, 1, ["original", "not cached:", "fresh at every use:"]),
    ],
)
def test_columns_say_what_is_fresh(split, reuse_factor, headings):
    columns = _columns(rand_augment(32, split=split), reuse_factor)
    assert [column.heading for column in columns] == headings


def test_columns_say_what_they_are_of():
    files, arrays = _columns(simple(32).at(0), 2), _columns(simple(32, raw=True, split=1), 2)
    assert [column.text for column in files[:2]] == ["the file, decoded", "the file, as it was read"]
    assert [column.text for column in arrays] == ["the array's image", "random_crop", "flip"]
    assert _columns(simple(32).at(3), 2)[2].text == "nothing"


@pytest.mark.parametrize(("split", "again"), [(1, "made anew"), (2, "drawn anew"), (3, "drawn anew")])
def test_a_second_version_is_drawn_anew_only_where_something_is_random(source, split, again):
    sheet = pictures_sheet(source, simple(32).at(split), name="simple", reuse_factor=2)
    said = [text.get_text() for text in sheet.axes[0].texts]
    assert said.count(f"version 2, {again}") == said.count("version 1") == 4
    assert "cached: made once, used in 2 epochs, then made anew" in said


def test_the_first_good_picture_is_operated_on(tmp_path):
    folder = write_folder(tmp_path, num_samples=3)
    source = ImageFolder(folder)
    Path(source.name(0)).write_bytes(b"no image")
    assert np.array_equal(_first_picture(source, 32), square_image(source, 1, size=32))
    assert not np.array_equal(square_image(source, 1, size=32), square_image(source, 2, size=32))


def test_pictures_are_given_up_after_ten_bad_ones():
    asked, source = [], Arrays(np.zeros((20, 4, 4, 3), np.uint8), range(20))

    def make(samples, bad):
        asked.append(samples)
        if samples[0] < bad:
            raise SampleError(samples[0], f"{samples[0]}.jpg", "broken")
        return samples

    assert of_good_samples(source, 1, partial(make, bad=9)) == [9]
    with pytest.raises(SampleError, match=r"9\.jpg"):
        of_good_samples(source, 1, partial(make, bad=20))
    asked.clear()
    two = Arrays(np.zeros((2, 4, 4, 3), np.uint8), range(2))
    assert of_good_samples(two, 4, partial(make, bad=1)) == [1]
    assert asked == [[0, 1], [1]]
    with pytest.raises(SampleError, match=r"1\.jpg"):  # All are bad.
        of_good_samples(two, 4, partial(make, bad=2))


@pytest.mark.parametrize(
    ("shape", "cell", "extent"),
    [
        ((60, 20, 3), 144, (74, 114, 144, 24)),
        ((20, 60, 3), 144, (34, 154, 104, 64)),
        ((100, 50, 3), 50, (34, 59, 62, 12)),
    ],
)
def test_a_picture_is_in_the_middle_of_its_cell_enlarged_by_a_whole_factor_or_made_to_fit(shape, cell, extent):
    """In a cell from (10, 0) on with a frame of 12 pixels."""
    _, axes = _paper(200, 200)
    assert _draw_picture(axes, 10, 0, np.zeros(shape, np.uint8), cell, frame=12) == extent


def test_a_row_is_called_what_it_shows_and_what_training_uses_has_a_frame_of_its_own():
    pictures = [np.full((32, 32, 3), level, np.uint8) for level in (10, 20, 30)]
    rows = [
        Row("Rotate", "degrees", ["-9", "0", "+9"], pictures, [True, False, True]),
        Row("Equalize", "", [""], pictures[:1], [False]),
    ]
    axes = _rows_sheet(rows, "title", "note").axes[0]
    said = [(text.get_text(), text.get_position()) for text in axes.texts if text.get_text()]
    assert [text for text, _ in said] == [
        "title",
        "note",
        "Rotate",
        "degrees",
        "-9",
        "0",
        "+9",
        "Equalize",
        "no magnitude",
    ]
    colours = {text.get_text(): to_hex(text.get_color()) for text in axes.texts}
    assert [colours[name] for name in ("-9", "0", "+9")] == [FRESH, INK, FRESH]
    assert [to_hex(each.get_facecolor()) for each in axes.patches] == [FRESH, LINE, FRESH, LINE]
    assert [round(each.get_width()) for each in axes.patches] == [128 + 8, 128 + 2, 128 + 8, 128 + 2]
    extents = [image.get_extent() for image in axes.images]
    assert [int(image.get_array().mean()) for image in axes.images] == [10, 20, 30, 10]
    lefts = [left for left, *_ in extents]
    assert lefts == [*sorted(lefts[:3]), lefts[0]]
    places = dict(said)
    for name, (left, right, bottom, top) in zip(("-9", "0", "+9"), extents, strict=False):
        x, y = places[name]
        assert (left + right) / 2 == pytest.approx(x, abs=1)
        assert bottom <= y < bottom + 12
        assert top < places["Rotate"][1] < places["degrees"][1] < bottom
    assert extents[3][3] < places["Equalize"][1] < extents[3][2]


@pytest.mark.parametrize(("size", "kernel", "hole", "padding"), [(224, 23, 112, 28), (40, 5, 20, 5), (1, 3, 1, 1)])
def test_stages_are_what_they_are_called(size, kernel, hole, padding):
    stages = stages_for(size)
    padded = f'RandomCrop({size}, padding={padding}, padding_mode="reflect")'
    assert {f"RandomResizedCrop({size})", padded, f"GaussianBlur({kernel})", f"Cutout({hole})"} <= stages.keys()
    for name, made in stages.items():
        turned = name.startswith(("RandomRotation", "RandomAffine"))
        called = eval(name.removesuffix(")") + ', "bilinear")' if turned else name, vars(augment))
        assert made == (called if isinstance(called, list) else [called]), name
    assert len(stages) == 23


def test_a_stage_is_applied_to_so_many_draws_as_fit_or_to_one(monkeypatch):
    applied = []

    def made(image, stages, count, drawn):
        applied.append((stages, count, {name: len(next(iter(each.values()))) for name, each in drawn.items() if each}))
        return [image] * count

    stages = {"HorizontalFlip()": [HorizontalFlip()], "Invert()": [augment.Invert()], "A(1, 2)": [HorizontalFlip(1.0)]}
    monkeypatch.setattr(operations, "stages_for", lambda size: stages)
    monkeypatch.setattr(operations, "_applied", made)
    image = np.zeros((32, 32, 3), np.uint8)
    flips, inverted, always = draws(image)
    assert flips == Row("HorizontalFlip", "by default", [f"draw {n}" for n in range(1, 8)], [image] * 7, [False] * 7)
    assert inverted == Row("Invert", "by default", [""], [image], [False])
    assert (always.name, always.unit, len(always.pictures)) == ("A", "1, 2", 1)
    assert [(each, count) for each, count, _ in applied] == [*zip(stages.values(), (7, 1, 1), strict=True)]
    assert applied[0][2] == {"flip": 7}


@pytest.mark.weekly
def test_each_stage_is_drawn_as_often_as_fits_or_once_if_nothing_is_random():
    image = np.asarray(picture(3, height=32, width=32))
    rows = {(row.name, row.unit): row.pictures for row in draws(image)}
    assert len(rows) == len(stages_for(32))
    assert len(rows["Invert", "by default"]) == 1
    assert np.array_equal(rows["Invert", "by default"][0], 255 - image)
    flips = rows["HorizontalFlip", "by default"]
    assert len(flips) == MAGNITUDES
    assert {each.tobytes() for each in flips} == {image.tobytes(), image[:, ::-1].tobytes()}
    assert all(each.shape == image.shape for pictures in rows.values() for each in pictures)
    public = {type(stage).__name__ for stages in stages_for(32).values() for stage in stages}
    needless = {"CenterCrop", "Custom", "Decode", "KernelStage", "RandomApply", "RandomChoice", "Resize", "Stage"}
    others = {"AutoAugmentFirst", "AutoAugmentSecond", "RandAugmentLayer", "TrivialAugmentLayer"}
    stages = {name for name, each in vars(augment).items() if isinstance(each, type) and issubclass(each, Stage)}
    timm = {name for name in stages if name.startswith("Timm")}
    assert stages - needless - others - timm <= public


@pytest.mark.weekly  # Operations, which are as many pictures of fewer stages, are drawn at each change.
def test_show_stages_writes_a_row_for_each(folder, tmp_path, capsys):
    out = tmp_path / "stages.png"
    options = ["--preset", "stages", "--size", "32", "--out", str(out)]
    assert main(["show", str(folder), "--operations", *options]) == 0
    assert capsys.readouterr().out == f"drawing all stages\ndrawn: {out}\n"
    assert read(out).shape[0] > len(stages_for(32)) * 128
    assert main(["show", str(folder), *options]) == 2
    assert "--preset stages is for --operations" in capsys.readouterr().err
    assert main(["show", str(folder), "--operations", "--preset", "timm_augment", "--out", str(out)]) == 2
    assert "pass --preset stages" in capsys.readouterr().err


def test_show_plan_takes_the_number_of_samples_from_the_folder(folder, tmp_path, capsys, monkeypatch):
    asked, others = [], set()

    def compare(planner, epochs):
        asked.append(planner.num_samples)
        others.add((planner.batch_size, planner.seed, epochs))
        return compare_plans(Refurbish(20, batch_size=2, reuse_factor=2), epochs)

    monkeypatch.setattr("dalirefurb.show.plots.compare_plans", compare)
    out = tmp_path / "plan.png"
    options = ["--plan", "--out", str(out), "--batch-size", "2", "--epochs", "4", "--seed", "3"]
    assert main(["show", str(folder), *options]) == 0
    assert main(["show", *options]) == 0
    assert main(["show", *options, "--num-samples", "20"]) == 0
    assert main(["show", str(folder), *options, "--num-samples", "20"]) == 2
    assert (asked, others) == ([6, 10_000, 20], {(2, 3, 4)})
    assert len(colours(read(out))) > 10
    capsys.readouterr()


def test_what_a_gpu_is_given_for_a_batch_is_printed(capsys, monkeypatch):
    options = ["show", "--plan", "--bandwidth", "1GB", "--preset", "simple", "--size", "100", "--batch-size", "10"]
    assert main(options) == 0
    said = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert said[0] == "partial part: 10 images of 375 x 500 pixels"
    assert said[2].split() == ["pixels", "5.92", "MB", "random_resized_crop"]
    assert said[4:] == [
        "final part: 10 images of 100 x 100 pixels",
        "  output      1.50 MB  flip",
        "  1 launch, 1.50 MB moved: 1.500 ms at least, at 1.00 GB a second",
    ]
    launch = SimpleNamespace(function="pixels", nbytes=4_000_000, stages=("crop", "flip"))
    part = SimpleNamespace(part="final", size=(30, 40), launches=[launch, launch], nbytes=8_000_000)
    given = []
    monkeypatch.setattr(
        "dalirefurb.kernels.cuda.counting.launches_of", lambda _, rows, seed: given.append((rows, seed)) or [part]
    )
    assert main(["show", "--plan", "--bandwidth", "2TB", "--seed", "5"]) == 0
    assert given == [(64, 5)]
    assert capsys.readouterr().out.split("\n\n")[1].splitlines() == [
        "final part: 64 images of 30 x 40 pixels",
        *["  pixels      4.00 MB  crop, flip"] * 2,
        "  2 launches, 8.00 MB moved: 0.004 ms at least, at 2.00 TB a second",
    ]
    for wrong, message in (
        (["--bandwidth", "0B"], "--bandwidth must be above 0, got 0B: pass such as 2.8TB"),
        (["--epochs", "2"], "--epochs changes nothing with --bandwidth, got 2"),
        (["photos"], "FOLDER changes nothing with --bandwidth, got photos"),
        (["--out", "a.png"], "--out changes nothing with --bandwidth, got a.png"),
        (["--preset", "stages"], "--preset stages is for --operations"),
    ):
        assert main([*options, *wrong]) == 2
        assert message in capsys.readouterr().err
    assert main(["show", "--bandwidth", "1GB"]) == 2
    assert "--bandwidth is for --plan, got 1GB without it; add --plan" in capsys.readouterr().err


def test_pictures_and_operations_of_arrays_can_be_drawn():
    pictures = pictures_sheet(arrays(size=32), simple(32, raw=True), name="simple", reuse_factor=2)
    assert len(colours(drawn(pictures))) > 1000
    assert len(colours_of_operations("trivial_augment")) > 1000


def test_whole_photographs_are_scikit_images():
    source = whole_photographs()
    assert len(source) == 8
    assert source[0][0].shape == (512, 512, 3)


def test_a_folder_that_is_looked_at_leaves_nothing_but_what_was_there(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "deep", ["a.png"])
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "there").mkdir()
    check_folder(tmp_path / "there", ["a.png"])
    with folder_made(tmp_path / "there" / "new" / "deep"):
        (tmp_path / "there" / "new" / "a.png").touch()
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "there",
        "there/new",
        "there/new/a.png",
    ]
