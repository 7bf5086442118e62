"""Detection from training to a saved model: exact resume, micro-batches, ranks, its own head, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import vitrail
from tests.small_detector import BoxedImages
from tests.tiers import quick_only
from tests.training.distributed.torchrun import steps, torchrun
from tests.training.test_loop import RaisesAt, same
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.objects import build_objects
from vitrail.errors import VitrailError
from vitrail.tasks.detection import object_class_weights
from vitrail.tasks.detection_model import DenseDetector
from vitrail.training.load_checkpoint import load_checkpoint
from vitrail.training.trained_run import TrainedRun

PANES = "panes:train_size=60,size=24x32"
SHORT = {"steps": 12, "schedule.warmup_steps": 0, "eval_every": 4, "checkpoint_every": 3, "batch_size": 10}


def train(out: Path, task: str = "detect", settings: dict[str, Any] | None = None, **options: Any) -> TrainedRun:
    run = vitrail.train(
        PANES, task=task, model="mu/8", settings={**SHORT, **(settings or {})}, out=out, **{"workers": 0, **options}
    )
    assert isinstance(run, TrainedRun)
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(tmp_path_factory.mktemp("runs") / "run")


def losses(run: TrainedRun) -> list[float]:
    return [row["loss"] for row in run.history if "loss" in row]


def test_a_run_learns_and_has_the_metrics_of_detection(trained: TrainedRun) -> None:
    assert losses(trained)[-1] < losses(trained)[0]
    assert {"ap", "ap50", "ap75"} <= set(trained.result["test"])
    assert [row["name"] for row in trained.result["classes"]] == ["figure"]
    assert json.loads((trained.folder / "recipe.json").read_text())["columns"]["boxes"] is True


def test_evaluate_reproduces_the_result_of_a_run(trained: TrainedRun) -> None:
    found, expected = vitrail.evaluate(trained.folder, PANES).details["test"], trained.result["test"]
    finite = {name: value for name, value in expected.items() if np.isfinite(float(value))}
    assert finite.pop("loss") > 0
    assert {"ap", "ap50", "ar100"} <= set(finite)
    assert {name: found[name] for name in finite} == pytest.approx(finite)


@pytest.mark.parametrize("at", quick_only(range(1, 13), 5, 12))
def test_an_interrupted_run_ends_as_the_uninterrupted_one(at: int, trained: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        train(tmp_path / "run", callbacks=[RaisesAt(at, OSError("broke"))])
    assert same(train(tmp_path / "run", workers=2).folder, trained.folder)


def test_micro_batches_change_nothing_but_the_last_bits(trained: TrainedRun, tmp_path: Path) -> None:
    run = train(tmp_path / "run", settings={"micro_batch_size": 3, "ema_decay": 0.998})
    assert_close(torch.tensor(losses(trained)), torch.tensor(losses(run)), rtol=2e-3, atol=1e-3)


def test_a_model_is_saved_with_its_head_and_loaded_from_a_checkpoint(trained: TrainedRun) -> None:
    model, last = vitrail.load(trained.folder / "last"), load_checkpoint(trained.folder, 12)
    assert isinstance(model, DenseDetector)
    images = torch.randn(2, 3, 24, 32)
    with torch.no_grad():
        assert_close(last(images), model(images), rtol=0, atol=0)
    assert model.encoder.class_names == ("figure",)


def test_only_the_head_learns_on_frozen_features(tmp_path: Path, trained: TrainedRun) -> None:
    run = vitrail.finetune(
        trained.folder, PANES, task="detect", trainable="head", settings={**SHORT, "steps": 4}, out=tmp_path / "run", workers=0
    )
    assert isinstance(run, TrainedRun)
    before, after = (vitrail.load(folder).state_dict() for folder in (trained.folder, run.folder))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith("head.") for name in changed)


def test_a_detection_model_is_fine_tuned_with_its_head_for_the_same_classes(tmp_path: Path, trained: TrainedRun) -> None:
    def keeps_head(out: Path, **settings: Any) -> bool:
        changed = {**SHORT, "steps": 1, "columns.boxes": True, **settings}
        run = vitrail.finetune(trained.folder, PANES, settings=changed, out=out, workers=0)
        assert isinstance(run, TrainedRun)
        return bool(json.loads((run.folder / "recipe.json").read_text())["keep_head"])

    assert keeps_head(tmp_path / "kept")
    assert not keeps_head(tmp_path / "new", **{"task.layers": [1]})


@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_two_ranks_make_the_same_run(parallel: str, tmp_path: Path) -> None:
    settings = {"steps": 8, "eval_every": 4, "checkpoint_every": 4, "optim.name": "adamw", "optim.lr": 1e-3}
    one, two = train(tmp_path / "one", settings=settings).folder, tmp_path / "two"
    batch_size = json.loads((one / "recipe.json").read_text())["batch_size"]
    changes = {**settings, "schedule.warmup_steps": 0, "batch_size": batch_size, "parallel": parallel}
    options = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    done = torchrun(2, "train", PANES, "--task", "detect", "--model", "mu/8", *options, "--out", two, "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    for ours, theirs in zip(steps(one).values(), steps(two).values(), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-5)
    first, second = (json.loads((run / "result.json").read_text())["test"] for run in (one, two))
    assert second == pytest.approx(first, abs=5e-3)
    assert_close(
        load_file(two / "last" / "model.safetensors"), load_file(one / "last" / "model.safetensors"), atol=5e-4, rtol=1e-3
    )


def test_class_weights_are_larger_for_rare_classes_and_one_for_an_object_on_average() -> None:
    box, counts = [2.0, 3, 9, 11], np.array([4, 1, 0])
    boxes = tuple(build_objects([box] * len(labels), labels) for labels in ([0, 0, 1], [], [0, 0]))
    crowd = build_objects([box], [1], crowd=np.array([True]))
    images = BoxedImages(np.zeros((4, 12, 15, 3), np.uint8), np.full(4, -1), ("a", "b", "c"), boxes=(*boxes, crowd))
    weights = object_class_weights(images).double().numpy()
    assert weights[1] / weights[0] == pytest.approx(2, rel=1e-5)
    assert weights[2] == 0, "there is none to learn from"
    assert (weights * counts).sum() / counts.sum() == pytest.approx(1, rel=1e-5)


def test_what_has_no_boxes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="fashion has no boxes, which detection learns from; name a COCO file"):
        vitrail.train("fashion", task="detect", out=tmp_path / "a")
    with pytest.raises(VitrailError, match="needs the patches of a ViT"):
        vitrail.train(PANES, task="detect", recipe="resnet", out=tmp_path / "b")
    with pytest.raises(VitrailError, match="either masks or boxes are the targets, got both"):
        Columns(masks=True, boxes=True)
