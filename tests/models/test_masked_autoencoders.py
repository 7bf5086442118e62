"""Masked patches: how many, where, what the encoder gets of them, and what predicts them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.layers.token_merging import gather_tokens
from vitrail.models.build import decoder_state
from vitrail.models.masked_autoencoders import (
    MAE,
    MASK_BELOW,
    SWAP_BELOW,
    MaskedModel,
    MaskedPatch,
    SimMIM,
    build_masked_model,
)
from vitrail.models.masking_config import Masking, check_masking
from vitrail.models.variants import variant
from vitrail.models.vit import ViT

DECODER: dict[str, Any] = {"decoder_width": 24, "decoder_depth": 2, "decoder_heads": 3}


def encoder(**changes: Any) -> ViT:
    """Return an encoder with 4 x 6 patches of 4 x 2 pixels."""
    torch.manual_seed(7)
    return small_vit(image=(16, 12), patch=(4, 2), classes=0, **changes)


def make_images(count: int = 3) -> Tensor:
    return torch.randn(count, 3, 16, 12, generator=torch.Generator().manual_seed(1))


def noise(masking: Masking, count: int = 3) -> Tensor:
    return torch.rand(count, masking.num_noise_values((4, 6)), generator=torch.Generator().manual_seed(2))


METHODS = [Masking("masked-patch", target="mean-colour"), Masking("mae", 0.75, **DECODER), Masking("simmim", 0.6, mask_unit=2)]


@pytest.mark.parametrize("masking", METHODS, ids=lambda masking: masking.method)
def test_every_image_masks_the_mask_ratio_of_different_patches(masking: Masking) -> None:
    model = build_masked_model(encoder(), masking)
    predicted, indices = model(make_images(), noise(masking))
    expected = {"masked-patch": 12, "mae": 18, "simmim": 16}[masking.method]
    assert predicted.shape == (3, expected, masking.target_dim(model.config))
    assert indices.shape == (3, expected)
    for row in indices.tolist():
        assert len(set(row)) == expected
        assert set(row) <= set(range(24))
    assert len({tuple(sorted(row)) for row in indices.tolist()}) > 1


@pytest.mark.parametrize("position", ["sincos2d-mae", "learned1d", "learned2d", "rotary", "none"])
@pytest.mark.parametrize("prefix", [{}, {"pool": "gap"}, {"registers": 2, "pool": "gap", "class_token": True}])
def test_an_encoder_given_all_patches_in_another_order_returns_the_same(position: str, prefix: dict[str, Any]) -> None:
    model = encoder(position=position, width=32, heads=2, **prefix).eval()
    order = torch.stack([torch.randperm(24, generator=torch.Generator().manual_seed(seed)) for seed in range(3)])
    x = model.embed_patches(make_images())
    straight, shuffled = model.encode(x, (4, 6)), model.encode(gather_tokens(x, order), (4, 6), order)
    before = model.config.prefix_tokens
    assert_close(shuffled[:, :before], straight[:, :before], atol=1e-5, rtol=1e-5)
    assert_close(shuffled[:, before:], gather_tokens(straight[:, before:], order), atol=1e-5, rtol=1e-5)


def test_positions_at_every_layer_follow_the_patches_too() -> None:
    model = encoder(position="learned1d", position_at="every-layer").eval()
    order = torch.arange(23, -1, -1).expand(3, -1)
    x = model.embed_patches(make_images())
    assert_close(
        model.encode(gather_tokens(x, order), (4, 6), order)[:, 0], model.encode(x, (4, 6))[:, 0], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("masking", [METHODS[1], METHODS[2]], ids=lambda masking: masking.method)
def test_masked_pixels_do_not_leak(masking: Masking) -> None:
    """Changing the pixels of masked patches changes no prediction."""
    model = build_masked_model(encoder(), masking).eval()
    images = make_images()
    predicted, indices = model(images, noise(masking))
    hidden = torch.zeros(3, 24, dtype=torch.bool).scatter(1, indices, True).unflatten(1, (4, 6))
    pixels = hidden.repeat_interleave(4, 1).repeat_interleave(2, 2)[:, None]
    other, _ = model(torch.where(pixels, torch.full_like(images, 9.0), images), noise(masking))
    assert_close(other, predicted)
    observed, _ = model(torch.where(pixels, images, torch.full_like(images, 9.0)), noise(masking))
    assert not torch.allclose(observed, predicted, atol=1e-3)


def test_of_corrupted_patches_80_percent_become_the_mask_10_another_patch_and_10_stay() -> None:
    model = build_masked_model(encoder(), Masking("masked-patch", target="mean-colour"))
    assert isinstance(model, MaskedPatch)
    x = model.encoder.embed_patches(make_images()).detach()
    indices = torch.tensor([[5, 1, 0, 23], [9, 8, 7, 6], [2, 3, 4, 20]])
    fate = torch.tensor([[0.0, MASK_BELOW - 1e-3, MASK_BELOW, SWAP_BELOW]]).expand(3, -1)
    corrupted = model._corrupt(x, indices, fate, torch.full((3, 4), 0.999999))
    for row in range(3):
        first, second, third, fourth = indices[row].tolist()
        assert_close(corrupted[row, first], model.mask)
        assert_close(corrupted[row, second], model.mask)
        assert_close(corrupted[row, third], x[row, (third - 1) % 24])  # the last choice is the patch before it
        assert_close(corrupted[row, fourth], x[row, fourth])
        untouched = [index for index in range(24) if index not in indices[row].tolist()]
        assert_close(corrupted[row, untouched], x[row, untouched])
    assert (MASK_BELOW, SWAP_BELOW) == (0.8, 0.9)


def test_the_other_patch_is_never_the_patch_itself_and_can_be_any_other() -> None:
    model = build_masked_model(encoder(), Masking("masked-patch", target="mean-colour"))
    assert isinstance(model, MaskedPatch)
    x = torch.arange(24.0)[None, :, None].expand(1, 24, model.config.width)
    samples = torch.linspace(0, 1, 230)[:, None]
    swapped = {int(model._corrupt(x, torch.tensor([[4]]), torch.tensor([[0.85]]), one[None])[0, 4, 0]) for one in samples}
    assert swapped == set(range(24)) - {4}


def test_embeddings_are_corrupted_before_they_get_their_positions() -> None:
    """A mask token has a position: two of them differ by their position embeddings."""
    model = build_masked_model(
        encoder(position="sincos2d"), Masking("masked-patch", mask_ratio=0.9, target="mean-colour")
    ).eval()
    recorded: list[Tensor] = []
    model.encoder.dropout.register_forward_hook(lambda module, inputs, output: recorded.append(inputs[0]))
    fixed_noise = noise(model.masking)
    fixed_noise[:, 24:48] = 0.0  # every corrupted patch becomes the mask
    _, indices = model(make_images(), fixed_noise)
    assert isinstance(model, MaskedPatch)
    table = model.encoder.positions[0].table_at((4, 6)).flatten(0, 1)  # type: ignore[operator]
    assert_close(gather_tokens(recorded[0][:, 1:], indices), model.mask + table[indices])


def test_a_patch_predicts_itself_from_its_own_output() -> None:
    model = build_masked_model(encoder(), Masking("masked-patch", target="mean-colour")).eval()
    recorded: list[Tensor] = []
    torch.nn.init.normal_(model.get_parameter("predict.weight"))
    model.encoder.norm.register_forward_hook(lambda module, inputs, output: recorded.append(output))
    predicted, indices = model(make_images(), noise(model.masking))
    for row in range(3):
        for number, index in enumerate(indices[row].tolist()):
            own = recorded[0][row, 1 + index] @ model.get_parameter("predict.weight").T
            assert_close(predicted[row, number], own, atol=1e-5, rtol=1e-5)


def test_simmim_masks_whole_squares() -> None:
    model = build_masked_model(encoder(), Masking("simmim", 0.4, mask_unit=2))
    assert isinstance(model, SimMIM)
    hidden = model._draw_mask(torch.tensor([[0.9, 0.1, 0.8, 0.2, 0.3, 0.7]]), (4, 6)).int().unflatten(1, (4, 6))
    assert hidden[0].tolist() == [[0, 0, 1, 1, 0, 0]] * 2 + [[1, 1, 1, 1, 0, 0]] * 2


def test_mae_encodes_only_the_visible_patches() -> None:
    model = build_masked_model(encoder(class_token=True, pool="gap"), METHODS[1])
    assert isinstance(model, MAE)
    observed: list[int] = []
    model.encoder.blocks[0].register_forward_hook(lambda module, inputs, output: observed.append(output.shape[1]))
    model.decoder.blocks[0].register_forward_hook(lambda module, inputs, output: observed.append(output.shape[1]))
    model(make_images(), noise(model.masking))
    assert observed == [1 + 6, 1 + 24]


def test_mae_decodes_independently_of_the_order_drawn() -> None:
    """The same masked patches, drawn in another order, get the same predictions."""
    model = build_masked_model(encoder(), METHODS[1]).eval()
    first = torch.arange(24.0)[None].expand(3, -1)
    second = torch.cat([torch.arange(5.0, -1, -1), torch.arange(23.0, 5, -1)])[None].expand(3, -1)
    (one, here), (two, there) = model(make_images(), first), model(make_images(), second)
    assert here.tolist() != there.tolist()
    assert_close(two.flip(1), one, atol=1e-5, rtol=1e-5)


def test_the_decoder_is_all_that_is_not_the_encoder() -> None:
    for masking in METHODS:
        model: MaskedModel = build_masked_model(encoder(), masking)
        assert set(decoder_state(model)) | {f"encoder.{name}" for name in model.encoder.state_dict()} == set(model.state_dict())


@pytest.mark.parametrize(
    ("masking", "changes", "sentence"),
    [
        ({"method": "mae", "mask_ratio": 1.0}, {}, "below 1"),
        ({"method": "mae", "target": "mean-colour"}, {}, "predicts pixels"),
        ({"method": "masked-patch", "target": "mean-colour", "norm_pix_target": True}, {}, "is for pixels"),
        ({"method": "mae", "mask_unit": 2}, {}, "is for simmim"),
        ({"method": "mae", "decoder_width": 30, "decoder_heads": 4}, {}, "try masking.decoder_width=32"),
        ({"method": "simmim", "mask_unit": 3}, {}, "try masking.mask_unit=2"),
        ({"method": "masked-patch", "mask_ratio": 0.01}, {}, "masks 0 of 24"),
        ({"method": "mae"}, {"position": "relative"}, "try model.position=rotary"),
        ({"method": "mae"}, {"window": 2}, "try masking.method=simmim"),
        ({"method": "mae"}, {"classes": 5}, "try model.classes=0"),
        ({"method": "mae"}, {"pool": "map"}, "try model.pool=gap"),
        ({"method": "simmim"}, {"pool": "gap", "final_norm": "pooled"}, "try model.final_norm=tokens"),
        ({"method": "simmim"}, {"head": "mlp"}, "try model.head=linear"),
        ({"method": "simmim", "norm_pix_target": True}, {"channels": 1, "patch": (1, 1)}, "at least two values"),
        ({"method": "mae", "decoder_depth": 10**9}, {}, "at most 8,192"),
        ({"method": "masked-patch", "target": "mean-colour"}, {"channels": 4}, "up to 3 channels"),
        ({"method": "masked-patch", "mask_unit": 0}, {}, "at least 1"),
    ],
)
def test_an_invalid_combination_is_rejected_with_a_valid_one(
    masking: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(VitrailError, match=sentence):
        check_masking(Masking(**masking), replace(encoder().config, **changes))


def test_only_plain_transformers_have_patches_to_mask() -> None:
    for name in ("R50x1", "R50+Ti/16"):
        with pytest.raises(VitrailError, match="try model=S/16"):
            check_masking(Masking("mae"), variant(name, classes=0))


def test_a_flexible_encoder_rejects_a_grid_that_the_unit_does_not_divide() -> None:
    model = build_masked_model(encoder(flexible=True), Masking("simmim", mask_unit=2))
    with pytest.raises(VitrailError, match=r"must divide the 3x6 patches, got 2; try masking\.mask_unit=1"):
        model(torch.randn(1, 3, 12, 12), torch.rand(1, 4))
    masking = Masking("mae", **DECODER)
    predicted, _ = build_masked_model(encoder(flexible=True), masking)(
        torch.randn(1, 3, 12, 12), torch.rand(1, masking.num_noise_values((3, 6)))
    )
    assert predicted.shape == (1, 9, 24)
