"""Does the demo compare what it says, on photographs that are what they are said to be?"""

from __future__ import annotations

import io
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from dalirefurb.augment.presets import rand_augment
from dalirefurb.cli import main
from dalirefurb.cli.show import PICTURES
from dalirefurb.demo import commands, compare, photographs
from dalirefurb.demo.photographs import HEIGHT, WIDTH, Photographs
from dalirefurb.demo.training import EpochReport
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.engine.stats import Stats
from dalirefurb.planning.refurbish import Refurbish, Standard
from tests.one_line import error_of
from tests.pictures import picture, write_folder

# The demo


def epoch_of(batches: int, seconds: float, misses: int) -> EpochReport:
    times, rows = np.full(batches, seconds), np.full(batches, 8)
    return EpochReport(0, rows, times, Stats(misses=misses), loss=1.0, accuracy=0.5)


class Runs(ExitStack):
    """A trainer that takes turns with others, and says when."""

    turns: ClassVar[list[str]]
    made: ClassVar[list[tuple[Any, ...]]]

    def __init__(self, source: Any, recipe: Any, planner: Any, **given: Any) -> None:
        super().__init__()
        self.made.append((len(source), recipe, planner, given))
        self.number = len(self.made)
        self.loader = SimpleNamespace(batches_ahead=self.number)

    def step_alone_s(self) -> float:
        return self.number * 0.5

    def epoch(self, what: str) -> EpochReport:
        self.turns.append(what)
        return epoch_of(60, 1.0, 7)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Runs]:
    """Trainers that only say what they are given; images that are there, pictures, and speeds of loading."""
    monkeypatch.setattr(Runs, "made", [], raising=False)
    monkeypatch.setattr(Runs, "turns", [], raising=False)
    folder = write_folder(tmp_path / "photographs", num_samples=12)
    monkeypatch.setattr(Photographs, "folder", lambda *_: nullcontext(folder))
    monkeypatch.setattr("dalirefurb.demo.training.Trainer", Runs)
    monkeypatch.setattr(compare, "wait_until_idle", lambda _: Runs.turns.append("idle"))
    monkeypatch.setattr(commands, "_share_cores", lambda: Runs.turns.append("cores"))
    return Runs


