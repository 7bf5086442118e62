"""Matching of a dataset's classes with the model's, by name, by ImageNet's synsets or by number."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.small_models import small_vit
from vitrail.data.class_names import imagenet_names, imagenet_synsets
from vitrail.data.preprocess import vit_preprocess
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.evaluation.label_matching import match_classes
from vitrail.inference.load import load_predictor


def open_folders(root: Path, names: list[str]) -> tuple[object, tuple[str, ...]]:
    for index, name in enumerate(names):
        (root / "test" / name).mkdir(parents=True)
        Image.fromarray(np.full((9, 11, 3), 20 * index, np.uint8)).save(root / "test" / name / "x.png")
    data = open_dataset(str(root))
    return data.splits["test"], data.class_names


def match(root: Path, names: list[str], class_names: tuple[str, ...]) -> dict[str, int]:
    model = small_vit(classes=len(class_names))
    model.preprocess, model.class_names = vit_preprocess((12, 15)), class_names
    source, order = open_folders(root, names)
    mapping = match_classes(source, load_predictor(model), "photos")  # type: ignore[arg-type]
    return dict(zip(order, mapping.tolist(), strict=True))


@pytest.mark.parametrize(
    "names",
    [
        {"tench": 0, "hen": 8, "tabby": 281},
        {imagenet_synsets()[0]: 0, imagenet_synsets()[8]: 8, imagenet_synsets()[281]: 281},
        {"0": 0, "8": 8, "281": 281},
    ],
    ids=["names", "synsets", "numbers"],
)
def test_classes_of_imagenet_are_matched(names: dict[str, int], tmp_path: Path) -> None:
    assert match(tmp_path, list(names), imagenet_names()) == names


def test_synsets_are_only_for_models_with_imagenets_names(tmp_path: Path) -> None:
    class_names = tuple(f"thing {index}" for index in range(1000))
    with pytest.raises(VitrailError, match="unknown to the model: 'n01440764'"):
        match(tmp_path, ["n01440764", "n01443537"], class_names)


def test_a_name_comes_before_a_number(tmp_path: Path) -> None:
    """Of a model whose classes are named by numbers in another order, the names count."""
    assert match(tmp_path, ["0", "2"], ("2", "1", "0")) == {"0": 2, "2": 0}
