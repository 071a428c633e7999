"""The DALI pipelines: those of the two parts, and small ones that look at encoded samples."""

from dalirefurb.dali.decoder import Decoder
from dalirefurb.dali.graph import Feed, Graph, Input, Part, cut_window
from dalirefurb.dali.headers import HeaderReader, plain, undecodable, undecodable_windows
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
    "Decoder",
    "Feed",
    "Graph",
    "GraphError",
    "HeaderReader",
    "Input",
    "Part",
    "Replica",
    "Replicas",
    "PipelineRunner",
    "cut_window",
    "plain",
    "release_unused_memory",
    "undecodable",
    "undecodable_windows",
    "versions",
    "views",
]
