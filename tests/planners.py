"""Planners small enough for every corner, and what tests of plans share."""

import hashlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from dalirefurb.planning.auto_assist import AutoAssist
from dalirefurb.planning.echo import BatchEcho, Echo
from dalirefurb.planning.evaluate import Evaluate
from dalirefurb.planning.fresh import Fresh
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import EvictShuffler, Frozen, ReferenceCount, Refurbish, Standard
from dalirefurb.planning.shuffle import BatchShuffler, PlainShuffler
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.testing.plans import FIELDS
from tests.in_turn import EACH_CHANGE

ECHOING_FACTORS = (1, 1.07, 1.5, 2, 2.3, 3, 4.75)
PERCENTS = (0, 0.01, 0.1, 0.28, 0.5, 0.75, 1)

FEWER = settings(max_examples=4) if EACH_CHANGE else settings()
"""Of properties of which each example plans many epochs, and which others beside it hold in other words."""


@st.composite
def sharded(draw, kind, *, waiting=True, **arguments):
    """Planners that can have several shards; with `waiting=False` every epoch serves every sample."""
    shards = draw(st.integers(1, 4))
    batch_size = shards * draw(st.integers(1, 4))
    drop_last = draw(st.booleans())
    if not waiting and (shards > 1 or drop_last):
        num_samples = batch_size * draw(st.integers(1, 12))
    else:
        num_samples = draw(st.integers(batch_size, batch_size + 30))
    drawn = {name: draw(values) for name, values in arguments.items()}
    seed = draw(st.integers(0, 9))
    return kind(num_samples, batch_size=batch_size, seed=seed, shards=shards, drop_last=drop_last, **drawn)


def standards():
    return sharded(Standard)


def frozen():
    return sharded(Frozen)


def refurbishing(*, waiting=True, ablations=True, coverage=(1.0, 0.6, 0.01)):
    return sharded(
        Refurbish,
        waiting=waiting,
        reuse_factor=st.integers(1, 6),
        coverage=st.sampled_from(coverage),
        evict_shuffler=st.sampled_from([EvictShuffler(), ReferenceCount()] if ablations else [EvictShuffler()]),
        batch_shuffler=st.sampled_from([BatchShuffler(), PlainShuffler()] if ablations else [BatchShuffler()]),
    )


