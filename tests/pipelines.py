"""DALI's pipelines that there are, and what one is made of, for tests that look into them."""

from __future__ import annotations

import gc

from nvidia.dali.pipeline import Pipeline


def living_pipelines() -> list[Pipeline]:
    """Return all pipelines that something refers to."""
    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), Pipeline)]


def devices_of_operators(pipeline: Pipeline) -> dict[str, str]:
    """Return on which device each operator of a serialised pipeline is, by its name.

    `Pipeline._ops` is not public: see `dalirefurb/dali/insides.py`, which needs it, too.
    """
    return {operator.name: operator.outputs[0].device for operator in pipeline._ops}
