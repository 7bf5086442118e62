"""Fine-tuning uses the checkpoint's own settings and is scaled to the dataset."""

from dataclasses import replace

import pytest

from tests.small_models import small_config
from vitrail.config import from_json, to_json
from vitrail.data.preprocess import Preprocess, imagenet_preprocess
from vitrail.models.config import ModelConfig, ResNetConfig, StemConfig, ViTConfig
from vitrail.recipes.context import InitWeights, RecipeContext
from vitrail.recipes.recipe import Recipe
from vitrail.recipes.registry import get_recipe

RECIPES = ["finetune", "paper-finetune"]
PREPROCESS = Preprocess((12, 15), crop_pct=0.8, interpolation="lanczos", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
MODELS: dict[str, ModelConfig] = {
    "gap, registers, exact": small_config(pool="gap", registers=2, gelu="exact", dropout=0.1),
    "rotary": small_config(position="rotary", position_grid=(4, 4)),
    "hybrid": small_config(stem=StemConfig(stages=(1,)), patch=(2, 1), image=(16, 12)),
    "resnet": ResNetConfig(stages=(1, 1), width=32, image=(32, 32), classes=3),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("kind", MODELS)
def test_model_and_preprocessing_are_the_checkpoints_own(name: str, kind: str) -> None:
    model, preprocess = MODELS[kind], replace(PREPROCESS, image_size=MODELS[kind].image)
    built = get_recipe(
        name, RecipeContext("mine", 3000, 37, None, 3, init_weights=InitWeights("w.npz", "abc", model, preprocess))
    )
    assert built.model == replace(model, classes=37)
    assert (built.preprocess, built.init_from, built.init_sha256, built.keep_head) == (preprocess, "w.npz", "abc", False)
    assert from_json(Recipe, to_json(built)) == built


@pytest.mark.parametrize("name", RECIPES)
def test_the_pretraining_head_is_replaced_unless_the_classes_are_the_same(name: str) -> None:
    model = small_config(head="mlp", head_hidden=7, classes=2)
    start = InitWeights("w.npz", "abc", model, PREPROCESS, class_names=("cat", "dog"))
    other = get_recipe(name, RecipeContext("mine", 3000, 2, None, 3, init_weights=start, class_names=("bee", "cow")))
    assert isinstance(other.model, ViTConfig)
    assert (other.model.head, other.model.head_hidden, other.model.classes, other.keep_head) == ("linear", None, 2, False)
    turned = get_recipe(name, RecipeContext("mine", 3000, 2, None, 3, init_weights=start, class_names=("dog", "cat")))
    assert not turned.keep_head  # its rows are in another order
    same = get_recipe(name, RecipeContext("mine", 3000, 2, None, 3, init_weights=start, class_names=("cat", "dog")))
    assert (same.model, same.keep_head) == (model, True)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("images", [20, 300, 3068, 50_000, 1_281_167, 14_000_000])
def test_steps_batch_and_warm_up_follow_the_dataset(name: str, images: int) -> None:
    start = InitWeights("w.npz", "abc", small_config(), imagenet_preprocess((12, 15)))
    built = get_recipe(name, RecipeContext("mine", images, 10, None, 3, init_weights=start))
    assert built.batch_size <= max(images // 10, 1)
    assert 10 * built.schedule.warmup_steps <= built.steps <= 20_000
    assert built.eval_every <= built.steps // 4


def test_the_papers_steps_are_the_papers() -> None:
    steps = {
        images: get_recipe("paper-finetune", RecipeContext("mine", images, 10, None, 3)).steps
        for images in (3_680, 50_000, 1_281_167)
    }
    assert steps == {3_680: 500, 50_000: 10_000, 1_281_167: 20_000}
    assert 500 < get_recipe("paper-finetune", RecipeContext("mine", 20_000, 10, None, 3)).steps < 10_000
