"""Planners that decide over the plans of another planner: what they have in common."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.batch_plan import Indices
from dalirefurb.planning.planner import Planner


@dataclass(frozen=True)
class DerivedPlanner(Planner):
    """Takes the arguments of every planner from an inner one.

    Attributes:
        planner: The inner planner.
    """

    num_samples: int = field(init=False, repr=False)
    batch_size: int = field(init=False, repr=False)
    seed: int = field(init=False, repr=False)
    shards: int = field(init=False, repr=False)
    drop_last: bool = field(init=False, repr=False)
    planner: Planner

    def __post_init__(self) -> None:
        if not isinstance(self.planner, Planner):
            raise ConfigurationError(
                f"planner must be a planner, got {self.planner!r}: pass Standard(...) or Refurbish(...)"
            )
        for inherited in fields(Planner):
            object.__setattr__(self, inherited.name, getattr(self.planner, inherited.name))
        super().__post_init__()

    def owned(self, shard: int) -> Indices:
        """Return the samples of one of the inner planner's shards; see `Planner.owned`."""
        return self.planner.owned(shard)

    def owners(self, indices: Indices) -> Indices:
        """Return which of the inner planner's shards owns each sample; see `Planner.owners`."""
        return self.planner.owners(indices)

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the plans, as JSON values."""
        return {**super().fingerprint(), "planner": type(self).__name__, "inner": self.planner.fingerprint()}
