"""Do the pages for newcomers run, and do they name what is there, and all that those come from?"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import json
import re
import shutil
import signal
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from PIL import Image

from dalirefurb import ImageFolder, Loader, Output, Recipe, Refurbish, Standard, rand_augment, simple
from dalirefurb.augment import CenterCrop, Resize
from dalirefurb.show.pictures import Album
from tests.guides import DOCS, MIGRATION, SCRIPTS, Script, missing, public_names, run
from tests.pictures import write_folder

THEIRS = {"T.", "weights.", "torch.cuda.", "torch.distributed.", "L.", "trainer."}
"""Owners of names that are of PyTorch or torchvision."""


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photographs to train on and to validate with, masks, and annotations."""
    folder: Path = tmp_path_factory.mktemp("annotated")
    for part, num_samples in (("train", 64), ("val", 64)):
        write_folder(folder / "photos" / part, num_samples=num_samples)
    annotate(folder)
    return folder


@pytest.fixture
def photos(annotated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(annotated, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    launched = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)


def annotate(folder: Path) -> None:
    """Give each photograph a mask and a box."""
    images, objects = [], []
    for number, path in enumerate(sorted((folder / "photos/train").rglob("*.jpg"))):
        with Image.open(path) as image:
            width, height = image.size
        place = path.relative_to(folder / "photos/train")
        mask = (folder / "masks/train" / place).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (width, height), number % 21).save(mask)
        images.append({"id": number, "file_name": str(place), "height": height, "width": width})
        box, right, bottom = [1, 2, width // 2, height // 2], 1 + width // 2, 2 + height // 2
        outline = [1, 2, right, 2, right, bottom, 1, bottom]
        shape = {"bbox": box, "segmentation": [outline], "area": 1.0}
        objects.append({"image_id": number, "category_id": 1, **shape})
    content = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "thing"}]}
    (folder / "annotations.json").write_text(json.dumps(content))


@pytest.fixture
def bucket(photos: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The photographs in a bucket, in three shards and as single files."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.cwd() / "cache"))
    paths = sorted(Path("photos/train").rglob("*.jpg"))
    for number in range(3):
        shard = io.BytesIO()
        with tarfile.open(fileobj=shard, mode="w") as tar:
            for path in paths[number::3]:
                tar.add(path, f"{path.stem}.jpg")
                label = tarfile.TarInfo(f"{path.stem}.cls")
                label.size = len(path.parent.name)
                tar.addfile(label, io.BytesIO(path.parent.name.encode()))
        memory.pipe(f"/bucket/train-{number:05}.tar", shard.getvalue())
    memory.pipe({f"/bucket/{path}".replace("/train", ""): path.read_bytes() for path in paths})
    yield
    memory.rm("/bucket", recursive=True)


@pytest.fixture
def _process() -> Iterator[None]:
    """What scripts set for the process is set back; networks are so small that threads would only wait."""
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.usefixtures("bucket", "_process", "traced_once")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "script",
    [script for script in SCRIPTS if not script.of_trainers],
    ids=lambda script: f"{script.page.stem}-{script.title}",
)
def test_a_page_runs(script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 3))
    run(script, monkeypatch, model=model)
    if script.page in MIGRATION:
        assert len(re.findall(r"(?m)^epoch \d: ", capsys.readouterr().out)) >= 2


@pytest.mark.parametrize("page", MIGRATION, ids=lambda page: page.stem)
def test_a_page_of_migration_begins_with_its_surprises(page: Path) -> None:
    _, first, *_ = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    assert first.startswith("What surprises\n")
    assert len(re.findall(r"^\* \*\*", first, re.MULTILINE)) >= 5


@pytest.mark.parametrize("page", MIGRATION, ids=lambda page: page.stem)
def test_what_a_table_names_as_ours_is_there(page: Path) -> None:
    known = public_names()
    for row in re.findall(r"^\| .* \|$", page.read_text(), re.MULTILINE):
        ours = row.strip("| ").split(" | ")[1]
        for code in re.findall(r"`([^`]+)`", ours):
            for owner, name in re.findall(r"(?<![\w.])((?:\w+\.)*)(\w+)\(", code):
                assert name in known or owner in THEIRS, f"{name} in {row}"


def arguments_of(function: object) -> set[str]:
    return {*inspect.signature(function).parameters} - {"self", "args", "kwargs"}  # type: ignore[arg-type]


def test_every_argument_of_a_data_loader_has_a_row() -> None:
    assert not missing("dataloader", arguments_of(torch.utils.data.DataLoader.__init__))


def test_every_argument_of_dalis_iterator_has_a_row() -> None:
    assert not missing("dali", arguments_of(DALIGenericIterator.__init__))


