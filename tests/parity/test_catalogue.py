"""Every published model by name is timm's or transformers' model of its repository: config, tensors, parameters and outputs."""

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.testing import assert_close

from tests.parity.test_huggingface_towers import build, their_output
from tests.parity.test_timm_folders import build_timm
from tests.reference_libraries import reference_library
from vitrail.models.build import build_on_meta
from vitrail.models.config import ViTConfig
from vitrail.models.cost import cost
from vitrail.models.variants import SIZES
from vitrail.weights.catalogue import CATALOGUE
from vitrail.weights.convert.inspect import Overrides
from vitrail.weights.load import check_shapes, convert_foreign, load
from vitrail.weights.published_models import APPLE, DINOV3_LICENCE, FAMILIES, UNSURE, PublishedModel
from vitrail.weights.read_file import RawCheckpoint
from vitrail.weights.unwrap import strip_prefix

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
# Of a repository in transformers' layout: the class and config of its model, by how the repository's name begins.
TRANSFORMERS = {
    "google/": ("ViTForImageClassification", "ViTConfig"),
    "facebook/dinov2-with-registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig"),
    "facebook/dinov2": ("Dinov2Model", "Dinov2Config"),
    "facebook/vit-msn": ("ViTMSNModel", "ViTMSNConfig"),
    "facebook/ijepa": ("IJepaModel", "IJepaConfig"),
    "openai/": ("CLIPModel", "CLIPConfig"),
    "laion/": ("CLIPModel", "CLIPConfig"),
}
SMALL_TEXT = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 24, "vocab_size": 10}
# Tensors of their models that are no part of the encoder.
UNREAD = re.compile(r"mask_token|^text_|^logit_|position_ids")
# One model of every family: the least to compute.
SMALLEST = [min(family.models(), key=lambda model: cost(model.config).macs) for family in FAMILIES]
QUICK = ("vit-ti16-augreg", "deit3-s16", "dinov2-s14", "dinov3-s16", "clip-b32", "siglip-b16-224", "beit-b16", "eva02-ti14-336")


def transformers_model(row: PublishedModel, depth: int | None = None) -> tuple[str, str, dict[str, Any]]:
    """Return the class, the config's class and the options that the row's repository has in its config.json."""
    model, config = next(names for start, names in TRANSFORMERS.items() if row.repository.startswith(start))
    size, patch = SIZES[row.variant.partition("/")[0]], int(row.variant.partition("/")[2])
    options: dict[str, Any] = {
        "hidden_size": size.width,
        "num_hidden_layers": depth or size.depth,
        "num_attention_heads": size.heads,
        "image_size": 518 if "dinov2" in row.repository else row.image,
        "patch_size": patch,
    }
    if "dinov2" in row.repository:
        options |= {"mlp_ratio": size.mlp // size.width}
        model = model.replace("Model", "ForImageClassification") if row.classes else model
        return model, config, options | ({"num_labels": row.classes} if row.classes else {})
    options |= {"intermediate_size": size.mlp}
    if config == "CLIPConfig":
        options |= {"hidden_act": "gelu"} if row.repository.startswith("laion/") else {}
        return model, config, {"vision_config": options, "text_config": SMALL_TEXT, "projection_dim": row.classes}
    if config == "ViTConfig":
        return ("ViTForImageClassification" if row.classes else "ViTModel"), config, {**options, "num_labels": row.classes}
    return model, config, options | ({"layer_norm_eps": 1e-6} if config == "IJepaConfig" else {})


def published_tensors(row: PublishedModel, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the names and shapes of the repository's tensors, without memory for them, and its config.json."""
    if row.repository.startswith("timm/"):
        timm = reference_library("timm")
        with torch.device("meta"):
            built = timm.create_model(row.repository.removeprefix("timm/"))
        import_module("timm.models._hub").save_config_for_hf(built, folder / "config.json")
        return dict(built.state_dict()), json.loads((folder / "config.json").read_text())
    transformers: Any = reference_library("transformers")
    model, config, options = transformers_model(row)
    settings = getattr(transformers, config)(**options)
    with torch.device("meta"):
        state = getattr(transformers, model)(settings).state_dict()
    return strip_prefix(dict(state), row.name)[0], json.loads(settings.to_json_string(use_diff=False))


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.name, marks=() if row in SMALLEST else pytest.mark.thorough) for row in CATALOGUE.values()],
)
def test_the_repository_would_load(row: PublishedModel, tmp_path: Path) -> None:
    tensors, sidecar = published_tensors(row, tmp_path)
    converted = convert_foreign(RawCheckpoint(tensors, sidecar), tmp_path, Overrides())
    assert isinstance(converted.config, ViTConfig)
    check_shapes(row.repository, build_on_meta(converted.config), converted.state)
    assert isinstance(row.config, ViTConfig)
    at_row = replace(converted.config, image=row.config.image)
    assert at_row == row.config
    read = sum(tensor.numel() for name, tensor in tensors.items() if not UNREAD.search(name))
    assert cost(converted.config).parameters == read + _difference(row, tensors, converted.config)


