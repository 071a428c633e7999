import json

import numpy as np
import pytest

from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.refurbish import Refurbish, Standard


def test_a_batch_plan_names_its_counts():
    plan = next(Refurbish(9, batch_size=6, reuse_factor=3).epoch(4))
    assert repr(plan) == "BatchPlan(6 rows: 2 misses, 4 hits; keeps 4, evicts 2)"


def test_a_fingerprint_is_json_and_names_every_argument():
    planner = Refurbish(np.int64(9), batch_size=np.int32(6), reuse_factor=3, coverage=1)
    assert json.loads(json.dumps(planner.fingerprint())) == {
        "planner": "Refurbish",
        "version": 2,
        "num_samples": 9,
        "batch_size": 6,
        "seed": 0,
        "shards": 1,
        "drop_last": False,
        "reuse_factor": 3,
        "coverage": 1.0,
        "evict_shuffler": "EvictShuffler()",
        "batch_shuffler": "BatchShuffler()",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_samples": 0}, "num_samples must be an int of at least 1, got 0: pass len(source)"),
        ({"num_samples": 8.0}, "num_samples must be an int of at least 1, got 8.0"),
        ({"num_samples": 2**40 + 1}, "num_samples must be at most 1099511627776, got 1099511627777: train on parts"),
        ({"batch_size": 0}, "batch_size must be an int in 1..8, got 0: a batch has a row at least, and no more"),
        (
            {"batch_size": 9},
            "batch_size must be an int in 1..8, got 9: a batch has a row at least, and no more",
        ),
        ({"batch_size": True}, "batch_size must be an int in 1..8, got True"),
        ({"seed": 0.5}, "seed must be an int, got 0.5: pass an int"),
        ({"shards": 0}, "shards must be an int of at least 1, got 0: pass 1, or the largest world size"),
        (
            {"shards": 3},
            "shards must divide batch_size, got shards=3 and batch_size=4: "
            "pass a batch_size that is a multiple of 3, or fewer shards",
        ),
        ({"drop_last": 1}, "drop_last must be True or False, got 1: pass a bool"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_with_its_value_and_a_remedy(arguments, message):
    arguments = {"num_samples": 8, "batch_size": 4, **arguments}
    with pytest.raises(ConfigurationError) as refusal:
        Standard(arguments.pop("num_samples"), **arguments)
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (0, 3, "world_size must divide shards, got world_size=3 and shards=4: give the planner shards=3 or"),
        (2, 2, "rank must be an int in 0..1, got 2: ranks count from 0"),
        (0, 0, "world_size must be an int of at least 1, got 0: pass the number of processes"),
    ],
)
def test_a_rank_outside_the_world_or_a_world_that_splits_shards_is_refused(rank, world_size, message):
    planner = Standard(8, batch_size=4, shards=4)
    with pytest.raises(ConfigurationError) as refusal:
        planner.for_rank(rank=rank, world_size=world_size)
    assert str(refusal.value).startswith(message)
