"""Token merging against the paper's description, image by image; and what merging must never change."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from vitrail.layers.token_merging import TokenMerger, bipartite_match, gather_tokens


def merge_as_in_the_paper(k: Tensor, x: Tensor, sizes: Tensor, pairs: int, prefix: int) -> tuple[Tensor, Tensor]:
    """Merge one image, one pair after the other: k h t k, x t d, sizes t."""
    keys = k.mean(0)
    sources = [token for token in range(x.shape[0]) if token >= prefix and token % 2 == 0]
    targets = [token for token in range(x.shape[0]) if token >= prefix and token % 2 == 1]
    best = {}
    for source in sources:
        similarities = [F.cosine_similarity(keys[source], keys[target], dim=0).item() for target in targets]
        best[source] = (max(similarities), targets[similarities.index(max(similarities))])
    going = sorted(sources, key=lambda source: -best[source][0])[:pairs]
    groups = {target: [target] for target in targets}
    for source in going:
        groups[best[source][1]].append(source)
    staying = [*range(prefix), *(source for source in sources if source not in going)]
    every = [[token] for token in staying] + list(groups.values())
    weights = [sizes[group] for group in every]
    rows = [(x[group] * weight[:, None]).sum(0) / weight.sum() for group, weight in zip(every, weights, strict=True)]
    return torch.stack(rows), torch.stack([weight.sum() for weight in weights])


@pytest.mark.parametrize("prefix", [0, 1, 2, 3])
@pytest.mark.parametrize("tokens", [12, 13])
@pytest.mark.parametrize("pairs", [1, 3, 4])
def test_pairs_are_matched_and_averaged_as_in_the_paper(prefix: int, tokens: int, pairs: int) -> None:
    k, x = torch.randn(2, 3, tokens, 8), torch.randn(2, tokens, 7)
    sizes = torch.randint(1, 6, (2, tokens)).float()
    merged, counts = bipartite_match(k, pairs, prefix).mean(x, sizes)
    for image in range(2):
        rows, total = merge_as_in_the_paper(k[image], x[image], sizes[image], pairs, prefix)
        assert_close(merged[image], rows)
        assert_close(counts[image], total)


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_nothing_is_lost_over_repeated_merging(prefix: int) -> None:
    """Sizes sum to the tokens, each original token is contained once, and the weighted sum of tokens is unchanged."""
    x = torch.randn(2, 21, 6, dtype=torch.float64)
    before = x.sum(1)
    merger = TokenMerger(4, prefix, membership=torch.eye(21, dtype=torch.float64).expand(2, -1, -1))
    for _ in range(6):
        merger.attention_bias(torch.randn(2, 3, x.shape[1], 8, dtype=torch.float64))
        x = merger(x)
    assert merger.sizes is not None
    assert merger.membership is not None
    assert x.shape[1] == prefix + {0: 2, 1: 1, 2: 1}[prefix]
    assert_close(merger.sizes.sum(1), torch.full((2,), 21.0, dtype=torch.float64))
    assert_close(merger.membership.sum(1), torch.ones(2, 21, dtype=torch.float64))
    assert_close(merger.membership.sum(2), merger.sizes)
    assert_close((x * merger.sizes[..., None]).sum(1), before)


def test_prefix_tokens_are_never_merged() -> None:
    x, k = torch.randn(2, 15, 6), torch.randn(2, 3, 15, 8)
    k[:, :, 1:] = k[:, :, :1]  # all keys equal, those of the prefix too
    merger = TokenMerger(100, 3)
    merger.attention_bias(k)
    merged = merger(x)
    assert merged.shape[1] == 3 + 6
    assert_close(merged[:, :3], x[:, :3], rtol=0, atol=0)


def test_a_token_of_several_patches_counts_as_much_as_they_did_separately() -> None:
    """Proportional attention: equal keys and values give the same output merged or separate."""
    q, k, v = (torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(3))
    sizes = torch.tensor([[1.0, 2, 3, 1, 4], [2, 2, 1, 1, 5]], dtype=torch.float64)
    merger = TokenMerger(0, 1)
    merger.sizes = sizes
    merged = F.scaled_dot_product_attention(q, k, v, attn_mask=merger.attention_bias(k))
    for image in range(2):
        repeats = sizes[image].long()
        keys, values = (part[image].repeat_interleave(repeats, dim=1) for part in (k, v))
        assert_close(merged[image], F.scaled_dot_product_attention(q[image], keys, values))


def test_a_merged_token_is_rotated_as_if_at_the_centre_of_its_patches() -> None:
    angles = torch.randn(9, 4, dtype=torch.float64)
    merger = TokenMerger(3, 1, angles, torch.eye(9, dtype=torch.float64).expand(2, -1, -1))
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    for _ in range(2):
        merger.attention_bias(torch.randn(2, 3, x.shape[1], 8, dtype=torch.float64))
        x = merger(x)
    assert merger.membership is not None
    assert merger.rotation is not None
    middle = merger.membership @ angles / merger.membership.sum(2, keepdim=True)
    assert_close(merger.rotation[0], middle.cos()[:, None])
    assert_close(merger.rotation[1], middle.sin()[:, None])


def test_half_precision_counts_exactly() -> None:
    x = torch.randn(1, 601, 4, dtype=torch.bfloat16)
    merger = TokenMerger(300, 1)
    for _ in range(9):
        merger.attention_bias(torch.randn(1, 2, x.shape[1], 4, dtype=torch.bfloat16))
        x = merger(x)
    assert merger.sizes is not None
    assert (x.shape[1], x.dtype) == (1 + 2, torch.bfloat16)
    assert merger.sizes.sum().item() == 601


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_are_gathered_as_by_torch_gather_and_so_are_gradients(dtype: torch.dtype) -> None:
    rows = torch.randint(0, 7, (3, 50))  # some of them often
    x, same = (torch.randn(3, 7, 4, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2))
    gathered, expected = gather_tokens(x, rows), same.gather(1, rows[..., None].expand(-1, -1, 4))
    assert torch.equal(gathered, expected)
    gradient = torch.randn_like(gathered)
    gathered.backward(gradient)
    expected.backward(gradient)
    assert x.grad is not None
    assert same.grad is not None
    assert torch.equal(x.grad, same.grad)