def test_every_argument_of_timms_create_loader_has_a_row() -> None:
    spec = importlib.util.find_spec("timm")  # Does not import it, as it needs torchvision.
    if spec is None or spec.origin is None:
        pytest.skip("timm is not installed")
    tree = ast.parse((Path(spec.origin).parent / "data" / "loader.py").read_text())
    create = next(node for node in tree.body if getattr(node, "name", "") == "create_loader")
    assert isinstance(create, ast.FunctionDef)
    assert not missing("timm", {argument.arg for argument in create.args.args})


def test_the_shares_that_pages_name_are_those_that_recipes_keep() -> None:
    timms = Recipe.from_timm(
        is_training=True, auto_augment="rand-m9-mstd0.5-inc1", interpolation="random", re_prob=0.25, re_mode="pixel"
    )
    timm, dali = ((DOCS / "migration" / f"{name}.md").read_text() for name in ("timm", "dali"))
    assert (
        f'`recipe.at("rand_augment_2")` caches more, and keeps\n{timms.at("rand_augment_2").diversity(3):.2f}.' in timm
    )
    assert f"says that {simple(64).diversity(3):.2f} of standard training's are left" in dali
    assert f"`rand_augment(64)`, it is {rand_augment(64).diversity(3):.2f}," in dali


def test_dalis_resize_and_crop_round_where_those_of_stages_do_as_the_page_says() -> None:
    @pipeline_def(batch_size=1, num_threads=1, device_id=None)  # type: ignore[misc]
    def validation() -> tuple[Any, Any]:
        image = fn.external_source(source=lambda: [np.arange(149, dtype=np.uint8)[None, :, None].repeat(100, 0)])
        resized = fn.resize(image, size=73, mode="not_smaller", interp_type=types.INTERP_NN)
        return resized, fn.crop(image, crop=(100, 144))

    resized, cut = (np.asarray(each[0]) for each in validation().run())
    heights, widths = Resize(73).output_sizes(np.array([100]), np.array([149]))
    assert (73 * 149 / 100, resized.shape[1], int(widths[0])) == (108.77, 109, 108)
    assert resized.shape[0] == heights[0] == 73
    # Half of the 5 columns that are too many: DALI rounds halves up, stages round them to even.
    start = CenterCrop((100, 144)).draw(np.empty((1, 0)), np.array([100]), np.array([149]))["start"]
    assert (cut[0, 0, 0], start[0, 1]) == (3, 2)


NOTEBOOK = DOCS / "tutorial.ipynb"


def test_the_tutorial_is_committed_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.usefixtures("_process")
def test_the_tutorial_runs_and_shows_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plots = pytest.importorskip("matplotlib.pyplot", reason="Matplotlib is not installed")
    pytest.importorskip("skimage", reason="scikit-image is not installed")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda: tmp_path)
    plots.switch_backend("agg")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    plots.close("all")
    said = capsys.readouterr().out
    assert "made anew: [192  64  64  64  64  64  64] of 192" in said
    assert re.findall(r"epoch \d: +(\d+) made, +(\d+) from the cache", said) == [("192", "0"), *[("64", "128")] * 7]
    assert names["accuracy"] > 0.5
    assert "the same batch: True" in said
    assert (len(names["served"]), len(names["cached"])) == (6, 2)

    text = "".join(line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
    recipe = names["recipe"]
    assert f"{recipe.diversity(3):.2f} of them are left" in text.replace("\n", " ")
    assert f"would be {recipe.at(len(recipe.stages)).diversity(3):.2f}" in text.replace("\n", " ")
    for size, places in ((96, 16), (224, 81)):
        assert re.search(rf"random_crop +final +yes +{places} ", str(rand_augment(size, order="crop_last")))


def test_what_the_tutorial_shows_as_cached_is_what_the_store_holds(tmp_path: Path) -> None:
    source = ImageFolder(write_folder(tmp_path, num_samples=12))
    recipe, planner, album = rand_augment(32), Refurbish(12, batch_size=6, reuse_factor=3), Album()
    with Loader(source, recipe, planner, album) as loader:
        assert len([loader.epoch for _ in range(3) for _ in loader]) == 6
    partial = Recipe(recipe.partial, Output(32, mean=0.0, std=1.0), split=len(recipe.partial))
    with Loader(source, partial, Standard(12, batch_size=6), with_indices=True) as loader:
        pages = [
            (torch.from_numpy(album.pages[index, epoch]).permute(2, 0, 1) / 255, image)
            for epoch in range(3)
            for images, _, indices in loader
            for image, index in zip(images, indices.tolist(), strict=True)
            if (index, epoch) in album.pages
        ]
    assert len(pages) >= 12
    for held, image in pages:
        torch.testing.assert_close(held, image)
