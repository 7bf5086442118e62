"""Targets of hidden patches are their formulas, and come from the clean picture."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.models.test_masked import DECODER, encoder
from vitrail.augment.policy import policy
from vitrail.data.loader import Batch, evaluation, training
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.source import Arrays
from vitrail.models.masked import masked
from vitrail.models.masking import Masking
from vitrail.tasks.masked import Masks, apart, colours, cut, joined
from vitrail.train.step import pieces

PATCH = (4, 2)
HOW = Preprocess((16, 12), mean=(0.5, 0.4, 0.3), std=(0.5, 0.6, 0.7))


def batch(count: int = 5) -> Batch:
    """Colours all over the scale."""
    bright = torch.rand(count, 3, 16, 12, generator=torch.Generator().manual_seed(3))
    images = (bright - torch.tensor(HOW.mean)[:, None, None]) / torch.tensor(HOW.std)[:, None, None]
    return Batch(images, torch.zeros(count, dtype=torch.long), torch.arange(count), epochs=torch.full((count,), 2))


def bright(images: Tensor) -> Tensor:
    return images * torch.tensor(HOW.std)[:, None, None] + torch.tensor(HOW.mean)[:, None, None]


def task(how: Masking, seed: int = 0) -> Masks:
    return Masks(how, PATCH, HOW, seed)


COLOUR, SHRUNKEN = Masking("masked-patch", target="colour"), Masking("masked-patch", target="shrunken")
FULL, MAE = Masking("masked-patch"), Masking("mae", 0.75, normalise=True, **DECODER)
SIMMIM = Masking("simmim", 0.6)
ALL = pytest.mark.parametrize("how", [COLOUR, SHRUNKEN, FULL, MAE, SIMMIM], ids=lambda how: f"{how.method}-{how.target}")


def test_a_colour_is_three_bits_of_each_channel_of_the_mean() -> None:
    picture = torch.zeros(1, 3, 4, 2)
    picture[0, 0], picture[0, 1], picture[0, 2] = 1.0, 0.5, 0.124
    assert colours(picture, PATCH, 1).item() == 7 * 64 + 4 * 8 + 0
    picture[0, :, :2] = 0.0  # half of it black
    assert colours(picture, PATCH, 1).item() == 4 * 64 + 2 * 8 + 0
    assert colours(torch.full((1, 1, 4, 2), 0.999), PATCH, 1).item() == 7  # of a grey picture, one of eight


def test_a_shrunken_patch_is_four_by_four_colours() -> None:
    images = torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(1))
    found = colours(images, (8, 12), 4)
    assert found.shape == (2, 2 * 2, 16)
    cell = images[1, :, 8 + 2 : 8 + 4, 12 + 6 : 12 + 9].mean((1, 2))  # row 1, column 2 of the last patch
    levels = (cell * 8).long()
    assert found[1, 3, 1 * 4 + 2].item() == (levels * torch.tensor([64, 8, 1])).sum().item()


def test_labels_are_not_constant() -> None:
    """A known fault: bins made for 0 to 255 put every colour from 0 to 1 into the first, or the other way round the last."""
    images = batch(40).images
    places = torch.arange(24).expand(40, -1)
    for how, most in ((COLOUR, 512), (SHRUNKEN, 512)):
        labels = task(how).targets(images, places)
        counts = torch.bincount(labels.flatten(), minlength=most)
        assert (counts > 0).sum() > 20
        assert counts.max() < 0.2 * counts.sum()
    channel = task(SHRUNKEN).targets(images, places) % 8
    assert set(channel.flatten().tolist()) == set(range(8))


def test_labels_come_from_the_clean_picture() -> None:
    """Those of a patch are the same whether it is masked, swapped or left as it is, and whatever the encoder does."""
    given = batch()
    wanted = colours(bright(given.images), PATCH, 1)
    model = masked(encoder(), COLOUR)
    _, places = model(given.images, task(COLOUR).noise(given))
    assert torch.equal(task(COLOUR).targets(given.images, places), wanted.gather(1, places[..., None]))


def test_pixels_are_told_apart_from_their_patch() -> None:
    patches = torch.rand(2, 5, 24, generator=torch.Generator().manual_seed(1))
    made, mean, deviation = apart(patches)
    one = patches[1, 3].double()
    assert_close(made[1, 3], ((one - one.mean()) / (one.var() + 1e-6).sqrt()).float())
    assert_close(made * deviation + mean, patches)


def test_patches_are_cut_and_joined() -> None:
    images = batch().images
    patches = cut(images, PATCH)
    assert_close(joined(patches, PATCH, images), images)
    assert_close(patches[1, 7].unflatten(0, (4, 2, 3)).permute(2, 0, 1), images[1, :, 4:8, 2:4])  # row 1, column 1


@ALL
def test_the_loss_counts_hidden_patches_alone(how: Masking) -> None:
    """By its formula, patch by patch."""
    given, model = batch(), masked(encoder(), how)
    for weight in model.parameters():
        weight.data.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    predicted, places = model(given.images, task(how).noise(given))
    patches, total = cut(given.images, PATCH), []
    for row in range(len(places)):
        for number, place in enumerate(places[row].tolist()):
            said, there = predicted[row, number], patches[row, place]
            if how.target != "pixels":
                labels = colours(bright(given.images), PATCH, how.cells)[row, place]
                odds = said.unflatten(0, (how.cells**2, 512)).log_softmax(1)
                total.append(-odds[torch.arange(len(labels)), labels].mean())
            elif how.method == "simmim":
                total.append((said - there).abs().mean())
            else:
                there = (there - there.mean()) / (there.var() + 1e-6).sqrt() if how.normalise else there
                total.append((said - there).square().mean())
    assert_close(task(how).loss(model, given)[0], torch.stack(total).mean())


@ALL
def test_a_batch_in_pieces_has_the_loss_of_the_whole(how: Masking) -> None:
    given, model = batch(), masked(encoder(), how)
    parts = [(task(how).loss(model, part)[0] * len(part.labels)) for part in pieces(given, 2)]
    assert_close(torch.stack(parts).sum() / 5, task(how).loss(model, given)[0])


@ALL
def test_a_mask_is_a_function_of_seed_epoch_and_index(how: Masking) -> None:
    given = batch()
    drawn = task(how).noise(given)
    alone = Batch(given.images[3:4], given.labels[3:4], given.indices[3:4], epochs=torch.tensor([2]))
    assert torch.equal(task(how).noise(alone)[0], drawn[3])
    for other in (task(how, seed=1).noise(given), task(how).noise(replace(given, epochs=torch.full((5,), 3)))):
        assert not torch.isclose(other, drawn).any()
    assert not torch.equal(drawn[0], drawn[1])
    assert drawn.min() >= 0
    assert drawn.max() < 1


def test_the_loader_says_in_which_epoch_a_picture_is_seen() -> None:
    source = Arrays(np.zeros((6, 16, 12, 3), np.uint8), np.zeros(6, np.int64), ("one",))
    loader = training(source, HOW, 4, policy("plain"))
    assert [loader.batch(step).epochs.tolist() for step in range(3)] == [[0] * 4, [0, 0, 1, 1], [1] * 4]  # type: ignore[union-attr]
    assert evaluation(source, HOW, 6).batch(0).epochs.tolist() == [0] * 6  # type: ignore[union-attr]


@ALL
def test_every_method_learns_a_handful_of_pictures(how: Masking) -> None:
    """The same masks again and again: what is hidden can be learnt by heart."""
    given, model = batch(4), masked(encoder(), how).train()
    flat = torch.nn.functional.interpolate(given.images[..., ::4, ::2], (16, 12))  # patches of one colour
    given = replace(given, images=flat)
    how = replace(how, normalise=False)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    first = task(how).loss(model, given)[0].item()
    for _ in range(150):
        optimiser.zero_grad()
        loss, _ = task(how).loss(model, given)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.2 * first


@ALL
def test_half_precision_is_nearly_the_same(how: Masking) -> None:
    given, model = batch(), masked(encoder(), how)
    exact = task(how).loss(model, given)[0]
    with torch.autocast("cpu", torch.bfloat16):
        coarse = task(how).loss(model, given)[0]
    assert coarse.dtype == torch.float32
    assert_close(coarse, exact, atol=0.05, rtol=0.05)


@pytest.mark.compile
@ALL
def test_a_compiled_model_has_the_same_loss(how: Masking) -> None:
    given, model = batch(), masked(encoder(), how)
    exact = task(how).loss(model, given)[0]
    torch.compiler.reset()
    model.compile(fullgraph=True, backend="aot_eager")
    assert_close(task(how).loss(model, given)[0], exact, atol=1e-4, rtol=1e-4)


def test_evaluation_is_the_mean_over_pictures_and_always_the_same() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 16, 12, 3), dtype=np.uint8)
    source = Arrays(pixels, np.full(7, -1, np.int64), ())
    model = masked(encoder(), SIMMIM).train()
    whole = task(SIMMIM).evaluate(model, evaluation(source, HOW, 7), 0)
    parts = task(SIMMIM).evaluate(model, evaluation(source, HOW, 3), 0)
    assert whole["loss"] == pytest.approx(parts["loss"], rel=1e-6)
    assert model.training


@ALL
def test_a_reconstruction_leaves_what_was_seen_as_it_is(how: Masking) -> None:
    given, model = batch(), masked(encoder(), how)
    shown = dict(task(how).reconstruct(model, given))
    assert_close(shown["original"], bright(given.images))
    _, places = model(given.images, task(how).noise(given))
    hidden = torch.zeros(5, 24, dtype=torch.bool).scatter(1, places, True)
    seen, there = cut(shown["predicted"], PATCH), cut(shown["original"], PATCH)
    assert_close(seen[~hidden], there[~hidden])
    assert_close(cut(shown["masked"], PATCH)[hidden], torch.full_like(seen[hidden], 0.5))
    assert not torch.allclose(seen[hidden], there[hidden], atol=1e-2)
    assert shown["predicted"].min() >= 0
    assert shown["predicted"].max() <= 1


def test_predicted_colours_are_drawn_as_the_middle_of_their_levels() -> None:
    model = masked(encoder(), COLOUR)
    torch.nn.init.zeros_(model.get_parameter("predict.weight"))
    with torch.no_grad():
        model.get_parameter("predict.bias")[7 * 64 + 2 * 8 + 1] = 9.0
    given = batch()
    shown = dict(task(COLOUR).reconstruct(model, given))["predicted"]
    _, places = model(given.images, task(COLOUR).noise(given))
    patch = cut(shown, PATCH)[2, places[2, 0]].unflatten(0, (4, 2, 3))
    assert_close(patch, torch.tensor([7.5, 2.5, 1.5]).div(8).expand(4, 2, 3))
