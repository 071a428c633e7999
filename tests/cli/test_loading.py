"""Does the demo measure loading alone soundly, and tell of progress without tearing anything?"""

import random
import re
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali import types
from PIL import Image

from dalirefurb.augment.policies.layers import RandAugmentLayer
from dalirefurb.augment.presets import rand_augment
from dalirefurb.cli.terminal import counted
from dalirefurb.demo import compare, pillow_images
from dalirefurb.demo.pillow_images import MEAN, STD, PillowImages
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.source import ImageFolder
from tests.pictures import picture, write_folder


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("photographs"), num_samples=12)


@pytest.mark.parametrize("error", [RuntimeError, OSError])
def test_a_data_loader_that_cannot_work_is_left_out_and_the_demo_goes_on(photographs, capsys, monkeypatch, error):
    def serve(count):
        raise error("no shared\nmemory")

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
    source, planner = ImageFolder(photographs), Refurbish(12, batch_size=4, reuse_factor=2, seed=6)
    speeds = {name: iter([1000.0, speed, 3 * speed, 2 * speed]) for name, speed in (("alone", 5.0), ("reused", 10.0))}
    others = {"torch": iter([9.0, 1000.0, 1.0, 4.0, 2.0]), "stock": iter([1000.0, 1.5, 6.0, 3.0])}
    planners, order, idle = [], [], []

    class Fake:
        def __init__(self, source, recipe, planner, store=None):
            self.name = "alone" if store is None else "reused"
            planners.append((self.name, planner))

        def slice(self, seconds):
            order.append((self.name, seconds))
            return SimpleNamespace(image_s=1 / next(speeds[self.name]))

        def fill(self):
            order.append((self.name, "filled"))

    def turn(serve, rows):
        name, *given = serve
        assert given == [[source.name(index) for index in range(12)], 32, 4]
        assert rows == 4
        return lambda: (order.append((name, None)), next(others[name]))[1]

    monkeypatch.setattr(compare, "Turns", Fake)
    monkeypatch.setattr(compare, "wait_until_idle", idle.append)
    for name, called in (("_data_loader", "torch"), ("_stock_dali", "stock")):
        monkeypatch.setattr(compare, name, lambda *given, called=called: (called, *given))
    monkeypatch.setattr(compare, "_turn", turn)
    found = compare.load_alone(source, rand_augment(32), planner)
    assert planners == [("alone", Standard(12, batch_size=4, seed=6)), ("reused", planner)]
    once = [("torch", None), ("stock", None), ("alone", 2.0), ("reused", 2.0)]
    # The store is full, and processes have begun, before any turn; whoever was last begins the next round.
    assert order == [("reused", "filled"), ("torch", None), *(once + once[::-1]) * 2]
    assert len(idle) == 16
    assert {name: round(speed) for name, speed in found.items()} == {
        "DataLoader": 2,
        "stock DALI": 3,
        "dalirefurb, standard": 10,
        "dalirefurb, reuse factor 2": 20,
    }
    lines = compare.loading_table(found).splitlines()
    assert re.split("  +", lines[0].strip()) == ["images/s", "speed-up"]
    assert "Medians of 3 turns after a first one; what was made ahead is not counted." in " ".join(lines[6:])
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
    assert list(counted(iter(range(3)), "work", "item", 3)) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(getattr(sys, piped), "isatty", lambda: True, raising=False)
    assert list(counted(iter(range(3)), "work", "item", 3)) == [0, 1, 2]
    assert re.match(r"\s*work: .*0/3 .*item", capsys.readouterr().err)


def test_processes_that_hand_nothing_over_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot, since TMPDIR is too long for a socket's name, only says so."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(compare, "DataLoader", lambda *_, **arguments: given.update(arguments))
    compare._data_loader(["a.jpg"], 8, 4)
    assert 0 < given["timeout"] < 300


def test_a_data_loader_serves_as_many_rows_as_it_is_asked_for_by_a_process_for_each_core(monkeypatch):
    made: list[Any] = []

    class Loading(list[int]):
        """What is served is the order in which files are asked for."""

        def __init__(self, images: PillowImages, rows: int, *, sampler: list[int], **processes: Any) -> None:
            made.append((images._paths, images._sides, rows, processes))
            self.order = sampler

        def __iter__(self):
            return iter([*self.order])

    monkeypatch.setattr(compare, "DataLoader", Loading)
    monkeypatch.setattr(compare, "usable_cores", lambda: 3)
    serve = compare._data_loader(["a.jpg", "b.jpg", "c.jpg"], 8, 50)
    ((paths, sides, rows, processes),) = made
    assert (paths, sides, rows) == (["a.jpg", "b.jpg", "c.jpg"], (8, 8), 50)
    started = {"num_workers": 3, "multiprocessing_context": "spawn", "persistent_workers": True}
    assert started.items() <= processes.items()
    for count in (3, 2):
        order = [*serve(count)]
        assert len(order) == 50 * count
        assert {*order} == {0, 1, 2}


