"""SmartCache's users find MONAI's windows, arguments and batches, and the stream of a plain loop."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import Arrays, FileList, MemoryStore, SmartCache, simple
from dalirefurb.errors import ConfigurationError
from dalirefurb.trainers.monai import SmartCacheLoader, smart_cache
from tests.pictures import write_folder
from tests.trainers.plain import NUM_SAMPLES, RECIPE, SIZE, SOURCE, endless, network

IMAGES = np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, SIZE, SIZE, 3), np.uint8)
DATA = [{"image": image, "label": label} for label, image in enumerate(IMAGES)]
WINDOW, BATCH = 8, 4


def make(data: Any = DATA, transform: Any = RECIPE, replace_rate: float = 0.3, **arguments: Any) -> SmartCacheLoader:
    return smart_cache(
        data, transform, replace_rate, **{"cache_num": WINDOW, "batch_size": BATCH, "num_init_workers": 1, **arguments}
    )


def served(loader: SmartCacheLoader, batches: int) -> list[tuple[torch.Tensor, list[int]]]:
    return [
        (batch["image"].clone(), batch["label"].tolist())
        for batch in islice(endless(loader), batches)
        if batch.keys() == {"image", "label"}
    ]


def windows(loader: SmartCacheLoader, epochs: int) -> list[list[int]]:
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
    loader.loader.close()


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


def test_the_methods_of_a_smart_cache_may_be_called_and_change_nothing() -> None:
    called, plain, epochs = make(), make(), []
    called.start()
    for _ in range(3):
        epochs += windows(called, 1)
        called.update_cache()
    called.shutdown()
    assert epochs == windows(plain, 3)
    assert len(called) == WINDOW // BATCH


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES)
    return [{"image": path, "label": index} for index, path in enumerate(sorted(root.glob("*/*.jpg")))]


def test_what_is_not_random_is_cached_and_the_rest_is_not(files: list[dict[str, Any]]) -> None:
    loader = make(files, transform=simple(SIZE), replace_rate=0.25, store=MemoryStore())
    windows(loader, 3)
    recipe, stats = loader.loader.recipe, loader.loader.stats()
    assert [stage.name for stage in recipe.partial] == ["decode"]
    assert loader.loader.planner == SmartCache(
        NUM_SAMPLES, batch_size=BATCH, num_cache_objects=WINDOW, replace_percent=0.25
    )
    assert (stats.misses, stats.hits) == (WINDOW + 2 + 2, 2 * (WINDOW - 2))


def test_a_seed_draws_the_running_order_and_no_shuffle_is_the_datas() -> None:
    assert windows(make(shuffle=False, seed=5), 2) == windows(make(shuffle=False), 2)
    assert windows(make(seed=5), 2) != windows(make(), 2)
    loader = make(shuffle=False)
    images, labels = served(loader, 1)[0]
    plain = make(data=SOURCE, shuffle=False, transform=simple(SIZE, raw=True))
    assert served(plain, 1)[0][1] == labels
    assert images.shape == (BATCH, 3, SIZE, SIZE)


@pytest.mark.parametrize(
    ("arguments", "window"),
    [
        ({"cache_num": 9, "cache_rate": 1.0}, 9),
        ({"cache_num": 9, "cache_rate": 0.5}, 7),
        ({"cache_num": 10**9}, NUM_SAMPLES),
        ({"cache_num": 10**9, "cache_rate": 0.3}, 4),
    ],
)
@pytest.mark.filterwarnings("ignore:num_cache_objects should be a multiple")
def test_the_window_is_the_least_of_number_share_and_all(arguments: dict[str, Any], window: int) -> None:
    planner = make(**arguments).loader.planner
    assert isinstance(planner, SmartCache)
    assert planner.num_cache_objects == window


@pytest.mark.parametrize(
    ("num_samples", "rate", "window"), [(14, 0.4, 5), (14, 0.7, 9), (14, 0.57, 7), (100, 0.29, 28), (100, 0.57, 56)]
)
@pytest.mark.filterwarnings("ignore:num_cache_objects should be a multiple", "ignore::DeprecationWarning")
def test_a_share_of_samples_is_cut_to_a_whole_number_as_by_monai(num_samples: int, rate: float, window: int) -> None:
    data = [{"image": IMAGES[0], "label": label} for label in range(num_samples)]
    planner = make(data, cache_num=10**9, cache_rate=rate).loader.planner
    assert planner.num_cache_objects == window
    theirs = pytest.importorskip("monai.data").SmartCacheDataset(data, [], 0.3, cache_rate=rate, progress=False)
    assert len(theirs) == window


def test_processes_share_a_window_or_have_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert windows(make(DATA[:8], rank=(0, 1)), 1) == [list(range(8))]
    alone = [batch["label"].tolist() for batch in make(shards=2, rank=(0, 1))]
    assert [batch["label"].tolist() for batch in make(shards=2)] == [labels[BATCH // 2 :] for labels in alone]


def test_the_larger_number_of_workers_is_the_number_of_threads() -> None:
    for workers, threads in (((3, 2), 3), ((None, 2), 2), ((0, -1), 1)):
        loader = make(num_init_workers=workers[0], num_replace_workers=workers[1])
        depths = loader.loader._assembler.depths
        assert depths.replicas * depths.threads_each == threads


def test_files_and_arrays_become_sources(files: list[dict[str, Any]]) -> None:
    data = [{"pixels": sample["image"], "class": sample["label"]} for sample in files]
    loader = make(data, transform=simple(SIZE), keys=("pixels", "class"))
    assert isinstance(loader.loader.source, FileList)
    assert loader.loader.source.name(3) == str(files[3]["image"])
    assert isinstance(make().loader.source, Arrays)
    assert next(iter(make(SOURCE, keys=("a", "b")))).keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"transform": lambda image: image}, "transform must be a dalirefurb Recipe, got function: MONAI's transforms"),
        ({"runtime_cache": "process"}, "runtime_cache must be False, got 'process': leave it out, as in MONAI"),
        ({"replace_rate": 1.5}, "replace_rate must be a number in 0..1, got 1.5: pass 0.1 for 10 %"),
        ({"cache_num": 3}, "must fill a batch, but holds 3 samples, the least of cache_num=3, cache_rate=1 of 14"),
        ({"cache_rate": 0.0}, "must fill a batch, but holds 0 samples"),
        ({"cache_rate": 2}, "cache_rate must be a number in 0..1, got 2"),
        ({"cache_num": 2.5}, "cache_num must be an int of at least 0, got 2.5"),
        ({"batch_size": 0}, "batch_size must be an int of at least 1, got 0"),
        ({"num_replace_workers": "all"}, "num_replace_workers must be an int, got 'all'"),
        ({"shards": 2, "shuffle": False}, "shards must be 1 where shuffle is False, got 2: leave shuffle out"),
        ({"data": [{"image": "a.jpg"}]}, "mappings with 'image' and 'label', but sample 0 is .*: pass keys="),
        ({"data": ["a.jpg"]}, "mappings with 'image' and 'label', but sample 0 is 'a.jpg'"),
        (
            {"data": [{"image": "a", "label": "a.nii"}]},
            "labels must be numbers, but 'label' of sample 0 is 'a.nii': ma",
        ),
        ({"data": [{"image": 3, "label": 1}]}, "'image' of sample 0 must be a path, or all of them arrays, got 3"),
        (
            {"data": [{"image": IMAGES[0, :height], "label": 1} for height in (4, 5)]},
            r"arrays must be of one shape, got \[\(4, 32, 3\), \(5, 32, 3\)\]: write them as files",
        ),
        ({"data": []}, "there must be at least one sample"),
    ],
)
def test_what_has_no_meaning_here_is_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refusal:
        make(**arguments)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "remedy"), [("num_workers", "num_init_workers=4 is"), ("cachenum", "it is cache_num")]
)
def test_an_argument_that_is_not_there_is_told_with_what_takes_its_place(name: str, remedy: str) -> None:
    with pytest.raises(TypeError, match=f"smart_cache: there is no argument '{name}': {remedy}"):
        smart_cache([], simple(32), batch_size=4, **{name: 2})
