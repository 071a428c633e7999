"""Accelerate: what it asks of its own loaders is right for ours, and its checkpoints resume at the next batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dalirefurb import Evaluate, Loader, MemoryStore, Recipe, Refurbish, evaluate, simple
from dalirefurb.augment import HorizontalFlip
from dalirefurb.errors import ConfigurationError, LoaderError
from tests.in_turn import EACH_CHANGE
from tests.trainers.processes import in_two_processes
from tests.trainers.streams import (
    BATCH_SIZE,
    EPOCHS,
    NUM_SAMPLES,
    Step,
    assisted_loader,
    evaluating_loader,
    losses_of,
    network,
    plain_loop,
    source,
    step_of,
    training_loader,
)

accelerate = pytest.importorskip("accelerate", reason="the package accelerate is not installed")

from dalirefurb.trainers.accelerate import AcceleratedLoader, prepare  # noqa: E402 - it needs Accelerate

pytestmark = pytest.mark.filterwarnings("default")
BATCHES = -(-NUM_SAMPLES // BATCH_SIZE)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Accelerate's state is the process's; each test begins without it."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


@pytest.fixture(scope="module")
def expected() -> list[Step]:
    with training_loader() as loader:
        return plain_loop(loader)


def accelerator_for(**settings: Any) -> Any:
    return accelerate.Accelerator(cpu=True, **settings)


def rest_of(prepared: Any, steps: int) -> list[Step]:
    served: list[Step] = []
    while len(served) < steps:
        for images, labels in prepared:
            if prepared.loader.planner.feedback_lag is not None:
                prepared.loader.observe(losses_of(images))
            served.append(step_of(images, labels))
    return served


@pytest.mark.parametrize("make", [training_loader, assisted_loader])
def test_a_state_saved_after_any_batch_resumes_exactly(make: Any, tmp_path: Path) -> None:
    with make() as loader:
        expected = plain_loop(loader)
    accelerator = accelerator_for()
    with make() as loader:
        model, optimizer = _model(accelerator)
        prepared = prepare(accelerator, loader)
        served = []
        for _ in range(EPOCHS):
            for images, labels in prepared:
                if loader.planner.feedback_lag is not None:
                    loader.observe(losses_of(images))
                _train(accelerator, model, optimizer, images, labels)
                served.append(step_of(images, labels))
                accelerator.save_state(tmp_path / str(len(served)))
    assert served == expected
    apart = 3 if EACH_CHANGE and make is assisted_loader else 1
    for step in range(1, len(expected), apart):
        resumed = accelerator_for()
        with make() as loader:
            _model(resumed)
            prepared = prepare(resumed, loader)
            resumed.load_state(tmp_path / str(step))
            assert rest_of(prepared, len(expected) - step) == expected[step:]
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_each_of_several_loaders_goes_on_from_its_own_place(tmp_path: Path) -> None:
    accelerator = accelerator_for()
    with training_loader() as one, training_loader(seed=1) as other:
        prepared = prepare(accelerator, one, other)
        expected = [rest_of(each, 3 * BATCHES) for each in prepared]
        for steps, each in enumerate(prepared, 1):
            each.set_epoch(0)
            for number, _ in enumerate(each, 1):
                if number == steps:
                    break
        accelerator.save_state(tmp_path)
        for each in prepared:
            each.set_epoch(2)
        accelerator.load_state(tmp_path)
        for steps, (each, whole) in enumerate(zip(prepared, expected, strict=True), 1):
            assert rest_of(each, BATCHES - steps) == whole[steps:BATCHES]


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("restored", [False, True])
def test_skipped_batches_are_not_read_and_the_rest_is_exact(expected: list[Step], batch: int, restored: bool) -> None:
    accelerator = accelerator_for()
    with training_loader() as loader:
        prepared = prepare(accelerator, loader)
        prepared.set_epoch(1)
        if restored:
            loader.load_state_dict({**loader.state_dict(), "batch": batch})
        skipped = accelerator.skip_first_batches(prepared, batch)
        ends, served = [], []
        before = torch.random.get_rng_state()
        for images, labels in skipped:
            served.append(step_of(images, labels))
            ends.append(accelerator.gradient_state.end_of_dataloader)
        assert torch.equal(before, torch.random.get_rng_state())
        assert served == expected[BATCHES + batch : 2 * BATCHES]
        assert ends == [False] * (len(ends) - 1) + [True]
        assert loader.stats().batches == BATCHES - batch
        assert not accelerator.gradient_state.in_dataloader
        assert rest_of(prepared, BATCHES) == expected[2 * BATCHES :]


def test_a_loader_that_cannot_begin_does_not_stay_the_one_that_is_iterated() -> None:
    accelerator = accelerator_for()
    with training_loader() as loader:
        prepared = prepare(accelerator, loader)
    for begin in (lambda: next(iter(prepared)), lambda: next(iter(prepared.batch_sampler))):
        with pytest.raises(LoaderError, match="the loader is closed"):
            begin()
        assert not accelerator.gradient_state.in_dataloader


def test_gradients_are_accumulated_to_the_end_of_each_epoch_and_not_over_it() -> None:
    accelerator = accelerator_for(gradient_accumulation_steps=2)
    model, optimizer = _model(accelerator)
    synchronised, ends = [], []
    with training_loader() as loader:
        prepared = prepare(accelerator, loader)
        for _ in range(2):
            for images, labels in prepared:
                with accelerator.accumulate(model):
                    _train(accelerator, model, optimizer, images, labels)
                    synchronised.append(accelerator.sync_gradients)
                    ends.append(accelerator.gradient_state.end_of_dataloader)
    assert synchronised == [False, True, False, True, True] * 2
    assert ends == [False, False, False, False, True] * 2
    assert not accelerator.gradient_state.in_dataloader


def test_a_pass_that_is_left_is_forgotten_and_the_next_epoch_begins(expected: list[Step]) -> None:
    accelerator = accelerator_for()
    with training_loader() as loader:
        prepared = prepare(accelerator, loader)
        for batch in prepared:
            assert accelerator.gradient_state.active_dataloader is prepared
            assert step_of(*batch) == expected[0]
            break
        del batch
        assert not accelerator.gradient_state.in_dataloader
        assert rest_of(prepared, BATCHES) == expected[BATCHES : 2 * BATCHES]


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("num_samples", [NUM_SAMPLES, 20, 3])
def test_gathering_for_metrics_gives_each_sample_once(num_samples: int, pad: bool) -> None:
    accelerator = accelerator_for()
    batch_size = min(BATCH_SIZE, num_samples)
    with evaluating_loader(num_samples, pad=pad, batch_size=batch_size) as loader:
        prepared = prepare(accelerator, loader)
        gathered = torch.cat([accelerator.gather_for_metrics(batch[1]) for batch in prepared])
        assert gathered.tolist() == [*range(num_samples)]
        assert prepared.total_batch_size == batch_size
        assert prepared.total_dataset_length == len(prepared.dataset) == num_samples
    assert accelerator._custom_objects == []


def test_a_short_batch_of_training_is_gathered_whole() -> None:
    accelerator = accelerator_for()
    with training_loader() as loader:
        prepared = prepare(accelerator, loader)
        gathered = torch.cat([accelerator.gather_for_metrics(labels) for _, labels in prepared])
        assert sorted(gathered.tolist()) == [*range(NUM_SAMPLES)]
        assert prepared.remainder == NUM_SAMPLES % BATCH_SIZE


@pytest.mark.parametrize("own_versions", [True, False])
def test_a_short_batch_of_views_is_gathered_whole(own_versions: bool) -> None:
    accelerator, recipe, samples = accelerator_for(), simple(32, raw=True), NUM_SAMPLES + 1
    planner = Refurbish(samples, batch_size=BATCH_SIZE, reuse_factor=2)
    other = Recipe([*recipe.partial, HorizontalFlip(name="other")], recipe.output, recipe.split)
    views = 2 if own_versions else (other,)
    with Loader(source(samples), recipe, planner, MemoryStore(), views=views) as loader:
        prepared = prepare(accelerator, loader)
        gathered = torch.cat([accelerator.gather_for_metrics(labels) for _, labels in prepared])
        assert sorted(gathered.tolist()) == [*range(samples)]
        assert prepared.remainder == samples % BATCH_SIZE == 3


def test_batches_are_put_on_the_accelerators_device_unless_it_places_nothing() -> None:
    accelerator = accelerator_for()
    with training_loader() as loader:
        prepared = AcceleratedLoader(accelerator, loader)
        assert prepared.device == torch.device("cpu")
        accelerator.state.device = torch.device("meta")
        assert all(tensor.is_meta for batch in prepared for tensor in batch)
        accelerator.device_placement = False
        assert not any(tensor.is_meta for batch in prepared for tensor in batch)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_batches_are_waited_for_as_the_accelerator_is_told(monkeypatch: pytest.MonkeyPatch, non_blocking: bool) -> None:
    accelerator = accelerator_for(dataloader_config=accelerate.DataLoaderConfiguration(non_blocking=non_blocking))
    told = []

    def send(batch: Any, device: torch.device, non_blocking: bool = False) -> Any:
        told.append((device, non_blocking))
        return batch

    monkeypatch.setattr(accelerate.utils, "send_to_device", send)
    with training_loader() as loader:
        next(iter(prepare(accelerator, loader)))
    assert told == [(torch.device("cpu"), non_blocking)]


def test_what_is_no_loader_and_what_cannot_be_gathered_are_refused() -> None:
    accelerator = accelerator_for()
    with pytest.raises(ConfigurationError, match=r"loader must be a dalirefurb\.Loader itself, got \[1\]: give other"):
        prepare(accelerator, [1])
    with training_loader() as loader, pytest.raises(ConfigurationError, match="give the trainer what was mapped"):
        prepare(accelerator, loader.as_dicts())
    accelerator.state.num_processes = 2
    with evaluating_loader() as loader, pytest.raises(ConfigurationError, match=r"2 processes must .*pad=True"):
        prepare(accelerator, loader)


@pytest.mark.parametrize("view", [False, True])
def test_what_would_lose_the_place_of_a_loader_as_it_is_is_refused_with_what_takes_its_place(view: bool) -> None:
    accelerator, net = accelerator_for(), network()
    remedy = r"as it is: .*give loaders to dalirefurb\.trainers\.accelerate\.prepare\(accelerator, loader\)"
    with training_loader() as loader:
        given = loader.as_dicts() if view else loader
        for refused in (
            lambda: accelerator.prepare(given),
            lambda: accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01), given),
            lambda: accelerator.prepare_data_loader(given),
            lambda: accelerator.skip_first_batches(given, 2),
            lambda: accelerate.data_loader.prepare_data_loader(given),
            lambda: accelerate.skip_first_batches(given, 2),
        ):
            with pytest.raises(ConfigurationError, match=remedy):
                refused()
        accelerator.register_for_checkpointing(given)  # What keeps the place is not.
        assert isinstance(given, type(given))
        assert not isinstance(given, torch.utils.data.DataLoader)
        assert given.__class__ is type(given)


@pytest.mark.parametrize("num_samples", [16, NUM_SAMPLES, 19])
@pytest.mark.parametrize("rank", [0, 1])
def test_of_two_processes_what_remains_is_what_their_last_batches_have_without_padding(
    num_samples: int, rank: int
) -> None:
    accelerator = accelerator_for()
    accelerator.state.num_processes = 2
    evaluated = Evaluate(num_samples, batch_size=BATCH_SIZE, pad=True)
    trained = Refurbish(num_samples, batch_size=BATCH_SIZE, reuse_factor=2, shards=2)
    for planner, remains in ((evaluated, num_samples % BATCH_SIZE), (trained, 0)):
        parts = source(num_samples), evaluate(32, raw=True), planner, MemoryStore()
        with Loader(*parts, with_indices=True, rank=(rank, 2)) as loader:
            prepared = prepare(accelerator, loader)
            assert prepared.total_batch_size == BATCH_SIZE == 2 * prepared.batch_size
            for _ in prepared:
                assert prepared.remainder == (remains if prepared.end_of_dataloader else 0)
            assert prepared.end_of_dataloader


def test_batches_cannot_be_skipped_where_an_assistant_plans() -> None:
    accelerator = accelerator_for()
    with assisted_loader() as loader:
        skipped = accelerator.skip_first_batches(prepare(accelerator, loader), 2)
        with pytest.raises(ConfigurationError, match="got batch 2 of epoch 0 when batch 0 of epoch 0 is next: load"):
            next(iter(skipped))


def test_two_processes_gather_each_sample_once_and_resume_exactly(tmp_path: Path) -> None:
    for rank, told in enumerate(in_two_processes("tests.trainers.accelerate_worker", tmp_path)):
        with training_loader(shards=2) as loader:
            expected = plain_loop(loader)
        half = slice(rank * BATCH_SIZE // 2, (rank + 1) * BATCH_SIZE // 2)
        assert told["trained"] == [list(labels[half]) for labels, _ in expected]
        assert told["resumed"] == told["trained"][6:]
        assert told["skipped"] == told["trained"][6:8]
        assert told["gathered"] == [*range(NUM_SAMPLES)]
        assert sorted(told["gathered_of_training"]) == sorted(label for labels, _ in expected[8:] for label in labels)
        first, again = told["alone"]
        assert first == again
        assert len(first) == 2
        assert told["sizes"] == [BATCH_SIZE, NUM_SAMPLES]


def _model(accelerator: Any) -> Any:
    model = network()
    return accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))


def _train(accelerator: Any, model: Any, optimizer: Any, images: torch.Tensor, labels: torch.Tensor) -> None:
    accelerator.backward(torch.nn.functional.cross_entropy(model(images), labels))
    optimizer.step()
    optimizer.zero_grad()
