"""Bad images are reported before the first step, and tolerated as far as the recipe allows (FAULTS 1, 6)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.training.small_run import recipe, write_noise_images
from vitrail.data.preprocess import Fit, vit_preprocess
from vitrail.data.sources.dataset import ArrayDataset, DatasetSplits
from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Recipe
from vitrail.training import dataset as module
from vitrail.training.callbacks import Callback
from vitrail.training.crop_warning import crop_warning
from vitrail.training.dataset import check_training_data, data_warnings, load_training_data, open_training_data
from vitrail.training.trainer import Hardware, fit


class MessageRecorder(Callback):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def recipe_on(folder: Path, **changes: object) -> Recipe:
    return recipe(
        data=str(folder),
        model=replace(recipe().model, classes=2),
        steps=2,
        schedule=replace(recipe().schedule, warmup_steps=0),
        **changes,
    )


def test_bad_files_and_leaks_are_named_and_counted(tmp_path: Path) -> None:
    write_noise_images(tmp_path / "train", classes=2, each=9)
    write_noise_images(tmp_path / "val", classes=2, each=1)  # the same noise, the second one under another label
    (tmp_path / "train" / "class 0" / "bad.jpg").write_text("<html>")
    callback = MessageRecorder()
    result = fit(recipe_on(tmp_path), tmp_path / "run", hardware=Hardware(workers=0), callbacks=[callback]).result
    messages = "\n".join(callback.messages)
    assert "bad.jpg, which cannot be decoded" in messages
    assert "2 images are in more than one split, so that scores are too high" in messages
    assert "1 image is under more than one label" in messages
    assert "train/class 0/0.png and " in messages
    assert result["unreadable_images"] == 1


def test_as_many_bad_files_as_the_recipe_tolerates(tmp_path: Path) -> None:
    write_noise_images(tmp_path, classes=2, each=10)
    for number in range(4):
        (tmp_path / "class 0" / f"{number}.png").write_text("<html>")
    with pytest.raises(VitrailError, match=r"4 of 20 images cannot be used, more than the tolerated fraction of 0.05"):
        load_training_data(recipe_on(tmp_path))
    tolerant = recipe_on(tmp_path, max_bad_fraction=0.2)
    report = check_training_data(open_training_data(tolerant), tolerant)
    assert (report.num_images, len(report.bad)) == (20, 4)
    assert sum("cannot" in one or "skipped" in one for one in data_warnings(report)) == 4


def test_images_without_a_label_are_neither_trained_on_nor_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, names = np.random.default_rng(0), ("a", "b")

    def random_images(count: int, labels: list[int]) -> ArrayDataset:
        return ArrayDataset(rng.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8), np.array(labels), names, "here")

    bare = DatasetSplits(
        "bare", random_images(12, [0, 1] * 6), random_images(4, [0, 1, 1, 0]), random_images(3, [-1] * 3), "print"
    )
    monkeypatch.setattr(module, "open_dataset", lambda name, columns, split_fractions, labelled, progress: bare)
    opened_data = load_training_data(recipe_on(tmp_path))
    assert [len(part) for part in opened_data.splits.values()] == [12, 4, 0]
    assert "3 of test have no label and are skipped" in opened_data.notes
    assert fit(recipe_on(tmp_path), tmp_path / "run", hardware=Hardware(workers=0)).result["reported_on"] == "validation"


@pytest.mark.parametrize(
    ("size", "how", "lost"), [((20, 60), "crop", "70%"), ((20, 60), "stretch", ""), ((20, 26), "crop", "")]
)
def test_a_crop_that_loses_much_is_said(size: tuple[int, int], how: Fit, lost: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(6):
            Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(tmp_path / name / f"{number}.png")
    report = check_training_data(open_training_data(recipe_on(tmp_path)), recipe_on(tmp_path))
    warnings = list(crop_warning(report, vit_preprocess((16, 16)).with_fit(how)))
    if lost:
        assert f"loses {lost} of an image of the median size, 20 pixels high and 60 wide" in warnings[0]
    else:
        assert not warnings
