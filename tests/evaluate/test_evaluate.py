"""``vitrail.evaluate``: a run's own scores are reproduced, classes matched by name, views averaged, models paired."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.data import pictures as drawn
from tests.peers import peer
from tests.small import vit
from tests.train.small_run import recipe
from vitrail.data.prepare import prepare
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Arrays, Data
from vitrail.data.sources.split import Shares
from vitrail.errors import VitrailError
from vitrail.evaluate.calibration import reliability, temperature
from vitrail.evaluate.evaluate import Measured, compare, measure
from vitrail.evaluate.predict import predict
from vitrail.evaluate.tta import Several, five, uncropped
from vitrail.models.build import Model
from vitrail.tasks.classify import scores
from vitrail.train.loop import Machine, fit

LABELS = ("ant", "bee", "cat", "dog", "elk")


def model(seed: int = 0, **changes: Any) -> Model:
    torch.manual_seed(seed)
    made = vit(**changes)
    torch.nn.init.normal_(made.get_parameter("head.weight"))
    made.preprocess, made.labels = Preprocess((12, 15)), LABELS
    return made


def folder(root: Path, *names: str, each: int = 4) -> Path:
    """Create test and validation images of these classes, and one training image."""
    drawn.classes(root / "test", dict.fromkeys(names, each))
    drawn.classes(root / "validation", dict.fromkeys(names, each), 100)
    drawn.classes(root / "train", {names[0]: 1}, 200)
    return root


def test_a_runs_own_scores_are_reproduced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for shares in ({}, {"validation": 0.3, "test": 0.2}):
        drawn.classes(tmp_path / "flat", {"ant": 17, "bee": 11})
        flat = {**shares, "data": str(tmp_path / "flat"), "model": replace(recipe().model, classes=2)}
        settings = recipe(steps=4, **(flat if shares else {}))
        result = fit(settings, run, Machine("cpu", 1, 0))
        found = measure(run, settings.data)
        assert {"top1": found.top1, "top5": found.top5, "loss": found.nll} == result["test"]
        with np.load(run / "predictions.npz") as kept:
            assert_close(found.answers.logits, torch.from_numpy(kept["logits"]))
            assert np.array_equal(found.answers.indices.numpy(), kept["indices"])
        run = tmp_path / "other"


def test_classes_are_matched_by_name_whatever_their_order_and_number(tmp_path: Path) -> None:
    """Two routes: every image is also predicted alone, and compared by class name."""
    data = folder(tmp_path, "elk", "bee", "cat")
    files = sorted((data / "test").rglob("*.jpg"))
    for labels in (LABELS, LABELS[::-1]):
        seen = model()
        seen.labels = labels
        found = measure(seen, data)
        right = [said.label == file.parent.name for said, file in zip(predict(seen, files), files, strict=True)]
        assert found.top1 == pytest.approx(np.mean(right))
        assert [labels[label] for label in found.answers.labels.tolist()] == sorted(file.parent.name for file in files)
        assert found.classes.support.tolist() == [4 if name in ("elk", "bee", "cat") else 0 for name in labels]
        assert found.split == "test"


def test_the_temperature_is_fitted_on_validation_alone(tmp_path: Path) -> None:
    data = folder(tmp_path, "ant", "bee", "cat", each=9)
    found, fitted = measure(model(1), data), measure(model(1), data, "validation")
    assert fitted.calibrated is None
    assert found.calibrated is not None
    assert found.calibrated.temperature == temperature(fitted.answers.logits, fitted.answers.labels)
    cooled = found.answers.logits.double() / found.calibrated.temperature
    assert found.calibrated.nll == scores(cooled, found.answers.labels)["loss"]
    assert found.calibrated.ece == reliability(cooled, found.answers.labels).error
    assert found.calibrated.fitted_on == 27


def test_splits_are_test_else_validation_else_all(tmp_path: Path) -> None:
    data = pictures(folder(tmp_path, "ant", "bee"))
    counts = {split: len(measure(model(), data, split).answers.labels) for split in ("test", "validation", "train", "all")}
    assert counts == {"test": 8, "validation": 8, "train": 1, "all": 17}
    without = replace(data, test=Arrays(np.zeros((0, 1, 1, 3), np.uint8), np.zeros(0, np.int64), data.names))
    assert measure(model(), without).split == "validation"
    assert measure(model(), replace(without, validation=without.test)).split == "all"
    with pytest.raises(VitrailError, match="has no labelled images to evaluate in test; it has 1 train, 8 validation, 0 test"):
        measure(model(), without, "test")
    with pytest.raises(VitrailError, match="did you mean 'validation'"):
        measure(model(), data, "valid")


def test_notes_that_matter_to_training_alone_are_left_out(tmp_path: Path) -> None:
    drawn.classes(tmp_path / "new" / "test", {"ant": 4, "bee": 3})
    data = pictures(tmp_path / "new")
    assert any("no training images" in note for note in data.notes)
    assert not any("train" in note for note in measure(model(), data).notes)
    alone = pictures(folder(tmp_path / "rare", "ant", "bee"))
    assert any("only one training image" in note for note in alone.notes)
    assert not any("to learn from" in note for note in measure(model(), alone).notes)


def trained_on(data: Path, **shares: float) -> Model:
    made = model()
    made.facts = {"dataset": {"name": str(data)}, "recipe": shares}
    return made


def test_a_split_that_overlaps_the_training_images_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drawn.classes(Path("flat"), {"ant": 17, "bee": 11})
    shared = pictures("flat", shares=Shares(0.3, 0.2))
    learned = "the model was trained on images that are among these"

    def told(one: Model, split: str | None = None, data: Data = shared) -> str:
        return " ".join(measure(one, data, split).notes)

    assert learned not in told(trained_on(Path("flat"), validation=0.3, test=0.2))
    assert "selected on" in told(trained_on(Path("flat"), validation=0.3, test=0.2), "validation")
    for split in (None, "validation", "all"):
        assert learned in told(trained_on(Path("flat"), validation=0.1, test=0.2), split)
    assert learned in told(trained_on(tmp_path / "flat", validation=0.3, test=0.1))  # the same path by another name
    drawn.classes(Path("given/test"), {"ant": 4, "bee": 3})
    drawn.classes(Path("given/train"), {"ant": 9, "bee": 8}, 50)
    given = pictures("given", shares=Shares(0.3, 0.2))
    assert learned not in told(
        trained_on(Path("given"), validation=0.1, test=0.1), data=given
    )  # its test split is given, not split off


def test_of_a_new_dataset_more_than_a_split_can_be_evaluated(tmp_path: Path) -> None:
    drawn.classes(tmp_path / "flat", {"ant": 17, "bee": 11})
    hint = "the model was not trained on it, so more than its test can be evaluated: split all"
    assert hint in measure(model(), tmp_path / "flat").notes
    assert hint not in measure(model(), tmp_path / "flat", "test").notes
    assert hint not in measure(trained_on(tmp_path / "flat"), tmp_path / "flat").notes
    assert hint not in measure(model(), folder(tmp_path / "parts", "ant", "bee")).notes


def test_an_unusable_validation_split_only_costs_the_temperature(tmp_path: Path) -> None:
    data = folder(tmp_path, "ant", "bee", each=9)
    expected = measure(model(), data)
    drawn.classes(data / "validation", {"zebra": 3})
    found = measure(model(), data)
    assert (found.top1, found.calibrated) == (expected.top1, None)
    assert "no temperature is fitted, as validation cannot be used: 1 of the 3 classes" in found.notes[-1]


def test_all_is_the_concatenation_of_its_splits(tmp_path: Path) -> None:
    data = pictures(folder(tmp_path, "ant", "bee"))
    parts = [measure(model(), data, split).answers.logits for split in ("train", "validation", "test")]
    assert_close(measure(model(), data, "all").answers.logits, torch.cat(parts))


def test_images_without_a_label_do_not_count(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (9, 12, 15, 3), np.uint8)
    labels = np.array([0, 1, -1, 1, 0, -1, 1, 1, 0])
    source = Arrays(images, labels, ("cat", "ant"))
    data = Data("x", source, source, source, "")
    known = labels >= 0
    clean = Arrays(images[known], labels[known], ("cat", "ant"))
    assert measure(model(), data).top1 == measure(model(), Data("x", clean, clean, clean, "")).top1


def test_a_model_with_nan_logits_has_no_score(tmp_path: Path) -> None:
    broken = model()
    broken.get_parameter("head.bias").data[2] = torch.nan
    with pytest.raises(VitrailError, match=r"the model's logits are not finite for 8 of 8 images, first .*0.jpg"):
        measure(broken, folder(tmp_path, "ant", "bee"))


@pytest.mark.parity
def test_views_are_averaged_as_probabilities() -> None:
    seen, images = model(), torch.randn(3, 3, 12, 15)
    with torch.inference_mode():
        expected = (seen(images).softmax(1) + seen(images.flip(-1)).softmax(1)) / 2
        assert_close(Several(seen, "flip")(images).softmax(1).float(), expected)
        large = torch.randn(3, 3, 17, 19)
        views = torch.stack([seen(view).softmax(1) for view in peer_crops(large)])
        assert_close(Several(seen, "crops")(large).softmax(1).float(), views.mean(0))


def peer_crops(images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    functions: Any = peer("torchvision.transforms.v2.functional")
    crops: tuple[torch.Tensor, ...] = functions.ten_crop(images, [12, 15])
    return crops


def test_flip_tta_is_invariant_to_flipping(tmp_path: Path) -> None:
    seen, images = Several(model(), "flip"), torch.randn(3, 3, 12, 15)
    with torch.inference_mode():
        assert_close(seen(images), seen(images.flip(-1)))


def test_the_centre_crop_is_what_the_model_gets_without_tta() -> None:
    how = Preprocess((16, 24), crop=0.8)
    larger = uncropped(how)
    assert larger.image == (20, 30)
    photo = drawn.picture(3, (61, 47))
    assert_close(five(prepare(photo, larger)[None], (16, 24))[0][0], prepare(photo, how))
    assert uncropped(Preprocess((28, 28))).image == (32, 32)


def test_views_go_through_the_whole_evaluation(tmp_path: Path) -> None:
    data, seen = folder(tmp_path, "ant", "bee"), model()
    found: dict[str | None, Measured] = {tta: measure(seen, data, tta=tta) for tta in (None, "flip", "crops")}
    assert len({each.nll for each in found.values()}) == 3
    assert not seen.training
    assert "enlarged before cropping" in found["crops"].notes[-1]


def test_a_model_does_not_differ_from_itself_and_differences_have_a_sign(tmp_path: Path) -> None:
    data = pictures(folder(tmp_path, *LABELS, each=12))
    first, other = (measure(model(seed), data) for seed in (1, 2))
    same = compare(first, first)
    assert (same.p, same.only_first, same.only_other) == (1, 0, 0)
    assert all(ends == (0, 0) for ends in same.interval.values())
    there, back = compare(first, other), compare(other, first)
    assert there.p == back.p
    assert there.difference["top1"] == other.top1 - first.top1 == pytest.approx((there.only_other - there.only_first) / 60)
    for name, (low, high) in there.interval.items():
        assert back.interval[name] == pytest.approx((-high, -low), abs=1e-12)
    with pytest.raises(VitrailError, match="not the same images"):
        compare(first, measure(model(), data, "train"))
