"""Does the demo measure loading alone soundly, and tell of progress without tearing anything?"""

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dalirefurb.augment.presets import rand_augment
from dalirefurb.cli.terminal import counted
from dalirefurb.demo import compare
from dalirefurb.demo.pillow_images import MEAN, STD, PillowImages
from dalirefurb.planning.refurbish import Refurbish
from dalirefurb.source import ImageFolder
from tests.pictures import write_folder


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("photographs"), num_samples=12)


def test_a_data_loader_that_cannot_work_is_left_out_and_the_demo_goes_on(photographs, capsys, monkeypatch):
    def serve(count):
        raise RuntimeError("no shared\nmemory")

    monkeypatch.setattr(compare, "_data_loader", lambda *_: serve)
    monkeypatch.setattr(compare, "_stock_dali", lambda *_: range)  # It works in the demo that is long enough.
    for name, value in (("_TURN_S", 0.01), ("_IMAGES", 1), ("_ROUNDS", 1), ("_IDLE_LIMIT_S", 0)):
        monkeypatch.setattr(compare, name, value)
    speeds = compare.load_alone(ImageFolder(photographs), rand_augment(32), Refurbish(12, batch_size=4, reuse_factor=2))
    assert list(speeds) == ["stock DALI", "dalirefurb, standard", "dalirefurb, reuse factor 2"]
    assert capsys.readouterr().err == "dalirefurb: warning: torch's DataLoader is left out: no shared memory\n"


def test_batches_made_ahead_are_not_counted_as_speed(monkeypatch):
    """Those that wait come at once; then each takes a second."""
    for cores in (1, 2, 8):
        monkeypatch.setattr(compare, "usable_cores", lambda cores=cores: cores)
        now, asked = [0.0], []
        monkeypatch.setattr(compare.time, "perf_counter", lambda now=now: now[0])

        def serve(count, now=now, asked=asked):
            asked.append(count)
            for number in range(count):
                now[0] += number >= compare._MADE_AHEAD
                yield number

        assert compare._turn(serve, 10)() == 10
        assert asked == [{1: 6 + 26, 2: 6 + 52, 8: 8 + 208}[cores]]  # of as many batches by each process


def test_loading_alone_is_the_median_of_turns_after_the_first(photographs, monkeypatch):
    """The first turn is the fastest here."""
    source, planner = ImageFolder(photographs), Refurbish(12, batch_size=4, reuse_factor=2)
    speeds = {name: iter([1000.0, speed, 3 * speed, 2 * speed]) for name, speed in (("alone", 5.0), ("reused", 10.0))}
    others = [iter([9.0, 1000.0, 1.0, 4.0, 2.0]), iter([1000.0, 1.5, 6.0, 3.0])]

    class Fake:
        def __init__(self, source, recipe, planner, store=None):
            self.speeds = speeds["alone" if store is None else "reused"]

        def slice(self, seconds):
            return SimpleNamespace(image_s=1 / next(self.speeds))

        def fill(self):
            pass

    made = iter(others)
    monkeypatch.setattr(compare, "Turns", Fake)
    monkeypatch.setattr(compare, "wait_until_idle", lambda _: None)
    for name in ("_data_loader", "_stock_dali"):
        monkeypatch.setattr(compare, name, lambda *_: None)
    monkeypatch.setattr(compare, "_turn", lambda serve, rows: partial(next, next(made)))
    found = compare.load_alone(source, rand_augment(32), planner)
    assert {name: round(speed) for name, speed in found.items()} == {
        "DataLoader": 2,
        "stock DALI": 3,
        "dalirefurb, standard": 10,
        "dalirefurb, reuse factor 2": 20,
    }
    lines = compare.loading_table(found).splitlines()
    assert [line.split()[-2:] for line in lines[1:5]] == [
        ["2", "1.00x"],
        ["3", "1.50x"],
        ["10", "5.00x"],
        ["20", "10.00x"],
    ]


def test_images_by_pillow_are_what_a_network_takes_each_drawn_anew(photographs):
    images = PillowImages(sorted(map(str, photographs.rglob("*.jpg"))), 40)
    made = torch.stack([images[0] for _ in range(8)])
    assert made.shape == (8, 3, 40, 40)
    assert made.dtype == torch.float32
    lowest, highest = -MEAN / STD, (255 - MEAN) / STD
    assert (made.amin((0, 2, 3)).numpy() >= lowest - 1e-5).all()
    assert (made.amax((0, 2, 3)).numpy() <= highest + 1e-5).all()
    assert len({image.numpy().tobytes() for image in made}) == 8


@pytest.mark.parametrize("piped", ["stdout", "stderr"])
def test_a_bar_is_drawn_only_where_nothing_else_writes_to_its_terminal(piped, capsys, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(getattr(sys, name), "isatty", lambda name=name: name != piped, raising=False)
    assert list(counted(range(3), "work", "item", 3)) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(getattr(sys, piped), "isatty", lambda: True, raising=False)
    assert list(counted(range(3), "work", "item", 3)) == [0, 1, 2]
    assert "work" in capsys.readouterr().err


def test_processes_that_hand_nothing_over_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot, since TMPDIR is too long for a socket's name, only says so."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(compare, "DataLoader", lambda *_, **arguments: given.update(arguments))
    compare._data_loader(["a.jpg"], 8, 4)
    assert 0 < given["timeout"] < 300
