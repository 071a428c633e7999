"""What the first stages of a recipe leave is kept, and a loader goes on behind them, to the same bits."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn

from dalirefurb import (
    Arrays,
    BadSamplePolicy,
    Concat,
    DiskStore,
    ImageFolder,
    Kept,
    Loader,
    Output,
    Recipe,
    Refurbish,
    Standard,
    evaluate,
    tune,
)
from dalirefurb.augment import (
    CenterCrop,
    Custom,
    Decode,
    HorizontalFlip,
    RandAugmentLayer,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from dalirefurb.cli import main
from dalirefurb.errors import ConfigurationError, SampleError, StateMismatchError, StoreError
from dalirefurb.keep import forms
from dalirefurb.source import Source
from dalirefurb.targets import Annotated, Boxes
from tests.in_turn import in_turn
from tests.keep.test_kept import (
    ALL,
    BATCH_SIZE,
    NUM_SAMPLES,
    SIZE,
    STANDARD,
    Counted,
    assert_same,
    served,
    taken_in_turn,
)
from tests.pictures import jpeg, picture, write_folder

pytest.importorskip("numba")
pytestmark = pytest.mark.usefixtures("traced_once")

LAYERS = [HorizontalFlip(), RandAugmentLayer()]
CROPPED = Recipe([Decode(), Resize(40), RandomCrop(SIZE), *LAYERS], Output(SIZE), split=3)
RECIPES = {
    "a random crop": CROPPED,
    "split right behind": CROPPED.at(2),
    "all partial": CROPPED.at(5),
    "a crop in the middle": Recipe([Decode(), Resize(40), CenterCrop(SIZE), *LAYERS], Output(SIZE), split=2),
    "one size": Recipe([Decode(), Resize((36, 44)), RandomResizedCrop(SIZE), *LAYERS], Output(SIZE), split=3),
    "nothing random": evaluate(SIZE),
    "always mirrored": Recipe(
        [Decode(), HorizontalFlip(1.0), Resize((SIZE, SIZE)), HorizontalFlip(name="again")], Output(SIZE), 3
    ),
    "only a flip": Recipe([Decode(), Resize((SIZE, SIZE)), HorizontalFlip()], Output(SIZE), split=2),
}
"""Their first two stages are kept."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """JPEGs, one turned by EXIF, and one in grey."""
    root = write_folder(tmp_path_factory.mktemp("photos"), num_samples=NUM_SAMPLES)
    exif = picture(50, height=45, width=60).getexif()
    exif[274] = 6
    (root / "class_0" / "000.jpg").write_bytes(jpeg(picture(50, height=45, width=60), exif=exif))
    (root / "class_2" / "002.jpg").write_bytes(jpeg(picture(52, height=47, width=51).convert("L")))
    return ImageFolder(root)


def kept(source: Source, path: Path, recipe: Recipe = CROPPED, **settings: Any) -> Kept:
    return Kept(source, path, form=recipe.stages[:2], **settings)


def half_full(source: Source, path: Path) -> Kept:
    kept(source, path).read(ALL[::2])
    return kept(source, path, size=0)


def damaged(source: Source, path: Path) -> Kept:
    whole = kept(source, path)
    whole.fill()
    data = np.memmap(path / "data", np.uint8, "r+")
    data[100 : whole._folders()[0].nbytes : 1000] ^= 255
    return kept(source, path)


FILLS: dict[str, Any] = {
    "empty": kept,
    "filled by another": lambda source, path: (kept(source, path).fill(), kept(source, path))[1],
    "half full": half_full,
    "without room": lambda source, path: kept(source, path, size=0),
    "damaged": damaged,
    "of files": lambda source, path: kept(Kept(source, path / "a", form="encoded"), path / "b"),
    "sent to a process": lambda source, path: pickle.loads(pickle.dumps(kept(source, path))),
}


@pytest.mark.parametrize("fill", FILLS)
def test_a_prefix_that_is_kept_changes_nothing_that_is_served(fill: str, photos: ImageFolder, tmp_path: Path) -> None:
    assert_same(served(FILLS[fill](photos, tmp_path), CROPPED), served(photos, CROPPED))


@pytest.mark.parametrize(("recipe", "stored"), in_turn([*RECIPES], [False, True]))
def test_whatever_the_recipe(recipe: str, stored: bool, photos: ImageFolder, tmp_path: Path) -> None:
    planner = Refurbish(NUM_SAMPLES, batch_size=BATCH_SIZE, reuse_factor=2, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = half_full(photos, tmp_path) if RECIPES[recipe].stages[:2] == CROPPED.stages[:2] else None
        each = (
            served(one, RECIPES[recipe], planner, epochs=3, stored=stored)
            for one in (source or kept(photos, tmp_path, RECIPES[recipe]), photos)
        )
        assert_same(*each)


def test_views_go_on_behind_it(photos: ImageFolder, tmp_path: Path) -> None:
    recipe = CROPPED.at(2)
    with Loader(kept(photos, tmp_path), recipe, STANDARD, views=[recipe.view(2)]) as loader:
        views = [(one.clone(), other.clone()) for (one, other), _ in loader]
    with Loader(photos, recipe, STANDARD, views=[recipe.view(2)]) as loader:
        assert_same(views, [(one.clone(), other.clone()) for (one, other), _ in loader])
    assert not (views[0][0] == views[0][1]).all()


def test_a_training_goes_on_with_it_and_without(photos: ImageFolder, tmp_path: Path) -> None:
    source = kept(photos, tmp_path)
    batches, state = taken_in_turn([photos, source], CROPPED, STANDARD)
    assert_same(batches, served(photos, CROPPED))
    with Loader(source, CROPPED.at(2), STANDARD) as loader, pytest.raises(StateMismatchError, match="split"):
        loader.load_state_dict(json.loads(state))


def test_a_store_that_lasts_is_filled_with_it_and_used_without(photos: ImageFolder, tmp_path: Path) -> None:
    planner = Refurbish(NUM_SAMPLES, batch_size=BATCH_SIZE, reuse_factor=2, seed=3)
    batches, filled = [], kept(photos, tmp_path / "keep")
    for source in (filled, photos):
        with (
            DiskStore(tmp_path / "store") as store,
            Loader(source, CROPPED, planner, store) as loader,
        ):
            batches.append([(images.clone(), labels.clone()) for images, labels in loader])
    assert_same(batches[0], batches[1])
    other = Recipe([Decode(), Resize(48), *CROPPED.stages[2:]], Output(SIZE), split=3)
    with (
        DiskStore(tmp_path / "store") as store,
        pytest.raises(StoreError, match=r"stages\[1\]\.size 40, not 48"),
    ):
        Loader(kept(photos, tmp_path / "other", other), other, planner, store)


def test_nothing_is_read_of_what_is_kept_and_ranks_share_it(photos: ImageFolder, tmp_path: Path) -> None:
    source, planner = Counted(photos), Standard(NUM_SAMPLES, batch_size=8, shards=2)
    for rank in range(2):
        images = served(kept(source, tmp_path), CROPPED, planner, rank=(rank, 2))
        assert_same(images, served(photos, CROPPED, planner, rank=(rank, 2)))
    assert len(source.asked) == len(set(source.asked))
    read = [*source.asked]
    with Loader(kept(source, tmp_path), CROPPED, STANDARD) as loader:
        for _ in loader:
            pass
        assert loader.stats().files == 0
    assert {*source.asked[len(read) :]}.isdisjoint(read)


def test_it_holds_what_the_stages_leave_and_says_so(
    photos: ImageFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = kept(photos, tmp_path, RECIPES["one size"])
    assert (source.encoded, source.image_shape) == (False, (36, 44, 3))
    assert source.fill() == NUM_SAMPLES
    assert {image.shape for image in source.read(ALL)} == {(36, 44, 3)}
    assert source[3][0].shape == (36, 44, 3)
    assert main(["cache", "inspect", str(tmp_path)]) == 0
    assert "kept         23 of 23 samples, decode > resize\n" in capsys.readouterr().out
    assert kept(photos, tmp_path / "other").image_shape is None
    assert repr(source).endswith("form=[Decode(name='decode'), Resize(size=(36, 44), interpolation='bilinear', "
                                 "name='resize')])")  # fmt: skip


def test_parts_of_it_and_several_together(photos: ImageFolder, tmp_path: Path) -> None:
    source = kept(photos, tmp_path)
    chosen = np.array([7, 3, 3, 20, 11, 0])
    planner = Standard(len(chosen), batch_size=3)
    assert_same(served(source.subset(chosen), CROPPED, planner), served(photos.subset(chosen), CROPPED, planner))
    both, planner = Concat([source, source]), Standard(2 * NUM_SAMPLES, batch_size=8)
    assert_same(served(both, CROPPED, planner), served(Concat([photos, photos]), CROPPED, planner))
    with pytest.raises(ConfigurationError, match="must have gone through the same stages, but number 1"):
        Concat([source, photos])


def test_images_of_a_slow_data_set_go_through_stages_without_decoding(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, 50, 60, 3), np.uint8)
    source, recipe = Counted(Arrays(images, np.arange(NUM_SAMPLES))), CROPPED.for_arrays()
    assert_same(
        served(Kept(source, tmp_path, form=recipe.stages[:1]), recipe),
        served(Arrays(images, np.arange(NUM_SAMPLES)), recipe),
    )
    assert sorted(source.asked) == ALL.tolist()


def test_bad_files_are_bad_as_without(tmp_path: Path) -> None:
    source = ImageFolder(write_folder(tmp_path / "photos", num_samples=NUM_SAMPLES))
    Path(source.name(3)).write_bytes(b"no image")
    Path(source.name(5)).write_bytes(jpeg(picture(5, height=20, width=20)))
    recipe = Recipe([Decode(), CenterCrop(24), Resize(SIZE), HorizontalFlip()], Output(SIZE), split=3)
    without = kept(source, tmp_path / "keep", recipe)
    lists = [tmp_path / "with a keep", tmp_path / "without"]
    one, other = (BadSamplePolicy("replace", quarantine=path) for path in lists)
    assert_same(served(without, recipe, bad_samples=one), served(source, recipe, bad_samples=other))
    assert lists[0].read_text() == lists[1].read_text()
    assert lists[0].read_text().count('"index": 3') == lists[0].read_text().count('"index"') == 1
    assert without.fill() == NUM_SAMPLES - 2
    for index, reason in ((3, "not an image"), (5, "center_crop: images must")):
        for each in (without, source):
            with pytest.raises(SampleError, match=reason) as caught:
                served(each.subset([index]), recipe, Standard(1, batch_size=1))
            assert (caught.value.index, caught.value.name) == (0, source.name(index))


def test_a_folder_is_of_the_same_stages_or_refused(photos: ImageFolder, tmp_path: Path) -> None:
    kept(photos, tmp_path)
    with pytest.raises(StoreError, match=r"holds another: form\.stages\[1\]\.size 40, not \(36, 44\)|size 40, not"):
        kept(photos, tmp_path, RECIPES["one size"])
    with pytest.raises(StoreError, match="holds another: form"):
        Kept(photos, tmp_path)


def test_what_other_kernels_have_made_is_not_taken(
    photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(photos, tmp_path)
    monkeypatch.setattr(forms, "VERSION", 0)
    with pytest.raises(StoreError, match=r"holds another: form\.kernels 'numba \d+', not 'numba 0'"):
        kept(photos, tmp_path)


def test_an_image_that_a_stage_makes_too_large_is_a_bad_sample(
    photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more pixels than a loader's default, which is made small here."""
    pixels = np.array([image.size // 3 for image in kept(photos, tmp_path / "all").read(ALL)])
    small, large = pixels.argmin(), pixels.argmax()
    assert pixels[small] < pixels[large]
    monkeypatch.setattr(forms, "BadSamplePolicy", lambda: BadSamplePolicy(max_pixels=int(pixels[small])))
    with pytest.raises(SampleError, match=rf"resize.* {pixels[small]:,}") as caught:
        kept(photos, tmp_path / "some").read(np.array([small, large]))
    assert (caught.value.index, caught.value.name) == (large, photos.name(large))


def doubled(images: Any) -> Any:
    return fn.flip(images)


NO_KERNEL = Recipe([Decode(), Resize((SIZE, SIZE)), Custom(doubled, "doubled"), HorizontalFlip()], Output(SIZE), 2)


@pytest.mark.parametrize(
    ("form", "refusal"),
    [
        (CROPPED.stages[:3], "is the same in every epoch, but 'random_crop' is random: end form= before it"),
        (NO_KERNEL.stages[:3], "made by compiled kernels, but 'doubled' has none: end form= before it"),
        (CROPPED.stages[:1], "must be Decode and what follows where a source gives encoded images, got decode"),
        (CROPPED.stages[1:2], "must be Decode and what follows where a source gives encoded images, got resize"),
        ([], r"first stages of a recipe, got \[\]"),
        (["decoded"], r"first stages of a recipe, got \['decoded'\]"),
        ("decode", r"must be one of \('decoded', 'planes', 'encoded'\), or stages"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(form: Any, refusal: str, photos: ImageFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        Kept(photos, tmp_path, form=form)
    assert not [*tmp_path.iterdir()]


def test_sources_whose_images_have_moved_are_refused_by_name(photos: ImageFolder, tmp_path: Path) -> None:
    boxes = [np.array([[1.0, 1.0, 9.0, 9.0]])] * NUM_SAMPLES
    annotated = Annotated(photos, {"boxes": Boxes(boxes)})
    with pytest.raises(ConfigurationError, match="for a source without targets, which would not move along"):
        kept(annotated, tmp_path)
    source = kept(photos, tmp_path)
    with pytest.raises(ConfigurationError, match="with which targets would not move"):
        served(Annotated(source, {"boxes": Boxes(boxes)}), CROPPED)
    for form in (CROPPED.stages[:2], "decoded"):
        with pytest.raises(ConfigurationError, match="has gone through stages already, decode, resize"):
            Kept(source, tmp_path / "other", form=form)


@pytest.mark.parametrize(
    ("recipe", "settings", "refusal"),
    [
        (RECIPES["one size"], {}, r"but in the place of Resize\(size=40.* it has Resize\(size=\(36, 44\)"),
        (CROPPED.for_arrays(), {}, r"but in the place of Decode\(name='decode'\) it has Resize"),
        (CROPPED.at(1), {}, r"so these must be partial, got split 1: pass recipe\.at\(2\)"),
        (CROPPED, {"kernels": "dali"}, "with kernels='dali', partial_device='cpu' DALI's operators do 'decode'"),
        (NO_KERNEL, {}, "with kernels='numba', partial_device='cpu' DALI's operators do 'doubled'"),
        (
            CROPPED,
            {"bad_samples": BadSamplePolicy(max_pixels=900)},
            "of 100,000,000 pixels at most, got max_pixels=900",
        ),
    ],
)
def test_a_recipe_that_makes_something_else_is_refused_by_name(
    recipe: Recipe, settings: dict[str, Any], refusal: str, photos: ImageFolder, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        served(kept(photos, tmp_path, recipe if recipe is NO_KERNEL else CROPPED), recipe, **settings)


def test_tune_wants_the_source_as_it_was(photos: ImageFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="gone through stages already: pass the source that Kept was given"):
        tune(kept(photos, tmp_path), CROPPED)
