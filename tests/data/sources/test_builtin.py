"""The embedded dataset is complete, balanced and equal to the original."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from scripts.make_fashion import SOURCE, encode_sheet, idx
from vitrail.data.sources import builtin
from vitrail.data.sources.builtin import FASHION_CLASSES, load_fashion
from vitrail.errors import VitrailError


def test_ten_balanced_classes() -> None:
    for split, count in (("train", 10_000), ("test", 2_000)):
        dataset = load_fashion(split)
        assert dataset.images.shape == (count, 28, 28, 1)
        assert np.bincount(dataset.labels).tolist() == [count // 10] * 10
        assert dataset.class_names == FASHION_CLASSES


def test_labels_belong_to_their_images() -> None:
    """The mean image of each class in the test set is nearest to that class's in the training set."""
    train, test = load_fashion("train"), load_fashion("test")
    means = [np.stack([part.images[part.labels == label].mean(0).ravel() for label in range(10)]) for part in (train, test)]
    distances = np.linalg.norm(means[0][:, None] - means[1][None], axis=-1)
    assert (distances.argmin(0) == np.arange(10)).all()


def test_no_test_image_is_in_the_training_set() -> None:
    train = {image.tobytes() for image in load_fashion("train").images}
    assert not any(image.tobytes() in train for image in load_fashion("test").images)


def test_a_wrong_split_and_a_damaged_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VitrailError, match="fashion has the splits train and test, got 'val'"):
        load_fashion("val")
    shutil.copytree(builtin.EMBEDDED_FOLDER, tmp_path / "sets")
    monkeypatch.setattr(builtin, "EMBEDDED_FOLDER", tmp_path / "sets")
    with (tmp_path / "sets" / "fashion-test.png").open("r+b") as file:
        file.seek(5000)
        file.write(b"x")
    with pytest.raises(VitrailError, match=r"fashion-test\.png is damaged"):
        load_fashion("test")


@pytest.mark.skipif(not SOURCE.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_sheets_are_made_from_debians_package() -> None:
    assert encode_sheet(SOURCE, "t10k", 200) == (builtin.EMBEDDED_FOLDER / "fashion-test.png").read_bytes()
    assert idx(SOURCE / "t10k-labels-idx1-ubyte.gz").shape == (10_000,)
