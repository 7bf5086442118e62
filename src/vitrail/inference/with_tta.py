"""Test-time augmentation by the task of a model."""

from vitrail.inference.box_tta import BoxTTAPredictor
from vitrail.inference.dense_tta import DenseTTAPredictor
from vitrail.inference.predictor import Predictor, require_classifier, require_outputs
from vitrail.inference.tta import TTAMode, TTAPredictor


def with_tta(predictor: Predictor, mode: TTAMode) -> Predictor:
    """Return a predictor of the mean over several views of an image; ``crops`` is for classes, ``scales`` for masks."""
    config = require_outputs(predictor).task.config
    if config.has_boxes:
        return BoxTTAPredictor(predictor, mode)
    if config.has_masks:
        return DenseTTAPredictor(predictor, mode)
    return TTAPredictor(require_classifier(predictor, "test-time augmentation"), mode)