def test_stock_dali_serves_what_a_network_takes_each_drawn_anew(photographs, tmp_path, monkeypatch):
    """Its RandAugment takes long to build; the demo that is long enough has it. One image is of one colour."""
    Image.new("RGB", (60, 40), (200, 100, 50)).save(tmp_path / "a.png")
    given = []
    monkeypatch.setattr(compare.rand_augment, "rand_augment", lambda images, **more: (given.append(more), images)[1])
    paths = [*sorted(map(str, photographs.rglob("*.jpg")))[:11], str(tmp_path / "a.png")]
    serve = compare._stock_dali(paths, 40, 5)
    batches = [batch[0] for count in (3, 2) for batch in serve(count)]
    order = torch.cat([batch["label"].flatten() for batch in batches]).tolist()  # numbers of the files
    assert {*order} == {*range(12)}
    assert order != [number % 12 for number in range(25)]
    made = torch.stack([batch["data"] for batch in batches])
    assert made.shape == (5, 5, 3, 40, 40)
    assert made.dtype == torch.float32
    images = made.flatten(0, 1).numpy()
    for image, number in zip(images, order, strict=True):
        if number == 11:
            assert np.allclose(image, ((np.array([200, 100, 50]) - MEAN) / STD)[:, None, None], atol=1e-4)
    assert given == [{"n": 2, "m": 9, "interp_type": types.DALIInterpType.INTERP_NN}]
    assert len({image.tobytes() for image in images}) == 25 - order.count(11) + 1


@pytest.mark.parametrize(
    ("share", "box"),
    [
        (0.0, (0, 0, (144 * 0.75) ** 0.5, (144 / 0.75) ** 0.5)),
        (1.0, (60 - 2400**0.5, 0, 60, 30)),  # cut to the height
        (0.5, None),
    ],
)
def test_an_image_by_pillow_is_the_crop_that_is_drawn_flipped_and_changed_twice(share, box, tmp_path, monkeypatch):
    """Of an area of 0.08 to 1 of the image, and a ratio of 3/4 to 4/3."""
    whole = picture(0, height=30, width=60)
    whole.save(tmp_path / "a.png")
    done = []

    def operation(name):
        return lambda image: (done.append(name), image)[1]

    monkeypatch.setattr(pillow_images, "_FLIPS", (operation("flip"), operation("flip")))
    monkeypatch.setattr(pillow_images, "_OPERATIONS", (operation("changed"),))
    monkeypatch.setattr(pillow_images.random, "uniform", lambda low, high: low + share * (high - low))
    made = PillowImages([None, str(tmp_path / "a.png")], 16)[1]
    if box is None:
        area, ratio = 1800 * 0.54, (3 / 4 + 4 / 3) / 2
        width, height = (area * ratio) ** 0.5, min(30, (area / ratio) ** 0.5)
        left, top = (60 - width) / 2, (30 - height) / 2
        box = (left, top, left + width, top + height)
    crop = np.asarray(whole.resize((16, 16), Image.Resampling.BILINEAR, box), np.float32)
    assert np.allclose(made.numpy().transpose(1, 2, 0) * STD + MEAN, crop, atol=1e-3)
    assert done == ["flip", "changed", "changed"]


def test_pillow_chooses_operations_as_often_as_rand_augment_does():
    """It has fourteen; of these rotations stand for five."""
    image = picture(0, height=20, width=20)
    random.seed(0)
    assert len(pillow_images._OPERATIONS) == len(RandAugmentLayer().table.operations) == 14
    made = [[operation(image).tobytes() for _ in range(20)] for operation in pillow_images._OPERATIONS]
    assert [len({*each}) for each in made] == [1, *[2] * 9, 1, 1, 1, 1]
    mirrored, same = (flip(image) for flip in pillow_images._FLIPS)
    assert mirrored.tobytes() == image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).tobytes()
    assert same.tobytes() == image.tobytes() == made[0][0]
    turned = {image.rotate(degrees).tobytes() for degrees in (-9, 9)}
    assert all({*each} == turned for each in made[1:6])
    levels = np.asarray(image)
    assert made[10][0] == (levels & 0b1111_1110).tobytes()
    assert made[11][0] == np.where(levels < 178, levels, 255 - levels).tobytes()
