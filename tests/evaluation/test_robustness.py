"""``vitrail.evaluate_robustness``: the clean score is that of ``evaluate``, a model without positions ignores shuffled patches,
and every model gets the same images.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy import ndarray
from PIL import Image
from sklearn.metrics import label_ranking_average_precision_score
from torch import Tensor
from torch.testing import assert_close

from tests.data.images import write_class_folders, write_label_table
from tests.evaluation.test_classification import LABELS, image_folder, random_model
from tests.small_models import multi_label_vit, small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import ArrayDataset, DatasetSplits
from vitrail.data.sources.open import open_dataset
from vitrail.data.transforms import normalise, resize_and_crop
from vitrail.errors import VitrailError
from vitrail.evaluation.corruptions import corruption_suite
from vitrail.evaluation.evaluate import evaluate
from vitrail.evaluation.robustness import (
    RobustnessResult,
    check_models,
    common_grid,
    comparability_notes,
    compare_robustness,
    evaluate_robustness,
    sample_indices,
)
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.build import Model, build
from vitrail.models.config import ResNetConfig

NAMES = ["noise", "blur", "contrast", "jpeg", "drop", "occlude", "shuffle"]


def resnet(image: tuple[int, int] = (12, 15)) -> Model:
    torch.manual_seed(0)
    model = build(ResNetConfig(stages=(1,), width=32, image=image, classes=5)).eval()
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    model.preprocess, model.class_names = Preprocess(image), LABELS
    return model


@pytest.fixture
def data(tmp_path: Path) -> DatasetSplits:
    return open_dataset(image_folder(tmp_path, *LABELS[:4], each=9))


def test_the_clean_score_is_that_of_evaluate_and_the_others_follow_from_correctness(data: DatasetSplits) -> None:
    model = random_model(1)
    result, plain = evaluate_robustness(model, data, batch_size=7), evaluate(model, data)
    assert list(result.scores) == ["clean", *NAMES, "all"]
    assert (result.clean, result.split, len(result.correct)) == (plain.top1, "test", 36)
    assert result.scores["clean"].interval == plain.intervals["top1"]
    assert np.array_equal(result.correct[:, 0], (plain.predictions.predicted == plain.predictions.labels).numpy())
    start = 1
    for kind in result.corruptions:
        score, width = result.scores[kind.name], len(kind.strengths)
        part = result.correct[:, start : start + width]
        assert score.top1 == pytest.approx(part.mean(0).tolist())
        assert score.mean == pytest.approx(part.mean())
        assert score.retained == pytest.approx(part.mean() / plain.top1)
        assert score.interval[0] <= score.mean <= score.interval[1]
        start += width
    assert start == result.correct.shape[1] == len(result.example_images)
    assert result.mean == pytest.approx(np.mean([result.scores[name].mean for name in NAMES]))


def correct_one_by_one(model: Model, data: DatasetSplits, seed: int) -> ndarray:
    """Evaluate every image alone, through the public functions."""
    preprocess = model.preprocess
    assert preprocess is not None
    plain = Preprocess(
        preprocess.image_size, preprocess.crop_pct, preprocess.fit, preprocess.interpolation, (0.0,) * 3, (1 / 255,) * 3
    )
    from vitrail.data.loader import build_eval_loader

    rows = []
    for number, batch in enumerate(build_eval_loader(data.test, plain, 1).batches(workers=0)):
        image, label = batch.images.byte(), LABELS.index(data.class_names[int(batch.targets)])
        versions = [image]
        for kind in corruption_suite((2, 3)):
            versions += kind.iter_severities(image, np.array([number]), seed)
        with torch.inference_mode():
            rows.append([model(normalise(one.float(), preprocess)).argmax().item() == label for one in versions])
    return np.array(rows)


def test_two_routes_to_one_number_whatever_the_batch(tmp_path: Path) -> None:
    data = open_dataset(image_folder(tmp_path, *LABELS[:4], each=3))
    expected = correct_one_by_one(random_model(2), data, 5)
    assert 0 < expected.mean() < 1
    for batch, workers in ((5, 0), (12, 2)):
        assert np.array_equal(
            evaluate_robustness(random_model(2), data, batch_size=batch, workers=workers, seed=5).correct, expected
        )


def test_a_bag_of_patches_is_invariant_to_shuffling(data: DatasetSplits) -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (6, 3, 12, 15), dtype=torch.uint8)
    kind = corruption_suite((2, 3))[-1]
    shuffled = next(kind.iter_severities(images, np.arange(6), 0))
    logits: dict[str, tuple[Tensor, Tensor]] = {}
    for position in ("none", "learned1d"):
        model, preprocess = small_vit(position=position), Preprocess((12, 15))
        with torch.inference_mode():
            logits[position] = model(normalise(images.float(), preprocess)), model(normalise(shuffled.float(), preprocess))
    assert_close(*logits["none"], rtol=1e-4, atol=1e-4)
    assert (logits["learned1d"][0] - logits["learned1d"][1]).abs().max() > 0.01
    bag = evaluate_robustness(random_model(position="none"), data)
    assert bag.scores["shuffle"].top1 == (bag.clean,)


def test_every_model_gets_the_same_corrupted_images_in_its_own_normalisation(data: DatasetSplits) -> None:
    first, other = random_model(1), resnet()
    other.preprocess = Preprocess((12, 15), mean=(0.1, 0.2, 0.3), std=(0.2, 0.3, 0.4))
    images_by_model = []
    for each in (first, other):
        preprocess, recorded = each.preprocess, list[Tensor]()
        assert preprocess is not None
        each.register_forward_pre_hook(lambda _, inputs, recorded=recorded: recorded.append(inputs[0].clone()))
        evaluate_robustness(each, data, grid=(2, 3))
        mean, std = (torch.tensor(values)[:, None, None] for values in (preprocess.mean, preprocess.std))
        images_by_model.append([((images * std + mean) * 255).round() for images in recorded])
    assert len(images_by_model[0]) == 1 + 6 * 5 + 1
    assert all(torch.equal(one, two) for one, two in zip(*images_by_model, strict=True))


def test_a_limit_is_an_unbiased_sample_and_a_larger_one_includes_the_smaller(data: DatasetSplits) -> None:
    whole, sample = evaluate_robustness(random_model(1), data), evaluate_robustness(random_model(1), data, limit=11)
    assert len(sample.indices) == 11
    assert np.array_equal(sample.correct, whole.correct[sample.indices])  # an image is corrupted in the same way in both
    assert set(sample_indices(1000, 50, 3)) < set(sample_indices(1000, 300, 3)) < set(range(1000))
    assert abs(sample_indices(1000, 300, 3).mean() - 499.5) < 60
    assert np.array_equal(sample_indices(20, 99, 0), np.arange(20))
    with pytest.raises(VitrailError, match="limit must be at least 1, got 0"):
        evaluate_robustness(random_model(), data, limit=0)


def test_cells_are_the_first_transformers_patches_or_eight_by_eight() -> None:
    other = small_vit(image=(24, 15))
    other.preprocess = Preprocess((24, 15))
    ours, theirs, odd, taller = map(TorchPredictor, (random_model(), resnet(), resnet((13, 15)), other))
    assert common_grid([theirs, ours, taller]) == (2, 3)
    assert common_grid([TorchPredictor(resnet((28, 28)))]) == (8, 8)
    assert comparability_notes({"a": ours, "b": theirs}, (2, 3)) == []
    notes = comparability_notes({"a": ours, "b": taller, "c": odd}, (2, 3))
    assert notes[0] == "cells are 2x3; the patches of b are 4x3"
    assert "take images of 12x15 and 24x15 and 13x15" in notes[1]
    assert notes[2] == "2x3 cells do not divide 13x15 pixels, so cells differ by a pixel"


def test_models_of_other_sizes_can_be_compared(data: DatasetSplits) -> None:
    small, large = evaluate_robustness(random_model(1), data), evaluate_robustness(resnet((26, 31)), data, grid=(2, 3))
    differences = compare_robustness(small, large)
    assert differences["noise"].difference == pytest.approx(large.scores["noise"].mean - small.scores["noise"].mean)
    assert differences["all"].interval[0] <= differences["all"].difference <= differences["all"].interval[1]
    assert all(each.difference == 0 and each.interval == (0, 0) for each in compare_robustness(small, small).values())
    with pytest.raises(VitrailError, match="not the same images"):
        compare_robustness(small, evaluate_robustness(random_model(1), data, limit=5))


def test_several_labels_are_scored_by_their_ranking_matched_by_name(tmp_path: Path) -> None:
    """Two routes: every version of every image is ranked alone, by scikit-learn."""
    sets = ["elk;bee", "", "bee", "ant;elk;bee", "elk", "ant"]
    table, model = write_label_table(tmp_path, sets), multi_label_vit(3)
    result = evaluate_robustness(model, str(table), batch_size=4)
    assert list(result.scores) == ["clean", *NAMES, "all"]
    assert model.class_names is not None
    for number, labels in enumerate(sets):
        image = Image.open(tmp_path / f"{number}.png")
        resized = torch.from_numpy(resize_and_crop(image, Preprocess((12, 15)))).permute(2, 0, 1)[None].contiguous()
        versions = [resized]
        for kind in result.corruptions:
            versions += kind.iter_severities(resized, np.array([number]), 0)
        truth = np.array([[name in labels.split(";") for name in model.class_names]])
        with torch.inference_mode():
            scores = [
                label_ranking_average_precision_score(truth, model(normalise(one.float(), Preprocess((12, 15)))))
                for one in versions
            ]
        assert result.image_scores[number] == pytest.approx(scores)
    assert 0 < result.clean < 1
    assert result.clean == pytest.approx(result.image_scores[:, 0].mean())
    single = random_model()
    with pytest.raises(VitrailError, match="has several labels per image, and the model predicts one"):
        evaluate_robustness(single, open_dataset(str(table)))
    folder = image_folder(tmp_path / "folder", "bee", "elk")  # a folder has one label per image, which is a set, too
    assert evaluate_robustness(model, folder).image_score.key == "ranking_precision"
    with pytest.raises(VitrailError, match=r"must be for one task, got .* for multi-label, .* for classification"):
        check_models([TorchPredictor(model), TorchPredictor(single)], open_dataset(folder), "test", (2, 3))


def test_training_mode_is_restored_and_retained_accuracy_needs_a_clean_one(data: DatasetSplits) -> None:
    model = random_model(1).train()
    result: RobustnessResult = evaluate_robustness(
        model, replace(data, test=ArrayDataset(np.zeros((3, 12, 15, 3), np.uint8), np.zeros(3, np.int64), ("ant",)))
    )
    assert model.training
    assert result.clean in (0, 1)
    assert math.isnan(result.retained) == (result.clean == 0)


def test_errors_are_those_of_evaluate(data: DatasetSplits, tmp_path: Path) -> None:
    broken = random_model()
    broken.get_parameter("head.bias").data[2] = torch.nan
    for function in (evaluate, evaluate_robustness):
        with pytest.raises(VitrailError, match=r"the model's logits are not finite for 36 of 36 images"):
            function(broken, data)
        with pytest.raises(VitrailError, match="did you mean 'validation'"):
            function(random_model(), data, "valid")
        headless = small_vit(classes=0)
        headless.preprocess = Preprocess((12, 15))
        with pytest.raises(VitrailError, match="has no classifier"):
            function(headless, data)
    with pytest.raises(VitrailError, match="got 99x3 for images of 12x15"):
        evaluate_robustness(random_model(), data, grid=(99, 3))
    strange = write_class_folders(tmp_path / "strange", {"yak": 3, "ant": 4})
    with pytest.raises(VitrailError, match="unknown to the model: 'yak'"):
        evaluate_robustness(random_model(), strange, "all")
