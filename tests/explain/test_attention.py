"""Chosen rows of attention by two routes: queries and keys recorded at the fused kernel, and all weights recorded directly."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.reference_libraries import reference_library
from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.explain.attention import attention, pooled_attention, pooling_weights, to_grid
from vitrail.layers.tap import record_activations
from vitrail.models.build import build
from vitrail.models.resnet import ResNet
from vitrail.models.variants import variant
from vitrail.weights.save import save

KINDS: list[dict[str, Any]] = [
    {},
    {"pool": "gap"},
    {"pool": "map"},
    {"registers": 2},
    {"norm": "post"},
    {"qk_norm": True},
    {"position": "relative"},
    {"position": "rotary", "width": 24, "heads": 3},
    {"position": "none"},
]


def recorded_attention(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), record_activations(model, "blocks.*.attention.weights") as recorded:
        model(images)
    return torch.stack([weights for (weights,) in recorded.values()])


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_the_requested_rows_are_what_the_model_used(changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(2, 3, 12, 15)
    every = recorded_attention(model, images)
    assert_close(attention(model, images), every, rtol=0, atol=1e-6)
    some = attention(model, images, layers=[-1, 1], heads=[2, 0], queries=[5, 0, -1])
    assert_close(some, every[[3, 1]][:, :, [2, 0]][..., [5, 0, -1], :], rtol=0, atol=1e-6)
    assert_close(some.sum(-1), torch.ones(2, 2, 2, 3))


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_the_chunk_size_does_not_matter(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = small_vit(**changes), torch.randn(2, 3, 12, 15)
    every, pooled = attention(model, images), pooled_attention(model, images)
    # two rows of two images, three heads, seven tokens
    monkeypatch.setattr(sys.modules["vitrail.explain.attention"], "ATTENTION_CHUNK_NUMEL", 100)
    assert_close(attention(model, images), every)
    assert_close(pooled_attention(model, images), pooled)
    assert_close(attention(model, images, queries=[5, 0, 5, 1, 2], layers=[2, 2]), every[[2, 2]][..., [5, 0, 5, 1, 2], :])


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_pooled_attention_is_the_rows_weighted_as_they_are_pooled(changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(2, 3, 12, 15)
    expected = torch.einsum("bq,lbhqt->lbht", pooling_weights(model, images), recorded_attention(model, images))
    assert_close(pooled_attention(model, images), expected, rtol=0, atol=1e-6)
    assert_close(pooled_attention(model, images, layers=[-1, 0], heads=[1]), expected[[3, 0]][:, :, [1]], rtol=0, atol=1e-6)


def test_only_the_requested_rows_are_computed_and_the_fused_kernel_stays_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = small_vit(), torch.randn(2, 3, 12, 15)
    fused, calls = torch.nn.functional.scaled_dot_product_attention, []
    softmax = torch.Tensor.softmax

    def record_fused(*arguments: Any, **options: Any) -> torch.Tensor:
        calls.append("fused")
        return fused(*arguments, **options)

    def record_softmax(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        calls.append(str(tuple(self.shape)))
        return softmax(self, *arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record_fused)
    monkeypatch.setattr(torch.Tensor, "softmax", record_softmax)
    attention(model, images, layers=[2], heads=[1], queries=[0, 4])
    assert calls == ["fused", "fused", "(2, 1, 2, 7)", "fused", "fused"]


@pytest.mark.slow
def test_the_class_tokens_rows_of_a_large_image_take_less_than_two_gigabytes() -> None:
    """Peak memory of the whole process: B/16 at 1024 pixels, 4,097 tokens, all 144 heads."""
    script = """
import torch
from tests.peak_memory import peak_bytes
from vitrail.explain import attention
from vitrail.models.build import build
weights = attention(build("B/16", image=1024, classes=5).eval(), torch.randn(1, 3, 1024, 1024), queries=[0])
assert weights.shape == (12, 1, 12, 1, 4097)
print(peak_bytes())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2e9


def test_permuting_heads_permutes_maps() -> None:
    model, images, order = small_vit(), torch.randn(2, 3, 12, 15), [2, 0, 1]
    before = attention(model, images, layers=[1])
    rows = torch.arange(72).view(3, 3, 8)[:, order].flatten()
    qkv = model.blocks[1].attention.qkv  # type: ignore[union-attr]
    qkv.weight.data, qkv.bias.data = qkv.weight.data[rows], qkv.bias.data[rows]  # type: ignore[union-attr, index]
    assert_close(attention(model, images, layers=[1]), before[:, :, order])


def test_training_mode_is_restored_and_dropout_is_off() -> None:
    model, images = small_vit(dropout=0.5, attention_dropout=0.5), torch.randn(2, 3, 12, 15)
    quiet = attention(model, images)
    model.train()
    assert_close(attention(model, images), quiet)
    assert model.training


@pytest.mark.parametrize(("pool", "prefix"), [("cls", 1), ("gap", 0), ("map", 0)])
def test_pooling_weights_sum_to_one_and_lie_on_the_grid(pool: Any, prefix: int) -> None:
    model, images = small_vit(pool=pool), torch.randn(2, 3, 12, 15)
    weights = pooling_weights(model, images)
    assert weights.shape == (2, prefix + 6)
    assert_close(weights.sum(-1), torch.ones(2))
    token_indices = torch.arange(2.0 * (prefix + 6)).view(2, -1)
    grid = to_grid(model, images, token_indices)
    assert grid.shape == (2, 2, 3)
    assert grid[0, 0, 0] == prefix
    assert grid[0, 1, 0] == prefix + 3


def test_mean_pooling_is_the_sum_by_pooling_weights() -> None:
    """For mean pooling, the pooled vector is the weighted sum of the tokens."""
    model, images = small_vit(pool="gap", registers=2), torch.randn(2, 3, 12, 15)
    tokens = model.encode(model.embed_patches(images), model.grid(images))
    assert_close((pooling_weights(model, images)[:, None] @ tokens)[:, 0], model.pool(tokens))


@pytest.mark.parity
def test_transformers_has_the_same_weights(tmp_path: Path) -> None:
    theirs, ours, images = (
        reference_library("transformers"),
        small_vit(gelu="exact", patch=(5, 5), image=(10, 15)),
        torch.randn(2, 3, 10, 15),
    )
    save(ours, tmp_path / "theirs", format="huggingface")
    reference = theirs.ViTForImageClassification.from_pretrained(tmp_path / "theirs", attn_implementation="eager").eval()
    with torch.no_grad():
        recorded = reference(images, output_attentions=True).attentions
    assert_close(attention(ours, images), torch.stack(recorded), rtol=0, atol=1e-6)


def test_errors_are_one_sentence() -> None:
    model, images = small_vit(), torch.randn(1, 3, 12, 15)
    with pytest.raises(VitrailError, match=r"layers must be indices from 0 to 3, got 4; try layers=\[0\]"):
        attention(model, images, layers=[4])
    with pytest.raises(VitrailError, match="heads must be indices from 0 to 2, got none"):
        attention(model, images, heads=[])
    resnet = build(variant("R50x1", image=32, classes=3))
    assert isinstance(resnet, ResNet)
    with pytest.raises(VitrailError, match="a ResNet has no attention"):
        attention(resnet, torch.randn(1, 3, 32, 32))
