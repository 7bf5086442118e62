"""Stochastic depth, dropout and layer scale: what is dropped or scaled, and how often."""

import torch
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.layers.residual import LayerScale, StochasticDepth


def test_an_image_is_dropped_whole_and_the_mean_is_unchanged() -> None:
    drop = StochasticDepth(0.3).train()
    x = torch.ones(20_000, 2, 3)
    y = drop(x)
    unchanged = y[:, 0, 0] > 0
    assert_close(y, torch.where(unchanged[:, None, None], x / 0.7, torch.zeros(())))
    assert_close(unchanged.float().mean(), torch.tensor(0.7), rtol=0, atol=0.015)
    assert drop.eval()(x) is x


def test_the_rate_rises_linearly_to_the_last_block() -> None:
    model = small_vit(stochastic_depth=0.3)
    assert_close([block.drop.rate for block in model.blocks], [0.0, 0.1, 0.2, 0.3])  # type: ignore[union-attr]


def test_dropout_follows_every_dense_layer_but_qkv_and_the_positions() -> None:
    """With a rate close to one, nothing that passed a dropout is left."""
    model = small_vit(dropout=1 - 1e-7, depth=1).train()
    images = torch.randn(2, 3, 12, 15)
    with torch.no_grad():
        encoded = model.encode(model.embed_patches(images), (2, 3))
    assert_close(encoded, model.norm(torch.zeros_like(encoded)))  # positions, attention and MLP are all dropped
    attention = model.blocks[0].attention
    assert attention.dropout.p == model.blocks[0].mlp.dropout.p == model.dropout.p == 1 - 1e-7  # type: ignore[union-attr]


def test_layer_scale_scales_channels() -> None:
    scale, x = LayerScale(3, 0.5), torch.randn(2, 4, 3)
    assert_close(scale(x), x * 0.5)
    model = small_vit(layer_scale=1e-4)
    assert model.blocks[0].scale1.scale.shape == model.blocks[0].scale2.scale.shape == (24,)  # type: ignore[union-attr]
