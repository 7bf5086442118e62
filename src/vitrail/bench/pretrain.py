"""``vitrail bench pretrain``: speed of a self-supervised step, and what MAE gains by encoding visible patches only.

The same encoder, B/16 at 224 pixels, in every method; MAE also with an encoder that gets (nearly) all patches, and as
implemented in transformers. AdamW for all.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from vitrail.bench.interleaved_timing import best_of_interleaved
from vitrail.bench.reference_models import WEIGHT_DECAY
from vitrail.bench.reference_training import own_train_step
from vitrail.data.loader import Batch
from vitrail.data.sources.dataset import Progress
from vitrail.models.config import ViTConfig
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.recipe import Optim, Recipe
from vitrail.recipes.registry import SSL_METHODS, get_recipe
from vitrail.recipes.task_config import MaskedImage
from vitrail.weights.verify import declare_torchvision_operators

BATCH_SIZE = 8
MAE_ALL_VISIBLE = "mae, all patches visible"
TRANSFORMERS_MAE = "transformers, mae"


@dataclass(frozen=True)
class PretrainSpeed:
    """``mae_gain``: images per second relative to an encoder that gets every patch."""

    mae_gain: float
    peer_ratio: float | None  # MAE's step against transformers'; None if that is not installed
    images_per_second: dict[str, float]
    threads: int
    rounds: int


def benchmark_pretrain(
    model: str = "B/16", rounds: int = 5, batch_size: int = BATCH_SIZE, others: bool = True, progress: Progress | None = None
) -> PretrainSpeed:
    """Run the benchmark. ``others``: the other methods too, and transformers'; large models may leave no memory for them."""
    torch.manual_seed(0)
    methods = SSL_METHODS if others else ("mae",)
    recipes = {method: get_recipe(method, RecipeContext("", 10**6, 0, None, 3, model)) for method in methods}
    mae = recipes["mae"]
    assert isinstance(mae.task, MaskedImage)
    assert isinstance(mae.model, ViTConfig)
    all_visible = replace(mae, task=MaskedImage(replace(mae.task.masking, mask_ratio=1.5 / mae.model.patches)))  # one is masked
    contestants = {name: _build_step(recipe, batch_size) for name, recipe in {**recipes, MAE_ALL_VISIBLE: all_visible}.items()}
    peer = _build_transformers_step(mae, batch_size) if others else None
    speeds = best_of_interleaved(contestants if peer is None else {**contestants, TRANSFORMERS_MAE: peer}, rounds, progress)
    ratio = None if peer is None else round(speeds["mae"] / speeds[TRANSFORMERS_MAE], 3)
    return PretrainSpeed(round(speeds["mae"] / speeds[MAE_ALL_VISIBLE], 3), ratio, speeds, torch.get_num_threads(), rounds)


def _build_step(recipe: Recipe, count: int) -> Callable[[], int]:
    batch = Batch(torch.randn(count, 3, *recipe.model.image), torch.zeros(count, dtype=torch.long), torch.arange(count))
    step = own_train_step(replace(recipe, optim=Optim(weight_decay=WEIGHT_DECAY)), batch)
    step()
    return step


def _build_transformers_step(recipe: Recipe, count: int) -> Callable[[], int] | None:
    declare_torchvision_operators()
    try:
        from transformers import ViTMAEConfig, ViTMAEForPreTraining
    except ImportError:
        return None
    assert isinstance(recipe.task, MaskedImage)
    config, masking = recipe.model, recipe.task.masking
    assert isinstance(config, ViTConfig)
    make: Any = ViTMAEConfig  # it accepts more arguments than it declares
    model = ViTMAEForPreTraining(
        make(
            hidden_size=config.width, num_hidden_layers=config.depth, num_attention_heads=config.heads,
            intermediate_size=config.mlp, image_size=config.image[0], patch_size=config.patch[0], norm_pix_loss=True,
            decoder_hidden_size=masking.decoder_width, decoder_num_hidden_layers=masking.decoder_depth,
            decoder_num_attention_heads=masking.decoder_heads, decoder_intermediate_size=4 * masking.decoder_width,
            mask_ratio=masking.mask_ratio, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=WEIGHT_DECAY)
    images = torch.randn(count, 3, *config.image)

    def step() -> int:
        optimiser.zero_grad()
        loss = model(images).loss
        loss.backward()
        optimiser.step()
        loss.item()
        return count

    step()
    return step
