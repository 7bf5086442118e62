"""The predictions of a run, compared with its model and its reported metrics."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.browser.sample_models import train_small_label_run
from tests.training.small_run import recipe, write_noise_images
from vitrail.augment.policy import get_policy
from vitrail.data.decode import to_pil
from vitrail.errors import VitrailError
from vitrail.inference.predict import predict
from vitrail.models.config import ViTConfig
from vitrail.models.masking_config import Masking
from vitrail.recipes.task_config import MaskedImage
from vitrail.studio.image_library import ImageLibrary
from vitrail.studio.run_predictions import MAX_MATRIX_CLASSES, RunPredictions
from vitrail.training.run import Run
from vitrail.training.trainer import Hardware, fit
from vitrail.weights.load import load


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on a folder with a damaged image, so that indices in the split and in the folder differ."""
    folder = tmp_path_factory.mktemp("runs")
    write_noise_images(folder / "birds", classes=4, each=15)
    (folder / "birds" / "class 0" / "00.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    base = recipe(data=str(folder / "birds"), test_fraction=0.4, val_fraction=0.1)
    fit(replace(base, model=replace(base.model, classes=4)), folder / "mine", hardware=Hardware(workers=1))
    return Run(folder / "mine")


@pytest.fixture(scope="module")
def library(run: Run) -> ImageLibrary:
    return ImageLibrary(["panes:train_size=10,size=16", run.recipe()])


@pytest.fixture(scope="module")
def predictions(run: Run, library: ImageLibrary) -> RunPredictions:
    return RunPredictions(run, library, 1)


def test_the_matrix_counts_every_image_once_and_agrees_with_the_result(
    run: Run, predictions: RunPredictions, library: ImageLibrary
) -> None:
    actual, result = predictions.confusion(), run.result()
    assert result is not None
    matrix = np.array(actual["matrix"])
    assert (actual["split"], actual["class_names"]) == ("test", [f"class {label}" for label in range(4)])
    assert actual["class_indices"] == [0, 1, 2, 3]
    assert matrix.sum() == actual["total"] == library.page("d1", "test", 0, 1)["total"]
    assert (matrix.sum(1) == np.bincount(library.get_dataset(1).test.labels)).all()
    assert matrix.trace() / matrix.sum() == pytest.approx(result["test"]["top1"])
    json.dumps(actual)


def test_the_images_of_a_cell_are_those_with_that_prediction(
    run: Run, predictions: RunPredictions, library: ImageLibrary
) -> None:
    model, num_images = load(run.folder), 0
    for true in range(4):
        for predicted in range(4):
            result = predictions.confused_images(true, predicted)
            assert result["total"] == len(result["images"]) == predictions.confusion()["matrix"][true][predicted]
            contents = [np.asarray(to_pil(library.read(entry["id"]))) for entry in result["images"]]
            for entry, prediction in zip(result["images"], predict(model, contents, workers=0), strict=True):
                assert (entry["label"], entry["predicted"]) == (f"class {true}", f"class {predicted}")
                assert prediction.label == entry["predicted"]
                assert prediction.probability == pytest.approx(entry["probability"], abs=1e-6)
                assert library.title(entry["id"]) == entry["title"]
            assert result["images"] == sorted(result["images"], key=lambda entry: -entry["probability"])
            num_images += result["total"]
    assert num_images == predictions.confusion()["total"]


def test_the_highest_losses_come_first(run: Run, predictions: RunPredictions) -> None:
    with np.load(run.folder / "predictions.npz") as file:
        logits, labels = torch.from_numpy(file["logits"]), torch.from_numpy(file["labels"])
        indices = file["indices"].tolist()
    losses = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    result = predictions.highest_loss()["images"]
    assert [entry["loss"] for entry in result] == pytest.approx(losses.sort(descending=True)[0][:24].tolist())
    for entry in result:
        row = indices.index(int(entry["id"].rpartition("-")[2]))
        assert entry["loss"] == pytest.approx(losses[row].item())
        assert entry["label"] == f"class {labels[row]}"


def test_a_run_with_several_labels_has_their_metrics_and_differences(tmp_path: Path) -> None:
    run = Run(train_small_label_run(tmp_path))
    predictions = RunPredictions(run, ImageLibrary(["panes:train_size=10,size=16", run.recipe()]), 1)
    result = run.result()
    assert result is not None
    assert predictions.class_metrics() == {"split": "test", "total": 15, "classes": result["classes"]}
    with np.load(run.folder / "predictions.npz") as file:
        logits, targets = torch.from_numpy(file["logits"]).double(), torch.from_numpy(file["targets"]).double()
        rows = {int(index): row for row, index in enumerate(file["indices"])}
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
    images = predictions.highest_loss()["images"]
    assert [entry["loss"] for entry in images] == pytest.approx(losses.sort(descending=True)[0].tolist())
    names, thresholds = ("cup", "lamp", "tree"), torch.tensor([row["threshold"] for row in result["classes"]])
    for entry in images:
        row = rows[int(entry["id"].rpartition("-")[2])]
        actual = {name for name, value in zip(names, targets[row], strict=True) if value}
        predicted = {name for name, value in zip(names, logits[row].sigmoid() >= thresholds, strict=True) if value}
        assert (set(entry["labels"]), set(entry["missed"]), set(entry["wrong"])) == (
            predicted,
            actual - predicted,
            predicted - actual,
        )
        assert entry["label"] == (", ".join(sorted(actual)) or None)
    for ask in (predictions.confusion, lambda: predictions.confused_images(0, 0)):
        with pytest.raises(VitrailError, match="predicts several labels per image, so it has no confusion matrix"):
            ask()


def test_a_run_with_one_label_per_image_has_no_metrics_by_label(predictions: RunPredictions) -> None:
    with pytest.raises(VitrailError, match="has no metrics by class"):
        predictions.class_metrics()


def test_an_invalid_class_index_is_refused(predictions: RunPredictions) -> None:
    for true, predicted in ((-1, 0), (0, 4)):
        with pytest.raises(VitrailError, match="from 0 to 3"):
            predictions.confused_images(true, predicted)


def test_a_model_trained_with_the_sigmoid_loss_has_sigmoid_probabilities(
    run: Run, library: ImageLibrary, tmp_path: Path
) -> None:
    shutil.copytree(run.folder, tmp_path / "mine")
    expected = json.loads((tmp_path / "mine" / "recipe.json").read_text())
    (tmp_path / "mine" / "recipe.json").write_text(json.dumps({**expected, "task": {**expected["task"], "loss": "sigmoid"}}))
    with np.load(run.folder / "predictions.npz") as file:
        most = torch.from_numpy(file["logits"]).max(1).values.double().sigmoid()
        indices = file["indices"].tolist()
    for entry in RunPredictions(Run(tmp_path / "mine"), library, 1).highest_loss()["images"]:
        assert entry["probability"] == pytest.approx(most[indices.index(int(entry["id"].rpartition("-")[2]))].item())


def test_changed_images_are_not_shown(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "birds"
    shutil.copytree(run.recipe().data, other)
    shutil.copytree(run.folder, tmp_path / "mine")
    expected = json.loads((tmp_path / "mine" / "recipe.json").read_text())
    (tmp_path / "mine" / "recipe.json").write_text(json.dumps({**expected, "data": str(other)}))
    moved = Run(tmp_path / "mine")
    before = RunPredictions(moved, ImageLibrary([moved.recipe()]), 0)
    assert before.highest_loss()["images"]  # the same images at another path are the same
    next((other / "class 2").glob("*.png")).unlink()
    after = RunPredictions(moved, ImageLibrary([moved.recipe()]), 0)
    assert after.confusion() == before.confusion()  # which needs no image
    for ask in (after.highest_loss, lambda: after.confused_images(0, 0)):
        with pytest.raises(VitrailError, match="are not those that mine was evaluated on"):
            ask()
    shutil.rmtree(other)
    gone = RunPredictions(moved, ImageLibrary([moved.recipe()]), 0)
    assert gone.confusion() == before.confusion()
    with pytest.raises(VitrailError, match="there is no "):
        gone.highest_loss()


def test_an_unfinished_run_says_when_there_will_be_predictions(tmp_path: Path, library: ImageLibrary) -> None:
    run = Run(tmp_path / "young")
    run.folder.mkdir()
    run.record_recipe(recipe())
    run.log({"step": 7, "loss": 1.0})
    for ask in (RunPredictions(run, library, 0).confusion, RunPredictions(run, library, 0).highest_loss):
        with pytest.raises(VitrailError, match="saved when it is finished; it is at step 7 of 12"):
            ask()


def test_a_run_without_labels_says_that_it_has_no_predictions(tmp_path: Path, library: ImageLibrary) -> None:
    plain = recipe().model
    assert isinstance(plain, ViTConfig)
    masking = Masking("mae", 0.75, decoder_width=24, decoder_depth=1, decoder_heads=3)
    run = Run(tmp_path / "mae")
    run.folder.mkdir()
    run.record_recipe(
        recipe(task=MaskedImage(masking), model=replace(plain, classes=0, patch=(4, 4)), augment=get_policy("none"))
    )
    with pytest.raises(VitrailError, match=r"trains without labels.*vitrail finetune"):
        RunPredictions(run, library, 0).confusion()


def test_with_very_many_classes_only_the_most_confused_are_shown(run: Run, library: ImageLibrary, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "mine")
    many = Run(tmp_path / "mine")
    count, labels = 150, np.arange(150).repeat(2)
    guesses = labels.copy()
    guesses[240:] = 7  # the last thirty classes are predicted as class 7
    many.save_predictions({"logits": np.eye(count, dtype=np.float32)[guesses], "labels": labels, "indices": np.arange(300)})
    facts = json.loads((many.folder / "best" / "vitrail.json").read_text())
    (many.folder / "best" / "vitrail.json").write_text(
        json.dumps({**facts, "class_names": [f"kind {k}" for k in range(count)]})
    )
    result = RunPredictions(many, library, 1).confusion()
    assert len(result["matrix"]) == len(result["class_names"]) == MAX_MATRIX_CLASSES
    assert {7, *range(120, 150)} <= set(result["class_indices"])
    assert result["class_names"] == [f"kind {k}" for k in result["class_indices"]]
    assert result["total"] == 300
    seven = result["class_indices"].index(7)
    assert result["matrix"][result["class_indices"].index(149)][seven] == 2


def test_damaged_predictions_are_an_error_and_new_ones_are_read(run: Run, library: ImageLibrary, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "mine")
    predictions = RunPredictions(Run(tmp_path / "mine"), library, 1)
    before = predictions.confusion()
    (tmp_path / "mine" / "predictions.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(VitrailError, match=r"predictions\.npz of mine cannot be read"):
        predictions.confusion()
    shutil.copy(run.folder / "predictions.npz", tmp_path / "mine")
    assert predictions.confusion() == before
