"""Stages that choose: other stages with a probability, or one of several.

─┬─▶ applied ─▶ stages ─┬─▶        ─┬─▶ choice 0 ─▶ stages ─┬─▶
└──────────────────────┘           ├─▶ choice 1 ─▶ stages ─┤
└─▶ choice 2 ───────────┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.diversity import joint
from dalirefurb.augment.maps import Maps, chained
from dalirefurb.augment.policies.sub_policies import cumulative, pick
from dalirefurb.augment.stage import Arrays, Node, Parameter, Stage
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.checks import require
from dalirefurb.errors import ConfigurationError

Stages = Stage | Sequence[Stage]
"""One stage, or several, one after the other."""


class _Choosing(Stage):
    """Stages in branches, of which a sample takes one. An image leaves as large as it enters."""

    name: str
    CHOSEN: str
    """Name of the parameter that says which branch a sample takes, int32."""

    @property
    def branches(self) -> tuple[tuple[Stage, ...], ...]:
        """Stages of each branch, with unique names."""
        raise NotImplementedError

    @property
    def shares(self) -> NDArray[np.float64]:
        """Probability of each branch."""
        raise NotImplementedError

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """Those of the stages of each branch."""
        branches = zip(self.shares, self.branches, strict=True)
        return np.concatenate([share * joint(branch) for share, branch in branches])

    @property
    def inner(self) -> tuple[Stage, ...]:
        """All stages of all branches."""
        return tuple(stage for branch in self.branches for stage in branch)

    @property
    def nested(self) -> tuple[Stage, ...]:
        """Those of `inner`, and all inside of these."""
        return tuple(each for stage in self.inner for each in (stage, *stage.nested))

    @cached_property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """One for the choice, and those of all branches."""
        return 1 + sum(stage.num_uniforms for stage in self.inner)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The choice, and as "<stage>.<parameter>" those of all stages."""
        inner = {f"{stage.name}.{name}": each for stage in self.inner for name, each in stage.parameters.items()}
        return {self.CHOSEN: Parameter("int32"), **inner}

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image that a stage cannot take, or would change the size of; see `Stage.refusal`."""
        for stage in self.inner:
            if (refusal := stage.refusal(heights, widths)) is not None:
                return refusal
            after = stage.output_sizes(heights, widths)
            other = (after[0] != heights) | (after[1] != widths)
            if other.any():
                row = int(other.argmax())
                return row, (
                    f"{self.name}: {stage.name!r} must leave images as large as they enter, but one of {heights[row]} "
                    f"x {widths[row]} becomes {after[0][row]} x {after[1][row]}: put it before {self.name!r}"
                )
        return None

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        if refusal := self.refusal(heights, widths):
            raise ConfigurationError(refusal[1])
        arrays: Arrays = {self.CHOSEN: pick(cumulative(self.shares[None, :]), uniforms[:, 0]).astype(np.int32)}
        taken = 1
        for stage in self.inner:
            own = np.ascontiguousarray(uniforms[:, taken : taken + stage.num_uniforms])
            taken += stage.num_uniforms
            drawn = stage.draw(own, heights, widths) if stage.parameters else {}
            arrays |= {f"{stage.name}.{name}": rows for name, rows in drawn.items()}
        return arrays

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps | None:
        """Return those of each image's branch, None if a stage of any branch has none; see `Stage.matrices`."""
        steps = self.steps(parameters, heights, widths)
        return None if steps is None else chained(steps, len(heights))

    def steps(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> list[Maps] | None:
        made: list[Maps] = []
        for place, branch in enumerate(self.branches):
            taken = (parameters[self.CHOSEN] == place)[:, None, None]
            for stage in branch:
                own = stage.steps(self._own(stage, parameters), heights, widths)
                if own is None:
                    return None
                made += [np.where(taken, maps, np.eye(3)) for maps in own]
        return made

    def _own(self, stage: Stage, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a stage of a branch, by its own names."""
        return {name: parameters[f"{stage.name}.{name}"] for name in stage.parameters}

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from dalirefurb.augment.policies.operation_graph import choose

        branches = {place: partial(self._apply_branch, branch) for place, branch in enumerate(self.branches)}
        return choose(branches, parameters[self.CHOSEN], images, parameters)

    def _apply_branch(self, branch: tuple[Stage, ...], images: Node, parameters: Mapping[str, Node]) -> Node:
        for stage in branch:
            images = stage.apply(images, self._own(stage, parameters))
        return images

    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprints of stages in place of these."""
        values = super().fingerprint()
        return {**values, "stages": [[stage.fingerprint() for stage in branch] for branch in self.branches]}


@dataclass(frozen=True)
class RandomApply(_Choosing):
    """Apply stages with a probability: all of them or none, as torchvision's `RandomApply`.

    Attributes:
        stages: A stage, or several, one after the other. Each must leave images as large as they enter.
        probability: Probability that they are applied.
        name: Name of the stage; by default made of the names of what it applies, such as "random_gaussian_blur".
    """

    stages: Stages
    probability: float = 0.5
    name: str = ""

    CHOSEN = "skipped"

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", _checked(self.name or "random_apply", [self.stages])[0])
        if not self.name:
            object.__setattr__(self, "name", _joined("random", "_and_", self.branches[0]))
        self._share()

    @property
    def branches(self) -> tuple[tuple[Stage, ...], ...]:
        """The stages, or none."""
        assert isinstance(self.stages, tuple)
        return self.stages, ()

    @property
    def shares(self) -> NDArray[np.float64]:
        return np.array([self.probability, 1 - self.probability])


@dataclass(frozen=True)
class RandomChoice(_Choosing):
    """Apply one of several stages, as torchvision's `RandomChoice`.

    Attributes:
        stages: What there is to choose from: stages, or for each choice several, one after the other; an empty list
            does nothing. Each must leave images as large as they enter.
        probabilities: Probability of each, in proportion; None: all the same.
        name: Name of the stage; by default made of the names of what it chooses among, such as "either_blur_or_flip".
    """

    stages: Sequence[Stages]
    probabilities: tuple[float, ...] | None = None
    name: str = ""

    CHOSEN = "choice"

    def __post_init__(self) -> None:
        options, own = self.stages, self.name or "random_choice"
        name = f"{own}: stages"
        listed = isinstance(options, tuple) and len(options) > 0
        require(listed, name, "a list of stages to choose from", options, "pass such as [GaussianBlur(9), Solarize()]")
        object.__setattr__(self, "stages", _checked(own, options))
        if not self.name:
            object.__setattr__(self, "name", _joined("either", "_or_", self.inner))
        if self.probabilities is None:
            return
        given = self.probabilities
        numbers = isinstance(given, tuple) and len(given) == len(options)
        fits = numbers and all(type(each) in (int, float) and 0 <= each < np.inf for each in given)
        wanted = f"{len(options)} numbers, one for each choice, whose sum is positive"
        require(fits and sum(given) > 0, f"{self.name}: probabilities", wanted, given, "leave it out for equal ones")
        object.__setattr__(self, "probabilities", tuple(float(each) for each in given))

    @property
    def branches(self) -> tuple[tuple[Stage, ...], ...]:
        return self.stages  # type: ignore[return-value]

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        weights = np.array(self.probabilities or (1.0,) * len(self.stages))
        shares: NDArray[np.float64] = weights / weights.sum()
        return shares


def check_stages(stages: Sequence[Any], remedy: str, of: str = "") -> None:
    """Refuse what is no stage, and stages without a name of their own.

    Args:
        stages: What is given for stages.
        remedy: What to pass in place of what is none.
        of: What they are inside of, for messages, such as "random_apply: ".

    Raises:
        ConfigurationError: If there are such.
    """
    for stage in stages:
        require(isinstance(stage, Stage), f"{of}stages", "stages of dalirefurb.augment", stage, remedy)
        kind = type(stage).__name__
        require(isinstance(stage.name, str), f"{of}the name of {kind}", "a text", stage.name, "pass such as name='own'")
    names = [stage.name for stage in stages]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigurationError(
            f"{of}every stage must have a name of its own, but {', '.join(map(repr, repeated))} occurs more than once; "
            f"pass name= to tell them apart"
        )


def _joined(first: str, between: str, stages: Sequence[Stage]) -> str:
    """Return a name made of those of stages."""
    return f"{first}_{between.join(stage.name for stage in stages) or 'nothing'}"


def _checked(name: str, options: Sequence[Stages]) -> tuple[tuple[Stage, ...], ...]:
    """Return the stages of each option; refuse what cannot be one of them."""
    branches = tuple(each if isinstance(each, tuple) else (each,) for each in options)
    stages = [stage for branch in branches for stage in branch]
    check_stages(stages, "pass such as GaussianBlur(9), or a list of stages", f"{name}: ")
    for stage in stages:
        if isinstance(stage, Decode) or stage.follows is not None:
            raise ConfigurationError(
                f"{name}: stages must stand alone, but {stage.name!r} depends on what comes before it: make it a stage "
                f"of the recipe"
            )
    return branches