@pytest.mark.parametrize("batches", [1, 60])
def test_a_demo_trains_draws_and_loads_with_what_is_given(
    batches: int, runs: type[Runs], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    loaded = {"DataLoader": 10.0, "stock DALI": 20.0, "standard": 40.0, "reuse factor 5": 100.0}
    figures = [Figure(figsize=(side, 1)) for side in (1, 2, 3)]
    monkeypatch.setattr(commands, "draw_all", lambda *drawn: given.update(drawn=drawn) or figures)
    monkeypatch.setattr(compare, "load_alone", lambda *alone: given.update(alone=alone) or loaded)
    monkeypatch.setattr(compare, "_TIMED_BATCHES", batches + 1)
    numbers = ["--images", "12", "--batch-size", "6", "--size", "48", "--seed", "7", "--reuse-factor", "5"]
    epochs = 1 if batches == 1 else 32
    out = tmp_path / "drawn"
    assert main(["demo", *numbers, "--epochs", str(epochs), "--out", str(out)]) == 0
    paper, crop_last = (rand_augment(48, order=order) for order in ("paper", "crop_last"))
    standard, refurbish = Standard(12, batch_size=6, seed=7), Refurbish(12, batch_size=6, seed=7, reuse_factor=5)
    ahead = {"epochs": epochs, "prefetch": Prefetch(look_ahead=2, batches_per_group=1)}
    trained = [(12, paper, standard, ahead), (12, paper, refurbish, ahead), (12, crop_last, refurbish, ahead)]
    assert runs.made == trained
    assert given["drawn"][1:] == (paper, refurbish)
    said = capsys.readouterr().out
    after = "of" if epochs == 1 else "after"
    assert f"\ntraining the same network: medians {after} the first epoch, which only misses; reuse factor 5:\n" in said
    if epochs == 1:
        assert "alone" not in given
        assert "loading alone" not in said
    else:
        assert given["alone"][1:] == (paper, refurbish)
        assert f"loading alone, without a network:\n\n{compare.loading_table(loaded)}\n" in said
        # The step is that of standard's trainer, of half a second.
        assert "50% of standard's time (500 of 1000 ms per batch)" in " ".join(said.split())
    names = ["standard", "refurbished", "refurbished, crop last"]
    turns = [f"{name}, epoch {epoch + 1} of {epochs}" for epoch in range(epochs) for name in names]
    assert runs.turns == ["cores", *(each for turn in turns for each in (turn, "idle"))]
    paths = [out / name for name in PICTURES]
    assert said.endswith(f"drawn: {', '.join(map(str, paths))}\n")
    widths = []
    for path in paths:
        with Image.open(path) as image:
            widths.append(image.width)
    assert widths == [100, 200, 300]


def test_what_was_made_ahead_of_a_run_is_its_loaders(runs: type[Runs]) -> None:
    trainers = {name: runs([], None, None) for name in ("first", "second")}
    found = compare.compare(trainers, epochs=2)
    assert [(run.name, run.made_ahead, len(run.reports)) for run in found] == [("first", 1, 2), ("second", 2, 2)]


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (5, 2), (8, 4)])
def test_half_the_cores_are_left_to_the_loader(cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(commands, "usable_cores", lambda: cores)
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    commands._share_cores()
    assert told == [threads]


# Photographs


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Photographs that are not drawn: a file says which photograph a window would be of, and what is drawn for it."""

    def window(sheet: str, random: np.random.Generator, grain: int) -> bytes:
        return f"{sheet} {random.random()} {grain}".encode()

    monkeypatch.setattr(photographs, "_sheet", lambda path: path.stem)
    monkeypatch.setattr(photographs, "_grain", lambda seed: seed)
    monkeypatch.setattr(photographs, "_window", window)


@pytest.mark.usefixtures("drafts")
def test_classes_take_turns_and_each_has_windows_of_its_own_photograph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Photographs(images=19, seed=3).folder(tmp_path / "new" / "made") as folder:
        assert folder == tmp_path / "new" / "made"
    assert capsys.readouterr().out == "making 19 JPEGs of 500 x 375 pixels\n"
    files = sorted(folder.glob("*/*.jpg"), key=lambda path: path.name)
    assert [path.name for path in files] == [f"{index:06}.jpg" for index in range(19)]
    classes = [path.parent.name for path in files]
    assert classes[:3] == ["astronaut", "chelsea", "coffee"]
    assert classes == (3 * classes[:8])[:19]
    assert len({*classes}) == 8
    said = [path.read_text().split() for path in files]
    assert [sheet for sheet, _, _ in said] == classes
    assert len({drawn for _, drawn, _ in said}) == 19
    assert {grain for _, _, grain in said} == {"3"}
    assert sorted(path.name for path in tmp_path.rglob("dalirefurb-demo*")) == ["dalirefurb-demo.json"]


@pytest.mark.usefixtures("drafts")
def test_images_that_are_there_are_taken_and_an_empty_folder_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = Path("empty")  # in the present folder
    empty.mkdir()
    mine = Photographs(images=8)
    assert not mine.is_made(empty)
    with mine.folder(empty) as folder:
        assert len([*folder.glob("*/*.jpg")]) == 8
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert mine.is_made(empty)
    monkeypatch.setattr(Photographs, "_write", None)
    with mine.folder(empty) as again:
        assert again == empty
    assert len([*empty.glob("*/*.jpg")]) == 8


@pytest.mark.parametrize("named", [True, False])
def test_images_for_which_the_disk_has_no_room_are_refused(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(photographs.shutil, "disk_usage", lambda path: asked.append(path) or Namespace(free=65_000_000))
    path = tmp_path / "not" / "there" if named else None
    assert not Photographs(images=1000).is_made(path)
    given = ["--folder", path] if named else []
    status, line = error_of(capsys, "demo", "--images", 1001, *given)
    assert status == 2
    assert f"--images must fit on the disk, but 1001 take about 0.1 GB, and {tmp_path} has 0.1 GB left; make" in line
    assert {*asked} == {tmp_path}
    assert [*tmp_path.iterdir()] == []


class Drawn:
    """Draws what it is told, as shares of what may be drawn."""

    def __init__(self, *shares: Any) -> None:
        self.shares: Iterator[Any] = iter(shares)

    def uniform(self, low: float, high: float, count: int | None = None) -> Any:
        return low + (high - low) * np.asarray(next(self.shares))

    def integers(self, low: int, high: int, count: int) -> Any:
        return np.array([low + 20, high - 1])


def test_a_photograph_goes_on_beyond_its_edges(tmp_path: Path) -> None:
    """As in a mirror, by half its height and half its width at each side."""
    whole = picture(0, height=5, width=8)
    whole.putalpha(255)
    whole.save(tmp_path / "a.png")
    pixels = np.asarray(whole)[..., :3]
    sheet = np.asarray(photographs._sheet(tmp_path / "a.png"))
    assert sheet.shape == (9, 16, 3)
    assert np.array_equal(sheet[2:7, 4:12], pixels)
    assert np.array_equal(sheet[:2, 4:12], pixels[1::-1])
    assert np.array_equal(sheet[2:7, 12:], pixels[:, :3:-1])


@pytest.mark.parametrize(("turn", "across", "down"), [(0.0, (1, 0), (0, 1)), (0.25, (0, 1), (-1, 0))])
def test_a_window_shows_what_is_drawn_turned_relit_and_with_grain(
    turn: float, across: tuple[int, int], down: tuple[int, int]
) -> None:
    """Of a photograph of 120 x 60 pixels, whose sheet shows its own columns and rows."""
    rows, columns = np.mgrid[:120, :240]
    sheet = Image.fromarray(np.stack([columns, rows, 0 * rows + 100], axis=2).astype(np.uint8))
    grain = np.full((HEIGHT + 256, WIDTH + 256, 3), 128, np.uint8)
    grain[255:, 20:, 2] = 148  # where it is taken from
    drawn = Drawn(turn, 1.0, 1.0, 0.25, 0.5, (0.0, 0.5, 1.0))
    encoded = photographs._window(sheet, drawn, Image.fromarray(grain))  # type: ignore[arg-type]
    with Image.open(io.BytesIO(encoded)) as image:
        assert (image.format, image.size) == ("JPEG", (500, 375))
        window = np.asarray(image).astype(float)
    # 0.9 of the photograph's height; a quarter of its width right of the middle, an eighth of its height above it; of
    # light 0.85 times 0.8, 1 and 1.2.
    scale, light = 0.9 * 60 / 375, 0.85 * np.array([0.8, 1.0, 1.2])
    centre = np.array([120 + 0.25 * 120, 60 - 0.125 * 60])
    for x, y in ((250, 187), (20, 20), (480, 30), (40, 350)):
        place = centre + scale * ((x + 0.5 - 250) * np.array(across) + (y + 0.5 - 187.5) * np.array(down)) - 0.5
        wanted = np.array([*place, 100]) * light + (0, 0, 20)
        assert np.abs(window[y, x] - wanted).max() < 5, (x, y)


def test_grain_is_noise_around_128_of_its_seed() -> None:
    grain, other = (np.asarray(photographs._grain(seed)).astype(float) for seed in (1, 2))
    assert grain.shape == (375 + 256, 500 + 256, 3)
    assert abs(grain.mean() - 128) < 0.1
    assert 7.5 < grain.std() < 8.5
    assert np.array_equal(grain, np.asarray(photographs._grain(1)))
    assert (grain != other).mean() > 0.9
