"""``vitrail bench pretrain``: speed of a self-supervised step, and what MAE gains by encoding visible patches only.

The same encoder, B/16 at 224 pixels, in every method; MAE also with an encoder that gets (nearly) all patches, and as
implemented in transformers. AdamW for all.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from vitrail.bench.peers import DECAY
from vitrail.bench.turns import in_turns
from vitrail.data.loader import Batch
from vitrail.data.sources.source import Progress
from vitrail.models.build import build
from vitrail.models.masked import masked
from vitrail.models.settings import ViTConfig
from vitrail.models.vit import ViT
from vitrail.recipes.book import METHODS, recipe
from vitrail.recipes.given import Given
from vitrail.tasks.masked import Masks
from vitrail.train.recipe import Optim, Recipe
from vitrail.train.state import fresh
from vitrail.train.step import train_step
from vitrail.weights.verify import declare_operators

BATCH = 8
SEEN = "mae, all patches visible"
PEER = "transformers, mae"


@dataclass(frozen=True)
class PretrainSpeed:
    """``mae_gain``: images per second relative to an encoder that gets every patch."""

    mae_gain: float
    peer_ratio: float | None  # MAE's step against transformers'; None if that is not installed
    images_per_second: dict[str, float]
    threads: int
    rounds: int


def pretrain_speed(
    model: str = "B/16", rounds: int = 5, batch: int = BATCH, others: bool = True, progress: Progress | None = None
) -> PretrainSpeed:
    """Run the benchmark. ``others``: the other methods too, and transformers'; large models may leave no memory for them."""
    torch.manual_seed(0)
    methods = METHODS if others else ("mae",)
    recipes = {method: recipe(method, Given("", 10**6, 0, None, 3, model)) for method in methods}
    whole = recipes["mae"]
    assert whole.masking is not None
    assert isinstance(whole.model, ViTConfig)
    seen = replace(whole, masking=replace(whole.masking, share=1.5 / whole.model.patches))  # one is masked
    rivals = {name: _step(settings, batch) for name, settings in {**recipes, SEEN: seen}.items()}
    peer = _transformers(whole, batch) if others else None
    found = in_turns(rivals if peer is None else {**rivals, PEER: peer}, rounds, progress)
    ratio = None if peer is None else round(found["mae"] / found[PEER], 3)
    return PretrainSpeed(round(found["mae"] / found[SEEN], 3), ratio, found, torch.get_num_threads(), rounds)


def _step(settings: Recipe, count: int) -> Callable[[], int]:
    assert settings.masking is not None
    encoder = build(settings.model)
    assert isinstance(encoder, ViT)
    plain = replace(settings, optim=Optim(weight_decay=DECAY))
    state = fresh(masked(encoder, settings.masking), plain)
    task = Masks(settings.masking, encoder.config.patch, settings.preprocess)
    batch = Batch(torch.randn(count, 3, *encoder.config.image), torch.zeros(count, dtype=torch.long), torch.arange(count))

    def step() -> int:
        state.step = settings.schedule.warmup  # where the learning rate is not zero
        train_step(state, task, batch, plain)
        return count

    step()
    return step


def _transformers(settings: Recipe, count: int) -> Callable[[], int] | None:
    declare_operators()
    try:
        from transformers import ViTMAEConfig, ViTMAEForPreTraining
    except ImportError:
        return None
    config, how = settings.model, settings.masking
    assert isinstance(config, ViTConfig)
    assert how is not None
    make: Any = ViTMAEConfig  # it accepts more arguments than it declares
    model = ViTMAEForPreTraining(
        make(
            hidden_size=config.width, num_hidden_layers=config.depth, num_attention_heads=config.heads,
            intermediate_size=config.mlp, image_size=config.image[0], patch_size=config.patch[0], norm_pix_loss=True,
            decoder_hidden_size=how.decoder_width, decoder_num_hidden_layers=how.decoder_depth,
            decoder_num_attention_heads=how.decoder_heads, decoder_intermediate_size=4 * how.decoder_width,
            mask_ratio=how.share, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=DECAY)
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
