"""The training pipelines that users copy: they run, learn, resume, and need public names only."""

import ast
import importlib
import importlib.util
import os
import pickle
import re
import runpy
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dalirefurb
from dalirefurb import Mix
from tests.in_turn import weekly
from tests.interruptible import interruptible
from tests.pictures import picture, write_folder

pytestmark = pytest.mark.usefixtures("traced_once")
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "pipelines").glob("*.py"))
PIPELINES = [path for path in SCRIPTS if path.stem in ("cifar10_autoaugment", "imagenet_randaugment")]
"""Whole trainings, with checkpoints within epochs."""

PUBLIC = ("dalirefurb.augment", "dalirefurb.augment.published", "dalirefurb.targets")

SMALL_CIFAR = ["--width", "2", "--batch-size", "16", "--epochs", "2", "--reuse-factor", "3"]
SMALL_RESNET = ["--depth", "18", "--size", "32", "--batch-size", "8", "--epochs", "2"]
LINE = re.compile(
    r"epoch (\d+)  loss ([\d.]+)  [\d,]+ images/s  hits (\d+)  misses (\d+)  (?:test|validation) accuracy ([\d.]+)%"
)


def module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "pipelines" / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tensors as small as these are faster so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cifar():
    return module("cifar10_autoaugment")


@pytest.fixture(scope="module")
def imagenet():
    return module("imagenet_randaugment")


def made_cifar(count, *, seed):
    """Pictures with a label each, all labels equally often."""
    images = np.stack([np.asarray(picture(seed + index, height=32, width=32)) for index in range(count)])
    return images, np.arange(count) % 10


def pickled_by_python_2(rows, labels):
    """Pickle a batch as Python 2 did, where text is bytes, with the array of NumPy 1: uint8 rows, shape (n, 3072)."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    def numbers(*values):
        return b"".join(b"J" + struct.pack("<i", value) for value in values)

    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + numbers(0, 1) + b"tR"
    dtype += b"(" + numbers(3) + text(b"|") + b"NNN" + numbers(-1, -1, 0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + numbers(0) + b"t" + text(b"b") + b"tR"
    array += b"(" + numbers(1) + b"(" + numbers(*rows.shape) + b"t" + dtype + b"\x89"
    array += b"T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb"
    return b"\x80\x02}(" + text(b"labels") + b"(" + numbers(*labels) + b"l" + text(b"data") + array + b"u."


@pytest.fixture(scope="module")
def pickled(tmp_path_factory):
    """A folder as CIFAR-10's authors made it: 5 batches of 12 images, and 20 to test on."""
    folder = tmp_path_factory.mktemp("cifar") / "cifar-10-batches-py"
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{batch}" for batch in range(1, 6)), "test_batch"]):
        images, labels = made_cifar(20 if name == "test_batch" else 12, seed=100 * number)
        rows = images.transpose(0, 3, 1, 2).reshape(-1, 3072)
        (folder / name).write_bytes(pickled_by_python_2(rows, labels.tolist()))
    return folder


@pytest.fixture(scope="module")
def mosaics(tmp_path_factory):
    """A folder of mosaics: for each label 2 x 3 images to train on, and 1 x 3 to test on."""
    folder = tmp_path_factory.mktemp("mosaics")
    for label in range(10):
        for part, rows in (("train", 2), ("test", 1)):
            images = np.stack([np.full((32, 32, 3), 20 * label + place, np.uint8) for place in range(3 * rows)])
            mosaic = images.reshape(rows, 3, 32, 32, 3).swapaxes(1, 2).reshape(32 * rows, 96, 3)
            Image.fromarray(mosaic).save(folder / f"{part}_{label}_name.webp", lossless=True)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("photographs"), num_samples=40)


