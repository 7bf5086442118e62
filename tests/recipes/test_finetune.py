"""Fine-tuning uses the checkpoint's own settings and is scaled to the dataset."""

from dataclasses import replace

import pytest

from tests.small import config
from vitrail.config import from_json, to_json
from vitrail.data.preprocess import Preprocess, imagenet
from vitrail.models.settings import ModelConfig, ResNetConfig, Stem, ViTConfig
from vitrail.recipes.book import recipe
from vitrail.recipes.given import Given, Start
from vitrail.train.recipe import Recipe

RECIPES = ["finetune", "paper-finetune"]
HOW = Preprocess((12, 15), crop=0.8, interpolation="lanczos", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
MODELS: dict[str, ModelConfig] = {
    "gap, registers, exact": config(pool="gap", registers=2, gelu="exact", dropout=0.1),
    "rotary": config(position="rotary", position_grid=(4, 4)),
    "hybrid": config(stem=Stem(stages=(1,)), patch=(2, 1), image=(16, 12)),
    "resnet": ResNetConfig(stages=(1, 1), width=32, image=(32, 32), classes=3),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("kind", MODELS)
def test_model_and_preprocessing_are_the_checkpoints_own(name: str, kind: str) -> None:
    model, preprocess = MODELS[kind], replace(HOW, image=MODELS[kind].image)
    made = recipe(name, Given("mine", 3000, 37, None, 3, start=Start("w.npz", "abc", model, preprocess)))
    assert made.model == replace(model, classes=37)
    assert (made.preprocess, made.start, made.start_hash, made.keep_head) == (preprocess, "w.npz", "abc", False)
    assert from_json(Recipe, to_json(made)) == made


@pytest.mark.parametrize("name", RECIPES)
def test_the_pretraining_head_is_replaced_unless_the_classes_are_the_same(name: str) -> None:
    model = config(head="mlp", head_width=7, classes=2)
    start = Start("w.npz", "abc", model, HOW, labels=("cat", "dog"))
    other = recipe(name, Given("mine", 3000, 2, None, 3, start=start, names=("bee", "cow")))
    assert isinstance(other.model, ViTConfig)
    assert (other.model.head, other.model.head_width, other.model.classes, other.keep_head) == ("linear", None, 2, False)
    turned = recipe(name, Given("mine", 3000, 2, None, 3, start=start, names=("dog", "cat")))
    assert not turned.keep_head  # its rows are in another order
    same = recipe(name, Given("mine", 3000, 2, None, 3, start=start, names=("cat", "dog")))
    assert (same.model, same.keep_head) == (model, True)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("images", [20, 300, 3068, 50_000, 1_281_167, 14_000_000])
def test_steps_batch_and_warm_up_follow_the_dataset(name: str, images: int) -> None:
    start = Start("w.npz", "abc", config(), imagenet((12, 15)))
    made = recipe(name, Given("mine", images, 10, None, 3, start=start))
    assert made.batch <= max(images // 10, 1)
    assert 10 * made.schedule.warmup <= made.steps <= 20_000
    assert made.evaluate <= made.steps // 4


def test_the_papers_steps_are_the_papers() -> None:
    steps = {
        images: recipe("paper-finetune", Given("mine", images, 10, None, 3)).steps for images in (3_680, 50_000, 1_281_167)
    }
    assert steps == {3_680: 500, 50_000: 10_000, 1_281_167: 20_000}
    assert 500 < recipe("paper-finetune", Given("mine", 20_000, 10, None, 3)).steps < 10_000
