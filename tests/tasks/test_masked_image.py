"""Targets of masked patches are their formulas, and come from the clean image."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.models.test_masked_autoencoders import DECODER, encoder
from tests.small_models import masked_task
from tests.tiers import quick_first
from vitrail.augment.policy import get_policy
from vitrail.data.loader import Batch, build_eval_loader, build_train_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import ArrayDataset
from vitrail.models.masked_autoencoders import build_masked_model
from vitrail.models.masking_config import Masking
from vitrail.tasks.masked_image import MaskedImageTask, normalise_patches, patchify, quantise_colours, unpatchify
from vitrail.training.step import micro_batches

PATCH = (4, 2)
PREPROCESS = Preprocess((16, 12), mean=(0.5, 0.4, 0.3), std=(0.5, 0.6, 0.7))


def batch(count: int = 5) -> Batch:
    """A batch of images with colours of the full range."""
    bright = torch.rand(count, 3, 16, 12, generator=torch.Generator().manual_seed(3))
    images = (bright - torch.tensor(PREPROCESS.mean)[:, None, None]) / torch.tensor(PREPROCESS.std)[:, None, None]
    return Batch(images, torch.zeros(count, dtype=torch.long), torch.arange(count), epochs=torch.full((count,), 2))


def denormalise(images: Tensor) -> Tensor:
    return images * torch.tensor(PREPROCESS.std)[:, None, None] + torch.tensor(PREPROCESS.mean)[:, None, None]


def make_task(masking: Masking, seed: int = 0) -> MaskedImageTask:
    return masked_task(masking, PATCH, PREPROCESS, seed)


COLOUR, SHRUNKEN = Masking("masked-patch", target="mean-colour"), Masking("masked-patch", target="downsampled")
FULL, MAE = Masking("masked-patch"), Masking("mae", 0.75, norm_pix_target=True, **DECODER)
SIMMIM = Masking("simmim", 0.6)
ALL = pytest.mark.parametrize("how", [COLOUR, SHRUNKEN, FULL, MAE, SIMMIM], ids=lambda how: f"{how.method}-{how.target}")
METHODS = pytest.mark.parametrize(  # one of each method; other targets of the first are thorough
    "how",
    [COLOUR, MAE, SIMMIM, *(pytest.param(how, marks=pytest.mark.thorough) for how in (SHRUNKEN, FULL))],
    ids=lambda how: f"{how.method}-{how.target}",
)


def test_a_colour_is_three_bits_of_each_channel_of_the_mean() -> None:
    image = torch.zeros(1, 3, 4, 2)
    image[0, 0], image[0, 1], image[0, 2] = 1.0, 0.5, 0.124
    assert quantise_colours(image, PATCH, 1).item() == 7 * 64 + 4 * 8 + 0
    image[0, :, :2] = 0.0  # half of it black
    assert quantise_colours(image, PATCH, 1).item() == 4 * 64 + 2 * 8 + 0
    assert quantise_colours(torch.full((1, 1, 4, 2), 0.999), PATCH, 1).item() == 7  # of a grey image, one of eight


def test_a_shrunken_patch_is_four_by_four_colours() -> None:
    images = torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(1))
    labels = quantise_colours(images, (8, 12), 4)
    assert labels.shape == (2, 2 * 2, 16)
    cell = images[1, :, 8 + 2 : 8 + 4, 12 + 6 : 12 + 9].mean((1, 2))  # row 1, column 2 of the last patch
    levels = (cell * 8).long()
    assert labels[1, 3, 1 * 4 + 2].item() == (levels * torch.tensor([64, 8, 1])).sum().item()


def test_labels_are_not_constant() -> None:
    """A known bug: bins for 0 to 255 put every colour from 0 to 1 into the first, or the other way round into the last."""
    images = batch(40).images
    masked_indices = torch.arange(24).expand(40, -1)
    for how, num_colours in ((COLOUR, 512), (SHRUNKEN, 512)):
        labels = make_task(how).patch_targets(images, masked_indices)
        counts = torch.bincount(labels.flatten(), minlength=num_colours)
        assert (counts > 0).sum() > 20
        assert counts.max() < 0.2 * counts.sum()
    channel = make_task(SHRUNKEN).patch_targets(images, masked_indices) % 8
    assert set(channel.flatten().tolist()) == set(range(8))


def test_labels_come_from_the_clean_image() -> None:
    """Labels of a patch are the same whether it is masked, swapped or unchanged, and whatever the encoder does."""
    inputs = batch()
    target = quantise_colours(denormalise(inputs.images), PATCH, 1)
    model = build_masked_model(encoder(), COLOUR)
    _, masked_indices = model(inputs.images, make_task(COLOUR).noise(inputs))
    assert torch.equal(
        make_task(COLOUR).patch_targets(inputs.images, masked_indices), target.gather(1, masked_indices[..., None])
    )


def test_pixels_are_normalised_by_their_patch() -> None:
    patches = torch.rand(2, 5, 24, generator=torch.Generator().manual_seed(1))
    built, mean, deviation = normalise_patches(patches)
    one = patches[1, 3].double()
    assert_close(built[1, 3], ((one - one.mean()) / (one.var() + 1e-6).sqrt()).float())
    assert_close(built * deviation + mean, patches)


def test_unpatchify_inverts_patchify() -> None:
    images = batch().images
    patches = patchify(images, PATCH)
    assert_close(unpatchify(patches, PATCH, images), images)
    assert_close(patches[1, 7].unflatten(0, (4, 2, 3)).permute(2, 0, 1), images[1, :, 4:8, 2:4])  # row 1, column 1


@ALL
def test_the_loss_counts_masked_patches_only(how: Masking) -> None:
    """Equal to its formula, patch by patch."""
    inputs, model = batch(), build_masked_model(encoder(), how)
    for weight in model.parameters():
        weight.data.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    predicted, masked_indices = model(inputs.images, make_task(how).noise(inputs))
    patches, total = patchify(inputs.images, PATCH), []
    for row in range(len(masked_indices)):
        for number, index in enumerate(masked_indices[row].tolist()):
            predicted_patch, true_patch = predicted[row, number], patches[row, index]
            if how.target != "pixels":
                labels = quantise_colours(denormalise(inputs.images), PATCH, how.cells_per_side)[row, index]
                log_probs = predicted_patch.unflatten(0, (how.cells_per_side**2, 512)).log_softmax(1)
                total.append(-log_probs[torch.arange(len(labels)), labels].mean())
            elif how.method == "simmim":
                total.append((predicted_patch - true_patch).abs().mean())
            else:
                true_patch = (
                    (true_patch - true_patch.mean()) / (true_patch.var() + 1e-6).sqrt() if how.norm_pix_target else true_patch
                )
                total.append((predicted_patch - true_patch).square().mean())
    assert_close(make_task(how).loss(model, inputs)[0], torch.stack(total).mean())


@ALL
def test_a_batch_in_micro_batches_has_the_loss_of_the_whole(how: Masking) -> None:
    inputs, model = batch(), build_masked_model(encoder(), how)
    parts = [(make_task(how).loss(model, part)[0] * len(part.images)) for part in micro_batches(inputs, 2)]
    assert_close(torch.stack(parts).sum() / 5, make_task(how).loss(model, inputs)[0])


@ALL
def test_a_mask_is_a_function_of_seed_epoch_and_index(how: Masking) -> None:
    inputs = batch()
    noise = make_task(how).noise(inputs)
    single = Batch(inputs.images[3:4], inputs.targets[3:4], inputs.indices[3:4], epochs=torch.tensor([2]))
    assert torch.equal(make_task(how).noise(single)[0], noise[3])
    for other in (make_task(how, seed=1).noise(inputs), make_task(how).noise(replace(inputs, epochs=torch.full((5,), 3)))):
        assert not torch.isclose(other, noise).any()
    assert not torch.equal(noise[0], noise[1])
    assert noise.min() >= 0
    assert noise.max() < 1


def test_the_loader_gives_the_epoch_of_each_image() -> None:
    source = ArrayDataset(np.zeros((6, 16, 12, 3), np.uint8), np.zeros(6, np.int64), ("one",))
    loader = build_train_loader(source, PREPROCESS, 4, get_policy("eval"))
    assert [loader.batch(step).epochs.tolist() for step in range(3)] == [[0] * 4, [0, 0, 1, 1], [1] * 4]  # type: ignore[union-attr]
    assert build_eval_loader(source, PREPROCESS, 6).batch(0).epochs.tolist() == [0] * 6  # type: ignore[union-attr]


@METHODS
def test_every_method_overfits_a_few_images(how: Masking) -> None:
    """Always the same masks, so that the masked patches can be memorised."""
    inputs, model = batch(4), build_masked_model(encoder(), how).train()
    flat = torch.nn.functional.interpolate(inputs.images[..., ::4, ::2], (16, 12))  # patches of one colour
    inputs = replace(inputs, images=flat)
    how = replace(how, norm_pix_target=False)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    first = make_task(how).loss(model, inputs)[0].item()
    for _ in range(150):
        optimiser.zero_grad()
        loss, _ = make_task(how).loss(model, inputs)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.2 * first


@ALL
def test_half_precision_is_nearly_the_same(how: Masking) -> None:
    inputs, model = batch(), build_masked_model(encoder(), how)
    exact = make_task(how).loss(model, inputs)[0]
    with torch.autocast("cpu", torch.bfloat16):
        coarse = make_task(how).loss(model, inputs)[0]
    assert coarse.dtype == torch.float32
    assert_close(coarse, exact, atol=0.05, rtol=0.05)


@pytest.mark.compile
@pytest.mark.parametrize("how", quick_first([MAE, SIMMIM, COLOUR, SHRUNKEN, FULL]), ids=str)
def test_a_compiled_model_has_the_same_loss(how: Masking) -> None:
    inputs, model = batch(), build_masked_model(encoder(), how)
    exact = make_task(how).loss(model, inputs)[0]
    torch.compiler.reset()
    model.compile(fullgraph=True, backend="aot_eager")
    assert_close(make_task(how).loss(model, inputs)[0], exact, atol=1e-4, rtol=1e-4)


def test_evaluation_is_the_mean_over_images_and_deterministic() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 16, 12, 3), dtype=np.uint8)
    source = ArrayDataset(pixels, np.full(7, -1, np.int64), ())
    model = build_masked_model(encoder(), SIMMIM).train()
    whole = make_task(SIMMIM).evaluate(model, build_eval_loader(source, PREPROCESS, 7), 0)
    parts = make_task(SIMMIM).evaluate(model, build_eval_loader(source, PREPROCESS, 3), 0)
    assert whole["loss"] == pytest.approx(parts["loss"], rel=1e-6)
    assert model.training


@ALL
def test_a_reconstruction_leaves_visible_patches_unchanged(how: Masking) -> None:
    inputs, model = batch(), build_masked_model(encoder(), how)
    images = dict(make_task(how).reconstruct(model, inputs))
    assert_close(images["original"], denormalise(inputs.images))
    _, masked_indices = model(inputs.images, make_task(how).noise(inputs))
    hidden = torch.zeros(5, 24, dtype=torch.bool).scatter(1, masked_indices, True)
    predicted, original = patchify(images["predicted"], PATCH), patchify(images["original"], PATCH)
    assert_close(predicted[~hidden], original[~hidden])
    assert_close(patchify(images["masked"], PATCH)[hidden], torch.full_like(predicted[hidden], 0.5))
    assert not torch.allclose(predicted[hidden], original[hidden], atol=1e-2)
    assert images["predicted"].min() >= 0
    assert images["predicted"].max() <= 1


def test_predicted_colours_are_reconstructed_as_the_middle_of_their_levels() -> None:
    model = build_masked_model(encoder(), COLOUR)
    torch.nn.init.zeros_(model.get_parameter("predict.weight"))
    with torch.no_grad():
        model.get_parameter("predict.bias")[7 * 64 + 2 * 8 + 1] = 9.0
    inputs = batch()
    images = dict(make_task(COLOUR).reconstruct(model, inputs))["predicted"]
    _, masked_indices = model(inputs.images, make_task(COLOUR).noise(inputs))
    patch = patchify(images, PATCH)[2, masked_indices[2, 0]].unflatten(0, (4, 2, 3))
    assert_close(patch, torch.tensor([7.5, 2.5, 1.5]).div(8).expand(4, 2, 3))
