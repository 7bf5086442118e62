"""Pooling against formulas written out."""

import torch
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.layers.pool import AttentionPool, AveragePool, ClassAndAveragePool, ClassPool
from vitrail.layers.tap import record_activations


def test_the_class_token_and_the_mean_of_the_patches() -> None:
    x = torch.randn(2, 7, 4)
    assert_close(ClassPool()(x), x[:, 0])
    assert_close(AveragePool(prefix=3)(x), x[:, 3:].sum(1) / 4)


def test_attention_pooling_equals_torchs_own_attention() -> None:
    pool, x = AttentionPool(12, 3, 20, prefix=2), torch.randn(5, 9, 12)
    reference = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([pool.q.weight, pool.kv.weight]))
        reference.in_proj_bias.copy_(torch.cat([pool.q.bias.normal_(), pool.kv.bias.normal_()]))
        reference.out_proj.load_state_dict(pool.out.state_dict())
    attended, weights = reference(pool.probe.expand(5, 1, 12), x[:, 2:], x[:, 2:], average_attn_weights=False)
    expected = attended[:, 0] + pool.mlp(pool.norm(attended[:, 0]))
    assert_close(pool(x), expected)
    with record_activations(pool, "weights") as recorded:
        assert_close(pool(x), expected)
    assert_close(recorded["weights"][0], weights)


def test_registers_take_part_in_attention_and_not_in_the_mean() -> None:
    model, images = small_vit(pool="gap", registers=2), torch.randn(2, 3, 12, 15)
    tokens = model.encode(model.embed_patches(images), (2, 3))
    assert tokens.shape == (2, 8, 24)
    assert_close(model.features(images), tokens[:, 2:].mean(1))
    before = model(images)
    model.registers.data.normal_()  # type: ignore[union-attr]
    assert (model(images) - before).abs().max() > 1e-4


def test_a_class_token_can_be_kept_with_mean_pooling() -> None:
    model = small_vit(pool="gap", class_token=True)
    assert model.cls is not None
    assert model.config.tokens == 7


def test_class_token_and_mean_side_by_side() -> None:
    """The first half is the class token, the second the mean of the patches without class token and registers."""
    x = torch.randn(2, 3 + 5, 4)
    pooled = ClassAndAveragePool(prefix=3)(x)
    assert_close(pooled[:, :4], x[:, 0])
    assert_close(pooled[:, 4:], x[:, 3:].mean(dim=1))
