"""Registry of recipes by name."""

from collections.abc import Callable

from vitrail.errors import VitrailError, did_you_mean
from vitrail.models.config import ModelConfig
from vitrail.models.variants import parse_name
from vitrail.recipes.baselines import augreg, plain, resnet, textbook
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.demo import demo
from vitrail.recipes.detect import detect
from vitrail.recipes.detect_demo import detect_demo
from vitrail.recipes.detect_small import detect_small
from vitrail.recipes.finetune import finetune
from vitrail.recipes.paper import paper_finetune, paper_imagenet, paper_imagenet21k, paper_jft
from vitrail.recipes.pretrain import mae, masked_patch, simmim
from vitrail.recipes.recipe import Recipe
from vitrail.recipes.segment import segment
from vitrail.recipes.segment_demo import segment_demo
from vitrail.recipes.segment_small import segment_small
from vitrail.recipes.small import small

RECIPES: dict[str, Callable[[RecipeContext], Recipe]] = {
    "demo": demo,
    "small": small,
    "finetune": finetune,
    "segment": segment,
    "segment-small": segment_small,
    "segment-demo": segment_demo,
    "detect": detect,
    "detect-small": detect_small,
    "detect-demo": detect_demo,
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
SSL_METHODS = ("masked-patch", "mae", "simmim")  # self-supervised


def get_recipe(name: str, context: RecipeContext) -> Recipe:
    if name not in RECIPES:
        raise VitrailError(f"no recipe is named {name!r}; there are {', '.join(RECIPES)}{did_you_mean(name, RECIPES)}")
    built = RECIPES[name](context)
    if context.model is not None and not _is_variant(built.model, context.model):
        raise VitrailError(f"{name} has its own model and takes no other, got model={context.model}; try recipe=plain")
    if context.image is not None and built.model.image != context.image:
        size = "x".join(map(str, context.image))
        raise VitrailError(f"{name} takes images at their native size, got image_size={size}; try recipe=small")
    return built


def _is_variant(model: ModelConfig, name: str) -> bool:
    kind, fields = parse_name(name)
    return isinstance(model, kind) and all(getattr(model, field) == value for field, value in fields.items())
