"""The predictions of a run, compared with its model and its reported metrics."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.train.small_run import draw, recipe
from vitrail.augment.policy import policy
from vitrail.data.decode import as_picture
from vitrail.errors import VitrailError
from vitrail.evaluate.predict import predict
from vitrail.models.masking import Masking
from vitrail.models.settings import ViTConfig
from vitrail.studio.album import Album
from vitrail.studio.answers import MOST_CLASSES, Answers
from vitrail.train.loop import Machine, fit
from vitrail.train.run import Run
from vitrail.weights.load import load


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on a folder with a damaged image, so that indices in the split and in the folder differ."""
    folder = tmp_path_factory.mktemp("runs")
    draw(folder / "birds", classes=4, each=15)
    (folder / "birds" / "class 0" / "00.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    plain = recipe(data=str(folder / "birds"), test=0.4, validation=0.1)
    fit(replace(plain, model=replace(plain.model, classes=4)), folder / "mine", Machine(workers=1))
    return Run(folder / "mine")


@pytest.fixture(scope="module")
def album(run: Run) -> Album:
    return Album(["panes:count=10,size=16", run.recipe()])


@pytest.fixture(scope="module")
def answers(run: Run, album: Album) -> Answers:
    return Answers(run, album, 1)


def test_the_matrix_counts_every_image_once_and_agrees_with_the_result(run: Run, answers: Answers, album: Album) -> None:
    found, result = answers.confusion(), run.result()
    assert result is not None
    matrix = np.array(found["matrix"])
    assert (found["split"], found["class_names"]) == ("test", [f"class {label}" for label in range(4)])
    assert found["class_indices"] == [0, 1, 2, 3]
    assert matrix.sum() == found["total"] == album.page("d1", "test", 0, 1)["total"]
    assert (matrix.sum(1) == np.bincount(album.data(1).test.labels)).all()
    assert matrix.trace() / matrix.sum() == pytest.approx(result["test"]["top1"])
    json.dumps(found)


def test_the_images_of_a_cell_are_those_with_that_prediction(run: Run, answers: Answers, album: Album) -> None:
    model, seen = load(run.folder), 0
    for true in range(4):
        for said in range(4):
            found = answers.confused(true, said)
            assert found["total"] == len(found["images"]) == answers.confusion()["matrix"][true][said]
            contents = [np.asarray(as_picture(album.content(told["id"]))) for told in found["images"]]
            for told, prediction in zip(found["images"], predict(model, contents, workers=0), strict=True):
                assert (told["label"], told["predicted"]) == (f"class {true}", f"class {said}")
                assert prediction.label == told["predicted"]
                assert prediction.probability == pytest.approx(told["probability"], abs=1e-6)
                assert album.title(told["id"]) == told["title"]
            assert found["images"] == sorted(found["images"], key=lambda told: -told["probability"])
            seen += found["total"]
    assert seen == answers.confusion()["total"]


def test_the_highest_losses_come_first(run: Run, answers: Answers) -> None:
    with np.load(run.folder / "predictions.npz") as file:
        logits, labels = torch.from_numpy(file["logits"]), torch.from_numpy(file["labels"])
        indices = file["indices"].tolist()
    losses = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    found = answers.worst()["images"]
    assert [told["loss"] for told in found] == pytest.approx(losses.sort(descending=True)[0][:24].tolist())
    for told in found:
        row = indices.index(int(told["id"].rpartition("-")[2]))
        assert told["loss"] == pytest.approx(losses[row].item())
        assert told["label"] == f"class {labels[row]}"


def test_an_invalid_class_index_is_refused(answers: Answers) -> None:
    for true, said in ((-1, 0), (0, 4)):
        with pytest.raises(VitrailError, match="from 0 to 3"):
            answers.confused(true, said)


def test_a_model_trained_with_the_sigmoid_loss_has_sigmoid_probabilities(run: Run, album: Album, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "mine")
    known = json.loads((tmp_path / "mine" / "recipe.json").read_text())
    (tmp_path / "mine" / "recipe.json").write_text(json.dumps({**known, "loss": "sigmoid"}))
    with np.load(run.folder / "predictions.npz") as file:
        most = torch.from_numpy(file["logits"]).max(1).values.double().sigmoid()
        indices = file["indices"].tolist()
    for told in Answers(Run(tmp_path / "mine"), album, 1).worst()["images"]:
        assert told["probability"] == pytest.approx(most[indices.index(int(told["id"].rpartition("-")[2]))].item())


def test_changed_images_are_not_shown(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "birds"
    shutil.copytree(run.recipe().data, other)
    shutil.copytree(run.folder, tmp_path / "mine")
    known = json.loads((tmp_path / "mine" / "recipe.json").read_text())
    (tmp_path / "mine" / "recipe.json").write_text(json.dumps({**known, "data": str(other)}))
    moved = Run(tmp_path / "mine")
    before = Answers(moved, Album([moved.recipe()]), 0)
    assert before.worst()["images"]  # the same images at another path are the same
    next((other / "class 2").glob("*.png")).unlink()
    after = Answers(moved, Album([moved.recipe()]), 0)
    assert after.confusion() == before.confusion()  # which needs no image
    for ask in (after.worst, lambda: after.confused(0, 0)):
        with pytest.raises(VitrailError, match="are not those that mine was evaluated on"):
            ask()
    shutil.rmtree(other)
    gone = Answers(moved, Album([moved.recipe()]), 0)
    assert gone.confusion() == before.confusion()
    with pytest.raises(VitrailError, match="there is no "):
        gone.worst()


def test_an_unfinished_run_says_when_there_will_be_predictions(tmp_path: Path, album: Album) -> None:
    run = Run(tmp_path / "young")
    run.folder.mkdir()
    run.begin(recipe())
    run.log({"step": 7, "loss": 1.0})
    for ask in (Answers(run, album, 0).confusion, Answers(run, album, 0).worst):
        with pytest.raises(VitrailError, match="saved when it is finished; it is at step 7 of 12"):
            ask()


def test_a_run_without_labels_says_that_it_has_no_predictions(tmp_path: Path, album: Album) -> None:
    plain = recipe().model
    assert isinstance(plain, ViTConfig)
    masking = Masking("mae", 0.75, decoder_width=24, decoder_depth=1, decoder_heads=3)
    run = Run(tmp_path / "mae")
    run.folder.mkdir()
    run.begin(recipe(masking=masking, model=replace(plain, classes=0, patch=(4, 4)), augment=policy("none")))
    with pytest.raises(VitrailError, match=r"trains without labels.*vitrail finetune"):
        Answers(run, album, 0).confusion()


def test_with_very_many_classes_only_the_most_confused_are_shown(run: Run, album: Album, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "mine")
    many = Run(tmp_path / "mine")
    count, labels = 150, np.arange(150).repeat(2)
    guesses = labels.copy()
    guesses[240:] = 7  # the last thirty classes are predicted as class 7
    many.keep_predictions({"logits": np.eye(count, dtype=np.float32)[guesses], "labels": labels, "indices": np.arange(300)})
    facts = json.loads((many.folder / "best" / "vitrail.json").read_text())
    (many.folder / "best" / "vitrail.json").write_text(
        json.dumps({**facts, "class_names": [f"kind {k}" for k in range(count)]})
    )
    found = Answers(many, album, 1).confusion()
    assert len(found["matrix"]) == len(found["class_names"]) == MOST_CLASSES
    assert {7, *range(120, 150)} <= set(found["class_indices"])
    assert found["class_names"] == [f"kind {k}" for k in found["class_indices"]]
    assert found["total"] == 300
    seven = found["class_indices"].index(7)
    assert found["matrix"][found["class_indices"].index(149)][seven] == 2


def test_damaged_predictions_are_an_error_and_new_ones_are_read(run: Run, album: Album, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "mine")
    answers = Answers(Run(tmp_path / "mine"), album, 1)
    before = answers.confusion()
    (tmp_path / "mine" / "predictions.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(VitrailError, match=r"predictions\.npz of mine cannot be read"):
        answers.confusion()
    shutil.copy(run.folder / "predictions.npz", tmp_path / "mine")
    assert answers.confusion() == before
