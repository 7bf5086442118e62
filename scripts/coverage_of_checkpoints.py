"""Count how many of timm's Vision Transformers Vitrail loads exactly, refuses, or loads with wrong numbers.

    python -m scripts.coverage_of_checkpoints [--only PATTERN] [--forms folder bare] [--json FILE]

Every architecture is built by timm with random weights and two layers, saved as timm saves it (a folder with config.json) and
as a bare file, loaded by Vitrail, and compared on one image. A refusal is a VitrailError; any other exception counts as wrong.
"""

import argparse
import json
import logging
import re
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from vitrail.errors import VitrailError
from vitrail.weights.load import load, quiet_loading
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
DEPTH = 2  # what a layer computes shows in two of them, and the giants fit into memory
LARGEST = 448  # side of an image, so that no single model takes a minute
TOLERANCE = 1e-5  # of the largest logit, if that is above 1


@dataclass(frozen=True)
class Outcome:
    """What became of one architecture in one form."""

    family: str
    name: str
    form: str  # folder: with timm's config.json; bare: the weights alone
    result: str  # exact, refused or wrong
    detail: str = ""
    seconds: float = 0.0


def architectures(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield family and name of timm's Vision Transformers."""
    declare_torchvision_operators()
    import_module("timm")
    modules = import_module("timm.models._registry")._module_to_models
    for family in FAMILIES:
        yield from ((family, name) for name in sorted(modules[family]) if re.search(pattern, name))


def build_reference(name: str) -> nn.Module:
    """Build timm's model with two layers and random weights, none of them at a value that hides a mistake."""
    torch.manual_seed(0)
    options = {"img_size": LARGEST} if "_896" in name else {}
    model: nn.Module = import_module("timm").create_model(name, depth=DEPTH, num_classes=7, **options)
    for key, weight in model.named_parameters():
        noise = torch.randn_like(weight)
        if re.fullmatch(r"\w*(pos_embed|_token)|patch_embed.proj.bias", key):  # small tokens, so that a wrong epsilon shows
            weight.data = 0.003 * noise
        elif weight.ndim in (2, 4):  # matrices and kernels: attention far from uniform, so that a wrong head shows
            weight.data = noise * (2 * weight.shape[0] / weight.numel()) ** 0.5
        else:
            weight.data.add_(0.1 * noise)
    return model.eval()


def write_folder(model: nn.Module, name: str, folder: Path) -> None:
    """Write a folder in the layout in which timm pushes a model to the hub."""
    save_file({key: tensor.contiguous() for key, tensor in model.state_dict().items()}, folder / "model.safetensors")
    save_config = import_module("timm.models._hub").save_config_for_hf
    size = {"img_size": LARGEST} if "_896" in name else {}
    save_config(model, folder / "config.json", model_args={"depth": DEPTH, "num_classes": 7, **size})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architecture": name}))


def number_of_heads(model: nn.Module) -> int | None:
    return next((part.num_heads for part in model.modules() if isinstance(getattr(part, "num_heads", None), int)), None)


def gelu_of(model: nn.Module) -> str | None:
    kinds = {"GELU": "exact", "GELUTanh": "tanh", "QuickGELU": "quick"}
    return next((kinds[kind] for part in model.modules() if (kind := type(part).__name__) in kinds), None)


def check(model: nn.Module, path: Path, **options: Any) -> tuple[str, str]:
    """Load a file and compare its logits with the reference's."""
    try:
        with quiet_loading():
            ours = load(path, **options)
    except VitrailError as error:
        return "refused", str(error).replace(str(path), "PATH")
    except Exception as error:  # a Python exception is a mistake of the loader
        return "wrong", f"{type(error).__name__}: {error}"
    size: Any = getattr(getattr(model, "patch_embed", None), "img_size", None) or ours.config.image
    images = 0.01 * torch.randn(1, 3, *size)
    with torch.inference_mode():
        expected, got = model(images), ours(images[..., : ours.config.image[0], : ours.config.image[1]])
    if expected.shape != got.shape:
        return "wrong", f"shapes {list(expected.shape)} and {list(got.shape)}"
    difference = (expected - got).abs().max().item() / max(1.0, expected.abs().max().item())
    return ("exact" if difference <= TOLERANCE else "wrong"), f"{difference:.1e}"


def outcomes(pattern: str, forms: list[str]) -> Iterator[Outcome]:
    for family, name in architectures(pattern):
        start = time.perf_counter()
        try:
            model = build_reference(name)
        except Exception as error:  # names that timm itself no longer builds
            yield Outcome(family, name, "none", "not built", f"{type(error).__name__}: {error}")
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            write_folder(model, name, folder)
            (folder / "bare").mkdir()
            (folder / "bare" / "weights.safetensors").hardlink_to(folder / "model.safetensors")
            for form in forms:
                bare: dict[str, Any] = {"heads": number_of_heads(model), "gelu": gelu_of(model)}  # which no file records
                result, detail = (
                    check(model, folder) if form == "folder" else check(model, folder / "bare" / "weights.safetensors", **bare)
                )
                yield Outcome(family, name, form, result, detail, round(time.perf_counter() - start, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="regular expression of names")
    parser.add_argument("--forms", nargs="+", default=["folder", "bare"], choices=["folder", "bare"])
    parser.add_argument("--json", type=Path, help="also write every outcome to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    found = []
    for outcome in outcomes(options.only, options.forms):
        found.append(outcome)
        columns = f"{outcome.result:9} {outcome.form:6} {outcome.name:45} {outcome.seconds:5} {outcome.detail[:200]}"
        print(columns, flush=True)  # noqa: T201
    for form in options.forms:
        counts = Counter(outcome.result for outcome in found if outcome.form == form)
        print(f"{form}: {counts['exact']} exact, {counts['refused']} refused, {counts['wrong']} wrong")  # noqa: T201
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