def environment():
    """Variables of a pipeline's process: warnings are errors."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


def run(name, *arguments, status=0, launcher=()):
    """Run a pipeline as users do, warnings being errors; return what it said."""
    command = [sys.executable, *launcher, str(ROOT / "pipelines" / f"{name}.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=900)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def lines(said):
    """Return epoch, loss, hits, misses and accuracy of every epoch."""
    return [tuple(map(float, found)) for found in LINE.findall(said)]


def test_cifar10_trains_on_the_authors_files(cifar, pickled, capsys):
    cifar.main(["--data", str(pickled), *SMALL_CIFAR, "--mixup", "0.2", "--cutmix", "1.0"])
    said = capsys.readouterr().out
    assert "60 images to train on, 20 to test on" in said
    assert "cached: random_crop > flip > auto_augment_1; fresh: auto_augment_2" in said
    assert [line[0] for line in lines(said)] == [0, 1]


def test_cifar10_caches_nothing_by_default(cifar, pickled, capsys):
    cifar.main(["--data", str(pickled), *SMALL_CIFAR[:-2]])
    said = capsys.readouterr().out
    assert "cached: nothing; fresh: random_crop > flip > auto_augment_1 > auto_augment_2\n" in said
    assert [line[:1] + line[2:4] for line in lines(said)] == [(0, 0, 60), (1, 0, 60)]


def test_imagenet_trains_on_a_folder_of_classes(imagenet, folder, capsys):
    imagenet.main(["--data", str(folder), *SMALL_RESNET, "--epochs", "1", "--mixup", "0.2"])
    said = capsys.readouterr().out
    assert "36 images to train on, 4 to evaluate on" in said
    assert "cached: decode > random_resized_crop > flip > rand_augment_1; fresh: rand_augment_2" in said
    assert [line[0] for line in lines(said)] == [0]


@pytest.mark.parametrize("choice", [pytest.param(["--plain"], marks=pytest.mark.weekly), ["--reuse-factor", "2"]])
def test_a_loop_for_dali_trains_on_either_pipeline(folder, capsys, choice):
    small = ["--size", "32", "--batch-size", "12", "--epochs", "3", "--threads", "1"]
    module("dali_imagenet").main(["--data", str(folder), *small, *choice])
    told = re.findall(r"epoch (\d): loss [\d.]+, (\d+) images of rank 0, [\d,]+ images/s", capsys.readouterr().out)
    assert told == [(str(epoch), "40") for epoch in range(3)]


@pytest.mark.weekly
def test_imagenet_trains_in_two_processes_as_one_run(folder, tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    arguments = ["--data", folder, *SMALL_RESNET, "--val-share", "0.25", "--checkpoint", tmp_path / "x.pt"]
    said = run("imagenet_randaugment", *arguments, launcher=torchrun)
    assert said.count("30 images to train on, 10 to evaluate on") == 1
    # 3 batches of 8, and 10 images to evaluate on.
    assert [(epoch, hits + misses) for epoch, _, hits, misses, _ in lines(said)] == [(0, 24), (1, 24)]
    assert all(accuracy % 10 == 0 for *_, accuracy in lines(said))
    state = torch.load(tmp_path / "x.pt")
    assert (state["step"], state["loader"]["epoch"]) == (6, 2)
    assert not any(name.startswith("module.") for name in state["model"])


def test_more_processes_than_images_to_evaluate_on_are_refused(imagenet, folder, monkeypatch, capsys):
    monkeypatch.setattr(imagenet, "WORLD_SIZE", 41)
    with pytest.raises(SystemExit, match="each rank must have a sample to evaluate, got world_size=41"):
        imagenet.main(["--data", str(folder), "--shards", "1", "--batch-size", "4"])


@pytest.mark.parametrize("reuse_factor", [1, 2])
def test_a_pipeline_hits_only_when_it_reuses(cifar, mosaics, capsys, reuse_factor):
    cifar.main(["--data", str(mosaics), *SMALL_CIFAR, "--epochs", "4", "--reuse-factor", str(reuse_factor)])
    hits = sum(line[2] for line in lines(capsys.readouterr().out))
    assert hits == 0 if reuse_factor == 1 else hits >= 60


def test_training_learns(cifar, mosaics, capsys):
    arguments = ["--width", "4", "--batch-size", "16", "--epochs", "12", "--learning-rate", "0.05"]
    cifar.main(["--data", str(mosaics), *arguments])
    losses = [line[1] for line in lines(capsys.readouterr().out)]
    assert losses[-1] < 0.9 * losses[0]


def test_segmentation_learns_what_is_drawn_and_goes_on_from_its_checkpoint(tmp_path, capsys):
    pipeline = module("segmentation")
    arguments = ["--made", "60", "--size", "32", "--batch-size", "9", "--learning-rate", "0.01"]

    def said(*more):
        pipeline.main([*arguments, *map(str, more)])
        found = re.findall(
            r"epoch (\d+)  loss ([\d.]+)  hits \d+  misses \d+  mean IoU ([\d.]+)%", capsys.readouterr().out
        )
        return [(int(epoch), float(loss), float(iou)) for epoch, loss, iou in found]

    whole = said("--epochs", 4)
    assert [epoch for epoch, _, _ in whole] == [0, 1, 2, 3]
    assert whole[-1][1] < whole[0][1]
    checkpoint = tmp_path / "model.pt"
    parts = said("--epochs", 2, "--checkpoint", checkpoint) + said("--epochs", 4, "--checkpoint", checkpoint)
    assert parts == whole
    with pytest.raises(SystemExit, match="pass --images and --masks, or --made"):
        pipeline.main(["--images", str(tmp_path)])
    with pytest.raises(SystemExit, match="error: images must be a folder of image files"):
        pipeline.main(["--images", str(tmp_path), "--masks", str(tmp_path)])


def test_volumes_are_segmented_and_it_goes_on_from_its_checkpoint(tmp_path, capsys):
    pytest.importorskip("numba")
    pipeline = module("volume_segmentation")
    arguments = ["--made", "10", "--size", "16", "--val-size", "48", "--cached", "4", "--cubes", "2"]

    def rounds(*more):
        pipeline.main([*arguments, *more])
        return capsys.readouterr().out.splitlines()

    whole = rounds("--rounds", "3")
    assert [re.findall(r"hits (\d+)  misses (\d+)", line) for line in whole] == [
        [("4", "4")],
        [("7", "1")],
        [("7", "1")],
    ]
    checkpoint = ("--checkpoint", str(tmp_path / "x.pt"))
    parts = rounds("--rounds", "2", *checkpoint) + rounds("--rounds", "3", *checkpoint)
    losses = [[line.split("hits")[0] for line in lines] for lines in (whole, parts)]
    assert losses[0] == losses[1]
    with pytest.raises(SystemExit, match="pass --images and --masks, or --made"):
        pipeline.main([])


@pytest.mark.weekly  # The same training as on mosaics, below.
def test_a_detector_learns_what_is_drawn_and_goes_on_from_its_checkpoint(tmp_path, capsys):
    pipeline = module("detection")
    arguments = ["--made", "80", "--size", "32", "--batch-size", "12", "--learning-rate", "0.01"]

    def said(*more):
        pipeline.main([*arguments, *map(str, more)])
        found = re.findall(r"epoch (\d+)  loss ([\d.]+)  hits \d+  misses \d+  mAP ([\d.]+)%", capsys.readouterr().out)
        return [(int(epoch), float(loss), float(precision)) for epoch, loss, precision in found]

    whole = said("--epochs", 6)
    assert [epoch for epoch, _, _ in whole] == [*range(6)]
    assert whole[-1][1] < 0.7 * whole[0][1]
    assert whole[-1][2] > 20
    checkpoint = tmp_path / "model.pt"
    parts = said("--epochs", 2, "--checkpoint", checkpoint) + said("--epochs", 6, "--checkpoint", checkpoint)
    assert parts == whole
    with pytest.raises(SystemExit, match="pass --images and --annotations, or --made"):
        pipeline.main(["--images", str(tmp_path)])


def test_a_detector_learns_on_mosaics_and_without_and_goes_on_from_its_checkpoint(tmp_path, capsys):
    pytest.importorskip("numba")
    pipeline = module("detection_mosaic")
    arguments = ["--made", "80", "--size", "32", "--batch-size", "12", "--learning-rate", "0.01"]

    def said(epochs, alone, *more):
        pipeline.main([*arguments, "--epochs", str(epochs), "--close-mosaic", str(alone), *more])
        pattern = r"epoch (\d+)  (\w+)  loss ([\d.]+)  hits (\d+)  misses (\d+)  mAP ([\d.]+)%"
        return re.findall(pattern, capsys.readouterr().out)

    whole = said(4, 2)
    # What mosaics left in the store is served without them.
    assert [(kind, hits, misses) for _, kind, _, hits, misses, _ in whole] == [
        ("mosaic", "0", "72"),
        ("mosaic", "48", "24"),
        ("alone", "48", "24"),
        ("alone", "48", "24"),
    ]
    assert float(whole[-1][2]) < 0.6 * float(whole[0][2])
    assert float(whole[-1][5]) > 20
    checkpoint = ("--checkpoint", str(tmp_path / "model.pt"))
    parts = said(1, 0, *checkpoint) + said(3, 1, *checkpoint) + said(4, 2, *checkpoint)
    assert [each[:3] + each[5:] for each in parts] == [each[:3] + each[5:] for each in whole]
    with pytest.raises(SystemExit, match=r"model.pt is of .*'seed': 0}, got .*'seed': 1}: pass the same"):
        said(5, 2, *checkpoint, "--seed", "1")
    with pytest.raises(SystemExit, match="pass --images, --labels and --names, or --made"):
        pipeline.main(["--images", str(tmp_path)])


def test_the_objects_of_a_batch_are_learned_where_their_images_are():
    """Of two images the second has two objects: what is found exactly costs nothing."""
    pipeline = module("detection_mosaic")
    boxes = torch.tensor([[0.5, 0.5, 0.5, 0.25], [0.25, 0.75, 0.125, 0.25], [0.75, 0.25, 0.25, 0.25]])
    objects = {"bboxes": boxes, "cls": torch.tensor([[1.0], [0.0], [1.0]]), "batch_idx": torch.tensor([0.0, 1.0, 1.0])}
    scores, found = torch.full((2, 2, 8, 8), -20.0), torch.zeros(2, 4, 8, 8)
    places = ((0, 1, 4, 4), (1, 0, 6, 2), (1, 1, 2, 6))
    for (row, label, y, x), (_, _, width, height) in zip(places, boxes.tolist(), strict=True):
        scores[row, label, y, x] = 10 - label
        found[row, :, y, x] = torch.tensor([0, 0, 8 * width, 8 * height])
    assert pipeline.loss_of((scores, found), objects) < 1e-6
    own = pipeline.detected(lambda images: (scores, found), torch.zeros(2, 3, 32, 32), most=2)
    assert own[1][0].tolist() == [boxes[1].tolist(), boxes[2].tolist()]
    assert own[1][1].tolist() == [0, 1]
    assert torch.allclose(pipeline.ious(boxes, boxes).diag(), torch.ones(3))
    found[1, :, 6, 2] += 1
    assert pipeline.loss_of((scores, found), objects) == pytest.approx(4 * 0.5 / 4 / 3)


def test_boxes_of_a_detector_are_judged_in_the_source() -> None:
    pipeline = module("detection")
    one = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 30]])
    other = torch.tensor([[0.0, 0, 10, 5], [20, 20, 40, 30], [50, 50, 60, 60]])
    assert torch.allclose(pipeline.ious(one, other), torch.tensor([[0.5, 0, 0], [0, 1, 0]]))
    matrix = torch.tensor([[2.0, 0, -8], [0, 2, 0], [0, 0, 1]], dtype=torch.float64)
    target = {"matrix": matrix, "source_size": torch.tensor([48, 64])}
    assert pipeline.in_source(torch.tensor([[4.0, 0, 36, 30]]), target).tolist() == [[0, 0, 64, 48]]


def test_simclr_learns_which_views_are_of_one_image_and_goes_on_from_its_checkpoint(tmp_path, capsys):
    pipeline = module("simclr")
    arguments = ["--made", "48", "--size", "32", "--batch-size", "16", "--learning-rate", "0.01"]

    def said(*more):
        pipeline.main([*arguments, *map(str, more)])
        pattern = r"epoch (\d+)  loss ([\d.]+)  hits (\d+)  misses (\d+)  pairs found ([\d.]+)%"
        return re.findall(pattern, capsys.readouterr().out)

    whole = said("--epochs", 5)
    assert [(epoch, hits, misses) for epoch, _, hits, misses, _ in whole] == [
        ("0", "0", "96"),
        *((str(epoch), "48", "48") for epoch in range(1, 5)),
    ]
    assert float(whole[-1][1]) < float(whole[0][1])
    checkpoint = tmp_path / "model.pt"
    parts = said("--epochs", 2, "--checkpoint", checkpoint) + said("--epochs", 5, "--checkpoint", checkpoint)
    # What the store held is gone after a resume: as much more is computed, and all else is as it was.
    assert [(each[0], each[1], each[4]) for each in parts] == [(each[0], each[1], each[4]) for each in whole]
    with pytest.raises(SystemExit, match="pass --data, or --made"):
        pipeline.main([])


def test_nt_xent_is_the_formula_of_its_paper():
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    every = torch.nn.functional.normalize(torch.cat([one, other]))
    losses = []
    for row in range(6):
        alike = (every[row] @ every.T / 0.5).exp()
        losses.append(-torch.log(alike[(row + 3) % 6] / (alike.sum() - alike[row])))
    loss, _ = module("simclr").nt_xent(torch.cat([one, other]), 0.5)
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_both_formats_of_cifar10_are_read_as_they_were_written(cifar, pickled, mosaics):
    images, labels = made_cifar(12, seed=0)
    read = cifar.read(pickled, "train")
    assert len(read) == 60
    assert np.array_equal(read.read(np.arange(12)), images)
    assert read.labels[:12].tolist() == labels.tolist()
    read = cifar.read(mosaics, "train")
    assert read.labels.tolist() == np.repeat(np.arange(10), 6).tolist()
    assert [(image.min(), image.max()) for image in read.read(np.arange(60))] == [
        (20 * label + place, 20 * label + place) for label in range(10) for place in range(6)
    ]


@pytest.mark.parametrize("flat", [True, False])
def test_images_to_evaluate_on_are_those_in_val_or_a_share_of_all_classes(imagenet, folder, tmp_path, flat):
    if flat:
        train, val = imagenet.read(folder, 0.25)
        assert (len(train), len(val)) == (30, 10)
        assert set(val.labels) == {0, 1, 2}
    else:
        write_folder(tmp_path / "train", num_samples=9)
        write_folder(tmp_path / "val", num_samples=6)
        train, val = imagenet.read(tmp_path, 0.25)
        assert (len(train), len(val)) == (9, 6)
    names = [{Path(part.name(index)) for index in range(len(part))} for part in (train, val)]
    assert not names[0] & names[1]


# That the lines in question are alike in both is tested below.
@pytest.mark.parametrize(
    ("path", "heeded"),
    [(path, True) for path in PIPELINES] + [pytest.param(path, False, marks=pytest.mark.weekly) for path in PIPELINES],
    ids=lambda each: getattr(each, "stem", each),
)
def test_an_interrupt_while_a_pipeline_imports_torch_is_no_traceback(path, heeded):
    """Nor is it heeded afterwards where the process began without heeding it, as a job in the background does."""
    program = f"""if True:
        import os, runpy, signal, sys
        class Interrupting:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    os.kill(os.getpid(), signal.SIGINT)
        if {heeded}:
            sys.meta_path.insert(0, Interrupting())
        else:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            sys.argv = ["pipeline", "--help"]
        try:
            runpy.run_path({str(path)!r}, run_name="__main__")
        finally:
            print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"""
    with interruptible([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        out, said = process.communicate(timeout=600)
    assert said == ""
    assert process.returncode == (-signal.SIGINT if heeded else 0)
    assert out == "" if heeded else out.endswith("\nTrue\n")


# One pipeline is always stopped in the last place, which every other place comes before, the other one terminated
# there; each in every place weekly.
PLACES = [
    ("cifar10_autoaugment", -1),
    ("imagenet_randaugment", -1),
    pytest.param("cifar10_autoaugment", 0, marks=pytest.mark.weekly),
    pytest.param("imagenet_randaugment", 0, marks=pytest.mark.weekly),
]


@pytest.mark.parametrize(("name", "first"), [PLACES[0], *weekly(PLACES[1]), *PLACES[2:]])
def test_a_resumed_run_says_and_learns_what_an_uninterrupted_one_does(request, tmp_path, capsys, name, first):
    pipeline, batches_an_epoch = module(name), 4 if name.startswith("cifar10") else 5
    data, small = ("mosaics", SMALL_CIFAR) if name.startswith("cifar10") else ("folder", SMALL_RESNET)
    vars(pipeline).setdefault("BLOCKS", {})[18] = (1, 1, 0, 0)  # Weights that are saved quickly.
    arguments = ["--data", str(request.getfixturevalue(data)), *small, "--mixup", "0.2", "--cutmix", "1.0"]
    arguments += ["--save-every", "2", "--checkpoint"]

    def said():
        return [(line[:2], line[4]) for line in lines(capsys.readouterr().out)]

    pipeline.main([*arguments, str(tmp_path / "whole.pt")])
    expected, whole = said(), torch.load(tmp_path / "whole.pt")["model"]
    assert [epoch for (epoch, _), _ in expected] == [0, 1]
    calls = []

    class MixUntil(Mix):
        def __call__(self, *given, **named):
            calls.append(None)
            if len(calls) > interrupted_at:
                raise KeyboardInterrupt
            return super().__call__(*given, **named)

    for interrupted_at in (3, batches_an_epoch, batches_an_epoch + 3)[first:]:
        path = tmp_path / f"{interrupted_at}.pt"
        calls.clear()
        pipeline.Mix = MixUntil
        with pytest.raises(KeyboardInterrupt):
            pipeline.main([*arguments, str(path)])
        pipeline.Mix = Mix
        state = torch.load(path)
        # Every second batch and every end of an epoch is saved.
        ended = interrupted_at // batches_an_epoch * batches_an_epoch
        assert state["step"] == max(interrupted_at - interrupted_at % 2, ended)
        assert state["loader"]["batch"] == state["step"] % batches_an_epoch
        pipeline.main([*arguments, str(path), "--resume"])
        assert said() == expected
        resumed = torch.load(path)["model"]
        assert resumed.keys() == whole.keys()
        assert all(torch.equal(resumed[key], whole[key]) for key in whole)
    pipeline.main([*arguments, str(path), "--resume"])
    assert f"{path} has all epochs: nothing is left to train" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=f"--epochs must be 2, as in {path}"):
        pipeline.main([*arguments, str(path), "--resume", "--epochs", "3"])


def test_what_is_saved_while_an_epoch_ends_is_before_its_end(cifar, mosaics, tmp_path, capsys, monkeypatch):
    """Otherwise the epoch would never be evaluated, and the next one's loss would count it, too."""
    arguments = ["--data", str(mosaics), *SMALL_CIFAR, "--save-every", "2", "--checkpoint", str(tmp_path / "x.pt")]
    cifar.main(arguments)
    (tmp_path / "x.pt").unlink()
    expected = [line[1] for line in lines(capsys.readouterr().out)]

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cifar, "accuracy", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cifar.main(arguments)
    capsys.readouterr()
    cifar.main([*arguments, "--resume"])
    assert [line[1] for line in lines(capsys.readouterr().out)] == expected


