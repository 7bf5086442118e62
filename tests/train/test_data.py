"""Bad images are reported before the first step, and tolerated as far as the recipe allows (FAULTS 1, 6)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.train.small_run import draw, recipe
from vitrail.data.sources.source import Arrays, Data
from vitrail.errors import VitrailError
from vitrail.train import data as module
from vitrail.train.data import faults, opened
from vitrail.train.loop import Machine, fit
from vitrail.train.recipe import Recipe
from vitrail.train.watch import Silent


class Listens(Silent):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def said(self, sentence: str) -> None:
        self.sentences.append(sentence)


def on(folder: Path, **changes: object) -> Recipe:
    return recipe(
        data=str(folder),
        model=replace(recipe().model, classes=2),
        steps=2,
        schedule=replace(recipe().schedule, warmup=0),
        **changes,
    )


def test_bad_files_and_leaks_are_named_and_counted(tmp_path: Path) -> None:
    draw(tmp_path / "train", classes=2, each=9)
    draw(tmp_path / "val", classes=2, each=1)  # the same noise, the second one under another label
    (tmp_path / "train" / "class 0" / "bad.jpg").write_text("<html>")
    callback = Listens()
    result = fit(on(tmp_path), tmp_path / "run", Machine(workers=0), callback)
    messages = "\n".join(callback.sentences)
    assert "bad.jpg, which cannot be decoded" in messages
    assert "2 images are in more than one split, so that scores are too high" in messages
    assert "1 image is under more than one label" in messages
    assert "train/class 0/0.png and " in messages
    assert result["unreadable_images"] == 1


def test_as_many_bad_files_as_the_recipe_tolerates(tmp_path: Path) -> None:
    draw(tmp_path, classes=2, each=10)
    for number in range(4):
        (tmp_path / "class 0" / f"{number}.png").write_text("<html>")
    with pytest.raises(VitrailError, match=r"4 of 20 images cannot be used, more than the tolerated fraction of 0.05"):
        opened(on(tmp_path))
    checked = opened(on(tmp_path, tolerated=0.2))
    assert (checked.pictures, len(checked.bad)) == (20, 4)
    assert sum("cannot" in one or "skipped" in one for one in faults(checked)) == 4


def test_images_without_a_label_are_neither_trained_on_nor_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, names = np.random.default_rng(0), ("a", "b")

    def some(count: int, labels: list[int]) -> Arrays:
        return Arrays(rng.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8), np.array(labels), names, "here")

    bare = Data("bare", some(12, [0, 1] * 6), some(4, [0, 1, 1, 0]), some(3, [-1] * 3), "print")
    monkeypatch.setattr(module, "pictures", lambda name, shares, labelled, progress: bare)
    opened_data = opened(on(tmp_path)).data
    assert [len(part) for part in opened_data.splits.values()] == [12, 4, 0]
    assert "3 of test have no label and are skipped" in opened_data.notes
    assert fit(on(tmp_path), tmp_path / "run", Machine(workers=0))["reported_on"] == "validation"
