"""Class names of ImageNet and of a file, for weights that do not record theirs."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.small_models import small_config, small_vit
from vitrail.data.class_names import give_class_names, imagenet_names, imagenet_synsets, read_class_names
from vitrail.errors import VitrailError
from vitrail.weights.convert import timm
from vitrail.weights.convert.tensor_map import export_tensors
from vitrail.weights.load import load
from vitrail.weights.save import save

REAL = Path(__file__).parents[3] / "shared" / "real"


def save_bare(folder: Path, classes: int = 1000) -> Path:
    """Write a file in timm's names, without our metadata."""
    model = small_vit(classes=classes, gelu="exact")
    save_file(export_tensors(timm.tensor_maps(small_config(classes=classes)), model.state_dict()), folder / "x.safetensors")
    return folder / "x.safetensors"


def test_the_names_are_those_of_imagenet_in_order() -> None:
    names, synsets = imagenet_names(), imagenet_synsets()
    assert len(set(names)) == len(set(synsets)) == 1000
    assert (names[0], names[281], names[999]) == ("tench", "tabby", "toilet tissue")
    assert list(synsets) == sorted(synsets)  # the order of the classes is that of the synsets
    assert (names[134], names[517]) == ("crane", "crane (2)")


@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/real")
def test_the_names_are_those_beside_the_real_weights() -> None:
    real = json.loads((REAL / "imagenet_classes.json").read_text())
    real_names = real if isinstance(real, list) else [real[str(index)] for index in range(1000)]
    differing = [index for index, name in enumerate(imagenet_names()) if name != real_names[index]]
    assert differing == [517, 639]  # whose words are those of an earlier class


def test_weights_with_a_thousand_classes_have_imagenets_names_and_say_so(tmp_path: Path) -> None:
    model = load(save_bare(tmp_path), heads=3, grid=(2, 3))
    assert model.class_names == imagenet_names()
    assert any(line.startswith("the class names of ImageNet-1k") for line in model.load_report.assumed)
    assert load(save_bare(tmp_path, classes=999), heads=3, grid=(2, 3)).class_names is None
    assert load(save_bare(tmp_path), heads=3, grid=(2, 3), classes=7).class_names is None
    own = save(small_vit(classes=1000), tmp_path / "own")  # ours, whose classes have no names
    assert load(own).class_names is None


def test_names_of_a_file_are_used_where_the_weights_record_none(tmp_path: Path) -> None:
    names = tuple(f"thing {index}" for index in range(1000))
    (tmp_path / "names.txt").write_text("\n".join(names))
    (tmp_path / "names.json").write_text(json.dumps(names))
    for file in ("names.txt", "names.json"):
        with give_class_names(read_class_names(tmp_path / file)):
            assert load(save_bare(tmp_path), heads=3, grid=(2, 3)).class_names == names
    with give_class_names(names), pytest.raises(VitrailError, match="must name the 7 classes of the model, got 1,000 names"):
        load(save_bare(tmp_path, classes=7), heads=3, grid=(2, 3))
    model = small_vit(classes=3)
    model.class_names = ("a", "b", "c")
    with give_class_names(("x", "y", "z")), pytest.raises(VitrailError, match="records its class names; leave --labels out"):
        load(save(model, tmp_path / "named"))
    assert torch.equal(load(tmp_path / "named").state_dict()["cls"], model.state_dict()["cls"])


@pytest.mark.parametrize("content", [None, "[1, 2"], ids=["missing", "broken"])
def test_a_bad_file_of_names_is_one_sentence(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "names").write_text(content)
    with pytest.raises(VitrailError, match="--labels must be a file with one name per line or a JSON list, got"):
        read_class_names(tmp_path / "names")
