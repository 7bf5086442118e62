"""Verification passes equal models and fails different ones."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.reference_libraries import randomise_weights, reference_library
from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.models.variants import variant
from vitrail.weights.save import save
from vitrail.weights.verify import fixed_images, nearest_variant, verify

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


@pytest.mark.parametrize("name", ["Ti/16", "B/32", "So400m/14", "R26+S/32", "R50+B/16", "R50x1", "R152x4", "B/16x8"])
def test_a_model_is_identified_by_its_variant(name: str) -> None:
    assert nearest_variant(variant(name)) == name


def test_a_converted_copy_is_equal_and_a_changed_one_is_not(tmp_path: Path) -> None:
    model = small_vit(gelu="exact")
    own, timm = save(model, tmp_path / "own"), save(model, tmp_path / "x.safetensors", format="timm")
    same = verify(own, timm)
    assert (same.ok, same.reference, same.published_parameters) == (True, str(timm), None)
    assert same.difference is not None
    assert same.difference < 1e-5
    dict(model.named_parameters())["head.weight"].data[0, 0] += 0.1
    changed = verify(own, save(model, tmp_path / "changed"))
    assert not changed.ok
    assert changed.difference is not None
    assert changed.difference > 1e-3


def test_models_with_other_outputs_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=r"outputs of shapes \[4, 5\] and \[4, 6\]"):
        verify(save(small_vit(), tmp_path / "five"), save(small_vit(classes=6), tmp_path / "six"))


@pytest.mark.parity
@pytest.mark.parametrize(("format", "name"), [("timm", "x.safetensors"), ("torchvision", "x.pth"), ("huggingface", "x")])
def test_without_a_second_checkpoint_the_original_library_is_the_reference(format: str, name: str, tmp_path: Path) -> None:
    reference_library("timm")
    model = small_vit(gelu="exact", image=(24, 24), patch=(6, 6))
    written = save(model, tmp_path / name, format=format)  # type: ignore[arg-type]
    result = verify(written, heads=3)
    assert (result.reference, result.ok) == (format, True)
    assert result.difference is not None
    assert result.difference < 1e-5


@pytest.mark.parity
def test_a_recorded_architecture_takes_precedence_over_the_inferred_config(tmp_path: Path) -> None:
    """The name in config.json decides how timm's model is built, so that a wrong inference shows; 16 heads are in no tensor."""
    timm = reference_library("timm")
    reference = randomise_weights(timm.create_model("vit_base_patch16_gap_224", num_classes=5, depth=1), scale=0.02)
    save_file(reference.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"architecture": "vit_base_patch16_gap_224", "model_args": {"depth": 1}}')
    result = verify(tmp_path)
    assert (result.reference, result.ok) == ("timm", True)
    (tmp_path / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    with pytest.raises(VitrailError, match="describes a model 192 wide, but the weights are 768 wide"):
        verify(tmp_path)


def test_our_own_format_has_no_reference(tmp_path: Path) -> None:
    result = verify(save(small_vit(), tmp_path / "own"))
    assert (result.reference, result.difference, result.ok) == (None, None, True)


def test_the_images_are_deterministic_and_all_different() -> None:
    images = fixed_images(variant("Ti/16"))
    assert torch.equal(images, fixed_images(variant("Ti/16")))
    assert images.shape == (4, 3, 224, 224)
    assert torch.pdist(images.flatten(0, 1).flatten(1)).min() > 1
    assert images.abs().max() <= 1
