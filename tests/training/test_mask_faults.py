"""Training on folders of masks: what is ignored is part of the run, and masks that vanish are skipped and counted."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from tests.data.mask_images import write_mask_folder
from vitrail.errors import VitrailError
from vitrail.training.callbacks import Callback
from vitrail.training.trained_run import TrainedRun

SETTINGS: dict[str, Any] = {"batch_size": 6, "steps": 6, "eval_every": 3, "checkpoint_every": 3, "schedule.warmup_steps": 1}


def train(data: Path, out: Path, **options: Any) -> TrainedRun:
    run = vitrail.train(data, model="mu/8", image_size=(24, 16), settings=SETTINGS, out=out, workers=0, **options)
    assert isinstance(run, TrainedRun)
    return run


class RemovesMasks(Callback):
    """Removes masks after the first step."""

    def __init__(self, masks: list[Path]) -> None:
        self.masks = masks

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        for mask in self.masks if step == 1 else []:
            mask.unlink()


def test_masks_that_vanish_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of each split one: training and evaluation go on without it, and say so."""
    folder = write_mask_folder(tmp_path / "data")
    gone = [folder / "train/masks/1.png", folder / "val/masks/7.png"]
    with caplog.at_level(logging.WARNING, "vitrail"):
        run = train(folder, tmp_path / "run", callbacks=[RemovesMasks(gone)])
    for image, mask in zip(("train/images/1.jpg", "val/images/7.jpg"), gone, strict=True):
        assert any(f"{image}: its mask {mask} cannot be read" in record.getMessage() for record in caplog.records)
    assert np.isfinite(run.metrics["miou"])


def test_many_masks_that_vanish_stop_the_run_with_one_sentence(tmp_path: Path) -> None:
    folder = write_mask_folder(tmp_path / "data")
    gone = sorted((folder / "train/masks").iterdir())[:4]
    with pytest.raises(VitrailError, match=r"[234] of 6 images cannot be used, .* its mask .* cannot be read"):
        train(folder, tmp_path / "run", callbacks=[RemovesMasks(gone)])


def test_what_is_ignored_is_part_of_the_run(tmp_path: Path) -> None:
    """A run, its resumption and its evaluation ignore the same values."""
    folder = write_mask_folder(tmp_path / "data", values=(0, 1, 2, 255))
    run = train(folder, tmp_path / "run", ignore=2)
    recipe = json.loads((run.folder / "recipe.json").read_text())
    assert (recipe["columns"]["masks"], recipe["columns"]["ignore"]) == (True, ["2"])
    assert recipe["task"]["classes"] == 2
    resumed = vitrail.train(resume=run.folder, settings={"steps": 9}, out=tmp_path / "resumed", workers=0)
    assert isinstance(resumed, TrainedRun)
    assert json.loads((resumed.folder / "recipe.json").read_text())["columns"] == recipe["columns"]
    result = vitrail.evaluate(run.folder, folder)
    assert result.metrics["miou"] == pytest.approx(run.metrics["miou"], rel=1e-6)


def test_folders_of_masks_can_be_classified(tmp_path: Path) -> None:
    """Who wants classes of images, gets them; the recipe says so, and is opened in the same way."""
    run = train(write_mask_folder(tmp_path / "data", {"train": 20}), tmp_path / "run", task="classify")
    recipe = json.loads((run.folder / "recipe.json").read_text())
    assert recipe["columns"]["masks"] is False
    assert vitrail.load(run.folder).class_names == ("images", "masks")
