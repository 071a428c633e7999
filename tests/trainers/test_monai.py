"""What the page makes of MONAI's arguments serves MONAI's windows, and the stream of a plain loop."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import Arrays, FileList, Prefetch, SmartCache, simple
from dalirefurb.errors import ConfigurationError
from tests.pictures import write_folder
from tests.trainers.plain import NUM_SAMPLES, RECIPE, SIZE, SOURCE, endless, network
from tests.trainers.test_pages import SCRIPTS

DATA = [{"label": label} for label in range(NUM_SAMPLES)]
WINDOW, BATCH = 8, 4


def function_of_the_page() -> Callable[..., Any]:
    """Return the function that the page's script begins with."""
    script = ast.parse(SCRIPTS["monai"])
    script.body = [node for node in script.body if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef))]
    names: dict[str, Any] = {}
    exec(compile(script, "monai.md", "exec"), names)
    function: Callable[..., Any] = names["smart_cache"]
    return function


smart_cache = function_of_the_page()


def make(source: Any = SOURCE, recipe: Any = RECIPE, replace_rate: float = 0.3, **arguments: Any) -> Any:
    settings = {"cache_num": WINDOW, "batch_size": BATCH, "prefetch": Prefetch(num_threads=1), **arguments}
    return smart_cache(source, recipe, replace_rate, **settings)


def served(loader: Any, batches: int) -> list[tuple[torch.Tensor, list[int]]]:
    return [
        (batch["image"].clone(), batch["label"].tolist())
        for batch in islice(endless(loader), batches)
        if batch.keys() == {"image", "label"}
    ]


def windows(loader: Any, epochs: int) -> list[list[int]]:
    return [sorted(label for batch in loader for label in batch["label"].tolist()) for _ in range(epochs)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("rate", [0.3, 0.5, 1.0])
def test_the_windows_are_monais(rate: float) -> None:
    data = pytest.importorskip("monai.data")
    dataset = data.SmartCacheDataset(
        DATA, lambda sample: sample["label"], rate, cache_num=WINDOW, shuffle=False, progress=False
    )
    dataset.start()
    theirs = []
    for _ in range(5):
        theirs.append(sorted(dataset[index] for index in range(len(dataset))))
        dataset.update_cache()
    dataset.shutdown()
    loader = make(replace_rate=rate, shuffle=False)
    assert windows(loader, 5) == theirs
    assert len(loader) == WINDOW // BATCH
    loader.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_monais_trainer_trains_on_the_stream_of_a_plain_loop() -> None:
    engines = pytest.importorskip("monai.engines")
    expected, loader = served(make(), 4), make()
    seen: list[tuple[torch.Tensor, list[int]]] = []

    def step(engine: Any, batch: Any) -> dict[str, torch.Tensor]:
        seen.append((batch["image"].clone(), batch["label"].tolist()))
        return {"loss": torch.zeros(())}

    model = network()
    trainer = engines.SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=2,
        train_data_loader=loader,
        network=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        loss_function=torch.nn.CrossEntropyLoss(),
        iteration_update=step,
    )
    trainer.run()
    assert [labels for _, labels in seen] == [labels for _, labels in expected]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(seen, expected, strict=True))


@pytest.mark.parametrize("place", range(7))
def test_it_goes_on_from_every_batch(place: int) -> None:
    expected, first, second = served(make(), 6), make(), make()
    got = served(first, place)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    got += served(second, 6 - place)
    assert [labels for _, labels in got] == [labels for _, labels in expected]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(got, expected, strict=True))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FileList:
    root = write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES)
    return FileList(sorted(root.glob("*/*.jpg")), range(NUM_SAMPLES))


def test_what_is_not_random_is_cached_and_the_rest_is_not(files: FileList) -> None:
    loader = make(files, simple(SIZE), replace_rate=0.25)
    windows(loader, 3)
    recipe, stats = loader.loader.recipe, loader.stats()
    assert [stage.name for stage in recipe.partial] == ["decode"]
    assert loader.planner == SmartCache(NUM_SAMPLES, batch_size=BATCH, num_cache_objects=WINDOW, replace_percent=0.25)
    assert (stats.misses, stats.hits) == (WINDOW + 2 + 2, 2 * (WINDOW - 2))


def test_a_seed_draws_the_running_order_and_no_shuffle_is_the_datas() -> None:
    assert windows(make(shuffle=False, seed=5), 2) == windows(make(shuffle=False), 2)
    assert windows(make(seed=5), 2) != windows(make(), 2)
    assert windows(make(shuffle=False), 1) == [list(range(WINDOW))]


@pytest.mark.parametrize(
    ("arguments", "window"),
    [
        ({"cache_num": 9, "cache_rate": 1.0}, 9),
        ({"cache_num": 9, "cache_rate": 0.5}, 7),
        ({"cache_num": 10**9}, NUM_SAMPLES),
        ({"cache_num": 10**9, "cache_rate": 0.3}, 4),
    ],
)
@pytest.mark.filterwarnings("ignore:num_cache_objects=")
def test_the_window_is_the_least_of_number_share_and_all(arguments: dict[str, Any], window: int) -> None:
    assert make(**arguments).planner.num_cache_objects == window


@pytest.mark.parametrize(
    ("num_samples", "rate", "window"), [(14, 0.4, 5), (14, 0.7, 9), (14, 0.57, 7), (100, 0.29, 28), (100, 0.57, 56)]
)
@pytest.mark.filterwarnings("ignore:num_cache_objects=", "ignore::DeprecationWarning")
def test_a_share_of_samples_is_cut_to_a_whole_number_as_by_monai(num_samples: int, rate: float, window: int) -> None:
    source = Arrays(np.zeros((num_samples, SIZE, SIZE, 3), np.uint8), np.arange(num_samples))
    planner = make(source, cache_num=10**9, cache_rate=rate).planner
    assert planner.num_cache_objects == window
    data = [{"label": label} for label in range(num_samples)]
    theirs = pytest.importorskip("monai.data").SmartCacheDataset(data, [], 0.3, cache_rate=rate, progress=False)
    assert len(theirs) == window


def test_processes_share_a_window_or_have_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert windows(make(SOURCE.subset(range(8)), rank=(0, 1)), 1) == [list(range(8))]
    alone = [batch["label"].tolist() for batch in make(shards=2, rank=(0, 1))]
    assert [batch["label"].tolist() for batch in make(shards=2)] == [labels[BATCH // 2 :] for labels in alone]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"replace_rate": 1.5}, "replace_percent must be a number in 0..1, got 1.5: pass 0.1 for 10 %"),
        ({"cache_num": 3}, "num_cache_objects must be an int in 4..14, got 3: a window fills a batch"),
        ({"cache_rate": 0.0}, "num_cache_objects must be an int in 4..14, got 0"),
        ({"batch_size": 0}, "batch_size must be an int in 1..14, got 0"),
    ],
)
def test_what_cannot_work_is_refused_by_the_planner(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**arguments)
