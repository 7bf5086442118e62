"""Saliency of the worst errors: the misclassified images with the highest losses, and their maps."""

from pathlib import Path

import numpy as np
import torch

from tests.small_models import small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import ArrayDataset
from vitrail.evaluation.classification import SplitPredictions
from vitrail.models.build import build
from vitrail.models.variants import variant
from vitrail.report.error_saliency_section import error_saliency, error_saliency_section
from vitrail.weights.save import save


def dataset_and_predictions() -> tuple[ArrayDataset, SplitPredictions]:
    images = np.random.default_rng(0).integers(0, 255, (8, 12, 15, 3)).astype(np.uint8)
    source = ArrayDataset(images, np.arange(8) % 5, ("a", "b", "c", "d", "e"))
    logits = torch.randn(8, 5, generator=torch.Generator().manual_seed(2))
    logits[0, 0], logits[3, 1] = 30.0, 40.0  # confidently correct, and confidently wrong
    return source, SplitPredictions(logits, torch.from_numpy(source.labels), torch.arange(8))


def test_the_highest_loss_comes_first_and_correct_predictions_are_left_out(tmp_path: Path) -> None:
    model = small_vit()
    model.preprocess = Preprocess((12, 15))
    save(model, tmp_path / "best")
    source, predictions = dataset_and_predictions()
    shots = error_saliency(tmp_path / "best", source, predictions, count=20)
    assert len(shots) == int((predictions.predicted != predictions.labels).sum())
    assert shots[0][3] == ("b", "d")
    assert shots[0][0].size == (160, 128)
    assert np.asarray(shots[0][1]).any()
    assert not np.array_equal(np.asarray(shots[0][1]), np.asarray(shots[0][2]))
    page = "".join(error_saliency_section(tmp_path / "best", source, predictions))
    assert page.count("<figure>") == 3 * min(6, len(shots))


def test_a_resnet_a_missing_model_and_a_perfect_one_have_no_section(tmp_path: Path) -> None:
    source, predictions = dataset_and_predictions()
    resnet = build(variant("R50x1", image=32, classes=5))
    resnet.preprocess = Preprocess((32, 32))
    save(resnet, tmp_path / "convolves")
    assert list(error_saliency_section(tmp_path / "convolves", source, predictions)) == []
    assert list(error_saliency_section(tmp_path / "gone", source, predictions)) == []
    right = SplitPredictions(
        torch.nn.functional.one_hot(predictions.labels, 5).float(), predictions.labels, predictions.indices
    )
    model = small_vit()
    model.preprocess = Preprocess((12, 15))
    save(model, tmp_path / "best")
    assert list(error_saliency_section(tmp_path / "best", source, right)) == []
