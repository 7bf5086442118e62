"""All recipes, by name."""

from collections.abc import Callable

from vitrail.errors import VitrailError, suggestion
from vitrail.recipes.demo import demo
from vitrail.recipes.finetune import finetune
from vitrail.recipes.given import Given
from vitrail.recipes.modern import augreg, plain, resnet, textbook
from vitrail.recipes.paper import paper_finetune, paper_imagenet, paper_imagenet21k, paper_jft
from vitrail.recipes.small import small
from vitrail.train.recipe import Recipe

RECIPES: dict[str, Callable[[Given], Recipe]] = {
    "demo": demo,
    "small": small,
    "finetune": finetune,
    "paper-imagenet": paper_imagenet,
    "paper-imagenet21k": paper_imagenet21k,
    "paper-jft": paper_jft,
    "paper-finetune": paper_finetune,
    "textbook": textbook,
    "plain": plain,
    "augreg": augreg,
    "resnet": resnet,
}


def recipe(name: str, given: Given) -> Recipe:
    if name not in RECIPES:
        raise VitrailError(f"no recipe is named {name!r}{suggestion(name, RECIPES)}; there are {', '.join(RECIPES)}")
    return RECIPES[name](given)
