"""The report of a detection run states its result, by the boxes that the run has saved."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.plot.class_colours import class_colour
from vitrail.report.detection_section import DetectionSection
from vitrail.report.run_page import run_page
from vitrail.report.task_section import RunReport
from vitrail.tasks.detected_images import DetectedImages, load_detected_images
from vitrail.tasks.detection_metrics import bootstrap_detection, detection_scores, score_thresholds
from vitrail.tasks.resampling import finite_interval
from vitrail.training.run import Run
from vitrail.training.trained_run import TrainedRun

PANES = "panes:train_size=60,size=24x32"
SHORT = {"steps": 30, "optim.lr": 3e-3, "eval_every": 30, "checkpoint_every": 30, "batch_size": 10}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {**SHORT, "schedule.warmup_steps": 0}
    run = vitrail.train(PANES, task="detect", model="mu/8", settings=settings, out=out, workers=0)
    assert isinstance(run, TrainedRun)
    return run


@pytest.fixture(scope="module")
def saved(trained: TrainedRun) -> DetectedImages:
    arrays = Run(trained.folder).load_predictions()
    detected = load_detected_images({name: torch.from_numpy(array) for name, array in arrays.items()})
    assert detected is not None
    return detected


def test_the_headline_is_ap_with_its_interval(trained: TrainedRun, saved: DetectedImages) -> None:
    page = trained.report.read_text()
    low, high = finite_interval(bootstrap_detection(saved.matches(), 2)[0]["ap"])
    assert f"{trained.result['test']['ap']:.2%}" in page
    assert f"AP on test, 95 % interval {low:.1%} to {high:.1%}, AP50 {trained.result['test']['ap50']:.2%}" in page
    assert detection_scores(saved.matches(), 2)["ap50"] == pytest.approx(float(trained.result["test"]["ap50"]), abs=1e-12)


def test_each_class_has_its_colour_and_its_scores(trained: TrainedRun) -> None:
    page = trained.report.read_text()
    table = page[page.index("<h2>Classes</h2>") : page.index("<h2>Sizes</h2>")]
    for label, row in enumerate(trained.result["classes"]):
        line = next(line for line in table.splitlines() if row["name"] in line)
        assert class_colour(label) in line
        assert f"{row['objects']:,}" in line
        assert f"{row['ap50']:.1%}" in line
    sizes = page[page.index("<h2>Sizes</h2>") : page.index("<h2>Precision and recall</h2>")]
    number = sum(row["objects"] for row in trained.result["classes"])
    assert f'<td>all</td><td class="number">{number:,}</td>' in sizes


def test_the_confusion_is_that_of_the_saved_boxes(trained: TrainedRun, saved: DetectedImages) -> None:
    page = trained.report.read_text()
    matrix = page[page.index("<h2>Confusion") : page.index("<h2>Best and worst")]
    counts = [int(cell or 0) for cell in re.findall(r'<td style="--fraction:[\d.]+">(\d*)</td>', matrix)]
    expected = saved.confusion(score_thresholds(trained.result["classes"]))
    np.testing.assert_array_equal(np.reshape(counts, (2, 2)), expected)


def test_the_page_shows_images_and_is_self_contained(trained: TrainedRun) -> None:
    page = trained.report.read_text()
    assert "Lowest AP50: objects and detections" in page
    assert "Highest AP50" in page
    assert "Precision over recall" in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    for title in ("AP", "AP50", "Loss"):
        assert f"<figcaption>{title} " in page or f'aria-label="{title}"' in page


def test_a_run_without_its_boxes_still_has_a_page(trained: TrainedRun, tmp_path: Path) -> None:
    shutil.copytree(trained.folder, tmp_path / "run")
    (tmp_path / "run" / "predictions.npz").unlink()
    page = run_page(Run(tmp_path / "run"))
    assert "AP on test, weights of step" in page
    assert "<h2>Classes</h2>" not in page


def test_the_boxes_of_all_folds_have_the_same_sections(trained: TrainedRun, saved: DetectedImages) -> None:
    run = Run(trained.folder)
    parts = DetectionSection().out_of_fold(RunReport(run, run.recipe(), trained.result), saved.tensors(), ("figure",))
    page = "\n".join(parts)
    assert re.findall("<h2>(.*?)</h2>", page) == [
        "Classes",
        "Sizes",
        "Precision and recall",
        "Confusion between classes and with the background",
    ]
