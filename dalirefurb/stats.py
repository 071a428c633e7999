"""What has the loader done so far? Counts and times, cumulative since construction."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Stats:
    """A snapshot; the difference of two snapshots is what happened between them.

    Counts are of batches collected from the graph, which run a few batches ahead of those handed out.

    Attributes:
        batches: Batches made.
        samples: Rows made; hits + misses.
        hits: Rows whose partial image came from the store.
        misses: Rows whose partial image was computed.
        recomputed: Misses that the plan expected to hit: their version was not in the store.
        repeated: Misses that the plan expected to hit: their version was being computed by a run just ahead.
        stored: Partial images put into the store.
        declined: Partial images the store had no room for.
        planning_s: Seconds of the owner thread spent planning.
        preparing_s: Seconds of the owner thread spent drawing parameters and feeding.
        storing_s: Seconds of the owner thread spent on the store.
        reading_wait_s: Seconds the owner thread waited for files.
        graph_wait_s: Seconds the owner thread waited for DALI.
        consumer_wait_s: Seconds the training loop waited for a batch.
    """

    batches: int = 0
    samples: int = 0
    hits: int = 0
    misses: int = 0
    recomputed: int = 0
    repeated: int = 0
    stored: int = 0
    declined: int = 0
    planning_s: float = 0.0
    preparing_s: float = 0.0
    storing_s: float = 0.0
    reading_wait_s: float = 0.0
    graph_wait_s: float = 0.0
    consumer_wait_s: float = 0.0

    def __sub__(self, earlier: Stats) -> Stats:
        return Stats(**{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)})
