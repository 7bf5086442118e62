"""``vitrail.evaluate``: a run's own scores are reproduced, classes matched by name, views averaged, models paired."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch.testing import assert_close

from tests.data import images as sample_images
from tests.reference_libraries import reference_library
from tests.small_models import small_vit
from tests.training.small_run import recipe
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import ArrayDataset, DatasetSplits
from vitrail.data.sources.open import open_dataset
from vitrail.data.transforms import resize_and_crop
from vitrail.errors import VitrailError
from vitrail.evaluation.calibration import compute_reliability, fit_temperature
from vitrail.evaluation.classification import ClassificationEvaluation, compare_paired
from vitrail.evaluation.evaluate import evaluate
from vitrail.inference.predict import predict
from vitrail.inference.predictor import TorchPredictor
from vitrail.inference.tta import TTAPredictor, five_crop, without_crop
from vitrail.models.build import Model
from vitrail.recipes.task_config import Classification
from vitrail.tasks.classification import ClassificationTask, mean_scores
from vitrail.training.trainer import Hardware, fit

LABELS = ("ant", "bee", "cat", "dog", "elk")


def random_model(seed: int = 0, **changes: Any) -> Model:
    torch.manual_seed(seed)
    model = small_vit(**changes)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    model.preprocess, model.class_names = Preprocess((12, 15)), LABELS
    return model


def image_folder(root: Path, *names: str, each: int = 4) -> Path:
    """Create test and validation images of these classes, and one training image."""
    sample_images.write_class_folders(root / "test", dict.fromkeys(names, each))
    sample_images.write_class_folders(root / "validation", dict.fromkeys(names, each), 100)
    sample_images.write_class_folders(root / "train", {names[0]: 1}, 200)
    return root


def test_a_runs_own_scores_are_reproduced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for fractions in ({}, {"val_fraction": 0.3, "test_fraction": 0.2}):
        sample_images.write_class_folders(tmp_path / "flat", {"ant": 17, "bee": 11})
        flat = {**fractions, "data": str(tmp_path / "flat"), "model": replace(recipe().model, classes=2)}
        settings = recipe(steps=4, **(flat if fractions else {}))
        result = fit(settings, run, hardware=Hardware("cpu", 1, 0)).result
        evaluation = evaluate(run, settings.data)
        assert {"top1": evaluation.top1, "top5": evaluation.top5, "loss": evaluation.nll} == result["test"]
        with np.load(run / "predictions.npz") as arrays:
            assert_close(evaluation.predictions.logits, torch.from_numpy(arrays["logits"]))
            assert np.array_equal(evaluation.predictions.indices.numpy(), arrays["indices"])
        run = tmp_path / "other"


def test_classes_are_matched_by_name_whatever_their_order_and_number(tmp_path: Path) -> None:
    """Two routes: every image is also predicted alone, and compared by class name."""
    data = image_folder(tmp_path, "elk", "bee", "cat")
    files = sorted((data / "test").rglob("*.jpg"))
    for labels in (LABELS, LABELS[::-1]):
        model = random_model()
        model.class_names = labels
        evaluation = evaluate(model, data)
        right = [prediction.label == file.parent.name for prediction, file in zip(predict(model, files), files, strict=True)]
        assert evaluation.top1 == pytest.approx(np.mean(right))
        assert [labels[label] for label in evaluation.predictions.labels.tolist()] == sorted(file.parent.name for file in files)
        assert evaluation.per_class.support.tolist() == [4 if name in ("elk", "bee", "cat") else 0 for name in labels]
        assert evaluation.split == "test"


def test_the_temperature_is_fitted_on_validation_alone(tmp_path: Path) -> None:
    data = image_folder(tmp_path, "ant", "bee", "cat", each=9)
    evaluation, fitted = evaluate(random_model(1), data), evaluate(random_model(1), data, "validation")
    assert fitted.temperature_scaling is None
    assert evaluation.temperature_scaling is not None
    assert evaluation.temperature_scaling.temperature == fit_temperature(fitted.predictions.logits, fitted.predictions.labels)
    scaled = evaluation.predictions.logits.double() / evaluation.temperature_scaling.temperature
    assert evaluation.temperature_scaling.nll == mean_scores(scaled, evaluation.predictions.labels)["loss"]
    assert evaluation.temperature_scaling.ece == compute_reliability(scaled, evaluation.predictions.labels).ece
    assert evaluation.temperature_scaling.num_fit_images == 27


def test_splits_are_test_else_validation_else_all(tmp_path: Path) -> None:
    data = open_dataset(image_folder(tmp_path, "ant", "bee"))
    counts = {
        split: len(evaluate(random_model(), data, split).predictions.labels) for split in ("test", "validation", "train", "all")
    }
    assert counts == {"test": 8, "validation": 8, "train": 1, "all": 17}
    without = replace(data, test=ArrayDataset(np.zeros((0, 1, 1, 3), np.uint8), np.zeros(0, np.int64), data.class_names))
    assert evaluate(random_model(), without).split == "validation"
    assert evaluate(random_model(), replace(without, validation=without.test)).split == "all"
    with pytest.raises(VitrailError, match="has no labelled images to evaluate in test; it has 1 train, 8 validation, 0 test"):
        evaluate(random_model(), without, "test")
    with pytest.raises(VitrailError, match="did you mean 'validation'"):
        evaluate(random_model(), data, "valid")


def test_notes_that_matter_to_training_alone_are_left_out(tmp_path: Path) -> None:
    sample_images.write_class_folders(tmp_path / "new" / "test", {"ant": 4, "bee": 3})
    data = open_dataset(tmp_path / "new")
    assert any("no training images" in note for note in data.notes)
    assert not any("train" in note for note in evaluate(random_model(), data).notes)
    alone = open_dataset(image_folder(tmp_path / "rare", "ant", "bee"))
    assert any("only one training image" in note for note in alone.notes)
    assert not any("only one training image" in note for note in evaluate(random_model(), alone).notes)


def model_trained_on(data: Path, **fractions: float) -> Model:
    model = random_model()
    model.metadata = {"dataset": {"name": str(data)}, "recipe": fractions}
    return model


def test_a_split_that_overlaps_the_training_images_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sample_images.write_class_folders(Path("flat"), {"ant": 17, "bee": 11})
    shared = open_dataset("flat", split_fractions=SplitFractions(0.3, 0.2))
    warning = "the model was trained on images that are among these"

    def notes_of(model: Model, split: str | None = None, data: DatasetSplits = shared) -> str:
        return " ".join(evaluate(model, data, split).notes)

    assert warning not in notes_of(model_trained_on(Path("flat"), val_fraction=0.3, test_fraction=0.2))
    assert "selected on" in notes_of(model_trained_on(Path("flat"), val_fraction=0.3, test_fraction=0.2), "validation")
    for split in (None, "validation", "all"):
        assert warning in notes_of(model_trained_on(Path("flat"), val_fraction=0.1, test_fraction=0.2), split)
    same = model_trained_on(tmp_path / "flat", val_fraction=0.3, test_fraction=0.1)  # the same path by another name
    assert warning in notes_of(same)
    sample_images.write_class_folders(Path("folders/test"), {"ant": 4, "bee": 3})
    sample_images.write_class_folders(Path("folders/train"), {"ant": 9, "bee": 8}, 50)
    folders = open_dataset("folders", split_fractions=SplitFractions(0.3, 0.2))
    # Its test split has a folder, it is not split off.
    assert warning not in notes_of(model_trained_on(Path("folders"), val_fraction=0.1, test_fraction=0.1), data=folders)


def test_a_new_folder_without_splits_is_evaluated_as_a_whole(tmp_path: Path) -> None:
    sample_images.write_class_folders(tmp_path / "flat", {"ant": 17, "bee": 11})
    new = evaluate(random_model(), tmp_path / "flat")
    assert (new.split, len(new.predictions.labels)) == ("all", 28)
    trained = evaluate(model_trained_on(tmp_path / "flat"), tmp_path / "flat")
    assert trained.split == "test"
    assert len(trained.predictions.labels) < 28


def test_of_a_new_dataset_more_than_a_split_can_be_evaluated(tmp_path: Path) -> None:
    sample_images.write_class_folders(tmp_path / "flat", {"ant": 17, "bee": 11})
    hint = "the model was not trained on it, so more than its test can be evaluated: split all"
    split = open_dataset(tmp_path / "flat")
    assert hint in evaluate(random_model(), split).notes
    assert hint not in evaluate(random_model(), split, "test").notes
    assert hint not in evaluate(random_model(), tmp_path / "flat").notes
    assert hint not in evaluate(model_trained_on(tmp_path / "flat"), tmp_path / "flat").notes
    assert hint not in evaluate(random_model(), image_folder(tmp_path / "parts", "ant", "bee")).notes


def test_an_unusable_validation_split_only_costs_the_temperature(tmp_path: Path) -> None:
    data = image_folder(tmp_path, "ant", "bee", each=9)
    expected = evaluate(random_model(), data)
    sample_images.write_class_folders(data / "validation", {"zebra": 3})
    evaluation = evaluate(random_model(), data)
    assert (evaluation.top1, evaluation.temperature_scaling) == (expected.top1, None)
    assert "no temperature is fitted, as validation cannot be used: 1 of the 3 classes" in evaluation.notes[-1]


def test_all_is_the_concatenation_of_its_splits(tmp_path: Path) -> None:
    data = open_dataset(image_folder(tmp_path, "ant", "bee"))
    parts = [evaluate(random_model(), data, split).predictions.logits for split in ("train", "validation", "test")]
    assert_close(evaluate(random_model(), data, "all").predictions.logits, torch.cat(parts))


def test_images_without_a_label_do_not_count(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (9, 12, 15, 3), np.uint8)
    labels = np.array([0, 1, -1, 1, 0, -1, 1, 1, 0])
    source = ArrayDataset(images, labels, ("cat", "ant"))
    data = DatasetSplits("x", source, source, source, "")
    labelled = labels >= 0
    clean = ArrayDataset(images[labelled], labels[labelled], ("cat", "ant"))
    assert evaluate(random_model(), data).top1 == evaluate(random_model(), DatasetSplits("x", clean, clean, clean, "")).top1


def test_a_model_with_nan_logits_has_no_score(tmp_path: Path) -> None:
    broken = random_model()
    broken.get_parameter("head.bias").data[2] = torch.nan
    with pytest.raises(VitrailError, match=r"the model's logits are not finite for 8 of 8 images, first .*0.jpg"):
        evaluate(broken, image_folder(tmp_path, "ant", "bee"))


@pytest.mark.parity
def test_views_are_averaged_as_probabilities() -> None:
    predictor, rng = TorchPredictor(random_model()), np.random.default_rng(0)
    images, large = (rng.integers(0, 256, (3, *size, 3), np.uint8) for size in ((12, 15), (17, 19)))

    def probabilities(pixels: ndarray) -> torch.Tensor:
        return torch.from_numpy(predictor.outputs(pixels)).softmax(1)

    expected = (probabilities(images) + probabilities(images[:, :, ::-1].copy())) / 2
    assert_close(torch.from_numpy(TTAPredictor(predictor, "flip").outputs(images)).softmax(1), expected)
    views = torch.stack([probabilities(view) for view in peer_crops(large)])
    assert_close(torch.from_numpy(TTAPredictor(predictor, "crops").outputs(large)).softmax(1), views.mean(0))


def peer_crops(images: ndarray) -> list[ndarray]:
    functions: Any = reference_library("torchvision.transforms.v2.functional")
    crops = functions.ten_crop(torch.from_numpy(images).permute(0, 3, 1, 2), [12, 15])
    return [crop.permute(0, 2, 3, 1).contiguous().numpy() for crop in crops]


def test_flip_tta_is_invariant_to_flipping() -> None:
    predictor = TTAPredictor(TorchPredictor(random_model()), "flip")
    images = np.random.default_rng(0).integers(0, 256, (3, 12, 15, 3), np.uint8)
    assert_close(predictor.outputs(images), predictor.outputs(images[:, :, ::-1].copy()))


def test_the_centre_crop_is_what_the_model_gets_without_tta() -> None:
    preprocess = Preprocess((16, 24), crop_pct=0.8)
    larger = without_crop(preprocess)
    assert larger.image_size == (20, 30)
    photo = sample_images.make_image(3, (61, 47))
    crops = five_crop(resize_and_crop(photo, larger)[None], (16, 24))
    assert np.array_equal(crops[0][0], resize_and_crop(photo, preprocess))
    assert without_crop(Preprocess((28, 28))).image_size == (32, 32)
    assert without_crop(Preprocess((28, 28), fit="pad")) == Preprocess((32, 32), fit="pad")


def test_views_go_through_the_whole_evaluation(tmp_path: Path) -> None:
    data, model = image_folder(tmp_path, "ant", "bee"), random_model()
    evaluation: dict[str | None, ClassificationEvaluation] = {
        tta: evaluate(model, data, tta=tta) for tta in (None, "flip", "crops")
    }
    assert len({each.nll for each in evaluation.values()}) == 3
    assert not model.training
    assert "enlarged before cropping" in evaluation["crops"].notes[-1]


def test_a_model_does_not_differ_from_itself_and_differences_have_a_sign(tmp_path: Path) -> None:
    data = open_dataset(image_folder(tmp_path, *LABELS, each=12))
    first, other = (evaluate(random_model(seed), data) for seed in (1, 2))
    same = compare_paired(first, first)
    assert (same.p, same.only_first, same.only_other) == (1, 0, 0)
    assert all(ends == (0, 0) for ends in same.intervals.values())
    there, back = compare_paired(first, other), compare_paired(other, first)
    assert there.p == back.p
    assert there.difference["top1"] == other.top1 - first.top1 == pytest.approx((there.only_other - there.only_first) / 60)
    for name, (low, high) in there.intervals.items():
        assert back.intervals[name] == pytest.approx((-high, -low), abs=1e-12)
    with pytest.raises(VitrailError, match="not the same images"):
        compare_paired(first, evaluate(random_model(), data, "train"))


def test_a_sigmoid_classifier_is_evaluated_by_its_sigmoids(tmp_path: Path) -> None:
    data = open_dataset(image_folder(tmp_path, *LABELS, each=12))
    model = random_model(3)
    model.metadata = {"recipe": {"task": {"kind": "classification", "loss": "sigmoid"}}}
    found = evaluate(model, data)
    logits, labels = found.predictions.logits.double(), found.predictions.labels
    target = torch.nn.functional.one_hot(labels, 5).double()
    bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1)
    assert found.nll == pytest.approx(bce.mean().item())
    confidence, correct = logits.sigmoid().amax(1), (logits.argmax(1) == labels).double()
    bins = [(confidence > low / 15) & (confidence <= (low + 1) / 15) for low in range(15)]
    gaps = [abs((confidence - correct)[each].sum().item()) for each in bins]
    assert found.ece == pytest.approx(sum(gaps) / len(labels))
    low, high = found.intervals["nll"]
    assert low < found.nll < high
    by_flip = TTAPredictor(TorchPredictor(model), "flip")
    images = np.random.default_rng(0).integers(0, 256, (3, 12, 15, 3), np.uint8)
    views = [torch.from_numpy(by_flip.predictor.outputs(view)).sigmoid() for view in (images, images[:, :, ::-1].copy())]
    assert_close(torch.from_numpy(by_flip.outputs(images)).sigmoid(), (views[0] + views[1]) / 2)


def test_a_task_derived_from_classification_is_evaluated_as_a_classifier(tmp_path: Path) -> None:
    data, model = open_dataset(image_folder(tmp_path, *LABELS, each=12)), random_model(3)
    expected = evaluate(model, data)
    model.metadata = {"recipe": {"task": {"kind": "test-focal"}}}
    found = evaluate(model, data)
    assert (found.metrics, found.intervals) == (expected.metrics, expected.intervals)


@dataclass(frozen=True)
class Focal(Classification):
    """Settings of a classifier with a loss of its own."""

    kind: Literal["test-focal"] = "test-focal"  # type: ignore[assignment]


@dataclass(frozen=True)
class FocalTask(ClassificationTask):
    """Focal classification."""

    config_class: ClassVar[Any] = Focal
