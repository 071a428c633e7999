"""What IPython shows of the last line of a cell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dalirefurb import Arrays, ImageFolder, Loader, MemoryStore, Refurbish, Standard, rand_augment, simple
from dalirefurb.engine.partial_sizes import Proposal
from dalirefurb.trainers.timm import TimmLoader
from dalirefurb.tuning.tune import advise
from tests.pictures import write_folder
from tests.tuning.made import MS, costs, machine, workload

COUNT = 12
SOURCE = Arrays(np.zeros((COUNT, 16, 16, 3), np.uint8), np.arange(COUNT))
RECIPE = rand_augment(16).for_arrays()
PLANNER = Refurbish(COUNT, batch_size=4, reuse_factor=2)


class Printer:
    """Stands for IPython's printer, as far as the library uses it."""

    def __init__(self) -> None:
        self.shown = ""

    def text(self, text: str) -> None:
        self.shown += text


def shown(given: Any) -> str:
    """Return what a cell that ends in an object shows; where there is no IPython, by the part of it that matters."""
    try:
        from IPython.lib.pretty import pretty
    except ImportError:
        if not hasattr(type(given), "_repr_pretty_"):
            return repr(given)
        printer = Printer()
        given._repr_pretty_(printer, False)
        return printer.shown
    return str(pretty(given))


@pytest.mark.parametrize("ipython", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda loader: RECIPE,
        lambda loader: loader.diagnose(),
        lambda loader: loader.stats(),
        lambda loader: Proposal(0.5, COUNT, COUNT // 2, 2, COUNT // 2, 10**6, 10**7, COUNT // 2),
        lambda loader: advise(costs(step_ms=10), machine(), workload(step_s=10 * MS)),
    ],
    ids=["a recipe", "a diagnosis", "statistics", "a coverage", "advice"],
)
def test_what_prints_as_text_is_shown_as_that_text(
    make: Callable[[Loader], Any], ipython: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ipython:
        monkeypatch.setitem(__import__("sys").modules, "IPython.lib.pretty", None)
    with Loader(SOURCE, RECIPE, PLANNER, MemoryStore()) as loader:
        list(loader)
        given = make(loader)
    assert shown(given) == str(given)
    assert "\\n" not in shown(given)
    assert not shown(given).startswith(("'", '"'))


def test_a_recipe_is_shown_as_its_table_and_statistics_as_their_summary() -> None:
    assert shown(RECIPE).split("\n")[0].split("  ")[-3:] == ["outcomes", "kept at 2", "kept at 3"]
    with Loader(SOURCE, RECIPE, PLANNER, MemoryStore()) as loader:
        list(loader)
        assert shown(loader.stats()) == loader.stats().summary()
        assert shown(loader.stats()).startswith("0 % of 12 samples hit; training waited ")
        assert eval(repr(loader.stats()), {"Stats": type(loader.stats())}) == loader.stats()


def test_loaders_and_what_is_made_of_them_say_where_they_are() -> None:
    with Loader(SOURCE, RECIPE, PLANNER, MemoryStore()) as loader:
        text = "Loader(12 samples by Refurbish in batches of 4, next: batch 0 of epoch 0; "
        assert shown(loader).startswith(text)
        assert shown(TimmLoader(loader)).startswith(f"TimmLoader({text}")
        assert shown(loader.as_dicts()).startswith(text)
        assert shown(loader.as_dicts()).endswith(".map(pixel_values + labels)")


@pytest.mark.filterwarnings("ignore:.*but there is no store")
def test_a_loader_says_what_it_caches_and_what_computes(tmp_path: Path) -> None:
    files, standard = ImageFolder(write_folder(tmp_path, num_samples=COUNT)), Standard(COUNT, batch_size=4)
    stages = "random_resized_crop > flip > rand_augment_1"
    for loader, said in (
        (Loader(SOURCE, RECIPE, PLANNER, MemoryStore()), f"cached: {stages}; kernels: numba)"),
        (Loader(SOURCE, RECIPE, standard), f"partial: {stages}; kernels: numba)"),
        (Loader(SOURCE, RECIPE.at(0), PLANNER, views=2), "cached: arrays, as they are read; kernels: numba; views: 2)"),
        (Loader(files, simple(16).at(0), standard, kernels="dali"), "partial: files, as they are read; kernels: dali)"),
    ):
        with loader:
            assert shown(loader).endswith(f" of epoch 0; {said}")
            assert (" of 3 classes by " in shown(loader)) == (loader.source is files)
