"""Of thirty recipes that people publish, are 25 imported, and the others refused by name, with what helps?"""

from __future__ import annotations

from typing import Any

import pytest

from dalirefurb import Recipe
from dalirefurb.errors import ConfigurationError
from dalirefurb.kernels.lower import steps_of
from tests.augment.public_recipes import RECIPES, Timm
from tests.augment.torchvision_stand_ins import T


def imported(name: str, transforms: Any = T) -> Recipe:
    public = RECIPES[name]
    if isinstance(public, Timm):
        return Recipe.from_timm(**public.arguments)
    return Recipe.from_torchvision(public.transforms(transforms), **public.arguments)


IMPORTED = [name for name, public in RECIPES.items() if public.refused is None]


def test_there_are_thirty_of_which_25_are_imported() -> None:
    assert len(RECIPES) == 30
    assert len(IMPORTED) >= 25


@pytest.mark.parametrize("name", IMPORTED)
def test_an_imported_recipe_keeps_most_images_and_caches_as_much_as_that_allows(name: str) -> None:
    recipe = imported(name)
    assert recipe.diversity(3) >= 0.95
    later = range(recipe.split + 1, len(recipe.stages) + 1)
    assert all(recipe.at(split).diversity(3) < 0.95 for split in later)


@pytest.mark.parametrize("name", IMPORTED)
def test_an_imported_recipe_has_compiled_kernels(name: str) -> None:
    assert steps_of(imported(name).stages[1:]) is not None


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in IMPORTED])
def test_what_is_refused_is_named_with_what_helps(name: str) -> None:
    with pytest.raises(ConfigurationError, match=RECIPES[name].refused) as refused:
        imported(name)
    assert "cannot be imported: " in str(refused.value)
