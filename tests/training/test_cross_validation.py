"""A cross-validation is its folds: ordinary runs, each tested on images that it has not trained on, resumed like any run.

Images of 16 x 24 pixels in three classes, patches of 8.
"""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import vitrail
from tests.data.images import write_class_folders, write_image
from tests.tasks.test_own_task import Brightness
from tests.training.distributed.torchrun import torchrun
from tests.training.test_loop import same
from vitrail.cli.main import run as run_command
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import with_label_sets
from vitrail.data.sources.fold import Fold
from vitrail.data.sources.folds import fold_splits
from vitrail.data.sources.label_sets import LabelSets
from vitrail.errors import VitrailError
from vitrail.tasks.detected_images import load_detected_images
from vitrail.tasks.detection_metrics import detection_scores
from vitrail.training.callbacks import Callback
from vitrail.training.cross_validation import CrossValidation
from vitrail.training.run import Run
from vitrail.training.trained_run import TrainedRun

SHORT = {"schedule.warmup_steps": 0, "eval_every": 4, "checkpoint_every": 3, "augment.mixup": 0.0}
IMAGES = np.random.default_rng(0).integers(0, 256, (61, 16, 24, 3), np.uint8)
PAIRS = [(image, ("bag", "boot", "shirt")[number % 3]) for number, image in enumerate(IMAGES)]
MU = ["--model", "mu/8", "--augment", "none", "--batch-size", "10", "--workers", "0", "--threads", "1"]
DATA = "panes:train_size=100,size=16,heldout_size=20"
COMMAND = ["train", DATA, *MU, "--folds", "3", "--set", "steps=12", "--set", "eval_every=4", "--set", "checkpoint_every=2"]


