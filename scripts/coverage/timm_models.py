"""timm's Vision Transformers, saved as timm saves them (a folder with config.json) and as a bare file."""

import json
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from scripts.coverage.compare import Checkpoint, Outcome, compare, randomise
from vitrail.weights.verify import declare_torchvision_operators

FAMILIES = (
    "vision_transformer",
    "vision_transformer_hybrid",
    "deit",
    "eva",
    "beit",
    "vision_transformer_relpos",
    "naflexvit",
)
FORMS = ("folder", "bare")
DEPTH = 2  # what a layer computes shows in two of them, and the giants fit into memory
LARGEST = 448  # side of an image, so that no single model takes a minute
SMALL_WEIGHTS = r"^(\w*(pos_embed|_token)|patch_embed\.proj\.bias)$"


def list_names(family: str, pattern: str) -> list[str]:
    """Return the names of the architectures of one of timm's modules."""
    declare_torchvision_operators()
    import_module("timm")
    return [
        name for name in sorted(import_module("timm.models._registry")._module_to_models[family]) if re.search(pattern, name)
    ]


def run_model(family: str, name: str, forms: Sequence[str] = FORMS) -> Iterator[Outcome]:
    """Yield the outcome of an architecture in each form."""
    declare_torchvision_operators()
    start = time.perf_counter()
    try:
        model = build_reference(name)
    except Exception as error:  # names that timm itself no longer builds
        yield Outcome(family, name, "none", "not built", f"{type(error).__name__}: {error}")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder, file = Path(temporary) / "folder", Path(temporary) / "bare" / "weights.safetensors"
        folder.mkdir()
        write_folder(model, name, folder)
        file.parent.mkdir()
        file.hardlink_to(folder / "model.safetensors")
        images = 0.01 * torch.randn(1, 3, *image_size(model))
        not_recorded = {"heads": number_of_heads(model), "gelu": gelu_of(model)}
        for form in forms:
            path, options = (folder, {}) if form == "folder" else (file, not_recorded)
            result, detail = compare(Checkpoint(path, images, partial(reference_logits, model, images), options))
            yield Outcome(family, name, form, result, detail, round(time.perf_counter() - start, 2))


@torch.inference_mode()
def reference_logits(model: nn.Module, images: Tensor, config: Any) -> Tensor:
    """Return timm's logits; NaFlexViT takes images of any size, and is compared at ours."""
    if type(model).__name__ == "NaFlexVit":
        images = images[..., : config.image[0], : config.image[1]]
    logits: Tensor = model(images)
    return logits


def build_reference(name: str) -> nn.Module:
    """Build timm's model with two layers and random weights."""
    torch.manual_seed(0)
    model = import_module("timm").create_model(name, depth=DEPTH, num_classes=7, **size_options(name))
    return randomise(model, SMALL_WEIGHTS)


def size_options(name: str) -> dict[str, Any]:
    """Return options of models that are too large, or whose options have a value for each of all their layers."""
    if "sapiens2" in name:
        return {"img_size": LARGEST, "num_kv_heads": 4}
    return {"img_size": LARGEST} if "_896" in name else {}


def image_size(model: nn.Module) -> tuple[int, int]:
    """Return the size of a model's images; NaFlexViT takes any, and has a published one."""
    size: Any = getattr(getattr(model, "patch_embed", None), "img_size", None)
    published: Any = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 224, 224))
    return tuple(size) if size else tuple(published[1:])


def write_folder(model: nn.Module, name: str, folder: Path) -> None:
    """Write a folder in the layout in which timm pushes a model to the hub."""
    save_file({key: tensor.contiguous() for key, tensor in model.state_dict().items()}, folder / "model.safetensors")
    save_config = import_module("timm.models._hub").save_config_for_hf
    save_config(model, folder / "config.json", model_args={"depth": DEPTH, "num_classes": 7, **size_options(name)})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architecture": name}))


def number_of_heads(model: nn.Module) -> int | None:
    heads = (getattr(part, "num_heads", None) for part in model.modules())
    return next((number for number in heads if isinstance(number, int)), None)


def gelu_of(model: nn.Module) -> str | None:
    kinds = {"GELU": "exact", "GELUTanh": "tanh", "QuickGELU": "quick"}
    return next((kinds[kind] for part in model.modules() if (kind := type(part).__name__) in kinds), None)


def published_weights() -> dict[str, list[str]]:
    """Return the tags of timm's published weights by architecture."""
    declare_torchvision_operators()
    tags: dict[str, list[str]] = {}
    for published in import_module("timm").list_pretrained():
        architecture, _, tag = published.partition(".")
        tags.setdefault(architecture, []).append(tag)
    return tags
