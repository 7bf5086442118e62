"""Regions of segmentation models: a classifier of the chosen pixels, whose scores are those of the mask at the image's size."""

from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.testing import assert_close

from tests.small_models import PUBLISHED_KINDS, small_config, small_vit
from vitrail.config import to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.explain.attention import attention, pooled_attention
from vitrail.explain.faithfulness import faithfulness
from vitrail.explain.gradient import logit_lens, signed_integrated_gradients
from vitrail.explain.head_statistics import token_norms
from vitrail.explain.region import RegionClassifier, region_classifier, region_weights
from vitrail.explain.rollout import rollout
from vitrail.explain.saliency import SALIENCY_METHODS, saliency
from vitrail.layers.tap import record_activations
from vitrail.models.build import with_metadata_of
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.dense import restored_bands
from vitrail.tasks.registry import build_task, class_probabilities
from vitrail.tasks.segmentation import SegmentationTask
from vitrail.tasks.segmentation_eomt import EoMT
from vitrail.tasks.segmentation_model import LinearSegmenter, MaskTransformerSegmenter

NAMES = ("sky", "tree", "road")
KINDS: dict[str, dict[str, Any]] = {
    "class token": {},
    "no class token": {"pool": "gap"},
    "registers, attention pooling": {"pool": "map", "pool_heads": 2, "registers": 2},
}


def segmenter(preprocess: Preprocess | None = None, layers: tuple[int, ...] = (), **changes: Any) -> Any:
    torch.manual_seed(0)
    model: Any = LinearSegmenter(small_vit(classes=0, **changes), len(NAMES), layers)
    for weight in model.head.parameters():
        weight.data.add_(0.3 * torch.randn_like(weight))
    encoder = model.encoder
    encoder.preprocess, encoder.class_names = preprocess or Preprocess((12, 15), 1.0, "stretch"), NAMES
    encoder.metadata = {"recipe": {"task": to_dict(Segmentation(classes=len(NAMES), layers=layers))}}
    return with_metadata_of(encoder, model).eval()


def with_head(name: Any, **changes: Any) -> Any:
    """Return a segmentation model with a head of its own blocks, or with queries in the last blocks of the encoder."""
    torch.manual_seed(0)
    encoder = small_vit(classes=0, **changes)
    model: Any = (
        EoMT(encoder, 3, 4, 2, 1) if name == "eomt" else MaskTransformerSegmenter(encoder, 3, depth=2, width=16, heads=2)
    )
    for weight in model.head.parameters():
        weight.data.add_(0.3 * torch.randn_like(weight))
    encoder.preprocess, encoder.class_names = Preprocess((12, 15), 1.0, "stretch"), NAMES
    encoder.metadata = {"recipe": {"task": to_dict(Segmentation(classes=3, head=name))}}
    return with_metadata_of(encoder, model).eval()


def images(count: int = 1) -> Float[Tensor, "b c height width"]:
    return torch.randn(count, 3, 12, 15, generator=torch.Generator().manual_seed(1))


def chosen(height: int, width: int, rows: slice, columns: slice) -> np.ndarray:
    mask = np.zeros((height, width), bool)
    mask[rows, columns] = True
    return mask


def patch_mask(row: int, column: int) -> np.ndarray:
    return chosen(12, 15, slice(6 * row, 6 * row + 6), slice(5 * column, 5 * column + 5))


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_scores_are_the_mean_logits_at_the_image_s_own_size(fit: Any) -> None:
    model, size = segmenter(Preprocess((12, 15), 0.9 if fit == "crop" else 1.0, fit)), (31, 23)
    mask = chosen(*size, slice(11, 17), slice(9, 14))
    logits = model(images())[0]
    restored = torch.cat([rows for _, rows in restored_bands(logits, model.preprocess, size)], dim=1)
    expected = restored[:, torch.from_numpy(mask)].mean(1)
    assert_close(region_classifier(model, mask)(images())[0], expected, rtol=1e-5, atol=1e-5)


