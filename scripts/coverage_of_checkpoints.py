"""Count how many of timm's Vision Transformers Vitrail loads exactly, refuses, or loads with wrong numbers.

    python -m scripts.coverage_of_checkpoints [--families deit eva] [--only PATTERN] [--forms folder bare]
        [--json FILE] [--page docs/coverage.md]

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
from collections.abc import Iterator, Sequence
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


def architectures(pattern: str, families: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield family and name of timm's Vision Transformers."""
    declare_torchvision_operators()
    import_module("timm")
    modules = import_module("timm.models._registry")._module_to_models
    for family in families:
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
    heads = (getattr(part, "num_heads", None) for part in model.modules())
    return next((number for number in heads if isinstance(number, int)), None)


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


def outcomes(pattern: str, families: Sequence[str], forms: list[str]) -> Iterator[Outcome]:
    for family, name in architectures(pattern, families):
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


def coverage_page(found: Sequence[Outcome]) -> str:
    """Return the tables of exact, refused and wrong architectures as a page of the documentation."""
    folder = [outcome for outcome in found if outcome.form == "folder"]
    bare = [outcome for outcome in found if outcome.form == "bare"]
    lines = [
        "# Coverage of published checkpoints",
        "",
        f"Which of {len(folder)} Vision Transformers of timm {import_module('timm').__version__} Vitrail reads. Each is built",
        "by timm with random weights and two layers, written as timm writes it, read by Vitrail, and compared on one image.",
        "*Exact*: no logit differs by more than 1e-5 of the largest (or 1e-5, if that is below 1). *Refused*: an error names",
        "the missing feature. *Wrong*: anything else.",
        "",
        "`python -m scripts.coverage_of_checkpoints --json coverage.json --page docs/coverage.md` makes this page; "
        "`--families deit eva` repeats only those.",
        "",
        "A *folder* has timm's `config.json`; a *bare* file is the weights alone, with the number of heads and the GELU given.",
        "",
        "| family | exact | refused | wrong | bare: exact | refused | wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    families = [*(family for family in FAMILIES if any(outcome.family == family for outcome in found)), "all"]
    for family in families:
        cells = [
            sum(outcome.result == result and family in (outcome.family, "all") for outcome in form)
            for form in (folder, bare)
            for result in ("exact", "refused", "wrong")
        ]
        lines.append(f"| {family} | {' | '.join(map(str, cells))} |")
    lines += ["", "## Refused, by the missing feature", "", "| feature | architectures | for example |", "|---|---|---|"]
    refused: dict[str, list[str]] = {}
    for outcome in folder:
        if outcome.result == "refused":
            refused.setdefault(missing_feature(outcome), []).append(outcome.name)
    for feature, names in sorted(refused.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {feature} | {len(names)} | {', '.join(f'`{name}`' for name in names[:3])} |")
    wrong = [outcome for outcome in found if outcome.result == "wrong"]
    lines += ["", "## Wrong", "", *(f"- `{outcome.name}` ({outcome.form}): {outcome.detail[:120]}" for outcome in wrong)]
    lines += [] if wrong else ["None."]
    not_built = [outcome.name for outcome in found if outcome.form == "none"]
    lines += ["", f"timm itself does not build {', '.join(f'`{name}`' for name in not_built)}."] if not_built else []
    return "\n".join(lines) + "\n"


def missing_feature(outcome: Outcome) -> str:
    """Return the feature that a refusal names."""
    named = re.search(r" has (.+?), which Vitrail's Vision Transformers do not have", outcome.detail)
    return named[1] if named else outcome.detail.partition(";")[0].replace(outcome.name, "NAME")[:120]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="regular expression of names")
    parser.add_argument("--forms", nargs="+", default=["folder", "bare"], choices=["folder", "bare"])
    parser.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES, help="timm's modules")
    parser.add_argument("--json", type=Path, help="also write every outcome to this file; it keeps those of other families")
    parser.add_argument("--page", type=Path, help="also write the table of all outcomes in the JSON file, as Markdown")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    found = []
    for outcome in outcomes(options.only, options.families, options.forms):
        found.append(outcome)
        columns = f"{outcome.result:9} {outcome.form:6} {outcome.name:45} {outcome.seconds:5} {outcome.detail[:200]}"
        print(columns, flush=True)  # noqa: T201
    for form in options.forms:
        counts = Counter(outcome.result for outcome in found if outcome.form == form)
        print(f"{form}: {counts['exact']} exact, {counts['refused']} refused, {counts['wrong']} wrong")  # noqa: T201
    if options.json:
        earlier = [Outcome(**fields) for fields in json.loads(options.json.read_text())] if options.json.is_file() else []
        done = {(outcome.name, outcome.form) for outcome in found}
        found += [outcome for outcome in earlier if (outcome.name, outcome.form) not in done]
        options.json.write_text(json.dumps([asdict(outcome) for outcome in found], indent=1) + "\n")
    if options.page:
        options.page.write_text(coverage_page(found))


if __name__ == "__main__":
    main()
