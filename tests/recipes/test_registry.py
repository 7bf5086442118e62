"""Every recipe is complete, survives JSON, and has the numbers of its paper."""

import inspect
from dataclasses import replace

import pytest

from vitrail.config import from_json, override, to_json
from vitrail.errors import VitrailError
from vitrail.models.config import ViTConfig
from vitrail.models.masking_config import Masking
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.recipe import Recipe
from vitrail.recipes.registry import RECIPES, SSL_METHODS, get_recipe
from vitrail.recipes.task_config import Classification, MaskedImage

IMAGENET = RecipeContext("imagenet", 1_281_167, 1000, None, 3)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    "context", [RecipeContext(), IMAGENET, RecipeContext("tiny", 40, 2, None, 3)], ids=["fashion", "imagenet", "tiny"]
)
def test_every_recipe_can_be_built_for_any_dataset_and_survives_json(name: str, context: RecipeContext) -> None:
    built = get_recipe(name, context)
    assert from_json(Recipe, to_json(built)) == built
    assert built.data == context.data
    assert built.model.classes == (context.classes if built.task.labelled else 0)
    assert (built.task.name == "masked-image") == (name in SSL_METHODS)
    assert built.batch_size <= max(context.num_images // 10, 1)
    assert inspect.getdoc(RECIPES[name]) or inspect.getmodule(RECIPES[name])


def test_the_papers_numbers_of_self_supervised_recipes() -> None:
    built = {name: get_recipe(name, replace(IMAGENET, model="B/16")) for name in SSL_METHODS}
    paper, mae, simmim = built["masked-patch"], built["mae"], built["simmim"]
    assert (paper.optim.lr, paper.batch_size, paper.schedule.kind, paper.optim.betas) == (2e-4, 4096, "cosine", (0.9, 0.999))
    assert paper.task == MaskedImage(Masking("masked-patch", 0.5, "mean-colour"))
    assert (mae.optim.lr, mae.optim.betas, mae.optim.weight_decay, mae.batch_size) == (2.4e-3, (0.9, 0.95), 0.05, 4096)
    assert mae.task == MaskedImage(Masking("mae", 0.75, "pixels", True, 1, 512, 8, 16))
    assert isinstance(mae.model, ViTConfig)
    assert (mae.model.position, mae.model.has_class_token, mae.augment.crop_scale) == ("sincos2d-mae", True, (0.2, 1.0))
    assert simmim.task == MaskedImage(Masking("simmim", 0.6, mask_unit=2))
    assert (simmim.optim.lr, simmim.optim.grad_clip, simmim.batch_size, simmim.augment.crop_scale) == (
        4e-4,
        5.0,
        2048,
        (0.67, 1.0),
    )


def test_the_papers_numbers() -> None:
    built = get_recipe("paper-imagenet", IMAGENET)
    assert (built.steps, built.batch_size, built.schedule.warmup_steps, built.schedule.kind) == (93835, 4096, 9383, "cosine")
    assert (built.optim.lr, built.optim.weight_decay, built.optim.grad_clip, built.optim.betas) == (
        3e-3,
        0.3,
        1.0,
        (0.9, 0.999),
    )
    assert isinstance(built.model, ViTConfig)
    assert (built.model.dropout, built.model.head) == (0.1, "mlp")
    jft = get_recipe("paper-jft", RecipeContext("jft", 303_000_000, 18_291, None, 3, model="H/14"))
    assert (jft.optim.lr, jft.optim.weight_decay, jft.schedule.kind, jft.schedule.warmup_steps) == (3e-4, 0.1, "linear", 10_000)
    assert jft.steps == round(14 * 303_000_000 / 4096)
    wide = get_recipe("paper-jft", RecipeContext("jft", 303_000_000, 18_291, None, 3, model="L/32"))
    assert wide.optim.lr == 6e-4
    tuned = get_recipe("paper-finetune", IMAGENET)
    assert (tuned.optim.name, tuned.optim.momentum, tuned.batch_size, tuned.steps, tuned.preprocess.image_size) == (
        "sgd", 0.9, 512, 20_000, (384, 384),
    )  # fmt: skip
    better = get_recipe("plain", IMAGENET)
    assert (better.batch_size, better.optim.weight_decay, better.optim.independent_weight_decay) == (1024, 1e-4, True)
    assert (better.augment.randaug_layers, better.augment.randaug_magnitude, better.augment.mixup, better.task) == (
        2,
        10.0,
        0.2,
        Classification(),
    )
    assert isinstance(better.model, ViTConfig)
    assert (better.model.position, better.model.pool, better.model.stochastic_depth) == ("sincos2d", "gap", 0.0)


def test_a_typo_is_answered_with_the_nearest() -> None:
    with pytest.raises(VitrailError, match=r"no recipe is named 'plian'; there are .*; did you mean 'plain'"):
        get_recipe("plian", RecipeContext())
    with pytest.raises(VitrailError, match=r"no field is named 'optim.lrr'; did you mean 'optim.lr'"):
        override(get_recipe("demo", RecipeContext()), ["optim.lrr=1"])
    assert override(get_recipe("demo", RecipeContext()), ["optim.lr=0.5", "augment.mixup=0.1"]).optim.lr == 0.5


def test_model_and_image_size_are_applied_or_refused() -> None:
    built = get_recipe("plain", RecipeContext(model="R50+B/16", image=(64, 96)))
    assert isinstance(built.model, ViTConfig)
    assert (built.model.image, built.model.width, built.model.stem is not None) == ((64, 96), 768, True)
    assert get_recipe("small", RecipeContext(image=(48, 48))).model.image == (48, 48)
    large = get_recipe("small", RecipeContext(model="B/16"))  # of fashion's 28 x 28 pixels, the nearest multiple of 16
    assert isinstance(large.model, ViTConfig)
    assert (large.model.width, large.model.patch, large.model.image) == (768, (16, 16), (32, 32))
    with pytest.raises(VitrailError, match=r"the small recipe trains a ViT, got model=R50x1; try recipe=resnet"):
        get_recipe("small", RecipeContext(model="R50x1"))
    with pytest.raises(VitrailError, match="demo has its own model and takes no other, got model=B/16; try recipe=plain"):
        get_recipe("demo", RecipeContext(model="B/16"))
    with pytest.raises(VitrailError, match="demo takes images at their native size, got image_size="):
        get_recipe("demo", RecipeContext(image=(56, 56)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("steps=0", "steps must be at least 1, got 0"),
        ("optim.betas=0.9,1", "optim.betas must be from 0 to below 1"),
        ("ema_decay=1", "ema_decay must be from 0 to below 1"),
        ("schedule.warmup_steps=10000", "must fit into"),
        ("model.image=56", "model and preprocess must agree on the image"),
        ("optim.lr=0", "optim.lr must be above 0"),
        ("optim.name=adamm", "did you mean 'adamw'"),
        ("optim.name=sgd optim.nesterov=true optim.momentum=0", "optim.nesterov looks ahead along the momentum"),
        ("optim.name=sgd optim.independent_weight_decay=true", "optim.independent_weight_decay needs decoupled weight decay"),
        ("optim.trainable=blocks optim.trainable_blocks=99", r"optim.trainable_blocks must be from 1 to \d, .* got 99; try 1"),
        ("optim.trainable=head model.classes=0", "optim.trainable=head trains only the head, and this model has none"),
    ],
)
def test_what_makes_no_sense_is_refused(change: str, message: str) -> None:
    with pytest.raises(VitrailError, match=message):
        override(get_recipe("demo", RecipeContext()), change.split())


def test_blocks_of_a_model_without_any_cannot_be_trained() -> None:
    resnet = get_recipe("resnet", RecipeContext("DATA", 100, 3, None, 3))
    with pytest.raises(VitrailError, match=r"this model has none; try optim.trainable=head"):
        override(resnet, ["optim.trainable=blocks", "optim.trainable_blocks=1"])