def test_the_probability_of_a_pixel_is_that_of_the_predicted_mask() -> None:
    model, size = segmenter(), (20, 27)
    task = build_task(Segmentation(classes=3), small_config(classes=0), model.preprocess, NAMES)
    assert isinstance(task, SegmentationTask)
    ((_, predicted, probability),) = task.predict_mask(model(images())[0].detach(), size)
    classifier = region_classifier(model, chosen(*size, slice(13, 14), slice(6, 7)))
    probabilities = class_probabilities(classifier, classifier(images()))[0].detach()
    assert int(probabilities.argmax()) == predicted[13, 6]
    assert_close(float(probabilities.max()), float(probability[13, 6]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_the_patches_of_a_region_take_the_place_of_the_pooled_tokens(changes: dict[str, Any]) -> None:
    model = segmenter(**changes)
    prefix, patch = model.config.prefix_tokens, 5  # row 1, column 2
    classifier = region_classifier(model, patch_mask(1, 2))
    assert classifier.own_patches(images()).nonzero().tolist() == [[0, patch]]
    rows = attention(model, images(), queries=[prefix + patch])[:, :, :, 0]
    assert_close(pooled_attention(classifier, images()), rows)
    expected = rollout(model, images())[0, prefix + patch, prefix:].view(2, 3)
    assert_close(saliency(classifier, images(), "rollout")[0], expected)


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_every_method_explains_a_region_and_leaves_the_model_as_it_was(changes: dict[str, Any]) -> None:
    model = segmenter(**changes).train()
    before = model.eval()(images(2)).detach()
    model.train()
    classifier = RegionClassifier(model, region_weights(patch_mask(0, 1), model.preprocess, (12, 15)))
    for method in SALIENCY_METHODS:
        maps = saliency(classifier, images(2), method, torch.tensor([2, 0]))
        assert maps.shape == (2, 2, 3)
        assert (maps >= 0).all()
        assert maps.any()
    assert all(not module._forward_hooks for module in model.modules())
    assert_close(model.eval()(images(2)), before)


@pytest.mark.parametrize("head", ["segmenter", "eomt"])
@pytest.mark.parametrize("changes", [{"registers": 1}, PUBLISHED_KINDS["bias by a table"]], ids=["registers", "bias"])
def test_regions_of_other_heads(head: str, changes: dict[str, Any]) -> None:
    """A head may have blocks of its own, whose attention is none of the encoder's, or add queries to the encoder's."""
    model = with_head(head, **changes)
    classifier = region_classifier(model, patch_mask(1, 2))
    assert_close(classifier(images())[0], model(images())[0, :, 6:, 10:].mean((1, 2)))
    for method in SALIENCY_METHODS:
        maps = saliency(classifier, images(), method, torch.tensor([1]))
        assert maps.shape == (1, 2, 3)
        assert maps.any()
    if head == "eomt":  # a mask transformer's cosines turn sharply near grey, which takes a thousand steps
        attributions = signed_integrated_gradients(classifier, images(), torch.tensor([1]), steps=64)
        difference = classifier(images()) - classifier(torch.zeros_like(images()))
        assert_close(attributions.sum(), difference[0, 1], rtol=2e-2, atol=1e-3)
    tokens = model.config.prefix_tokens + 6
    rows = attention(classifier, images())
    assert rows.shape == (4, 1, 3, tokens, tokens)
    sums = rows.sum(-1).detach()
    assert_close(sums[:2], torch.ones_like(sums[:2]))
    assert bool((sums[2:] < 0.999).any()) == (head == "eomt")
    assert token_norms(classifier, images()).shape == (5, 1, tokens)


def test_attention_beside_queries_is_that_of_the_forward_pass() -> None:
    model = with_head("eomt", **PUBLISHED_KINDS["bias by a table"])
    classifier = region_classifier(model, patch_mask(0, 0))
    with record_activations(model.encoder, "blocks.3.attention.weights") as recorded:
        model(images())
    (weights,) = recorded["blocks.3.attention.weights"]
    assert weights.shape[-1] == 1 + 6 + 4
    assert_close(attention(classifier, images(), layers=[3])[0], weights[..., :7, :7])


def test_integrated_gradients_of_a_region_add_up_to_its_score() -> None:
    classifier = region_classifier(segmenter(), chosen(12, 15, slice(2, 9), slice(3, 11)))
    attributions = signed_integrated_gradients(classifier, images(), torch.tensor([1]), steps=64)
    difference = classifier(images()) - classifier(torch.zeros_like(images()))
    assert_close(attributions.sum(), difference[0, 1], rtol=1e-3, atol=1e-3)


def test_the_lens_ends_with_the_scores_and_needs_a_head_on_the_last_block() -> None:
    classifier = region_classifier(segmenter(), patch_mask(0, 0))
    lens = logit_lens(classifier, images())
    assert lens.shape == (5, 1, 3)
    assert_close(lens[-1], classifier(images()))
    several = region_classifier(segmenter(layers=(2, 4)), patch_mask(0, 0))
    assert saliency(several, images(), "relevance").any()
    with pytest.raises(VitrailError, match="leave the lens out"):
        logit_lens(several, images())


def test_context_curves_keep_the_region_s_own_patches() -> None:
    """With attention that is switched off a pixel depends on its own patch only, so no context changes it."""
    model = segmenter()
    for block in model.encoder.blocks:
        block.attention.out.weight.data.zero_()
    classifier = region_classifier(model, patch_mask(0, 1))
    maps = torch.arange(6.0).flip(0).view(1, 2, 3)
    own, target = classifier.own_patches(images()), torch.tensor([0])
    everywhere = faithfulness(classifier, images(), maps, target, steps=5)
    context = faithfulness(classifier, images(), maps, target, steps=5, keep=own)
    assert_close(context.deletion_curve, context.deletion_curve[:, :1].expand(-1, 6))
    assert_close(context.insertion_curve, context.deletion_curve)
    assert (everywhere.deletion_curve[0, -1] - everywhere.deletion_curve[0, 0]).abs() > 1e-3


def test_patches_that_are_not_kept_are_all_deleted_in_the_end() -> None:
    classifier = region_classifier(segmenter(), patch_mask(0, 1))
    own, target = classifier.own_patches(images()), torch.tensor([0])
    curves = faithfulness(classifier, images(), torch.rand(1, 2, 3), target, steps=3, keep=own)
    only = torch.where(torch.from_numpy(patch_mask(0, 1)), images(), torch.zeros_like(images()))
    assert_close(curves.deletion_curve[0, -1], class_probabilities(classifier, classifier(only))[0, 0].float())


def test_what_has_no_regions_is_refused() -> None:
    with pytest.raises(VitrailError, match="train one with --task segment"):
        RegionClassifier(small_vit(), torch.ones(1, 12, 15))
    with pytest.raises(VitrailError, match="at least one pixel"):
        region_classifier(segmenter(), np.zeros((12, 15), bool))
