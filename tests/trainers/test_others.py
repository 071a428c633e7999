"""Ignite, skorch, fastai and torchdata's nodes train on the stream of a plain loop, wherever they stop and go on."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch

from dalirefurb import Loader
from tests.trainers.plain import (
    BATCHES,
    NUM_SAMPLES,
    SOURCE,
    Batch,
    assert_stream,
    endless,
    network,
    plain_stream,
    train_loader,
    val_loader,
)

EPOCHS = 2

Checkpoint = dict[str, Any] | None
Run = Callable[[Loader, Checkpoint, int | None], tuple[list[Batch], Checkpoint]]
"""Trains from a checkpoint, to its end or for so many batches; returns what was trained on, and a checkpoint."""


def ignite(loader: Loader, checkpoint: Checkpoint, stop: int | None) -> tuple[list[Batch], Checkpoint]:
    engine = pytest.importorskip("ignite.engine")
    trained: list[Batch] = []

    def step(trainer: Any, batch: Any) -> None:
        trained.append((batch[0].clone(), batch[1].clone()))

    trainer = engine.Engine(step)
    if checkpoint is not None:
        trainer.load_state_dict(checkpoint["trainer"])
        loader.load_state_dict(checkpoint["loader"])
    if stop is not None:
        trainer.add_event_handler(
            engine.Events.ITERATION_COMPLETED(once=stop), lambda trainer: trainer.terminate(skip_completed=True)
        )
    trainer.run(loader, max_epochs=None if checkpoint is not None else EPOCHS)
    return trained, {"trainer": dict(trainer.state_dict()), "loader": loader.state_dict()}


def skorch(loader: Loader, checkpoint: Checkpoint, stop: int | None) -> tuple[list[Batch], Checkpoint]:
    skorch = pytest.importorskip("skorch")
    trained: list[Batch] = []

    class Recording(skorch.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_batch_end(self, net: Any, batch: Any, training: bool, **_: Any) -> None:
            if training:
                trained.append((batch[0].clone(), batch[1].clone()))
                if len(trained) == stop:
                    raise KeyboardInterrupt

    if checkpoint is not None:
        loader.load_state_dict(checkpoint)
    net = skorch.NeuralNetClassifier(
        network(),
        criterion=torch.nn.CrossEntropyLoss,
        max_epochs=EPOCHS - loader.epoch,
        dataset=lambda source, labels: source,
        iterator_train=lambda source, **_: loader,
        train_split=None,
        callbacks=[Recording()],
        verbose=0,
    )
    net.fit(SOURCE, None)
    return trained, loader.state_dict()


def fastai(loader: Loader, checkpoint: Checkpoint, stop: int | None) -> tuple[list[Batch], Checkpoint]:
    learner = pytest.importorskip("fastai.learner")
    core = pytest.importorskip("fastai.data.core")
    trained: list[Batch] = []

    class Recording(learner.Callback):  # type: ignore[misc, name-defined]
        def after_batch(self) -> None:
            trained.append((self.x.clone(), self.y.clone()))
            if len(trained) == stop:
                raise learner.CancelFitException

    if checkpoint is not None:
        loader.load_state_dict(checkpoint)
    learn = learner.Learner(
        core.DataLoaders(loader, []), network(), loss_func=torch.nn.CrossEntropyLoss(), cbs=[Recording()]
    )
    learn.remove_cb(learn.progress) if hasattr(learn, "progress") else None
    with learn.no_logging():
        learn.fit(EPOCHS, start_epoch=loader.epoch)
    return trained, loader.state_dict()


def nodes(
    loader: Loader, checkpoint: Checkpoint, stop: int | None, prefetch: int = 0
) -> tuple[list[Batch], Checkpoint]:
    nodes = pytest.importorskip("torchdata.nodes")
    node, done = nodes.IterableWrapper(loader), 0
    root = nodes.Loader(nodes.Prefetcher(node, prefetch) if prefetch else node)
    if checkpoint is not None:
        root.load_state_dict(checkpoint["root"])
        done = checkpoint["done"]
    batches = islice(endless(root), EPOCHS * BATCHES - done if stop is None else stop)
    trained = [(images.clone(), labels.clone()) for images, labels in batches]
    return trained, {"root": copy.deepcopy(root.state_dict()), "done": len(trained)}


def prefetching_nodes(loader: Loader, checkpoint: Checkpoint, stop: int | None) -> tuple[list[Batch], Checkpoint]:
    return nodes(loader, checkpoint, stop, prefetch=2)


RUNS = [ignite, skorch, fastai, nodes, prefetching_nodes]


@pytest.fixture(scope="module")
def expected() -> list[Batch]:
    return plain_stream(EPOCHS * BATCHES)


@pytest.mark.parametrize("run", RUNS)
def test_a_training_in_one_go_is_a_plain_loop(run: Run, expected: list[Batch]) -> None:
    with train_loader() as loader:
        assert_stream(expected, run(loader, None, None)[0])


@pytest.mark.parametrize("stop", range(1, EPOCHS * BATCHES))
@pytest.mark.parametrize("run", RUNS)
def test_a_training_that_stops_anywhere_goes_on_as_a_plain_loop(run: Run, stop: int, expected: list[Batch]) -> None:
    with train_loader() as loader:
        trained, checkpoint = run(loader, None, stop)
        assert len(trained) == stop
        saved = io.BytesIO()
        torch.save(checkpoint, saved)
    saved.seek(0)
    with train_loader() as loader:
        trained += run(loader, torch.load(saved), None)[0]
    assert_stream(expected, trained)


def validated_by_ignite(loader: Loader) -> list[int]:
    engine = pytest.importorskip("ignite.engine")
    seen: list[int] = []
    engine.Engine(lambda _, batch: seen.extend(batch[1].tolist())).run(loader)
    return seen


def validated_by_skorch(loader: Loader) -> list[int]:
    skorch = pytest.importorskip("skorch")
    seen: list[int] = []

    class Recording(skorch.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_batch_end(self, net: Any, batch: Any, training: bool, **_: Any) -> None:
            seen.extend([] if training else batch[1].tolist())

    with train_loader() as train:
        net = skorch.NeuralNetClassifier(
            network(),
            criterion=torch.nn.CrossEntropyLoss,
            max_epochs=1,
            dataset=lambda source, labels: source,
            iterator_train=lambda source, **_: train,
            iterator_valid=lambda source, **_: loader,
            train_split=lambda source: (source, loader.source),
            classes=range(NUM_SAMPLES),
            callbacks=[Recording()],
            verbose=0,
        ).fit(train.source, None)
        right = net.predict_proba(loader.source).argmax(1) == loader.source.labels
        assert net.history[-1]["valid_acc"] == pytest.approx(right.mean())
    return seen


def validated_by_fastai(loader: Loader) -> list[int]:
    learner, core = pytest.importorskip("fastai.learner"), pytest.importorskip("fastai.data.core")
    seen: list[int] = []

    class Recording(learner.Callback):  # type: ignore[misc, name-defined]
        def before_batch(self) -> None:
            seen.extend([] if self.training else self.y.tolist())

    with train_loader() as train:
        dls = core.DataLoaders(train, loader)
        learn = learner.Learner(dls, network(), loss_func=torch.nn.CrossEntropyLoss(), cbs=[Recording()])
        learn.validate()
    return seen


def validated_by_nodes(loader: Loader) -> list[int]:
    nodes = pytest.importorskip("torchdata.nodes")
    return [label for _, labels in nodes.Loader(nodes.IterableWrapper(loader)) for label in labels.tolist()]


@pytest.mark.parametrize("run", [validated_by_ignite, validated_by_skorch, validated_by_fastai, validated_by_nodes])
def test_each_image_is_validated_once(run: Callable[[Loader], list[int]]) -> None:
    with val_loader() as loader:
        assert run(loader) == list(range(NUM_SAMPLES))