def _difference(row: PublishedModel, tensors: dict[str, Tensor], config: ViTConfig) -> int:
    """Return how many parameters ours has more than theirs."""
    if "visual_projection.weight" in tensors:
        return row.classes  # CLIP's projection has no bias, our head one of zeros
    if "head_dist.bias" in tensors:
        return -row.classes  # the biases of a distilled model's two heads are one
    if "embeds.pos_embed" in tensors:
        return config.patches * config.width - tensors["embeds.pos_embed"].numel()  # resized to the row's image size
    return 0


@pytest.mark.parametrize(
    "row", [row for row in CATALOGUE.values() if row.repository.startswith("timm/")], ids=lambda row: row.name
)
def test_a_repository_of_timm_is_in_its_registry(row: PublishedModel) -> None:
    """Its address, licence, number of classes and image size are those that timm itself has for these weights."""
    timm = reference_library("timm")
    published = timm.get_pretrained_cfg(row.repository.removeprefix("timm/"), allow_unregistered=False)
    assert published.hf_hub_id == row.repository
    assert published.license == row.licence.lower()
    assert published.num_classes == row.classes
    patch = int(row.variant.partition("/")[2])
    assert published.input_size[-1] // patch * patch == row.image


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.name, marks=() if row.name in QUICK else pytest.mark.thorough) for row in SMALLEST],
)
def test_outputs_are_theirs(row: PublishedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With random weights in a mirror of the hub, of two layers, at the image size of the row."""
    folder = tmp_path / row.repository
    folder.mkdir(parents=True)
    theirs: Any
    if row.repository.startswith("timm/"):
        theirs = build_timm(row.repository.removeprefix("timm/"), depth=2)
        import_module("timm.models._hub").save_config_for_hf(theirs, folder / "config.json")
        save_file(theirs.state_dict(), folder / "model.safetensors")
    else:
        model, config, options = transformers_model(row, depth=2)
        theirs = build(model, config, **options)
        theirs.save_pretrained(folder)
    monkeypatch.setenv("VITRAIL_MIRROR", str(tmp_path))
    ours, images = load(row.name), 0.01 * torch.randn(1, 3, row.image, row.image)
    with torch.inference_mode():
        assert_close(ours(images), _output(theirs, images, row), rtol=1e-5, atol=1e-5)
    assert isinstance(row.config, ViTConfig)
    assert ours.config == replace(row.config, depth=2)


def _output(theirs: Any, images: Tensor, row: PublishedModel) -> Tensor:
    if row.repository.startswith("timm/"):
        output: Tensor = theirs(images)
        return output
    if hasattr(theirs, "visual_projection"):
        projected: Tensor = theirs.visual_projection(theirs.vision_model(pixel_values=images).pooler_output)
        return projected
    return their_output(theirs(pixel_values=images), "MSN" if "msn" in row.repository else "I-JEPA")


def test_a_name_keeps_the_preprocessing_of_a_size_that_the_patches_do_not_divide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = CATALOGUE["siglip-so400m14-384"]
    folder = tmp_path / row.repository
    folder.mkdir(parents=True)
    theirs = build_timm(row.repository.removeprefix("timm/"), depth=1)
    import_module("timm.models._hub").save_config_for_hf(theirs, folder / "config.json")
    save_file(theirs.state_dict(), folder / "model.safetensors")
    monkeypatch.setenv("VITRAIL_MIRROR", str(tmp_path))
    ours = load(row.name)
    assert ours.preprocess is not None
    assert (ours.preprocess.crop_size, ours.config.image) == ((384, 384), (378, 378))


def test_the_table_is_complete() -> None:
    assert len(CATALOGUE) >= 60
    assert len({row.repository for row in CATALOGUE.values()}) == len(CATALOGUE) == sum(len(f.models()) for f in FAMILIES)
    licences = {row.licence for row in CATALOGUE.values()}
    assert licences == {"Apache-2.0", "MIT", "CC-BY-NC-4.0", DINOV3_LICENCE, APPLE, UNSURE}
    assert all(name == name.lower() and "/" not in name and "." not in name for name in CATALOGUE)