@pytest.mark.parametrize(("name", "first"), [*weekly(PLACES[0]), *PLACES[1:]])
def test_a_terminated_run_saves_where_it_is_and_goes_on_as_one_that_never_was(request, tmp_path, capsys, name, first):
    pipeline, data = module(name), "mosaics" if name.startswith("cifar10") else "folder"
    vars(pipeline).setdefault("BLOCKS", {})[18] = (1, 1, 0, 0)
    small = SMALL_CIFAR if name.startswith("cifar10") else SMALL_RESNET
    arguments = ["--data", str(request.getfixturevalue(data)), *small, "--save-every", "0", "--checkpoint"]
    pipeline.main([*arguments, str(tmp_path / "whole.pt")])
    expected = [line[:2] for line in lines(capsys.readouterr().out)]

    class Terminating(Mix):
        def __call__(self, *given, step, **named):
            if step == stopped_at - 1:
                pipeline.TERMINATED.set()
            return super().__call__(*given, step=step, **named)

    batches_an_epoch = 4 if name.startswith("cifar10") else 5
    for stopped_at in (1, batches_an_epoch - 1, batches_an_epoch, batches_an_epoch + 2)[first:]:
        path = tmp_path / f"{stopped_at}.pt"
        pipeline.Mix = Terminating
        with pytest.raises(SystemExit) as exited:
            pipeline.main([*arguments, str(path)])
        pipeline.Mix = Mix
        pipeline.TERMINATED.clear()
        told = capsys.readouterr()
        assert exited.value.code == 143
        assert told.err == f"terminated after {stopped_at} batches: saved in {path}, go on with --resume\n"
        pipeline.main([*arguments, str(path), "--resume"])
        said = told.out + capsys.readouterr().out
        assert [line[:2] for line in lines(said)] == expected
        whole, resumed = (torch.load(tmp_path / each)["model"] for each in ("whole.pt", path.name))
        assert all(torch.equal(resumed[key], whole[key]) for key in whole)


