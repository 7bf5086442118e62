"""Inference speed-ups: what they may not change, what they mean, what they reject."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from tests.small import config, vit
from vitrail.errors import VitrailError
from vitrail.evaluate.features import _of_model
from vitrail.layers.tap import recording
from vitrail.models.build import build
from vitrail.models.cost_merged import count_for, kept, merged_macs, tokens
from vitrail.models.faster import Faster, faster
from vitrail.models.merged import Merged, twin
from vitrail.models.vit import ViT
from vitrail.weights.checkpoint import save
from vitrail.weights.load import load

KINDS: list[dict[str, Any]] = [
    {},
    {"pool": "gap"},
    {"pool": "gap", "class_token": True, "norm_at": "pooled"},
    {"pool": "map"},
    {"registers": 2},
    {"norm": "post"},
    {"qk_norm": True, "layer_scale": 0.1},
    {"position": "rotary"},
    {"position": "learned2d", "position_at": "every-layer"},
    {"position": "sincos2d", "position_at": "every-layer-shared"},
    {"position": "none"},
]
LARGER = (30, 35)  # 5 x 7 patches


def larger(**changes: Any) -> ViT:
    return vit(image=LARGER, **changes)


def fast(model: ViT, **switches: Any) -> Merged:
    made = faster(model, **switches)
    assert isinstance(made, Merged)
    return made


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_without_merging_its_code_path_is_equal_bit_for_bit(changes: dict[str, Any]) -> None:
    model, images = larger(**changes), torch.randn(2, 3, *LARGER)
    assert torch.equal(Merged(model)(images), model(images))
    assert faster(model) is model


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_images_of_a_batch_are_independent(changes: dict[str, Any]) -> None:
    model, images = fast(larger(**changes), merge=3, drop=0.2), torch.randn(4, 3, *LARGER)
    assert_close(model(images), torch.cat([model(one[None]) for one in images]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_every_patch_is_contained_in_one_token_in_every_layer(changes: dict[str, Any]) -> None:
    """A dropped patch is contained in none."""
    model, images = fast(larger(**changes), merge=4, drop=0.3), torch.randn(2, 3, *LARGER)
    with torch.no_grad(), recording(model, "held.*") as recorded:
        model(images)
    prefix, indices = model.config.prefix, model.places(images)
    assert indices is not None
    there = torch.zeros(2, 35).scatter(1, indices, 1.0)
    assert [membership.shape[1] for (membership,) in recorded.values()] == tokens(model.config, 4, 0.3)
    for (membership,) in recorded.values():
        assert_close(membership.sum(1), torch.cat([torch.ones(2, prefix), there], dim=1))
        assert torch.equal(membership[:, :prefix, :prefix], torch.eye(prefix).expand(2, -1, -1))


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_gradients_flow_through_merged_tokens(changes: dict[str, Any]) -> None:
    model, images = fast(larger(**changes), merge=4, drop=0.2), torch.randn(2, 3, *LARGER, requires_grad=True)
    model(images).square().sum().backward()
    assert images.grad is not None
    assert images.grad.isfinite().all()
    indices = model.places(images)
    assert indices is not None
    moved = images.grad.unflatten(3, (7, 5)).unflatten(2, (5, 6)).abs().sum(dim=(1, 3, 5)).flatten(1) > 0
    assert torch.equal(moved, torch.zeros(2, 35).scatter(1, indices, 1.0) > 0)


@pytest.mark.parametrize("pool", ["gap", "map"])
def test_merging_equal_tokens_changes_nothing(pool: Any) -> None:
    """Without positions, patches of equal pixels are equal tokens: half of an image in one colour, half in another."""
    model = larger(pool=pool, position="none")
    images = torch.zeros(2, 3, *LARGER)
    images[:, :, :, :15], images[:, :, :, 15:] = torch.randn(2, 3, 1, 1), torch.randn(2, 3, 1, 1)
    merged = fast(model, merge=100)
    with torch.no_grad(), recording(merged, "held.*") as recorded:
        assert_close(merged(images), model(images), rtol=1e-4, atol=1e-5)
    left = (torch.arange(35) % 7 < 3).float()
    (membership,) = recorded["held.1"]
    of_left = membership @ left
    assert ((of_left == 0) | (of_left == membership.sum(2))).all()  # no token contains patches of both colours
    assert membership.shape[1] == 18


@pytest.mark.parametrize("changes", [kind for kind in KINDS if "position_at" not in kind], ids=str)
@pytest.mark.parametrize(("count", "drop", "every"), [(0, 0.0, 1), (3, 0.0, 1), (100, 0.0, 2), (5, 0.4, 3)])
def test_macs_are_counted(changes: dict[str, Any], count: int, drop: float, every: int) -> None:
    """On the meta device, where the fused kernel is counted too. The weighted mean of pooling is not counted."""
    plain = build(config(image=LARGER, **changes), device="meta").eval()
    assert isinstance(plain, ViT)
    with FlopCounterMode(display=False) as counter:
        Merged(plain, count, drop, every)(torch.empty(1, 3, *LARGER, device="meta"))
    each = tokens(plain.config, count, drop, every)
    pooled = (each[-1] - plain.config.prefix) * plain.config.width if plain.config.pool == "gap" and count else 0
    assert counter.get_total_flops() // 2 - pooled == merged_macs(plain.config, count, drop, every)


def test_merging_in_some_layers_leaves_the_others_unchanged() -> None:
    model = larger(depth=4)
    merged = fast(model, merge=5, every=3)
    with torch.no_grad(), recording(merged, "held.*") as recorded:
        merged(torch.randn(2, 3, *LARGER))
    counts = [membership.shape[1] for (membership,) in recorded.values()]
    assert counts == tokens(model.config, 5, every=3) == [counts[0], *[counts[0] - 5] * 3, counts[0] - 10]


def test_a_speed_up_is_reached_with_the_fewest_tokens() -> None:
    shape = config(image=LARGER)
    for speed in (1.0, 1.1, 1.3, 1.6):
        count = count_for(shape, speed)
        assert merged_macs(shape, 0) / merged_macs(shape, count) >= speed
        assert count == 0 or merged_macs(shape, 0) / merged_macs(shape, count - 1) < speed
    model = faster(larger(), merge="1.3x")
    assert isinstance(model, Merged)
    assert model.count == count_for(shape, 1.3)
    with pytest.raises(VitrailError, match=r"at most \d\.\d\d times as fast, got merge=50x"):
        faster(larger(), merge="50x")


def test_patches_of_the_lowest_variance_are_dropped_first() -> None:
    images = torch.randn(2, 3, *LARGER)
    flat = torch.tensor([[0, 3, 17, 34, 8], [1, 2, 3, 4, 5]])
    for image, patches in enumerate(flat.tolist()):
        for patch in patches:
            y, x = 6 * (patch // 7), 5 * (patch % 7)
            images[image, :, y : y + 6, x : x + 5] = 3.0
    indices = fast(larger(), drop=1 / 7).places(images)
    assert indices is not None
    for image in range(2):
        assert indices[image].tolist() == [patch for patch in range(35) if patch not in flat[image].tolist()]
    assert kept(35, 0.999) == 1


def test_dropping_patches_is_encoding_only_the_others() -> None:
    model, images = larger(), torch.randn(2, 3, *LARGER)
    less = fast(model, drop=0.4)
    indices = less.places(images)
    assert indices is not None
    some = model.patches(images).gather(1, indices[..., None].expand(-1, -1, 24))
    assert_close(less(images), model.head(model.gathered(some, (5, 7), indices)))


def test_the_weights_are_shared_and_saved_under_their_names(tmp_path: Path) -> None:
    model, images = larger(), torch.randn(2, 3, *LARGER)
    model.labels, model.facts = ("a", "b", "c", "d", "e"), {"recipe": {"loss": "sigmoid"}}
    less = fast(model, merge=3)
    assert (less.labels, less.facts, less.config) == (model.labels, model.facts, model.config)
    assert less.state_dict().keys() == model.state_dict().keys()
    assert next(less.parameters()) is next(model.parameters())
    save(less, tmp_path / "saved")
    assert_close(load(tmp_path / "saved")(images), model(images))
    assert _of_model(less) != _of_model(model)  # features are cached separately
    assert "merge=3, every=1, drop=0" in str(less).splitlines()[1]


def test_a_shallow_copy_can_replace_its_modules_alone() -> None:
    model = larger()
    other = twin(model)
    other.head = torch.nn.Identity()
    assert isinstance(model.head, torch.nn.Linear)


@pytest.mark.parametrize(
    ("switches", "sentence"),
    [
        ({"merge": -1}, "merge must be at least 0 tokens per layer, got -1; try merge=8 or merge='1.5x'"),
        ({"merge": "fast"}, "merge must be tokens per layer or a speed-up such as 1.5x, got 'fast'; try 8 or 1.5x"),
        ({"merge": "0.5x"}, "got '0.5x'"),
        ({"merge": 1.5}, "merge must be a whole number or text, got 1.5"),
        ({"drop": 1.0}, "drop must be a fraction from 0 to below 1, got 1; try drop=0.25"),
        ({"drop": float("nan")}, "drop must be"),
        ({"merge": 3, "every": 0}, "every must be at least 1 layer, got 0"),
        ({"merg": 1}, "there is no speed-up 'merg', there are compile, merge, every, drop, image; did you mean 'merge'?"),
        ({"image": 48}, "the model takes images of 30x35, got image=48x48; load it with vitrail.load"),
    ],
)
def test_invalid_values_are_rejected(switches: dict[str, Any], sentence: str) -> None:
    with pytest.raises(VitrailError) as error:
        faster(larger(), **switches)
    assert sentence in str(error.value)


def test_models_without_tokens_to_merge_are_rejected() -> None:
    with pytest.raises(VitrailError, match=r"relative positions count .* position='rotary'"):
        faster(larger(position="relative"), merge=2)
    with pytest.raises(VitrailError, match="a ResNet has no tokens to merge"):
        faster(build("R50x1", image=32, classes=3), drop=0.5)
    with pytest.raises(VitrailError, match=r"speed_up needs a model, got 'runs/mine'; try vitrail\.load on it first"):
        faster("runs/mine", merge=2)  # type: ignore[arg-type]
    assert Faster(image=(30, 35)) == replace(Faster(), image=(30, 35))


def test_hybrids_and_flexible_models_merge_too() -> None:
    hybrid = build("R+Ti/16", image=64, classes=3).eval()
    assert faster(hybrid, merge=2, drop=0.25)(torch.randn(2, 3, 64, 64)).shape == (2, 3)
    flexible = fast(larger(flexible=True), merge=9, drop=0.1)
    for size in (LARGER, (12, 15), (6, 5), (60, 20)):
        assert flexible(torch.randn(2, 3, *size)).isfinite().all()