@st.composite
def smartcaches(draw, percents=PERCENTS):
    shards = draw(st.integers(1, 3))
    batch_size = shards * draw(st.integers(1, 6 // shards))
    num_samples = draw(st.integers(batch_size, batch_size + 30))
    if shards == 1:
        num_cache_objects = draw(st.integers(batch_size, num_samples))
    else:
        num_cache_objects = batch_size * draw(st.integers(1, num_samples // batch_size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # windows need not be a multiple of the batch size
        return SmartCache(
            num_samples,
            batch_size=batch_size,
            shards=shards,
            num_cache_objects=num_cache_objects,
            replace_percent=draw(st.sampled_from(percents)),
            seed=draw(st.integers(0, 9)),
        )


@st.composite
def evaluations(draw):
    """Evaluations of which each sample is cached; others are served in every epoch in a version that is not kept."""
    num_samples = draw(st.integers(1, 40))
    return Evaluate(num_samples, batch_size=draw(st.integers(1, num_samples)), seed=draw(st.integers(0, 9)))


def inner_planners():
    """Planners that can be echoed and assisted."""
    return st.one_of(standards(), refurbishing(ablations=False, coverage=(1.0, 0.6)), frozen(), smartcaches())


@st.composite
def example_echoes(draw, factors=ECHOING_FACTORS):
    factor, buffer_size = draw(st.sampled_from(factors)), draw(st.integers(0, 40))
    return Echo(draw(inner_planners()), echoing_factor=factor, buffer_size=buffer_size)


@st.composite
def batch_echoes(draw):
    factor, buffer_size = draw(st.sampled_from(ECHOING_FACTORS)), draw(st.integers(0, 9))
    return BatchEcho(draw(inner_planners()), echoing_factor=factor, buffer_size=buffer_size)


def controls():
    return st.builds(Fresh, st.one_of(inner_planners(), example_echoes(), batch_echoes()))


@st.composite
def autoassists(draw):
    inner = draw(st.one_of(inner_planners(), example_echoes()))
    return AutoAssist(inner, lag=draw(st.integers(1, 3)))


@dataclass(frozen=True)
class Tried:
    """How a kind of planner is tried.

    Attributes:
        planners: Planners for the contract, half of them such as were or would be hardest to get right.
        arguments: Of one planner, by name.
        changes: Another value for each argument that has another.
        fixed: Arguments of which one value alone is taken.
        wants_exactly: As `PlannerContract` has it.
    """

    planners: st.SearchStrategy[Planner]
    arguments: dict[str, Any]
    changes: dict[str, Any]
    fixed: frozenset[str] = frozenset()
    wants_exactly: bool = True


PLAIN = {"num_samples": 24, "batch_size": 4}
SHARDED = {"num_samples": 25, "batch_size": 2, "seed": 1, "shards": 2, "drop_last": True}
INNER = {"planner": Standard(**PLAIN)}
OTHER_INNER = {"planner": Refurbish(**PLAIN, reuse_factor=2)}

KINDS: dict[type[Planner], Tried] = {
    Standard: Tried(st.one_of(st.just(Standard(13, batch_size=4, shards=2)), standards()), PLAIN, SHARDED),
    Refurbish: Tried(
        st.one_of(
            st.sampled_from(
                [
                    Refurbish(5, batch_size=4, reuse_factor=5, shards=2, drop_last=True),
                    Refurbish(60, batch_size=6, reuse_factor=3, batch_shuffler=PlainShuffler()),
                    Refurbish(103, batch_size=8, reuse_factor=5, shards=4),
                    Refurbish(100, batch_size=8, reuse_factor=3, coverage=0.5),
                    Refurbish(61, batch_size=8, reuse_factor=3, shards=2, evict_shuffler=ReferenceCount()),
                    Refurbish(120, batch_size=12, reuse_factor=2, shards=12),
                ]
            ),
            refurbishing(),
        ),
        {**PLAIN, "reuse_factor": 2},
        {
            **SHARDED,
            "reuse_factor": 3,
            "coverage": 0.5,
            "evict_shuffler": ReferenceCount(),
            "batch_shuffler": PlainShuffler(),
        },
    ),
    Evaluate: Tried(
        st.one_of(st.just(Evaluate(9, batch_size=8)), evaluations()),
        PLAIN,
        {"num_samples": 25, "batch_size": 2, "seed": 1, "coverage": 0.5, "pad": True},
        fixed=frozenset({"drop_last", "shards"}),
    ),
    Frozen: Tried(st.one_of(st.just(Frozen(5, batch_size=4, shards=2)), frozen()), PLAIN, SHARDED),
    Fresh: Tried(
        st.one_of(
            st.sampled_from(
                [
                    Fresh(Refurbish(61, batch_size=8, reuse_factor=3, shards=4)),
                    Fresh(BatchEcho(Refurbish(61, batch_size=6, reuse_factor=2), echoing_factor=2.3, buffer_size=4)),
                ]
            ),
            controls(),
        ),
        INNER,
        OTHER_INNER,
    ),
    Echo: Tried(
        st.one_of(
            st.sampled_from(
                [
                    Echo(Standard(24, batch_size=1), echoing_factor=2, buffer_size=5),
                    Echo(Refurbish(60, batch_size=12, reuse_factor=2), echoing_factor=2, buffer_size=0),
                    Echo(Refurbish(60, batch_size=6, reuse_factor=3), echoing_factor=2.5, buffer_size=12),
                    Echo(Refurbish(61, batch_size=8, reuse_factor=2, shards=4), echoing_factor=1.5, buffer_size=9),
                ]
            ),
            example_echoes(),
        ),
        {**INNER, "echoing_factor": 2, "buffer_size": 4},
        {**OTHER_INNER, "echoing_factor": 1.5, "buffer_size": 5},
        wants_exactly=False,
    ),
    BatchEcho: Tried(
        st.one_of(
            st.sampled_from(
                [
                    BatchEcho(Refurbish(61, batch_size=6, reuse_factor=2), echoing_factor=2.3),
                    BatchEcho(Refurbish(61, batch_size=6, reuse_factor=2, shards=3), echoing_factor=2.3, buffer_size=4),
                    BatchEcho(Standard(60, batch_size=4), echoing_factor=2, buffer_size=3),
                    BatchEcho(Refurbish(60, batch_size=4, reuse_factor=3), echoing_factor=1, buffer_size=5),
                    BatchEcho(Refurbish(61, batch_size=8, reuse_factor=2, shards=4), echoing_factor=2.3, buffer_size=5),
                ]
            ),
            batch_echoes(),
        ),
        {**INNER, "echoing_factor": 2},
        {**OTHER_INNER, "echoing_factor": 1.5, "buffer_size": 2},
        wants_exactly=False,
    ),
    SmartCache: Tried(
        st.one_of(
            st.sampled_from(
                [
                    SmartCache(10, batch_size=4, num_cache_objects=8, replace_percent=0.5),  # 2 can enter, not 4
                    SmartCache(10, batch_size=5, num_cache_objects=10, replace_percent=0.3),
                    SmartCache(65, batch_size=8, num_cache_objects=64, replace_percent=0.4, shards=4),
                ]
            ),
            smartcaches(),
        ),
        {**PLAIN, "num_cache_objects": 8, "replace_percent": 0.5},
        {
            **{name: value for name, value in SHARDED.items() if name != "drop_last"},
            "num_cache_objects": 12,
            "replace_percent": 0.25,
        },
        fixed=frozenset({"drop_last"}),
    ),
    AutoAssist: Tried(
        st.one_of(
            st.sampled_from(
                [
                    AutoAssist(Refurbish(5, batch_size=4, reuse_factor=2), lag=3),  # epochs in every batch
                    AutoAssist(Refurbish(13, batch_size=4, reuse_factor=3), lag=2),
                    AutoAssist(Echo(Standard(13, batch_size=4), echoing_factor=2.5, buffer_size=5), lag=2),
                    AutoAssist(
                        Echo(Refurbish(13, batch_size=4, reuse_factor=2), echoing_factor=2, buffer_size=0), lag=2
                    ),
                ]
            ),
            autoassists(),
        ),
        {**INNER, "lag": 2},
        {
            **OTHER_INNER,
            "lag": 3,
            "learning_rate": 1.0,
            "weight_decay": 0.5,
            "loss_momentum": 0.5,
            "accuracy_momentum": 0.25,
            "resolution": 4,
        },
        wants_exactly=False,
    ),
}
"""Every kind of ours: tests of plans, of loaders that are resumed or of several ranks, and of numbers take them."""


def untried(planners: Iterable[Planner], **arguments: Any) -> dict[str, Planner]:
    """Return a planner of each kind of which there is none yet, by its name.

    Args:
        planners: Those that there are.
        arguments: What they, or the planners inside them, take in place of what they are tried with.
    """
    tried = {type(planner) for planner in planners}
    return {kind.__name__: planner_of(kind, **arguments) for kind in KINDS if kind not in tried}


def planner_of(kind: type[Planner], **arguments: Any) -> Planner:
    """Return a planner of a kind with some arguments, which its planner takes if it derives its plans from one."""
    tried = KINDS[kind].arguments
    if "planner" in tried:
        return kind(**{**tried, "planner": Standard(**arguments)})
    return kind(**{**tried, **arguments})


def joined(planner, epoch, name):
    return np.concatenate([getattr(plan, name) for plan in planner.epoch(epoch)])


def digest(planner, epochs):
    values = hashlib.sha256()
    for epoch in epochs:
        for plan in planner.epoch(epoch):
            for name in FIELDS:
                values.update(getattr(plan, name).tobytes())
    return values.hexdigest()