@pytest.mark.parametrize(("name", "data"), [("cifar10_autoaugment", "mosaics"), ("imagenet_randaugment", "folder")])
def test_an_interrupt_ends_a_program_in_one_line_with_status_130(request, monkeypatch, capsys, name, data):
    path = str(ROOT / "pipelines" / f"{name}.py")
    small = SMALL_CIFAR if data == "mosaics" else SMALL_RESNET
    monkeypatch.setattr(sys, "argv", [path, "--data", str(request.getfixturevalue(data)), *small])
    monkeypatch.setattr(Mix, "__call__", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell has it ignored
        with pytest.raises(SystemExit) as exited:
            runpy.run_path(path, run_name="__main__")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert exited.value.code == 130
    assert capsys.readouterr().err == "interrupted; --resume goes on from the last checkpoint, if there is one\n"


SIGNALS = {
    signal.SIGTERM: (143, r"terminated after \d+ batches: saved in \S+/x.pt, go on with --resume\n"),
    signal.SIGINT: (130, "interrupted; --resume goes on from the last checkpoint, if there is one\n"),
}


# Without a process of their own both are tried above, and that the lines in question are alike in both is below.
@pytest.mark.parametrize(
    ("name", "signals"),
    [
        pytest.param("cifar10_autoaugment", SIGNALS, marks=pytest.mark.weekly),
        pytest.param("imagenet_randaugment", SIGNALS, marks=pytest.mark.weekly),
    ],
)
def test_a_signal_ends_the_process_of_a_pipeline_in_one_line(request, tmp_path, name, signals):
    data, small = ("mosaics", SMALL_CIFAR) if name.startswith("cifar10") else ("folder", SMALL_RESNET)
    arguments = ["--data", request.getfixturevalue(data), *small, "--epochs", "1000", "--progress-every", "0"]
    for number in signals:
        status, told = SIGNALS[number]
        command = [sys.executable, str(ROOT / "pipelines" / f"{name}.py"), *map(str, arguments)]
        command += ["--checkpoint", str(tmp_path / "x.pt"), *(["--resume"] if number == signal.SIGINT else [])]
        with interruptible(command, env=environment()) as process:
            for line in process.stdout:
                if re.match(r"epoch \d+  image [\d,]+ of \d+  [\d,]+ images/s", line):
                    break
            process.send_signal(number)
            _, said = process.communicate(timeout=600)
        assert process.returncode == status
        said = "".join(line for line in said.splitlines(keepends=True) if not line.startswith("dalirefurb compiles"))
        assert re.fullmatch(told, said)


@pytest.mark.weekly
def test_two_processes_stop_after_the_same_batch_though_one_of_them_is_told_alone(folder, tmp_path):
    arguments = ["--data", folder, *SMALL_RESNET, "--epochs", "1000", "--checkpoint", tmp_path / "x.pt"]
    command = [sys.executable, str(ROOT / "pipelines" / "imagenet_randaugment.py"), *map(str, arguments)]
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    launched = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    usual = {**os.environ, **launched, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [{**usual, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    with interruptible(command, env=ranks[0]) as first, interruptible(command, env=ranks[1]) as second:
        for line in first.stdout:
            if line.startswith("epoch 0 "):
                break
        second.send_signal(signal.SIGTERM)
        (_, said), _ = (process.communicate(timeout=600) for process in (first, second))
        assert [first.returncode, second.returncode] == [143, 143]
    (step,) = re.findall(r"^terminated after (\d+) batches: saved in ", said, re.MULTILINE)
    assert torch.load(tmp_path / "x.pt")["step"] == int(step)


def test_both_pipelines_check_restore_and_evaluate_with_the_same_code():
    def source(path, name):
        (node,) = (node for node in ast.walk(ast.parse(path.read_text())) if getattr(node, "name", "") == name)
        return ast.unparse(node)

    for name in ("check", "restore", "accuracy"):
        assert len({source(path, name) for path in PIPELINES}) == 1, name


def test_both_pipelines_do_the_same_where_they_run_as_programs():
    def of_programs(path):
        return [ast.unparse(node) for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]

    one, other = map(of_programs, PIPELINES)
    assert len(one) == 2
    assert one == other


@pytest.mark.parametrize(
    ("depth", "weights"), [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160)]
)
def test_the_resnets_have_as_many_weights_as_the_papers(imagenet, depth, weights):
    with torch.device("meta"):
        model = imagenet.resnet(depth, 1000)
    assert sum(weight.numel() for weight in model.parameters()) == weights
    assert model(torch.zeros(2, 3, 64, 64, device="meta")).shape == (2, 1000)


def errors(folder):
    """Arguments that cannot work, and a part of what is said about them."""
    empty, wrong = folder / "empty", folder / "wrong"
    empty.mkdir()
    wrong.mkdir()
    (wrong / "data_batch_1").write_bytes(pickle.dumps({b"fine": 1}))
    two = folder / "two"
    write_folder(two / "train", num_samples=4, classes=2)
    write_folder(two / "val", num_samples=3, classes=3)
    return [
        ("cifar10_autoaugment", ["--data", folder / "absent"], "must be a folder of data_batch_1"),
        ("cifar10_autoaugment", ["--data", empty], "holds no train images"),
        ("cifar10_autoaugment", ["--data", wrong], "must be a pickled batch of CIFAR-10"),
        ("imagenet_randaugment", ["--data", folder / "absent"], "root must be a folder"),
        ("imagenet_randaugment", ["--data", empty], "one folder per class"),
        ("imagenet_randaugment", ["--data", two], "the same class folders"),
        ("imagenet_randaugment", ["--data", two / "train", "--val-share", "1"], "--val-share must leave images"),
        ("imagenet_randaugment", ["--data", two / "train", "--depth", "19"], "18, 34, 50, 101, got 19"),
        ("imagenet_randaugment", ["--data", two / "train", "--val-share", "0.5", "--split", "x"], "no stage 'x'"),
        ("imagenet_randaugment", ["--data", two, "--resume", "--checkpoint", folder / "x.pt"], "--resume needs"),
        ("cifar10_autoaugment", ["--data", empty, "--checkpoint", wrong / "data_batch_1"], "is there already: go on"),
        ("cifar10_autoaugment", ["--data", empty, "--checkpoint", folder / "no" / "x.pt"], "a folder that can be writ"),
        ("cifar10_autoaugment", ["--data", empty, "--epochs", "0"], "--epochs must be in 1..1000000000, got 0"),
        (
            "cifar10_autoaugment",
            ["--data", empty, "--learning-rate", "nan"],
            "--learning-rate must be in 1e-09..1000.0",
        ),
        ("cifar10_autoaugment", ["--data", empty, "--mixup=-1"], "--mixup must be in 0..1000.0, got -1.0"),
        ("imagenet_randaugment", ["--data", two, "--size", "1"], "--size must be in 32..20000, got 1"),
        ("imagenet_randaugment", ["--data", two, "--label-smoothing", "2"], "--label-smoothing must be in 0..1, got 2"),
    ]


def test_an_error_is_one_line_that_says_what_is_wrong(tmp_path):
    for name, arguments, expected in errors(tmp_path):
        with pytest.raises(SystemExit) as exited:
            module(name).main([str(argument) for argument in arguments])
        assert expected in exited.value.code
        assert exited.value.code.startswith("error: ")
        assert "\n" not in exited.value.code


@pytest.mark.parametrize(
    ("name", "data"), [("cifar10_autoaugment", "mosaics"), *weekly(("imagenet_randaugment", "folder"))]
)
def test_a_run_may_have_few_batches(request, name, data):
    """The schedule divides by the length of its rise less a batch."""
    pipeline = module(name)
    vars(pipeline).setdefault("BLOCKS", {})[18] = (1, 1, 0, 0)
    small = SMALL_CIFAR if data == "mosaics" else SMALL_RESNET
    for size in ("15", "30") if data == "mosaics" else ("4", "36"):  # 4 and 2 batches, or 9 and 1.
        arguments = ["--data", str(request.getfixturevalue(data)), *small, "--epochs", "1", "--batch-size", size]
        pipeline.main(arguments)


def test_what_is_no_checkpoint_is_one_line(cifar, mosaics, tmp_path):
    path = tmp_path / "x.pt"
    for content, width in ((b"", "2"), (b"no checkpoint", "2"), (None, "3")):
        if content is None:
            path.unlink()
            cifar.main(["--data", str(mosaics), *SMALL_CIFAR, "--epochs", "1", "--checkpoint", str(path)])
        else:
            path.write_bytes(content)
        with pytest.raises(SystemExit) as exited:
            cifar.main(["--data", str(mosaics), *SMALL_CIFAR, "--width", width, "--checkpoint", str(path), "--resume"])
        assert f"error: {path} must be a checkpoint of a run with the same arguments (" in exited.value.code
        assert "\n" not in exited.value.code


@pytest.mark.weekly  # What is said is tested above, and a program that exits so ends with status 1.
def test_an_error_ends_a_pipeline_with_status_1(tmp_path):
    said = run("cifar10_autoaugment", "--data", tmp_path / "absent", status=1)
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_pipeline_imports_public_names_and_nothing_else_of_the_package(path):
    allowed = {"nvidia", "torch", "numpy", "PIL", *sys.stdlib_module_names}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom) and node.module == "dalirefurb":
            assert {alias.name for alias in node.names} <= set(dalirefurb.__all__)
        elif isinstance(node, ast.ImportFrom) and node.module in PUBLIC:
            assert {alias.name for alias in node.names} <= {*dir(importlib.import_module(node.module))}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module.split(".")[0] in allowed


def test_there_are_pipelines():
    expected = ["cifar10_autoaugment", "dali_imagenet", "detection", "detection_mosaic", "imagenet_randaugment"]
    assert [path.stem for path in SCRIPTS] == [*expected, "segmentation", "simclr", "volume_segmentation"]


def test_a_pipeline_trains_on_photographs(imagenet, shared_data, capsys, monkeypatch):
    arguments = ["--depth", "18", "--size", "32", "--batch-size", "64", "--epochs", "1", "--val-share", "0.5"]
    monkeypatch.setitem(imagenet.BLOCKS, 18, (1, 1, 0, 0))
    imagenet.main(["--data", str(shared_data / "photos"), *arguments])
    assert "182 images to train on, 182 to evaluate on" in capsys.readouterr().out


@pytest.mark.weekly  # It trains on the files of its authors above, which are made here.
def test_a_pipeline_trains_on_cifar10(cifar, shared_data, tmp_path, capsys):
    for label in range(10):
        (path,) = (shared_data / "cifar10").glob(f"test_{label}_*.webp")
        mosaic = Image.open(path).convert("RGB").crop((0, 0, 1120, 64))
        mosaic.save(tmp_path / f"train_{label}_name.webp", lossless=True)
        mosaic.crop((0, 0, 800, 32)).save(tmp_path / f"test_{label}_name.webp", lossless=True)
    cifar.main(["--data", str(tmp_path), "--width", "4", "--batch-size", "50", "--epochs", "2"])
    said = capsys.readouterr().out
    assert "700 images to train on, 250 to test on" in said
    assert lines(said)[-1][4] > 10
