"""The DALI pipelines: one that refurbishes, and small ones that look at encoded samples."""

from dalirefurb.graph.description import Feed, Graph, Input, final_part, partial_part
from dalirefurb.graph.headers import HeaderReader, first_undecodable
from dalirefurb.graph.replica import GraphError, Replica, versions

__all__ = [
    "Feed",
    "Graph",
    "GraphError",
    "HeaderReader",
    "Input",
    "Replica",
    "final_part",
    "first_undecodable",
    "partial_part",
    "versions",
]
