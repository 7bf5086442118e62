"""Token merging against the paper's words, written out picture by picture; and what merging must never change."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from vitrail.layers.merge import Merging, matched, taken


def by_the_paper(k: Tensor, x: Tensor, sizes: Tensor, pairs: int, prefix: int) -> tuple[Tensor, Tensor]:
    """One picture, one pair after the other: k h t k, x t d, sizes t."""
    keys = k.mean(0)
    sources = [token for token in range(x.shape[0]) if token >= prefix and token % 2 == 0]
    targets = [token for token in range(x.shape[0]) if token >= prefix and token % 2 == 1]
    best = {}
    for source in sources:
        alike = [F.cosine_similarity(keys[source], keys[target], dim=0).item() for target in targets]
        best[source] = (max(alike), targets[alike.index(max(alike))])
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
def test_pairs_are_found_and_averaged_as_the_paper_says(prefix: int, tokens: int, pairs: int) -> None:
    k, x = torch.randn(2, 3, tokens, 8), torch.randn(2, tokens, 7)
    sizes = torch.randint(1, 6, (2, tokens)).float()
    found, counts = matched(k, pairs, prefix).mean(x, sizes)
    for picture in range(2):
        rows, total = by_the_paper(k[picture], x[picture], sizes[picture], pairs, prefix)
        assert_close(found[picture], rows)
        assert_close(counts[picture], total)


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_nothing_is_lost_however_often_is_merged(prefix: int) -> None:
    """Sizes sum to the tokens, what is held is each token once, and so does the weighed sum of all tokens stay."""
    x = torch.randn(2, 21, 6, dtype=torch.float64)
    before = x.sum(1)
    merging = Merging(4, prefix, held=torch.eye(21, dtype=torch.float64).expand(2, -1, -1))
    for _ in range(6):
        merging.bias(torch.randn(2, 3, x.shape[1], 8, dtype=torch.float64))
        x = merging(x)
    assert merging.sizes is not None
    assert merging.held is not None
    assert x.shape[1] == prefix + {0: 2, 1: 1, 2: 1}[prefix]
    assert_close(merging.sizes.sum(1), torch.full((2,), 21.0, dtype=torch.float64))
    assert_close(merging.held.sum(1), torch.ones(2, 21, dtype=torch.float64))
    assert_close(merging.held.sum(2), merging.sizes)
    assert_close((x * merging.sizes[..., None]).sum(1), before)


def test_tokens_in_front_are_never_merged() -> None:
    x, k = torch.randn(2, 15, 6), torch.randn(2, 3, 15, 8)
    k[:, :, 1:] = k[:, :, :1]  # all keys alike, those in front too
    merging = Merging(100, 3)
    merging.bias(k)
    found = merging(x)
    assert found.shape[1] == 3 + 6
    assert_close(found[:, :3], x[:, :3], rtol=0, atol=0)


def test_a_token_of_several_patches_weighs_as_much_as_they_did_apart() -> None:
    """Proportional attention: equal keys and values merged or apart are the same to a query."""
    q, k, v = (torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(3))
    sizes = torch.tensor([[1.0, 2, 3, 1, 4], [2, 2, 1, 1, 5]], dtype=torch.float64)
    merging = Merging(0, 1)
    merging.sizes = sizes
    merged = F.scaled_dot_product_attention(q, k, v, attn_mask=merging.bias(k))
    for picture in range(2):
        times = sizes[picture].long()
        keys, values = (part[picture].repeat_interleave(times, dim=1) for part in (k, v))
        assert_close(merged[picture], F.scaled_dot_product_attention(q[picture], keys, values))


def test_a_merged_token_is_turned_as_one_in_the_middle_of_its_patches() -> None:
    angles = torch.randn(9, 4, dtype=torch.float64)
    merging = Merging(3, 1, angles, torch.eye(9, dtype=torch.float64).expand(2, -1, -1))
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    for _ in range(2):
        merging.bias(torch.randn(2, 3, x.shape[1], 8, dtype=torch.float64))
        x = merging(x)
    assert merging.held is not None
    assert merging.rotation is not None
    middle = merging.held @ angles / merging.held.sum(2, keepdim=True)
    assert_close(merging.rotation[0], middle.cos()[:, None])
    assert_close(merging.rotation[1], middle.sin()[:, None])


def test_half_precision_counts_exactly() -> None:
    x = torch.randn(1, 601, 4, dtype=torch.bfloat16)
    merging = Merging(300, 1)
    for _ in range(9):
        merging.bias(torch.randn(1, 2, x.shape[1], 4, dtype=torch.bfloat16))
        x = merging(x)
    assert merging.sizes is not None
    assert (x.shape[1], x.dtype) == (1 + 2, torch.bfloat16)
    assert merging.sizes.sum().item() == 601


def test_rows_are_taken_as_gather_takes_them() -> None:
    x, rows = torch.randn(3, 7, 4), torch.randint(0, 7, (3, 5))
    assert torch.equal(taken(x, rows), x.gather(1, rows[..., None].expand(-1, -1, 4)))
