"""Models of published kinds: attention by hand from the weights, as the model records it, and as ``explain`` returns it."""

from math import ceil, pi
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from tests.small_models import PUBLISHED_KINDS, small_vit
from tests.tiers import quick_only
from vitrail.errors import VitrailError
from vitrail.explain.ablate import ablate
from vitrail.explain.attention import attention, pooled_attention, pooling_weights
from vitrail.explain.embeddings import patch_filters, position_kind, position_similarity
from vitrail.explain.gradient import logit_lens, signed_integrated_gradients
from vitrail.explain.head_statistics import head_statistics, token_norms
from vitrail.explain.module_trace import trace_modules
from vitrail.explain.rollout import rollout
from vitrail.explain.saliency import SALIENCY_METHODS, saliency
from vitrail.layers.tap import record_activations
from vitrail.models.config import RelativeBiasConfig, RotaryConfig, ViTConfig
from vitrail.models.vit import ViT

any_patches = pytest.mark.parametrize(
    "changes",
    [changes for changes in PUBLISHED_KINDS.values() if "window" not in changes],
    ids=[name for name in PUBLISHED_KINDS if "windows" not in name],
)
every_kind = pytest.mark.parametrize("changes", PUBLISHED_KINDS.values(), ids=PUBLISHED_KINDS.keys())


