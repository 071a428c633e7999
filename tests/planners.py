"""Planners small enough for every corner, and what tests of plans share."""

import hashlib
import warnings

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from dalirefurb.planning.auto_assist import AutoAssist
from dalirefurb.planning.echo import BatchEcho, Echo
from dalirefurb.planning.evaluate import Evaluate
from dalirefurb.planning.fresh import Fresh
from dalirefurb.planning.refurbish import EvictShuffler, Frozen, ReferenceCount, Refurbish, Standard
from dalirefurb.planning.shuffle import BatchShuffler, PlainShuffler
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.testing.plans import FIELDS
from tests.in_turn import EACH_CHANGE

ECHOING_FACTORS = (1, 1.07, 1.5, 2, 2.3, 3, 4.75)
PERCENTS = (0, 0.01, 0.1, 0.28, 0.5, 0.75, 1)

FEWER = settings(max_examples=6) if EACH_CHANGE else settings()
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


def joined(planner, epoch, name):
    return np.concatenate([getattr(plan, name) for plan in planner.epoch(epoch)])


def digest(planner, epochs):
    values = hashlib.sha256()
    for epoch in epochs:
        for plan in planner.epoch(epoch):
            for name in FIELDS:
                values.update(getattr(plan, name).tobytes())
    return values.hexdigest()
