"""The table that a recipe prints: its stages, and what a split at each of them keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.diversity import diversity
from dalirefurb.augment.output import Output
from dalirefurb.augment.stage import Stage

_REUSE_FACTORS = (2, 3)


def table(stages: Sequence[Stage], output: Output, split: int) -> str:
    """Return the table.

    Args:
        stages: All stages, partial and final, in order.
        output: What the model receives.
        split: Number of stages that are partial, the first ones.
    """
    steps = [(stage.name, "yes" if stage.random else "no", _counted(stage.outcomes)) for stage in stages]
    steps.append((f"output {output.sides_text}, {output.dtype}", "no", "1"))
    rows = [["stage", "part", "random", "outcomes", *(f"kept at {factor}" for factor in _REUSE_FACTORS)]]
    for place, (name, random, outcomes) in enumerate(steps):
        kept = [f"{diversity(stages, place, factor):.2f}" for factor in _REUSE_FACTORS]
        rows.append([name, "partial" if place < split else "final", random, outcomes, *kept])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{'<' if column < 3 else '>'}{width}}}" for column, width in enumerate(widths))
    here = " and ".join(f"{diversity(stages, split, factor):.2f} at {factor}" for factor in _REUSE_FACTORS)
    return "\n".join(
        [
            *(form.format(*row) for row in rows),
            "kept: of standard training's different images, at a reuse factor, if the final part begins there;",
            f"this split keeps {here}",
        ]
    )


def _counted(outcomes: NDArray[np.float64]) -> str:
    """Return how many outcomes there are; see `Stage.outcomes`."""
    return str(len(outcomes)) if outcomes.sum() > 1 - 1e-9 else "many"