def attention_by_hand(model: ViT, images: Tensor, layer: int) -> Tensor:
    """Compute the weights of a layer from its input and the model's parameters, one pair of tokens at a time."""
    c, inputs = model.config, []
    hook = model.blocks[layer].attention.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))  # type: ignore[union-attr]
    with torch.no_grad():
        model(images)
    hook.remove()
    qkv: Any = model.blocks[layer].attention.qkv  # type: ignore[union-attr]
    d, width = c.width, c.width // c.heads
    bias = qkv.bias if c.key_bias else torch.cat([qkv.bias[:d], torch.zeros(d), qkv.bias[d:]])
    q, k, _ = (inputs[0] @ qkv.weight.T + bias).split(d, dim=-1)
    places = places_with_padding(c, layer)
    k = torch.cat([k, bias[d : 2 * d].expand(len(images), len(places) - c.tokens, -1)], dim=1)  # of zeros, the bias is left
    scores = torch.full((images.shape[0], c.heads, c.tokens, len(places)), -torch.inf)
    for head in range(c.heads):
        own = slice(head * width, (head + 1) * width)
        for token in range(c.tokens):
            for other in range(len(places)):
                if not sees_by_hand(c, layer, token, other, places):
                    continue
                query = turn_by_hand(model, q[:, token, own], layer, head, token)
                key = k[:, other, own] if other >= c.tokens else turn_by_hand(model, k[:, other, own], layer, head, other)
                scores[:, head, token, other] = (query * key).sum(-1) / width**0.5
                scores[:, head, token, other] += bias_by_hand(model, layer, head, token, other)
                if c.relative_axes and min(token, other) >= c.prefix_tokens:
                    axes: Any = model.blocks[layer].attention.relative  # type: ignore[union-attr]
                    y, x = (first - second for first, second in zip(places[token], places[other], strict=True))
                    rows, columns = (axes.rows, axes.columns)
                    embedding = rows[y + len(rows) // 2] + columns[x + len(columns) // 2]
                    scores[:, head, token, other] += (query * embedding).sum(-1)
    return scores.softmax(dim=-1)[..., : c.tokens].detach()


def places_with_padding(c: ViTConfig, layer: int) -> list[tuple[int, int]]:
    """Return the place of every token, that of prefix tokens is of no account, and then those of the padding of windows."""
    side, (rows, columns) = c.windows[layer] or 1, c.grid
    padded = [(y, x) for y in range(ceil(rows / side) * side) for x in range(ceil(columns / side) * side)]
    patches = [(y, x) for y, x in padded if y < rows and x < columns]
    return [(0, 0)] * c.prefix_tokens + patches + [place for place in padded if place not in patches]


def sees_by_hand(c: ViTConfig, layer: int, token: int, other: int, places: list[tuple[int, int]]) -> bool:
    """Return whether a token attends to another: patches to those in their window, prefix tokens to all but padding."""
    side = c.windows[layer]
    if side is None or other < c.prefix_tokens:
        return True
    if token < c.prefix_tokens:
        return other < c.tokens
    return all(first // side == second // side for first, second in zip(places[token], places[other], strict=True))


def turn_by_hand(model: ViT, x: Tensor, layer: int, head: int, token: int) -> Tensor:
    """Rotate each pair of channels, as a complex number, by the angle of its token."""
    c, rotation, width = model.config, model.config.rotation, x.shape[-1]
    if rotation is None or token < c.prefix_tokens:
        return x
    places = torch.tensor([float(at) for at in divmod(token - c.prefix_tokens, c.grid[1])])
    sides, base = torch.tensor(c.grid), torch.tensor(c.position_grid or c.grid)
    match rotation.coordinates:
        case "normalised":
            places = 2 * pi * ((2 * places + 1) / sides - 1)
        case "scaled":
            places = (places + rotation.offset) * base / sides
    if rotation.mixed:
        frequencies: Any = model.rotary[layer].frequencies
        angles = places[0] * frequencies[0, head] + places[1] * frequencies[1, head]
    else:
        rates = [rotation.base ** (-4 * pair / width) for pair in range(width // 4)]
        angles = torch.tensor([place * rate for place in places.tolist() for rate in rates])
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.exp(1j * angles)).flatten(-2)


def bias_by_hand(model: ViT, layer: int, head: int, token: int, other: int) -> Tensor | float:
    c, relative = model.config, model.config.relative_bias
    if relative is None:
        return 0.0
    module: Any = model.relative_bias[0 if relative.shared else layer]
    if min(token, other) < c.prefix_tokens:
        # a token's bias for the class token is that of a key; the class token's, that of a query; its own, that of both
        kind = 2 if token == other else 0 if token < other else 1
        return module.class_token[head, kind] if relative.kind == "table" else 0.0
    (y, x), (v, u) = (divmod(at - c.prefix_tokens, c.grid[1]) for at in (token, other))
    if relative.kind == "table":
        return module.table[head, y - v + c.grid[0] - 1, x - u + c.grid[1] - 1]
    offset = torch.tensor([float(y - v), float(x - u)])
    return module.down(F.relu(module.up(offset.sign() * torch.log(1 + offset.abs()))))[head]


@every_kind
def test_attention_is_the_softmax_of_its_formula_and_what_the_model_records(changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(2, 3, 12, 15)
    with torch.no_grad(), record_activations(model, "blocks.*.attention.weights") as recorded:
        model(images)
    every = torch.stack([weights for (weights,) in recorded.values()])
    for layer in (0, 3):
        assert_close(every[layer], attention_by_hand(model, images, layer), rtol=0, atol=1e-5)
    assert_close(attention(model, images), every, rtol=0, atol=1e-6)
    some = attention(model, images, layers=[-1, 1], heads=[2, 0], queries=[5, 0, -1])
    assert_close(some, every[[3, 1]][:, :, [2, 0]][..., [5, 0, -1], :], rtol=0, atol=1e-6)


@every_kind
def test_pooled_attention_is_the_rows_weighted_as_they_are_pooled(changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(2, 3, 12, 15)
    weights = pooling_weights(model, images)
    assert_close(weights.sum(-1), torch.ones(2))
    expected = torch.einsum("bq,lbhqt->lbht", weights, attention(model, images))
    assert_close(pooled_attention(model, images), expected, rtol=0, atol=1e-6)


def test_a_pooling_of_two_tokens_reads_both_equally() -> None:
    model, images = small_vit(pool="cls+register", registers=2), torch.randn(2, 3, 12, 15)
    tokens = model.encode(model.embed_patches(images), model.grid(images))
    halves = model.pool(tokens).unflatten(1, (2, 24))
    assert_close((pooling_weights(model, images)[:, None] @ tokens)[:, 0], halves.mean(dim=1))


def test_an_attention_pooling_of_all_tokens_has_a_weight_for_the_prefix() -> None:
    changes: dict[str, Any] = {"pool": "map", "registers": 2, "class_token": True}
    images = torch.randn(2, 3, 12, 15)
    assert (pooling_weights(small_vit(**changes, pool_prefix=True), images) > 0).all()
    assert (pooling_weights(small_vit(**changes), images)[:, :3] == 0).all()


@every_kind
@pytest.mark.parametrize("method", quick_only(list(SALIENCY_METHODS), "rollout", "relevance"))
def test_every_map_is_finite_and_not_negative(changes: dict[str, Any], method: str) -> None:
    model, images = small_vit(**changes), torch.randn(2, 3, 12, 15)
    values = saliency(model, images, method)
    assert values.shape == (2, 2, 3)
    assert values.isfinite().all()
    assert (values >= 0).all()
    assert (values > 0).any()


@every_kind
def test_statistics_and_the_lens_are_those_of_the_weights(changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(2, 3, 12, 15)
    weights = attention(model, images)
    assert_close(rollout(model, images).sum(-1), torch.ones(2, model.config.tokens))
    entropy = -torch.special.xlogy(weights, weights).sum(-1).mean(dim=(1, 3))
    assert_close(head_statistics(model, [images]).entropy, entropy, rtol=1e-4, atol=1e-5)
    assert token_norms(model, images).isfinite().all()
    with torch.no_grad():
        assert_close(logit_lens(model, images)[-1], model(images))


@every_kind
def test_integrated_gradients_sum_to_the_change_of_the_logit(changes: dict[str, Any]) -> None:
    model, images = small_vit(**changes), torch.randn(2, 3, 12, 15)
    with torch.no_grad():
        logits, grey = model(images), model(torch.zeros_like(images))
    target = logits.argmax(dim=1)
    change = (logits - grey).gather(1, target[:, None])[:, 0]
    assert_close(signed_integrated_gradients(model, images, target, 64).sum(1), change, rtol=0.02, atol=0.02)


@every_kind
def test_a_trace_has_every_trained_weight(changes: dict[str, Any]) -> None:
    model = small_vit(**changes)
    records = trace_modules(model, torch.randn(2, 3, 12, 15))
    norms = [weight.grad.norm() for weight in model.parameters() if weight.grad is not None]
    assert len(norms) == len(list(model.parameters()))
    assert all(torch.isfinite(norm) for norm in norms)
    traced = {record.name for record in records if record.param_grad_norm is not None}
    assert {"embed.project", "blocks.3.attention.qkv", "blocks.3.mlp.down"} <= traced
    assert ("relative_bias.0" in {record.name for record in records}) == (model.config.relative_bias is not None)


class HiddenKeys(nn.Module):
    """A relative bias beside which some keys have no weight."""

    def __init__(self, bias: nn.Module | None, tokens: int, hidden: list[int]) -> None:
        super().__init__()
        self.bias, self.mask = bias, torch.zeros(1, tokens, tokens)
        self.mask[..., hidden] = -torch.inf

    def forward(self, grid: tuple[int, int], patch_indices: Tensor | None) -> Tensor:
        return self.mask if self.bias is None else self.mask + self.bias(grid, patch_indices)


@any_patches
def test_a_dropped_patch_is_one_that_no_token_attends_to(changes: dict[str, Any]) -> None:
    model, images, dropped = small_vit(**changes), torch.randn(2, 3, 12, 15), [1, 4]
    logits, tokens = ablate(model, images, dropped, mode="drop"), model.config.tokens
    hidden = [model.config.prefix_tokens + patch for patch in dropped]
    biases: list[Any] = [*model.relative_bias] or [None]
    model.relative_bias = nn.ModuleList(HiddenKeys(bias, tokens, hidden) for bias in biases)
    with torch.no_grad():
        encoded = model.encode(model.embed_patches(images), model.grid(images))
        kept = encoded[:, [token for token in range(tokens) if token not in hidden]]
        assert_close(logits, model.head(model.pooled_norm(model.pool(kept))), rtol=1e-4, atol=1e-5)


def test_windows_need_every_patch() -> None:
    model = small_vit(**PUBLISHED_KINDS["windows, which need padding"])
    with pytest.raises(VitrailError, match="windows and relative positions along the axes need all patches of the grid"):
        ablate(model, torch.randn(2, 3, 12, 15), [1], mode="drop")


@every_kind
def test_positions_are_compared_if_there_are_any(changes: dict[str, Any]) -> None:
    model = small_vit(**changes)
    flat = position_similarity(model, layer=3).reshape(6, 6)
    assert_close(flat.diagonal(), torch.ones(6))
    assert_close(flat, flat.T)
    assert (flat - torch.ones(6, 6)).abs().max() > 1e-3
    assert patch_filters(model).isfinite().all()


def test_a_table_is_compared_even_beside_rotary_or_a_bias() -> None:
    for changes in ({"rotary": RotaryConfig(mixed=True)}, {"relative_bias": RelativeBiasConfig()}):
        model: Any = small_vit(**changes)
        table = model.positions[0].table.weight
        assert position_kind(model.config) == "learned1d"
        assert_close(position_similarity(model)[1, 2, 0, 1], F.cosine_similarity(table[1, 2], table[0, 1], dim=0))


def test_learned_frequencies_are_compared_layer_by_layer() -> None:
    model: Any = small_vit(position="none", rotary=RotaryConfig(mixed=True))
    (one, two), frequencies = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), model.rotary[2].frequencies
    assert position_kind(model.config) == "rotary"
    angles = ((one - two)[:, None, None] * frequencies).sum(0)  # of each pair of each head, from one position to the other
    assert_close(position_similarity(model, layer=2)[1, 2, 0, 1], angles.cos().mean().detach())


def test_without_any_positions_there_is_nothing_to_compare() -> None:
    assert position_kind(small_vit(position="none").config) == "none"
    with pytest.raises(VitrailError, match="no positions"):
        position_similarity(small_vit(position="none"))
    with pytest.raises(VitrailError, match="layer must be from 0 to 3, got 4; try layer=0"):
        position_similarity(small_vit(position="none", relative_bias=RelativeBiasConfig()), layer=4)
