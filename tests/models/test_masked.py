"""Hidden patches: how many, where, what the encoder gets to see of them, and who predicts them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.small import vit
from vitrail.errors import VitrailError
from vitrail.models.masked import MAE, MASKED, SWAPPED, Masked, MaskedPatch, SimMIM, masked, take
from vitrail.models.masking import Masking, check_masking
from vitrail.models.variants import variant
from vitrail.models.vit import ViT

DECODER: dict[str, Any] = {"decoder_width": 24, "decoder_depth": 2, "decoder_heads": 3}


def encoder(**changes: Any) -> ViT:
    """4 x 6 patches of 4 x 2 pixels."""
    torch.manual_seed(7)
    return vit(image=(16, 12), patch=(4, 2), classes=0, **changes)


def pictures(count: int = 3) -> Tensor:
    return torch.randn(count, 3, 16, 12, generator=torch.Generator().manual_seed(1))


def noise(how: Masking, count: int = 3) -> Tensor:
    return torch.rand(count, how.slots((4, 6)), generator=torch.Generator().manual_seed(2))


METHODS = [Masking("masked-patch", target="colour"), Masking("mae", 0.75, **DECODER), Masking("simmim", 0.6, unit=2)]


@pytest.mark.parametrize("how", METHODS, ids=lambda how: how.method)
def test_every_picture_hides_its_share_of_different_patches(how: Masking) -> None:
    model = masked(encoder(), how)
    predicted, places = model(pictures(), noise(how))
    expected = {"masked-patch": 12, "mae": 18, "simmim": 16}[how.method]
    assert predicted.shape == (3, expected, how.numbers(model.config))
    assert places.shape == (3, expected)
    for row in places.tolist():
        assert len(set(row)) == expected
        assert set(row) <= set(range(24))
    assert len({tuple(sorted(row)) for row in places.tolist()}) > 1


@pytest.mark.parametrize("position", ["sincos2d-mae", "learned1d", "learned2d", "rotary", "none"])
@pytest.mark.parametrize("front", [{}, {"pool": "gap"}, {"registers": 2, "pool": "gap", "class_token": True}])
def test_an_encoder_that_sees_all_patches_in_another_order_says_the_same(position: str, front: dict[str, Any]) -> None:
    model = encoder(position=position, width=32, heads=2, **front).eval()
    order = torch.stack([torch.randperm(24, generator=torch.Generator().manual_seed(seed)) for seed in range(3)])
    x = model.patches(pictures())
    straight, shuffled = model.encode(x, (4, 6)), model.encode(take(x, order), (4, 6), order)
    before = model.config.prefix
    assert_close(shuffled[:, :before], straight[:, :before], atol=1e-5, rtol=1e-5)
    assert_close(shuffled[:, before:], take(straight[:, before:], order), atol=1e-5, rtol=1e-5)


def test_positions_at_every_layer_follow_the_patches_too() -> None:
    model = encoder(position="learned1d", position_at="every").eval()
    order = torch.arange(23, -1, -1).expand(3, -1)
    x = model.patches(pictures())
    assert_close(model.encode(take(x, order), (4, 6), order)[:, 0], model.encode(x, (4, 6))[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("how", [METHODS[1], METHODS[2]], ids=lambda how: how.method)
def test_what_is_hidden_cannot_be_seen(how: Masking) -> None:
    """Change the pixels of the hidden patches as one likes: nothing that is predicted changes."""
    model = masked(encoder(), how).eval()
    images = pictures()
    predicted, places = model(images, noise(how))
    hidden = torch.zeros(3, 24, dtype=torch.bool).scatter(1, places, True).unflatten(1, (4, 6))
    pixels = hidden.repeat_interleave(4, 1).repeat_interleave(2, 2)[:, None]
    other, _ = model(torch.where(pixels, torch.full_like(images, 9.0), images), noise(how))
    assert_close(other, predicted)
    seen, _ = model(torch.where(pixels, images, torch.full_like(images, 9.0)), noise(how))
    assert not torch.allclose(seen, predicted, atol=1e-3)


def test_of_what_is_corrupted_80_percent_become_the_mask_10_another_patch_and_10_stay() -> None:
    model = masked(encoder(), Masking("masked-patch", target="colour"))
    assert isinstance(model, MaskedPatch)
    x = model.encoder.patches(pictures()).detach()
    places = torch.tensor([[5, 1, 0, 23], [9, 8, 7, 6], [2, 3, 4, 20]])
    fate = torch.tensor([[0.0, MASKED - 1e-3, MASKED, SWAPPED]]).expand(3, -1)
    made = model._corrupt(x, places, fate, torch.full((3, 4), 0.999999))
    for row in range(3):
        first, second, third, fourth = places[row].tolist()
        assert_close(made[row, first], model.mask)
        assert_close(made[row, second], model.mask)
        assert_close(made[row, third], x[row, (third - 1) % 24])  # the furthest away is the one before it
        assert_close(made[row, fourth], x[row, fourth])
        untouched = [place for place in range(24) if place not in places[row].tolist()]
        assert_close(made[row, untouched], x[row, untouched])
    assert (MASKED, SWAPPED) == (0.8, 0.9)


def test_the_other_patch_is_never_the_patch_itself_and_can_be_any_other() -> None:
    model = masked(encoder(), Masking("masked-patch", target="colour"))
    assert isinstance(model, MaskedPatch)
    x = torch.arange(24.0)[None, :, None].expand(1, 24, model.config.width)
    drawn = torch.linspace(0, 1, 230)[:, None]
    taken = {int(model._corrupt(x, torch.tensor([[4]]), torch.tensor([[0.85]]), one[None])[0, 4, 0]) for one in drawn}
    assert taken == set(range(24)) - {4}


def test_embeddings_are_corrupted_before_they_get_their_positions() -> None:
    """So that a mask knows where it is: with everything masked but one patch, masks at two places differ by the positions."""
    model = masked(encoder(position="sincos2d"), Masking("masked-patch", share=0.9, target="colour")).eval()
    caught: list[Tensor] = []
    model.encoder.dropout.register_forward_hook(lambda module, inputs, output: caught.append(inputs[0]))
    sure = noise(model.masking)
    sure[:, 24:48] = 0.0  # every corrupted patch becomes the mask
    _, places = model(pictures(), sure)
    assert isinstance(model, MaskedPatch)
    table = model.encoder.positions[0].at((4, 6)).flatten(0, 1)  # type: ignore[operator]
    assert_close(take(caught[0][:, 1:], places), model.mask + table[places])


def test_a_patch_predicts_itself_from_its_own_output() -> None:
    model = masked(encoder(), Masking("masked-patch", target="colour")).eval()
    caught: list[Tensor] = []
    torch.nn.init.normal_(model.get_parameter("predict.weight"))
    model.encoder.norm.register_forward_hook(lambda module, inputs, output: caught.append(output))
    predicted, places = model(pictures(), noise(model.masking))
    for row in range(3):
        for number, place in enumerate(places[row].tolist()):
            own = caught[0][row, 1 + place] @ model.get_parameter("predict.weight").T
            assert_close(predicted[row, number], own, atol=1e-5, rtol=1e-5)


def test_simmim_hides_whole_squares() -> None:
    model = masked(encoder(), Masking("simmim", 0.4, unit=2))
    assert isinstance(model, SimMIM)
    hidden = model._spread(torch.tensor([[0.9, 0.1, 0.8, 0.2, 0.3, 0.7]]), (4, 6)).int().unflatten(1, (4, 6))
    assert hidden[0].tolist() == [[0, 0, 1, 1, 0, 0]] * 2 + [[1, 1, 1, 1, 0, 0]] * 2


def test_mae_encodes_the_visible_patches_alone() -> None:
    model = masked(encoder(class_token=True, pool="gap"), METHODS[1])
    assert isinstance(model, MAE)
    seen: list[int] = []
    model.encoder.blocks[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape[1]))
    model.decoder.blocks[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape[1]))
    model(pictures(), noise(model.masking))
    assert seen == [1 + 6, 1 + 24]


def test_mae_decodes_in_the_order_of_places_whatever_was_drawn() -> None:
    """The same set of hidden patches, drawn in another order, is predicted alike."""
    model = masked(encoder(), METHODS[1]).eval()
    first = torch.arange(24.0)[None].expand(3, -1)
    second = torch.cat([torch.arange(5.0, -1, -1), torch.arange(23.0, 5, -1)])[None].expand(3, -1)
    (one, here), (two, there) = model(pictures(), first), model(pictures(), second)
    assert here.tolist() != there.tolist()
    assert_close(two.flip(1), one, atol=1e-5, rtol=1e-5)


def test_what_is_no_encoder_is_what_is_thrown_away() -> None:
    for how in METHODS:
        model: Masked = masked(encoder(), how)
        assert set(model.rest()) | {f"encoder.{name}" for name in model.encoder.state_dict()} == set(model.state_dict())


@pytest.mark.parametrize(
    ("how", "changes", "words"),
    [
        ({"method": "mae", "share": 1.0}, {}, "below 1"),
        ({"method": "mae", "target": "colour"}, {}, "predicts pixels"),
        ({"method": "masked-patch", "target": "colour", "normalise": True}, {}, "is for pixels"),
        ({"method": "mae", "unit": 2}, {}, "is for simmim"),
        ({"method": "mae", "decoder_width": 30, "decoder_heads": 4}, {}, "try masking.decoder_width=32"),
        ({"method": "simmim", "unit": 3}, {}, "try masking.unit=2"),
        ({"method": "masked-patch", "share": 0.01}, {}, "hides 0 of 24"),
        ({"method": "mae"}, {"position": "relative"}, "try model.position=rotary"),
        ({"method": "mae"}, {"classes": 5}, "try model.classes=0"),
        ({"method": "mae"}, {"pool": "map"}, "try model.pool=gap"),
        ({"method": "simmim"}, {"pool": "gap", "norm_at": "pooled"}, "try model.norm_at=tokens"),
        ({"method": "simmim"}, {"head": "mlp"}, "try model.head=linear"),
        ({"method": "simmim", "normalise": True}, {"channels": 1, "patch": (1, 1)}, "two numbers"),
        ({"method": "mae", "decoder_depth": 10**9}, {}, "at most 8,192"),
        ({"method": "masked-patch", "target": "colour"}, {"channels": 4}, "up to 3 channels"),
        ({"method": "masked-patch", "unit": 0}, {}, "at least 1"),
    ],
)
def test_what_cannot_work_is_refused_with_what_would(how: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(VitrailError, match=words):
        check_masking(Masking(**how), replace(encoder().config, **changes))


def test_only_plain_transformers_have_patches_to_hide() -> None:
    for name in ("R50x1", "R50+Ti/16"):
        with pytest.raises(VitrailError, match="try --model S/16"):
            check_masking(Masking("mae"), variant(name, classes=0))


def test_a_flexible_encoder_meets_a_grid_that_the_unit_does_not_divide() -> None:
    model = masked(encoder(flexible=True), Masking("simmim", unit=2))
    with pytest.raises(VitrailError, match=r"must divide the 3x6 patches, got 2; try masking\.unit=1"):
        model(torch.randn(1, 3, 12, 12), torch.rand(1, 4))
    how = Masking("mae", **DECODER)
    predicted, _ = masked(encoder(flexible=True), how)(torch.randn(1, 3, 12, 12), torch.rand(1, how.slots((3, 6))))
    assert predicted.shape == (1, 9, 24)
