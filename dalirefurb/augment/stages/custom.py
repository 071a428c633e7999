"""A stage of the user's own DALI code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dalirefurb.augment.size import checked_size, sides_of
from dalirefurb.augment.stage import Node, Stage
from dalirefurb.checks import require


@dataclass(frozen=True)
class Custom(Stage):
    """A deterministic stage made of a function from DALI node to DALI node.

    In the partial part it must return HWC uint8. The loader cannot see what the function does, so its name and
    revision stand for it in fingerprints: raise `revision` whenever the function makes other pixels.

    Attributes:
        function: The function, called once, while the graph is traced, with HWC uint8 images on "cpu" or "gpu". DALI's
            own random operators are refused there: their numbers depend on the batch.
        name: Name of the stage, unique within the recipe.
        revision: Revision of the function.
        size: Height and width in pixels of what the function returns, or None if it keeps the size.
    """

    function: Callable[[Node], Node]
    name: str
    revision: int = 1
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        remedy = "pass a function that takes a DALI node and returns one"
        require(callable(self.function), f"stage {self.name!r}: function", "callable", self.function, remedy)
        if self.size is not None:
            object.__setattr__(self, "size", sides_of(checked_size(f"{self.name}: size", self.size)))

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """The declared size."""
        return self.size

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Call the function."""
        return self.function(images)

    def fingerprint(self) -> dict[str, Any]:
        """Return name, revision and size in place of the function."""
        values = super().fingerprint()
        del values["function"]
        return values
