"""A loop that is written for DALI's iterator finds its names, its policies, its labels and its size."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from dalirefurb import Arrays, Echo, Evaluate, Loader, PartialSource, Standard, evaluate, simple
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.planner import Planner

NUM_SAMPLES, BATCH, SIZE = 10, 4, 8
ARRAYS = Arrays(
    np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, SIZE, SIZE, 3), np.uint8), np.arange(NUM_SAMPLES)
)


def load(planner: Planner | None = None, **arguments: Any) -> Loader:
    return Loader(ARRAYS, simple(SIZE, raw=True), planner or Standard(NUM_SAMPLES, batch_size=BATCH), **arguments)


def labels_of(iterator: DALIGenericIterator) -> list[list[int]]:
    return [batch["label"].flatten().tolist() for (batch,) in iterator]


def test_parts_of_a_batch_have_the_names_that_are_asked_for() -> None:
    with load() as loader, load(with_indices=True) as indexed:
        ((batch,), *_) = loader.dali_iterator(["image", "target"])
        assert [*batch] == ["image", "target"]
        ((batch,), *_) = indexed.dali_iterator(("image", "target", "number"))
        assert [*batch] == ["image", "target", "number"]
        ((batch,), *_) = indexed.dali_iterator()
        assert [*batch] == ["data", "label", "index"]


@pytest.mark.parametrize("names", [["image"], ["image", "image"], ["image", 3], "image", ["a", "b", "c"]])
def test_other_names_are_refused(names: Any) -> None:
    with load() as loader, pytest.raises(ConfigurationError, match="output_map must be different names of data, label"):
        loader.dali_iterator(names)


def test_labels_are_as_dalis_readers_have_them_if_asked_for() -> None:
    with load() as loader:
        ((batch,), *_) = loader.dali_iterator(dali_labels=True)
    assert (batch["label"].dtype, batch["label"].shape) == (torch.int32, (BATCH, 1))
    with load() as loader:
        ((plain,), *_) = loader.dali_iterator()
    assert (plain["label"].dtype, plain["label"].shape) == (torch.int64, (BATCH,))
    assert torch.equal(batch["label"].squeeze(-1).long(), plain["label"])


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.arange(NUM_SAMPLES) + 2**31, "int64 from 2147483648 to 2147483657"),
        (2**31 - np.arange(NUM_SAMPLES), "int64 from 2147483639 to 2147483648"),
        (-(2**31) - np.arange(NUM_SAMPLES) % 2, "int64 from -2147483649 to -2147483648"),
        (np.linspace(0, 1, NUM_SAMPLES), "float64 of shape"),
        (np.zeros((NUM_SAMPLES, 2), np.int64), r"int64 of shape \(10, 2\)"),
    ],
)
def test_labels_that_dalis_readers_could_not_have_are_refused(labels: Any, said: str) -> None:
    source = Arrays(np.zeros((NUM_SAMPLES, SIZE, SIZE, 3), np.uint8), labels)
    parts: Any = source, simple(SIZE, raw=True), Standard(NUM_SAMPLES, batch_size=BATCH)
    message = f"one whole number of 32 bits.*dali_labels=True, but are {said}"
    with Loader(*parts) as loader, pytest.raises(ConfigurationError, match=message):
        loader.dali_iterator(dali_labels=True)
    with pytest.raises(ConfigurationError, match=message):
        PartialSource(*parts, dali_labels=True)


def test_the_largest_and_the_smallest_number_of_32_bits_are_labels_as_dalis_readers_have_them() -> None:
    limits = [-(2**31), 2**31 - 1]
    for labels in (limits, [False, True]):
        source = Arrays(np.zeros((2, SIZE, SIZE, 3), np.uint8), np.array(labels))
        with Loader(source, evaluate(SIZE, raw=True), Evaluate(2, batch_size=2)) as loader:
            (batch,) = next(loader.dali_iterator(dali_labels=True))
        assert (batch["label"].dtype, batch["label"].flatten().tolist()) == (torch.int32, labels)


@pytest.mark.parametrize("auto_reset", [False, "no"])
def test_without_auto_reset_an_epoch_begins_by_reset(auto_reset: Any) -> None:
    with load() as loader:
        iterator = loader.dali_iterator(auto_reset=auto_reset)
        assert sorted(chain(*labels_of(iterator))) == [*range(NUM_SAMPLES)]
        assert labels_of(iterator) == []
        with pytest.raises(StopIteration):
            next(iterator)
        assert loader.epoch == 1
        iterator.reset()
        assert sorted(chain(*labels_of(iterator))) == [*range(NUM_SAMPLES)]


@pytest.mark.parametrize("auto_reset", [True, False])
def test_after_a_reset_the_next_batch_is_the_first_of_an_epoch(auto_reset: bool) -> None:
    with load() as loader:
        iterator = loader.dali_iterator(auto_reset=auto_reset)
        next(iterator)
        iterator.reset()
        assert sorted(chain(*labels_of(iter(lambda: next(iterator, None), None)))) == [*range(NUM_SAMPLES)]
        assert loader.epoch == 2


def test_with_auto_reset_the_next_loop_is_the_next_epoch() -> None:
    with load() as loader:
        iterator = loader.dali_iterator(auto_reset="yes")
        assert [sorted(chain(*labels_of(iterator))) for _ in range(2)] == [[*range(NUM_SAMPLES)]] * 2
        one_by_one = [labels_of(iter(lambda: next(iterator, None), None)) for _ in range(2)]
        assert [sorted(chain(*epoch)) for epoch in one_by_one] == [[*range(NUM_SAMPLES)]] * 2


def test_a_loop_ends_what_was_begun_one_by_one() -> None:
    with load() as loader:
        iterator = loader.dali_iterator()
        next(iterator)
        for epoch in (labels_of(iterator), labels_of(iter(lambda: next(iterator, None), None))):
            assert sorted(chain(*epoch)) == [*range(NUM_SAMPLES)]


def test_a_checkpoint_is_the_loaders_state() -> None:
    with load() as loader, pytest.raises(NotImplementedError, match=r"do not cover the cache; use Loader\.state_dict"):
        loader.dali_iterator().checkpoints()


DROP, FILL, PARTIAL = LastBatchPolicy.DROP, LastBatchPolicy.FILL, LastBatchPolicy.PARTIAL
POLICIES: dict[str, tuple[Planner, dict[str, Any], LastBatchPolicy, int]] = {
    "smaller": (Standard(NUM_SAMPLES, batch_size=BATCH), {}, PARTIAL, NUM_SAMPLES),
    "dropped": (Standard(NUM_SAMPLES, batch_size=BATCH, drop_last=True), {}, DROP, 8),
    "of two shards": (Standard(NUM_SAMPLES, batch_size=BATCH, shards=2), {}, DROP, 8),
    "validated": (Evaluate(NUM_SAMPLES, batch_size=BATCH), {}, PARTIAL, NUM_SAMPLES),
    "filled up": (Evaluate(NUM_SAMPLES, batch_size=BATCH, pad=True), {"with_indices": True}, FILL, 12),
}


@pytest.mark.filterwarnings("ignore:.*random")
@pytest.mark.parametrize("name", POLICIES)
def test_size_policy_and_length_say_what_is_served(name: str) -> None:
    planner, arguments, policy, size = POLICIES[name]
    with load(planner, **arguments) as loader:
        iterator = loader.dali_iterator(last_batch_policy=policy)
        assert (iterator.size, iterator._last_batch_policy) == (size, policy)
        served = labels_of(iterator)
        assert (len(served), sum(map(len, served))) == (len(iterator), size)
        assert len(iterator) == (size // BATCH if policy is DROP else -(-size // BATCH))
        for other in {DROP, FILL, PARTIAL} - {policy}:
            with pytest.raises(ConfigurationError, match=f"the planner does, {policy.name}, got {other.name}: leave"):
                loader.dali_iterator(last_batch_policy=other)


def test_where_all_batches_are_full_any_policy_is_kept() -> None:
    with load(Standard(NUM_SAMPLES, batch_size=5)) as loader:
        for policy in (DROP, FILL, PARTIAL):
            assert [len(each) for each in labels_of(loader.dali_iterator(last_batch_policy=policy))] == [5, 5]


@pytest.mark.filterwarnings("ignore:.*random")
def test_whether_all_batches_are_full_is_told_by_what_is_served() -> None:
    with load(Echo(Standard(NUM_SAMPLES, batch_size=BATCH), echoing_factor=1.2, buffer_size=0)) as loader:
        assert [len(each) for each in labels_of(loader.dali_iterator(last_batch_policy=DROP))] == [4, 4, 4]
    with load(Echo(Standard(NUM_SAMPLES, batch_size=5), echoing_factor=1.3, buffer_size=0)) as loader:
        assert [len(each) for each in labels_of(loader.dali_iterator())] == [5, 5, 3]
        with pytest.raises(ConfigurationError, match="the planner does, PARTIAL, got DROP: leave"):
            loader.dali_iterator(last_batch_policy=DROP)
    padded = Evaluate(NUM_SAMPLES, batch_size=5, pad=True)
    with load(padded, with_indices=True, rank=(1, 2)) as loader:
        assert [batch["index"].tolist() for (batch,) in loader.dali_iterator()] == [[3, 4, 5], [9, -1, -1]]
        with pytest.raises(ConfigurationError, match="the planner does, FILL, got DROP: leave"):
            loader.dali_iterator(last_batch_policy=DROP)
    for planner, rank in ((padded, (0, 1)), (Evaluate(NUM_SAMPLES, batch_size=10, pad=True), (1, 2))):
        with load(planner, with_indices=True, rank=rank) as loader:
            assert {len(each) for each in labels_of(loader.dali_iterator(last_batch_policy=DROP))} == {5}


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_after_an_error_an_epoch_goes_on_with_the_batch_that_failed() -> None:
    with load() as loader:
        iterator, expected = loader.dali_iterator(), labels_of(loader.dali_iterator())
        loader.set_epoch(0)
        served = [next(iterator)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loader._assembler.engine, "take", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
        served += iter(lambda: next(iterator, None), None)
        assert [batch["label"].tolist() for (batch,) in served] == expected


@pytest.mark.filterwarnings("ignore:.*random")
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("pad", [False, True])
def test_where_ranks_have_not_as_many_rows_the_policy_is_the_planners(rank: int, pad: bool) -> None:
    with load(Evaluate(NUM_SAMPLES, batch_size=5, pad=pad), rank=(rank, 4), with_indices=True) as loader:
        own = FILL if pad else PARTIAL
        for policy in {DROP, FILL, PARTIAL} - {own}:
            with pytest.raises(ConfigurationError, match=f"the planner does, {own.name}, got {policy.name}: leave"):
                loader.dali_iterator(last_batch_policy=policy)
        assert loader.dali_iterator(last_batch_policy=own)._last_batch_policy is own


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_has_its_own_size(rank: int) -> None:
    """NVIDIA's formula gives the batches that are served."""
    planner = Standard(NUM_SAMPLES, batch_size=BATCH, shards=2)
    with load(planner, rank=(rank, 2)) as loader:
        iterator = loader.dali_iterator()
        assert iterator.size == 4
        assert len(labels_of(iterator)) == len(iterator) == iterator.size // loader.batch_size == 2


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.filterwarnings("ignore:.*random")
def test_a_rank_that_evaluates_has_the_size_of_its_part(rank: int) -> None:
    with load(Evaluate(NUM_SAMPLES, batch_size=BATCH), rank=(rank, 2)) as loader:
        iterator = loader.dali_iterator()
        assert iterator.size == sum(map(len, labels_of(iterator))) < NUM_SAMPLES


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"reader_name": "Reader"}, "no argument 'reader_name': the planner knows the number of samples"),
        ({"size": 8}, "no argument 'size': the planner knows the number of samples"),
        ({"dynamic_shape": True}, "no argument 'dynamic_shape': images of a batch are of one size"),
        ({"fill_last_batch": True}, "no argument 'fill_last_batch': pass last_batch_policy"),
        ({"last_batch_padded": True}, "no argument 'last_batch_padded': pass last_batch_policy"),
        ({"prepare_first_batch": True}, "no argument 'prepare_first_batch': the loader begins when it is first iterat"),
        ({"pipelines": []}, "no argument 'pipelines': the loader takes their place"),
        ({"auto_rest": True}, "no argument 'auto_rest': it is auto_reset here"),
    ],
)
def test_arguments_of_dalis_that_are_not_needed_are_told(arguments: dict[str, Any], told: str) -> None:
    with load() as loader, pytest.raises(TypeError, match=told):
        loader.dali_iterator(**arguments)


@pytest.mark.parametrize("arguments", [{"auto_reset": 3}, {"last_batch_policy": "DROP"}])
def test_values_that_mean_nothing_are_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with load() as loader, pytest.raises(ConfigurationError, match=f"{name} must be"):
        loader.dali_iterator(**arguments)
