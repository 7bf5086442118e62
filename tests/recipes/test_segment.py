"""The recipes of segmentation: what they choose, and what a user's choice replaces."""

from pathlib import Path

import pytest

import vitrail
from vitrail.recipes.task_config import Segmentation
from vitrail.training.prepare import RecipeOptions, prepare_finetuning


@pytest.mark.parametrize(
    ("task", "layers"),
    [
        (Segmentation(), (3, 6, 9, 12)),  # only named: the last of each quarter
        (Segmentation(dice_weight=0.5), ()),  # settings of its own
    ],
)
def test_the_recipe_chooses_the_blocks_that_the_head_sees(task: Segmentation, layers: tuple[int, ...], tmp_path: Path) -> None:
    config = vitrail.variant("mu/16", image=32, classes=3, depth=12)
    vitrail.save(vitrail.build(config), tmp_path)
    prepared, _ = prepare_finetuning(str(tmp_path), "panes:train_size=60,size=32", options=RecipeOptions(), task=task)
    assert isinstance(prepared.recipe.task, Segmentation)
    assert prepared.recipe.task.head_layers(12) == layers
    assert prepared.recipe.task.classes == 2
    assert prepared.recipe.preprocess.fit == "stretch"
