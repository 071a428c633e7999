"""What docs/diversity.md says that presets keep."""

import re
from pathlib import Path

import numpy as np
import pytest

import dalirefurb
from dalirefurb.augment.stages.partners import partner_rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "diversity.md").read_text()
ROWS = re.findall(r"^\| `(\w+)\((.*?)\)` \| .*? \| (\.\d+) \| (\.\d+) \|$", PAGE, re.MULTILINE)


def test_the_table_is_found():
    assert [name for name, *_ in ROWS] == ["rand_augment", "auto_augment", "auto_augment", "trivial_augment", "simple"]


@pytest.mark.parametrize(("name", "policy", "at_2", "at_3"), ROWS, ids=[f"{row[0]}({row[1]})" for row in ROWS])
def test_presets_keep_what_the_table_says(name, policy, at_2, at_3):
    given = dict([policy.replace('"', "").split("=")]) if policy else {}
    recipe = getattr(dalirefurb, name)(**given)
    assert [f"{recipe.diversity(factor):.2f}"[1:] for factor in (2, 3)] == [at_2, at_3]


def test_a_late_crop_keeps_what_the_page_says():
    at_2, at_3 = re.search(
        r"crop_last.*\n?.*81 crops x flip keep (\.\d+) at reuse factor 2 and (\.\d+) at\n3", PAGE
    ).groups()
    recipe = dalirefurb.rand_augment(order="crop_last")
    assert [f"{recipe.diversity(factor):.3f}"[1:] for factor in (2, 3)] == [at_2, at_3]


@pytest.mark.parametrize("page", ["README.md", "docs/idea.md"])
def test_pages_say_which_share_of_images_differs_and_where_that_is_explained(page):
    said = " ".join((ROOT / page).read_text().split())
    rand, auto = (f"{100 * preset().diversity(3):.0f}" for preset in (dalirefurb.rand_augment, dalirefurb.auto_augment))
    assert f"of 100 images served, {rand} are different with RandAugment, and {auto} with AutoAugment" in said
    assert "diversity.md" in said
    assert "a new image each time" not in said


OTHERS = re.findall(r"^\| (\d+) \| (\.\d+) \| (\.\d+) \|$", PAGE, re.MULTILINE)


def test_rows_of_mosaics_are_found():
    assert [int(rows) for rows, *_ in OTHERS] == [8, 16, 64, 256]


@pytest.mark.parametrize(
    ("rows", "drawn", "met"), [(rows, k, met) for rows, *of in OTHERS for k, met in zip((3, 8), of, strict=True)]
)
def test_an_image_meets_as_many_others_in_mosaics_as_the_page_says(rows, drawn, met):
    """From all samples they would hardly ever be of one that came already."""
    batches = 40_000 // int(rows)
    uniforms = np.random.default_rng(0).random((batches * int(rows), drawn))
    others = np.sort(partner_rows(uniforms, [int(rows)] * batches, int(rows)), axis=1)
    different = 1 + (np.diff(others, axis=1) > 0).sum(axis=1)
    assert different.mean() / drawn == pytest.approx(float(met), abs=0.006 if len(met) == 3 else 0.001)
    own = np.arange(len(others))[:, None]
    assert (others // int(rows) == own // int(rows)).all()
    assert (others != own).all()


BUFFERS = re.findall(r"^\| the last (\d+) images, (one .*)?.* \| (\.\d+) \| (\.\d+) \|$", PAGE, re.MULTILINE)


def test_rows_of_buffers_are_found():
    assert [(images, bool(at_random)) for images, at_random, *_ in BUFFERS] == [("40", True), ("128", False)]


@pytest.mark.parametrize(("images", "at_random", "met", "shown"), BUFFERS)
def test_mosaics_of_a_buffer_of_images_show_as_many_as_the_page_says(images, at_random, met, shown):
    """Three draws from those that are held, for each image that comes; an image is no other of its own."""
    generator, held, others, different = np.random.default_rng(0), list[int](), list[int](), list[int]()
    for first in range(0, 16 * 1500, 16):
        batch = set[int]()
        for image in range(first, first + 16):
            held.append(image)
            if len(held) > int(images):
                held.pop(int(generator.integers(len(held) - 1)) if at_random else 0)
            drawn = {held[place] for place in generator.integers(len(held), size=3)} - {image}
            others.append(len(drawn))
            batch |= {image, *drawn}
        different.append(len(batch))
    assert np.mean(others[1000:]) / 3 == pytest.approx(float(met), abs=0.006)
    assert np.mean(different[100:]) / 64 == pytest.approx(float(shown), abs=0.006)


def test_steps_that_share_a_batch_show_as_many_different_images_as_the_page_says():
    rows, step, said = re.search(r"batch of (\d+), each of four steps on (\d+) .* shows (\.\d+) of", PAGE).groups()
    rows, step = int(rows), int(step)
    batches = 2000
    others = partner_rows(np.random.default_rng(0).random((batches * rows, 3)), [rows] * batches, rows)
    shown = np.concatenate([np.arange(batches * rows)[:, None], others], axis=1).reshape(-1, 4 * step)
    different = 1 + (np.diff(np.sort(shown, axis=1), axis=1) > 0).sum(axis=1)
    assert different.mean() / rows == pytest.approx(float(said), abs=0.005)