class Messages(Callback):
    """Keeps the messages, and the number of steps."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.steps = 0

    def on_message(self, message: str) -> None:
        self.messages.append(message)

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self.steps += 1


class RaisesAfter(Callback):
    """Raises an error after so many steps, of whichever fold."""

    def __init__(self, count: int, error: Exception) -> None:
        self.left, self.error = count, error

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self.left -= 1
        if not self.left:
            raise self.error


def validate(out: Path, folds: int = 3, **options: Any) -> CrossValidation:
    options = {"model": "mu/8", "image_size": (16, 24), "augment": "none", "batch_size": 8, "workers": 0, **options}
    settings = {**SHORT, **options.pop("settings", {"steps": 6})}
    return vitrail.train(PAIRS, folds=folds, out=out, settings=settings, **options)


def rows(path: Path | None) -> list[dict[str, str]]:
    assert path is not None
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> CrossValidation:
    return validate(tmp_path_factory.mktemp("runs") / "cv")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "cv"
    assert run_command([*COMMAND, "--out", str(folder), "--json"]) == 0
    return folder


def test_every_image_is_predicted_once_by_a_model_that_did_not_train_on_it(validated: CrossValidation) -> None:
    table, data = rows(validated.out_of_fold), vitrail.open_dataset(PAIRS)
    assert len(table) == len({row["file"] for row in table}) == len(PAIRS)
    for number, fold in enumerate(validated.folds, 1):
        splits, own = fold_splits(data, Fold(number, 3), 0.1), [row for row in table if row["fold"] == str(number)]
        assert [row["file"] for row in own] == [splits.test.describe(index) for index in range(len(splits.test))]
        assert [row["true_label"] for row in own] == [splits.class_names[label] for label in splits.test.labels]
        predictions = vitrail.predict(fold.model, [np.asarray(splits.test.read(index)) for index in range(len(splits.test))])
        assert [row["label"] for row in own] == [each.label for each in predictions]
        probabilities = [each.probability for each in predictions]
        assert [float(row["probability"]) for row in own] == pytest.approx(probabilities, abs=1e-5)
        assert fold.metrics["top1"] == pytest.approx(np.mean([row["label"] == row["true_label"] for row in own]))
        assert fold.metrics["top1"] == pytest.approx(vitrail.evaluate(fold.model, data).metrics["top1"])


def test_the_result_is_that_of_the_folds(validated: CrossValidation) -> None:
    result, table = json.loads((validated.folder / "result.json").read_text()), rows(validated.out_of_fold)
    scores = [fold.metrics["top1"] for fold in validated.folds]
    assert validated.metrics["top1"] == result["mean"]["top1"] == pytest.approx(np.mean(scores))
    half = 4.302652729749464 * np.std(scores, ddof=1) / 3**0.5  # Student's t of two degrees of freedom
    low, high = validated.intervals["top1"]
    assert (low, high) == pytest.approx((max(np.mean(scores) - half, 0), min(np.mean(scores) + half, 1)))
    assert [fold["metrics"] for fold in result["folds"]] == [fold.metrics for fold in validated.folds]
    assert sum(fold["images"]["test"] for fold in result["folds"]) == result["pooled"]["images"] == len(PAIRS)
    assert result["pooled"]["top1"] == pytest.approx(np.mean([row["label"] == row["true_label"] for row in table]))
    assert json.loads((validated.folder / "folds.json").read_text())["folds"] == 3


def test_a_fold_is_evaluated_on_its_own_images_and_as_any_model_on_others(
    unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads((unbroken / "result.json").read_text())
    assert run_command(["evaluate", str(unbroken / "fold-2"), DATA, "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["images"] == result["folds"][1]["images"]["test"] == 40
    assert evaluated["top1"] == pytest.approx(result["folds"][1]["metrics"]["top1"])
    assert not [note for note in evaluated["notes"] if "optimistic" in note]
    assert run_command(["evaluate", str(unbroken / "fold-2"), DATA, "--split", "train", "--json"]) == 0
    assert "optimistic" in capsys.readouterr().out
    assert run_command(["evaluate", str(unbroken / "fold-2"), DATA.replace("100", "50"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 20


def test_masks_have_the_scores_of_all_images_together(tmp_path: Path) -> None:
    settings = {"steps": 2, "schedule.warmup_steps": 0, "eval_every": 2, "batch_size": 8}
    data = "panes:train_size=20,size=16x24"
    run = vitrail.train(data, task="segment", model="mu/8", settings=settings, folds=2, out=tmp_path / "cv", workers=0)
    assert isinstance(run, CrossValidation)
    saved = run.load_predictions()
    total = saved["confusion"].sum(0).double()
    iou = total.diagonal() / (total.sum(0) + total.sum(1) - total.diagonal())
    pooled = run.result["pooled"]
    assert pooled["images"] == len(saved["indices"])
    assert pooled["miou"] == pytest.approx(iou.nanmean().item())
    low, high = pooled["intervals"]["miou"]
    assert low <= pooled["miou"] <= high
    assert run.out_of_fold is not None
    rows = list(csv.DictReader(run.out_of_fold.read_text().splitlines()))
    assert len(rows) == pooled["images"]
    for row in rows:
        for kind in ("", "true_"):
            assert float(row[f"{kind}background"]) + float(row[f"{kind}figure"]) == pytest.approx(1)
    page = run.report.read_text()
    assert "<h2>Confusion between classes</h2>" in page
    assert "mean IoU" in page


def test_boxes_have_the_scores_of_all_images_together(tmp_path: Path) -> None:
    settings = {"steps": 2, "schedule.warmup_steps": 0, "eval_every": 2, "batch_size": 8}
    data = "panes:train_size=20,size=16x24"
    run = vitrail.train(data, task="detect", model="mu/8", settings=settings, folds=2, out=tmp_path / "cv", workers=0)
    assert isinstance(run, CrossValidation)
    detected = load_detected_images(run.load_predictions())
    assert detected is not None
    expected = detection_scores(detected.matches(), 2)
    pooled = run.result["pooled"]
    assert pooled["images"] == len(detected)
    assert {name: float(pooled[name]) for name in expected} == pytest.approx(expected, nan_ok=True)
    low, high = pooled["intervals"]["ap50"]
    assert low <= pooled["ap50"] <= high
    assert run.out_of_fold is not None
    rows = list(csv.DictReader(run.out_of_fold.read_text().splitlines()))
    assert len(rows) == pooled["images"]
    for row in rows:
        for kind in ("", "true_"):
            labels = row[f"{kind}labels"].split(";") if row[f"{kind}labels"] else []
            assert len(labels) == int(row[f"{kind}objects"])
            assert set(labels) <= {"figure"}
    assert sum(int(row["true_objects"]) for row in rows) == len(detected.objects)
    page = run.report.read_text()
    assert "<h2>Confusion between classes and with the background</h2>" in page
    assert "AP50" in page


def test_the_report_links_to_those_of_the_folds(validated: CrossValidation) -> None:
    page = validated.report.read_text()
    for number, fold in enumerate(validated.folds, 1):
        assert f'href="fold-{number}/report.html"' in page
        assert fold.report.is_file()
        assert f"fold.number&quot;: {number}" not in page
    assert f"{validated.metrics['top1']:.2%}" in page
    assert f"vitrail train --recipe-from {validated.folder}" in page


def test_a_finished_cross_validation_is_left_as_it_is(validated: CrossValidation) -> None:
    before, messages = files(validated.folder), Messages()
    again = validate(validated.folder, callbacks=[messages])
    assert messages.messages == [f"{validated.folder} is finished: nothing to do"]
    assert files(validated.folder) == before
    assert (again.metrics, again.intervals) == (validated.metrics, validated.intervals)
    assert [fold.folder for fold in again.folds] == [fold.folder for fold in validated.folds]


def test_a_fold_is_an_ordinary_run(validated: CrossValidation, tmp_path: Path) -> None:
    recipe = validated.folds[1].run.recipe()
    assert recipe.fold == Fold(2, 3)
    alone = vitrail.fit(recipe, tmp_path / "alone", PAIRS)
    assert same(alone.folder, validated.folds[1].folder)


def test_the_recipe_of_a_cross_validation_trains_a_model_without_folds(validated: CrossValidation, tmp_path: Path) -> None:
    final = vitrail.train(PAIRS, recipe_from=validated.folder, out=tmp_path / "final", workers=0)
    assert isinstance(final, TrainedRun)
    assert final.run.recipe().fold is None
    assert final.run.recipe().steps == 6


def test_epochs_are_those_of_the_images_of_a_fold(tmp_path: Path) -> None:
    validated = validate(tmp_path / "cv", epochs=2, settings={})
    counts = [fold["images"]["train"] for fold in validated.result["folds"]]
    assert sum(counts[0:1]) < 41
    assert {fold.run.recipe().steps for fold in validated.folds} == {round(2 * counts[0] / 8)}


@pytest.mark.thorough
def test_minutes_are_divided_among_the_folds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cv"
    assert run_command(["train", DATA, *MU, "--folds", "4", "--minutes", "0.08", "--out", str(folder)]) == 0
    captured = capsys.readouterr()
    assert "the 0.08 minutes are for all folds: 0.02 minutes each" in captured.err
    assert captured.err.count("into 0.02 minutes") == 4
    assert json.loads((folder / "folds.json").read_text()) == {"folds": 4, "minutes": 0.08, "find_lr": False}
    assert f"vitrail train --recipe-from {folder} --minutes 0.02" in (folder / "report.html").read_text()


def test_the_predictions_together_are_scored_by_the_own_loss(tmp_path: Path) -> None:
    def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(outputs.softmax(1), F.one_hot(targets, 3).float())

    validated = validate(tmp_path / "cv", folds=2, loss=squared)
    weights = [fold["images"]["test"] for fold in validated.result["folds"]]
    losses = [fold.metrics["loss"] for fold in validated.folds]
    assert validated.result["pooled"]["loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-5)


def test_an_interrupted_cross_validation_is_resumed_where_it_was(validated: CrossValidation, tmp_path: Path) -> None:
    counter = Messages()
    with pytest.raises(OSError, match="broke"):
        validate(tmp_path / "cv", callbacks=[RaisesAfter(10, OSError("broke"))])  # in the second fold of six steps each
    first = files(tmp_path / "cv" / "fold-1")
    resumed = validate(tmp_path / "cv", callbacks=[counter])
    assert files(tmp_path / "cv" / "fold-1") == first
    assert counter.steps == 3 + 6  # from the checkpoint of step 3, and the third fold
    assert all(same(ours.folder, theirs.folder) for ours, theirs in zip(resumed.folds, validated.folds, strict=True))
    assert rows(resumed.out_of_fold) == rows(validated.out_of_fold)
    assert (resumed.metrics, resumed.intervals) == (validated.metrics, validated.intervals)


def test_a_cross_validation_is_not_resumed_with_other_images(tmp_path: Path) -> None:
    photos, folder = write_class_folders(tmp_path / "photos", {"bag": 9, "boot": 7}), tmp_path / "cv"
    options: dict[str, Any] = {"folds": 2, "out": folder, "model": "mu/8", "image_size": (16, 24), "workers": 0}
    options["settings"] = {**SHORT, "steps": 2, "batch_size": 4}
    with pytest.raises(OSError, match="broke"):
        vitrail.train(photos, callbacks=[RaisesAfter(3, OSError("broke"))], **options)
    write_image(photos / "bag" / "another.jpg", 99)
    with pytest.raises(VitrailError, match="fold-1 was trained on other images or labels; use another folder"):
        vitrail.train(photos, **options)
    assert not (folder / "result.json").exists()
    (photos / "bag" / "another.jpg").unlink()
    assert len(rows(vitrail.train(photos, **options).out_of_fold)) == 16


@pytest.mark.thorough
def test_a_killed_cross_validation_is_resumed_where_it_was(unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cv"
    command = [sys.executable, "-m", "vitrail", *COMMAND, "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (folder / "fold-2" / "checkpoints").is_dir():
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
    assert Run(folder / "fold-1").result() is not None
    assert not (folder / "result.json").exists()
    first = files(folder / "fold-1")
    assert run_command(["train", "--resume", str(folder)]) == 0
    assert files(folder / "fold-1") == first
    for name in ("fold-1", "fold-2", "fold-3"):
        assert same(folder / name, unbroken / name)
    assert (folder / "out_of_fold.csv").read_bytes() == (unbroken / "out_of_fold.csv").read_bytes()
    ours, theirs = (json.loads((each / "result.json").read_text()) for each in (folder, unbroken))
    assert all(ours[name] == theirs[name] for name in ("mean", "intervals", "pooled"))


@pytest.mark.parametrize("lost", ["report.html", "result.json", "out_of_fold.csv"])
def test_what_a_kill_after_the_last_fold_leaves_out_is_written_next_time(unbroken: Path, tmp_path: Path, lost: str) -> None:
    folder = Path(shutil.copytree(unbroken, tmp_path / "cv"))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    order = ["out_of_fold.csv", "result.json", "report.html"]  # in which they are written
    for name in order[order.index(lost) :]:
        (folder / name).unlink()
    assert run_command([*COMMAND, "--out", str(folder)]) == 0
    assert (folder / "out_of_fold.csv").read_bytes() == before["out_of_fold.csv"]
    assert (folder / "report.html").is_file()
    assert json.loads((folder / "result.json").read_text())["mean"] == json.loads(before["result.json"])["mean"]


@pytest.mark.thorough
def test_a_stopped_cross_validation_names_its_own_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vitrail", *COMMAND, "--set", "steps=4000"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        while process.poll() is None and not list(tmp_path.glob("runs/*/fold-1/checkpoints/step-*")):
            time.sleep(0.01)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "vitrail train --resume runs/small resumes from there" in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--folds", "1"], "--folds must be at least 2, got 1; try --folds 5"),
        (["--folds", "0"], "--folds must be at least 2, got 0"),
        (["--folds", "-2"], "--folds must be at least 2, got -2"),
        (["--folds", "2.5"], "--folds"),
        (["--folds", "50"], "--folds must be at most the number of images of each class, got --folds 50 and 5 different"),
        (["--folds", "4", "--resume", "runs/cv"], "leave out --folds"),
        (["--folds", "4", "--set", "fold.of=3"], "--folds and --set fold.of set the same field"),
    ],
)
def test_bad_folds_are_one_sentence(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = [] if "--resume" in options else ["panes:train_size=80,size=16,heldout_size=20", "--model", "mu/8"]
    assert run_command(["train", *data, *options]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_folds_that_python_cannot_count_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=r"folds must be a whole number, got 2\.5"):
        validate(tmp_path / "cv", folds=2.5)  # type: ignore[arg-type]


def test_folders_of_runs_and_of_cross_validations_are_not_mixed_up(
    validated: CrossValidation, unbroken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(VitrailError, match=r"folds must be 3, which .* was started with, got 4"):
        validate(validated.folder, folds=4)
    with pytest.raises(VitrailError, match="was started with another recipe: steps was 6, is 5"):
        validate(validated.folder, settings={"steps": 5})
    with pytest.raises(VitrailError, match="is a cross-validation with folds=3; name another folder for a single run"):
        vitrail.train(PAIRS, recipe_from=validated.folder, out=validated.folder)
    single = Path(shutil.copytree(validated.folds[0].folder, tmp_path / "single"))
    with pytest.raises(VitrailError, match="is a run without folds; name another folder"):
        validate(single)
    with pytest.raises(VitrailError, match=r"is a cross-validation, which has a model per fold; name one, such as .*fold-1"):
        vitrail.load(validated.folder)
    assert run_command(["train", "--resume", str(unbroken), "--set", "steps=20"]) == 2
    assert f"start a new run with --recipe-from {unbroken}" in capsys.readouterr().err
    with pytest.raises(VitrailError, match="leave out folds"):
        vitrail.train(resume=unbroken, folds=3)


def test_the_command_prints_means_intervals_and_what_to_do_next(unbroken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["train", "--resume", str(unbroken)]) == 0
    captured = capsys.readouterr()
    result = json.loads((unbroken / "result.json").read_text())
    low, high = result["intervals"]["top1"]
    assert f"{result['mean']['top1']:.2%}" in captured.out
    assert f"{low:.2%} to {high:.2%}" in captured.out
    assert f"vitrail train --recipe-from {unbroken}" in captured.out.replace("\n", "")
    assert f"{unbroken} is finished: nothing to do" in captured.err
    assert run_command(["train", "--resume", str(unbroken), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**result, "report": str(unbroken / "report.html")}


def test_numbers_are_predicted_for_every_image(tmp_path: Path) -> None:
    heights = [float(number) for number in range(61)]
    data = {"train": [(image, height) for image, height in zip(IMAGES, heights, strict=True)]}
    validated = vitrail.train(
        data, folds=3, task=Brightness(), out=tmp_path / "cv", model="mu/8", image_size=(16, 24), augment="none", workers=0,
        batch_size=8, settings={**SHORT, "steps": 4},
    )  # fmt: skip
    table = rows(validated.out_of_fold)
    assert sorted(float(row["true_target"]) for row in table) == heights
    assert list(table[0]) == ["file", "true_target", "fold", "level"]
    errors = [abs(float(row["level"]) - float(row["true_target"])) / 255 for row in table]
    assert validated.result["pooled"]["mae"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert "mae, mean of the folds" in validated.report.read_text()


def test_several_labels_are_predicted_by_the_thresholds_of_each_fold(tmp_path: Path) -> None:
    names = ("bag", "boot", "hat", "tie")
    labels = [[number % 3] + [3] * (number % 2) for number in range(len(IMAGES))]
    images = vitrail.open_dataset([(image, 0) for image in IMAGES], split_fractions=SplitFractions(0.0, 0.0)).train
    data = with_label_sets(images, LabelSets.from_lists(labels, 4), names)
    validated = vitrail.train(
        data, folds=2, out=tmp_path / "cv", model="mu/8", image_size=(16, 24), augment="none", workers=0, batch_size=8,
        settings={**SHORT, "steps": 4},
    )  # fmt: skip
    table = rows(validated.out_of_fold)
    assert sorted(row["true_labels"] for row in table) == sorted(";".join(names[label] for label in each) for each in labels)
    for number, fold in enumerate(validated.folds, 1):
        own = [row for row in table if row["fold"] == str(number)]
        predictions = vitrail.predict(fold.model, [IMAGES[int(row["file"].split()[1])] for row in own])
        assert [row["labels"] for row in own] == [each.cells()["labels"] for each in predictions]
    pooled = validated.result["pooled"]
    assert pooled["images"] == len(IMAGES)
    assert pooled["intervals"]["map"][0] < pooled["map"] < pooled["intervals"]["map"][1]
    assert "f1_macro" in validated.metrics
    assert "f1_macro" not in pooled  # each fold has its own thresholds
    assert "mAP of a random ranking" in validated.report.read_text()


def test_weights_are_finetuned_in_every_fold(validated: CrossValidation, tmp_path: Path) -> None:
    tuned = vitrail.finetune(
        validated.folds[0].folder, PAIRS, folds=2, out=tmp_path / "cv", batch_size=8, workers=0, settings={**SHORT, "steps": 4}
    )
    assert [fold.run.recipe().init_from for fold in tuned.folds] == [str(validated.folds[0].folder)] * 2
    assert len(rows(tuned.out_of_fold)) == len(PAIRS)


@pytest.mark.thorough
def test_two_processes_validate_as_one_does(unbroken: Path, tmp_path: Path) -> None:
    done = torchrun(2, *COMMAND, "--out", tmp_path / "cv", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    ours, theirs = (rows(each / "out_of_fold.csv") for each in (tmp_path / "cv", unbroken))
    assert [(row["file"], row["fold"]) for row in ours] == [(row["file"], row["fold"]) for row in theirs]
    probabilities = [[float(row["probability"]) for row in table] for table in (ours, theirs)]
    assert probabilities[0] == pytest.approx(probabilities[1], rel=1e-3)
