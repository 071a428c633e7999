"""Split: how many of a recipe's stages are partial, of what a user says of it."""

from __future__ import annotations

from collections.abc import Sequence

from dalirefurb.augment.stage import Stage
from dalirefurb.checks import plain, require
from dalirefurb.errors import ConfigurationError


def partial_stages(stages: Sequence[Stage], split: int | str | None) -> int:
    """Return the number of partial stages.

    Args:
        stages: Stages of a recipe, in order.
        split: Name of the stage where the final part begins, or the number itself; None: all stages, if none is random.

    Raises:
        ConfigurationError: If there is no such split, or none is said and a stage is random.
    """
    names, drawn = [stage.name for stage in stages], [stage.name for stage in stages if stage.random]
    if split is None and drawn:
        raise ConfigurationError(
            f"split must be given where stages are random, here {', '.join(drawn)}: pass the name of the stage where "
            f"the final part begins, which is drawn afresh for every use, such as split={drawn[-1]!r}"
        )
    if split is None:
        return len(names)
    if isinstance(split, str) and split not in names:
        raise ConfigurationError(f"there is no stage {split!r} to split at; the stages are {', '.join(names)}")
    count = names.index(split) if isinstance(split, str) else plain(split)
    holds = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= len(names)
    wanted = f"a stage's name or a count of partial stages in 0..{len(names)}"
    require(holds, "split", wanted, count, f"the stages are {', '.join(names)}")
    return int(count)
