"""A validation metric that is NaN: the run goes on, selects among what is finite, and writes JSON that every reader accepts."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.training.small_run import deterministic_recipe
from tests.training.test_dataset import MessageRecorder
from tests.training.test_loop import same
from vitrail.recipes.recipe import Recipe
from vitrail.recipes.task_config import TaskConfig
from vitrail.report.run_page import run_page
from vitrail.studio.run_log import run_summary
from vitrail.tasks.classification import ClassificationTask
from vitrail.training.trained_run import TrainedRun
from vitrail.training.trainer import Hardware, fit

SCORES: list[float] = []  # of the evaluations to come


@dataclass(frozen=True)
class Scripted(TaskConfig):
    """Classification whose accuracy is written beforehand."""

    kind: Literal["scripted"] = "scripted"
    loss: Literal["softmax"] = "softmax"
    label_smoothing: float = 0.0
    balanced_loss: bool = False


class ScriptedTask(ClassificationTask):
    config_class = Scripted  # type: ignore[assignment]

    def metrics(self, outputs: Any, targets: Any) -> dict[str, float]:
        return {**super().metrics(outputs, targets), "top1": SCORES.pop(0)}


def train(folder: Path, scores: list[float], callback: MessageRecorder, **changes: Any) -> TrainedRun:
    SCORES[:] = scores
    settings: Recipe = deterministic_recipe(task=Scripted(), **changes)  # evaluated at the steps 4, 8 and 12, then on test
    return fit(settings, folder, hardware=Hardware(workers=0), callbacks=[callback])


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("scores", "best", "value"),
    [
        ([math.nan, 0.2, 0.3, 0.5], 12, 0.3),
        ([0.3, math.nan, 0.2, 0.5], 4, 0.3),
        ([0.3, math.inf, math.nan, math.nan], 4, 0.3),
        ([math.nan, math.nan, math.nan, math.nan], 12, math.nan),
    ],
)
def test_a_metric_that_is_not_finite_is_never_the_best(scores: list[float], best: int, value: float, tmp_path: Path) -> None:
    callback = MessageRecorder()
    run = train(tmp_path / "run", scores, callback)
    assert run.result["best"]["step"] == best
    assert float(run.result["best"]["top1"]) == pytest.approx(value, nan_ok=True)
    assert run.metrics["top1"] == pytest.approx(scores[3], nan_ok=True)
    said = [message for message in callback.messages if "do not count as the best" in message]
    assert said == [
        f"step {step}: top1 is {score}, so these weights do not count as the best"
        for step, score in zip((4, 8, 12), scores, strict=False)
        if not math.isfinite(score)
    ]
    files = [*(tmp_path / "run").glob("checkpoints/*/*.json"), *(tmp_path / "run").glob("*/*.json")]
    assert strict_json((tmp_path / "run" / "result.json").read_text()) == run.result
    assert len(files) > 4
    for file in files:
        strict_json(file.read_text())
    rows = [strict_json(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [row["validation"]["top1"] for row in rows if "validation" in row] == [
        score if math.isfinite(score) else str(score) for score in scores[:3]
    ]
    assert "<html" in run_page(run.run, run.data)
    json.dumps(run_summary(run.run), allow_nan=False)


def test_a_run_whose_first_metric_is_nan_resumes_exactly(tmp_path: Path) -> None:
    scores = [math.nan, 0.2, 0.1, 0.5]
    whole = train(tmp_path / "whole", scores, MessageRecorder(), keep_checkpoints=4)
    train(tmp_path / "run", scores, MessageRecorder(), keep_checkpoints=4)
    (tmp_path / "run" / "result.json").unlink()
    for step in (9, 12):
        for file in (tmp_path / "run" / "checkpoints" / f"step-{step}").glob("*"):
            file.write_bytes(b"")
    assert strict_json((tmp_path / "run" / "checkpoints" / "step-6" / "state.json").read_text())["best"] is None
    resumed = train(tmp_path / "run", scores[1:], MessageRecorder(), keep_checkpoints=4)
    assert resumed.result["best"] == whole.result["best"] == {"step": 8, "top1": 0.2}
    assert same(resumed.folder, whole.folder)
