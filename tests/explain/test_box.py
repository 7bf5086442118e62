"""Boxes of detection models: a classifier of one detection per image, whose probability is the score of the detection."""

from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.testing import assert_close

from tests.small_detector import CLASSES, random_detector
from tests.small_models import PUBLISHED_KINDS, small_vit
from vitrail.errors import VitrailError
from vitrail.explain.attention import attention, pooled_attention
from vitrail.explain.box import box_classifier, detect
from vitrail.explain.faithfulness import faithfulness
from vitrail.explain.gradient import logit_lens, signed_integrated_gradients
from vitrail.explain.saliency import SALIENCY_METHODS, saliency
from vitrail.tasks.registry import class_probabilities, model_task

SIZE = (12, 15)  # of the model's input: 2 x 3 patches, 4 x 6 cells
KINDS: dict[str, dict[str, Any]] = {
    "class token": {},
    "registers, attention pooling": {"pool": "map", "pool_heads": 2, "registers": 2},
    "bias by a table": PUBLISHED_KINDS["bias by a table"],
}


def images(count: int = 1) -> Float[Tensor, "b c height width"]:
    return torch.randn(count, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def test_a_classifier_of_a_box_predicts_the_score_and_the_class_of_the_detection() -> None:
    model = random_detector()
    found: Any = model_task(model)
    found = found.decode(model(images(2)).detach())
    for index in (0, 3):
        classifier = box_classifier(model, images(2), index)
        assert_close(classifier.boxes, found.boxes[:, index])
        assert_close(classifier.scores, found.scores[:, index])
        assert torch.equal(classifier.labels, found.labels[:, index])
        probabilities = class_probabilities(classifier, classifier(images(2))).detach().float()
        assert_close(probabilities.gather(1, classifier.labels[:, None])[:, 0], classifier.scores)


def test_the_best_cell_of_a_class_need_not_be_a_detection() -> None:
    model = random_detector()
    outputs, peaks = detect(model, images(3))
    for label in range(len(CLASSES)):
        best = box_classifier(model, images(3), label=label)
        assert_close(best.scores, outputs[:, label].flatten(1).amax(1).sigmoid())
    is_first = peaks.labels[:, 0]
    assert_close(
        torch.stack([outputs[image, label].amax() for image, label in enumerate(is_first)]).sigmoid(), peaks.scores[:, 0]
    )


def test_own_patches_are_those_under_the_box() -> None:
    model = random_detector()
    classifier = box_classifier(model, images())
    classifier.boxes = torch.tensor([[4.0, 2.0, 11.0, 6.0]])
    assert classifier.own_patches(images()).tolist() == [[True, True, True, False, False, False]]
    assert_close(classifier.box_masks((2, 3)), torch.tensor([[[4 / 30, 20 / 30, 4 / 30], [0, 0, 0]]]))
    assert_close(classifier.box_masks(SIZE).sum(), torch.tensor(28.0))


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_the_patch_of_the_box_s_cell_takes_the_place_of_the_pooled_tokens(changes: dict[str, Any]) -> None:
    model = random_detector(**changes)
    classifier = box_classifier(model, images())
    row, column = divmod(int(classifier.cells[0]), 6)
    token = model.config.prefix_tokens + row // 2 * 3 + column // 2
    assert classifier.token_weights(images()).nonzero().tolist() == [[0, token]]
    assert_close(pooled_attention(classifier, images()), attention(model, images(), queries=[token])[:, :, :, 0])


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_every_method_explains_a_box_and_leaves_the_model_as_it_was(changes: dict[str, Any]) -> None:
    model = random_detector(**changes)
    before = model(images(2)).detach()
    classifier = box_classifier(model.train(), images(2))
    assert model.training
    for method in SALIENCY_METHODS:
        maps = saliency(classifier, images(2), method, classifier.labels)
        assert maps.shape == (2, 2, 3)
        assert (maps >= 0).all()
        assert maps.any()
    assert all(not module._forward_hooks for module in model.modules())
    assert_close(model.eval()(images(2)), before)


def test_integrated_gradients_add_up_to_the_logit_of_the_box() -> None:
    model = random_detector(1)
    classifier = box_classifier(model, images())
    attributions = signed_integrated_gradients(classifier, images(), classifier.labels, steps=128)
    outputs = [model(batch)[0, int(classifier.labels)].flatten()[int(classifier.cells)] for batch in (images(), 0 * images())]
    assert_close(attributions.sum(), outputs[0] - outputs[1], rtol=5e-2, atol=0)  # norms turn sharply near grey


def test_deletion_starts_at_the_score_and_ends_at_that_of_a_grey_image() -> None:
    model = random_detector()
    classifier = box_classifier(model, images())
    curves = faithfulness(classifier, images(), torch.rand(1, 2, 3), classifier.labels, steps=3)
    grey = model(0 * images())[0, int(classifier.labels)].flatten()[int(classifier.cells)].sigmoid().detach()
    assert_close(curves.deletion_curve[0, 0], classifier.scores[0])
    assert_close(curves.deletion_curve[0, -1], grey)


def test_the_lens_of_a_box_needs_a_head_on_the_last_block() -> None:
    classifier = box_classifier(random_detector(), images())
    assert_close(logit_lens(classifier, images())[-1], classifier(images()).detach())
    several = box_classifier(random_detector(layers=(2, 4)), images())
    assert saliency(several, images(), "gradcam", several.labels).shape == (1, 2, 3)
    with pytest.raises(VitrailError, match="leave the lens out"):
        logit_lens(several, images())


def test_what_has_no_boxes_is_refused() -> None:
    with pytest.raises(VitrailError, match="train one with --task detect"):
        box_classifier(small_vit(), images())
    with pytest.raises(VitrailError, match="from 0 to"):
        box_classifier(random_detector(), images(), 30)
    model = random_detector()
    model.head.heat.bias.data.fill_(torch.nan)
    with pytest.raises(VitrailError, match="not finite"):
        box_classifier(model, images())
