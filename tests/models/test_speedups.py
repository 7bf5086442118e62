"""Inference speed-ups: what they may not change, what they mean, what they reject."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from tests.small_models import small_config, small_vit
from vitrail.errors import VitrailError
from vitrail.inference.model_hash import features_hash
from vitrail.layers.tap import record_activations
from vitrail.models.build import build
from vitrail.models.cost.token_merging import merged_macs, merges_for_speedup, num_kept_patches, tokens_per_layer
from vitrail.models.speedup_config import Speedups
from vitrail.models.speedups import speed_up
from vitrail.models.token_reduced_vit import TokenReducedViT, shallow_copy
from vitrail.models.vit import ViT
from vitrail.tasks.segmentation_model import LinearSegmenter
from vitrail.weights.load import load
from vitrail.weights.save import save

CONFIGS: list[dict[str, Any]] = [
    {},
    {"pool": "gap"},
    {"pool": "gap", "class_token": True, "final_norm": "pooled"},
    {"pool": "map"},
    {"registers": 2},
    {"norm": "post"},
    {"qk_norm": True, "layer_scale": 0.1},
    {"mlp_kind": "swiglu"},
    {"position": "rotary"},
    {"position": "learned2d", "position_at": "every-layer"},
    {"position": "sincos2d", "position_at": "every-layer-shared"},
    {"position": "none"},
]
LARGER = (30, 35)  # 5 x 7 patches


def larger_vit(**changes: Any) -> ViT:
    return small_vit(image=LARGER, **changes)


def reduced_vit(model: ViT, **switches: Any) -> TokenReducedViT:
    built = speed_up(model, **switches)
    assert isinstance(built, TokenReducedViT)
    return built


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_without_merging_its_code_path_is_equal_bit_for_bit(changes: dict[str, Any]) -> None:
    model, images = larger_vit(**changes), torch.randn(2, 3, *LARGER)
    assert torch.equal(TokenReducedViT(model)(images), model(images))
    assert speed_up(model) is model


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_images_of_a_batch_are_independent(changes: dict[str, Any]) -> None:
    model, images = reduced_vit(larger_vit(**changes), merge_tokens=3, drop_patches=0.2), torch.randn(4, 3, *LARGER)
    assert_close(model(images), torch.cat([model(one[None]) for one in images]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_every_patch_is_contained_in_one_token_in_every_layer(changes: dict[str, Any]) -> None:
    """A dropped patch is contained in none."""
    model, images = reduced_vit(larger_vit(**changes), merge_tokens=4, drop_patches=0.3), torch.randn(2, 3, *LARGER)
    with torch.no_grad(), record_activations(model, "membership.*") as recorded:
        model(images)
    prefix, indices = model.config.prefix_tokens, model.kept_patches(images)
    assert indices is not None
    there = torch.zeros(2, 35).scatter(1, indices, 1.0)
    assert [membership.shape[1] for (membership,) in recorded.values()] == tokens_per_layer(model.config, 4, 0.3)
    for (membership,) in recorded.values():
        assert_close(membership.sum(1), torch.cat([torch.ones(2, prefix), there], dim=1))
        assert torch.equal(membership[:, :prefix, :prefix], torch.eye(prefix).expand(2, -1, -1))


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_gradients_flow_through_merged_tokens(changes: dict[str, Any]) -> None:
    model, images = (
        reduced_vit(larger_vit(**changes), merge_tokens=4, drop_patches=0.2),
        torch.randn(2, 3, *LARGER, requires_grad=True),
    )
    model(images).square().sum().backward()
    assert images.grad is not None
    assert images.grad.isfinite().all()
    indices = model.kept_patches(images)
    assert indices is not None
    moved = images.grad.unflatten(3, (7, 5)).unflatten(2, (5, 6)).abs().sum(dim=(1, 3, 5)).flatten(1) > 0
    assert torch.equal(moved, torch.zeros(2, 35).scatter(1, indices, 1.0) > 0)


@pytest.mark.parametrize("pool", ["gap", "map"])
def test_merging_equal_tokens_changes_nothing(pool: Any) -> None:
    """Without positions, patches of equal pixels are equal tokens: half of an image in one colour, half in another."""
    model = larger_vit(pool=pool, position="none")
    images = torch.zeros(2, 3, *LARGER)
    images[:, :, :, :15], images[:, :, :, 15:] = torch.randn(2, 3, 1, 1), torch.randn(2, 3, 1, 1)
    merged = reduced_vit(model, merge_tokens=100)
    with torch.no_grad(), record_activations(merged, "membership.*") as recorded:
        assert_close(merged(images), model(images), rtol=1e-4, atol=1e-5)
    left = (torch.arange(35) % 7 < 3).float()
    (membership,) = recorded["membership.1"]
    of_left = membership @ left
    assert ((of_left == 0) | (of_left == membership.sum(2))).all()  # no token contains patches of both colours
    assert membership.shape[1] == 18


@pytest.mark.parametrize("changes", [kind for kind in CONFIGS if "position_at" not in kind], ids=str)
@pytest.mark.parametrize(
    ("count", "drop", "every"),
    [*(pytest.param(*case, marks=pytest.mark.thorough) for case in ((0, 0.0, 1), (3, 0.0, 1))), (100, 0.0, 2), (5, 0.4, 3)],
)
def test_macs_are_counted(changes: dict[str, Any], count: int, drop: float, every: int) -> None:
    """On the meta device, where the fused kernel is counted too. The weighted mean of pooling is not counted."""
    plain = build(small_config(image=LARGER, **changes), device="meta").eval()
    assert isinstance(plain, ViT)
    with FlopCounterMode(display=False) as counter:
        TokenReducedViT(plain, count, drop, every)(torch.empty(1, 3, *LARGER, device="meta"))
    each = tokens_per_layer(plain.config, count, drop, every)
    pooled = (each[-1] - plain.config.prefix_tokens) * plain.config.width if plain.config.pool == "gap" and count else 0
    assert counter.get_total_flops() // 2 - pooled == merged_macs(plain.config, count, drop, every)


def test_merging_in_some_layers_leaves_the_others_unchanged() -> None:
    model = larger_vit(depth=4)
    merged = reduced_vit(model, merge_tokens=5, merge_every=3)
    with torch.no_grad(), record_activations(merged, "membership.*") as recorded:
        merged(torch.randn(2, 3, *LARGER))
    counts = [membership.shape[1] for (membership,) in recorded.values()]
    assert counts == tokens_per_layer(model.config, 5, merge_every=3) == [counts[0], *[counts[0] - 5] * 3, counts[0] - 10]


def test_a_speed_up_is_reached_with_the_fewest_tokens() -> None:
    shape = small_config(image=LARGER)
    for speed in (1.0, 1.1, 1.3, 1.6):
        count = merges_for_speedup(shape, speed)
        assert merged_macs(shape, 0) / merged_macs(shape, count) >= speed
        assert count == 0 or merged_macs(shape, 0) / merged_macs(shape, count - 1) < speed
    model = speed_up(larger_vit(), merge_tokens="1.3x")
    assert isinstance(model, TokenReducedViT)
    assert model.num_merged == merges_for_speedup(shape, 1.3)
    with pytest.raises(VitrailError, match=r"at most \d\.\d\d times as fast, got merge_tokens=50x"):
        speed_up(larger_vit(), merge_tokens="50x")


def test_patches_of_the_lowest_variance_are_dropped_first() -> None:
    images = torch.randn(2, 3, *LARGER)
    flat = torch.tensor([[0, 3, 17, 34, 8], [1, 2, 3, 4, 5]])
    for image, patches in enumerate(flat.tolist()):
        for patch in patches:
            y, x = 6 * (patch // 7), 5 * (patch % 7)
            images[image, :, y : y + 6, x : x + 5] = 3.0
    indices = reduced_vit(larger_vit(), drop_patches=1 / 7).kept_patches(images)
    assert indices is not None
    for image in range(2):
        assert indices[image].tolist() == [patch for patch in range(35) if patch not in flat[image].tolist()]
    assert num_kept_patches(35, 0.999) == 1


def test_dropping_patches_is_encoding_only_the_others() -> None:
    model, images = larger_vit(), torch.randn(2, 3, *LARGER)
    less = reduced_vit(model, drop_patches=0.4)
    indices = less.kept_patches(images)
    assert indices is not None
    some = model.embed_patches(images).gather(1, indices[..., None].expand(-1, -1, 24))
    assert_close(less(images), model.head(model.encode_and_pool(some, (5, 7), indices)))


def test_the_weights_are_shared_and_saved_under_their_names(tmp_path: Path) -> None:
    model, images = larger_vit(), torch.randn(2, 3, *LARGER)
    model.class_names, model.metadata = (
        ("a", "b", "c", "d", "e"),
        {"recipe": {"task": {"kind": "classification", "loss": "sigmoid"}}},
    )
    less = reduced_vit(model, merge_tokens=3)
    assert (less.class_names, less.metadata, less.config) == (model.class_names, model.metadata, model.config)
    assert less.state_dict().keys() == model.state_dict().keys()
    assert next(less.parameters()) is next(model.parameters())
    save(less, tmp_path / "saved")
    assert_close(load(tmp_path / "saved")(images), model(images))
    assert features_hash(less) != features_hash(model)  # features are cached separately
    assert "merge_tokens=3, merge_every=1, drop_patches=0" in str(less).splitlines()[1]


def test_a_shallow_copy_can_replace_its_modules_alone() -> None:
    model = larger_vit()
    other = shallow_copy(model)
    other.head = torch.nn.Identity()
    assert isinstance(model.head, torch.nn.Linear)


@pytest.mark.parametrize(
    ("switches", "sentence"),
    [
        (
            {"merge_tokens": -1},
            "merge_tokens must be at least 0 tokens per layer, got -1; try merge_tokens=8 or merge_tokens='1.5x'",
        ),
        (
            {"merge_tokens": "fast"},
            "merge_tokens must be tokens per layer or a speed-up such as 1.5x, got 'fast'; try 8 or 1.5x",
        ),
        ({"merge_tokens": "0.5x"}, "got '0.5x'"),
        ({"merge_tokens": 1.5}, "merge_tokens must be a whole number or text, got 1.5"),
        ({"drop_patches": 1.0}, "drop_patches must be a fraction from 0 to below 1, got 1; try drop_patches=0.25"),
        ({"drop_patches": float("nan")}, "drop_patches must be"),
        ({"merge_tokens": 3, "merge_every": 0}, "merge_every must be at least 1 layer, got 0"),
        (
            {"merge_token": 1},
            "there is no speed-up 'merge_token', there are compile, merge_tokens, merge_every, drop_patches, image; "
            "did you mean 'merge_tokens'?",
        ),
        ({"image": 48}, "the model takes images of 30x35, got image=48x48; load it with vitrail.load"),
    ],
)
def test_invalid_values_are_rejected(switches: dict[str, Any], sentence: str) -> None:
    with pytest.raises(VitrailError) as error:
        speed_up(larger_vit(), **switches)
    assert sentence in str(error.value)


def test_models_without_tokens_to_merge_are_rejected() -> None:
    with pytest.raises(VitrailError, match=r"relative positions count .* position='rotary'"):
        speed_up(larger_vit(position="relative"), merge_tokens=2)
    for changes in ({"window": 2}, {"relative_axes": True}):
        with pytest.raises(VitrailError, match="windows and relative positions along the axes need all patches"):
            speed_up(larger_vit(**changes), drop_patches=0.5)
    with pytest.raises(VitrailError, match="a ResNet has no tokens to merge"):
        speed_up(build("R50x1", stages=(1,), image=32, classes=3), drop_patches=0.5)
    with pytest.raises(VitrailError, match="the model has a decoder, which needs all patches"):
        speed_up(LinearSegmenter(larger_vit(), 3), merge_tokens=2)  # type: ignore[arg-type]
    with pytest.raises(VitrailError, match=r"speed_up needs a model, got 'runs/mine'; try vitrail\.load on it first"):
        speed_up("runs/mine", merge_tokens=2)  # type: ignore[arg-type]
    assert Speedups(image=(30, 35)) == replace(Speedups(), image=(30, 35))


def test_hybrids_and_flexible_models_merge_too() -> None:
    hybrid = build("R+Ti/16", image=64, classes=3).eval()
    assert speed_up(hybrid, merge_tokens=2, drop_patches=0.25)(torch.randn(2, 3, 64, 64)).shape == (2, 3)
    flexible = reduced_vit(larger_vit(flexible=True), merge_tokens=9, drop_patches=0.1)
    for size in (LARGER, (12, 15), (6, 5), (60, 20)):
        assert flexible(torch.randn(2, 3, *size)).isfinite().all()
