"""Registry of recipes by name."""

from collections.abc import Callable

from vitrail.errors import VitrailError, suggestion
from vitrail.models.settings import ModelConfig
from vitrail.models.variants import blueprint
from vitrail.recipes.demo import demo
from vitrail.recipes.finetune import finetune
from vitrail.recipes.given import Given
from vitrail.recipes.modern import augreg, plain, resnet, textbook
from vitrail.recipes.paper import paper_finetune, paper_imagenet, paper_imagenet21k, paper_jft
from vitrail.recipes.pretrain import mae, masked_patch, simmim
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
    "masked-patch": masked_patch,
    "mae": mae,
    "simmim": simmim,
}
METHODS = ("masked-patch", "mae", "simmim")  # self-supervised


def recipe(name: str, given: Given) -> Recipe:
    if name not in RECIPES:
        raise VitrailError(f"no recipe is named {name!r}{suggestion(name, RECIPES)}; there are {', '.join(RECIPES)}")
    made = RECIPES[name](given)
    if given.model is not None and not _is(made.model, given.model):
        raise VitrailError(f"{name} has its own model and takes no --model, got {given.model}; try --recipe plain")
    if given.image is not None and made.model.image != given.image:
        raise VitrailError(f"{name} takes images at their native size and no --image; try --recipe small")
    return made


def _is(model: ModelConfig, name: str) -> bool:
    kind, said = blueprint(name)
    return isinstance(model, kind) and all(getattr(model, field) == value for field, value in said.items())
