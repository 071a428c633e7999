"""The DALI pipelines: those of the two parts, and small ones that look at encoded samples."""

from dalirefurb.dali.decoder import decoder, undecodable
from dalirefurb.dali.graph import Feed, Graph, Input, Part, cut_window
from dalirefurb.dali.runner import (
    REPLICA_OPTIONS,
    GraphError,
    PipelineRunner,
    Replica,
    Replicas,
    release_unused_memory,
    versions,
    views,
)

__all__ = [
    "REPLICA_OPTIONS",
    "Feed",
    "Graph",
    "GraphError",
    "Input",
    "Part",
    "Replica",
    "Replicas",
    "PipelineRunner",
    "cut_window",
    "decoder",
    "release_unused_memory",
    "undecodable",
    "versions",
    "views",
]
