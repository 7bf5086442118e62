"""Image encoders of Hugging Face transformers: folders of ``save_pretrained``, with the settings of an image processor."""

import json
import re
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from scripts.coverage.compare import Checkpoint, Outcome, compare, pool_tokens, randomise
from scripts.coverage.transformers_cases import CASES, Case
from vitrail.weights.verify import declare_torchvision_operators

# Positions, tokens and the bias of the patches.
SMALL_WEIGHTS = r"(^|\.)(\w*position_embeddings?(\.weight)?|\w*_tokens?|class_embedding|probe|patch\w*(\.\w+)?\.bias)$"


def list_names(pattern: str) -> list[str]:
    """Return the names of the cases that match a pattern."""
    return [name for name in CASES if re.search(pattern, name)]


def run_model(name: str) -> Outcome:
    """Build, save, load and compare one case."""
    declare_torchvision_operators()
    start, case = time.perf_counter(), CASES[name]
    try:
        model = build_reference(case)
    except Exception as error:  # of another version of transformers
        return Outcome("transformers", name, "none", "not built", f"{type(error).__name__}: {error}")
    images = 0.01 * torch.randn(1, 3, *case.image)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        (Path(folder) / "preprocessor_config.json").write_text(json.dumps(processor_settings(case)))
        with torch.inference_mode():
            output = case.reference(model, images)
        result, detail = compare(Checkpoint(Path(folder), images, lambda config: pool_tokens(output, config)))
    return Outcome("transformers", name, "folder", result, detail, round(time.perf_counter() - start, 2))


def build_reference(case: Case) -> Any:
    """Build transformers' model with random weights."""
    torch.manual_seed(0)
    transformers = import_module("transformers")
    transformers.logging.disable_progress_bar()
    model_class = getattr(transformers, case.model)
    model = model_class(getattr(transformers, case.config)(**case.fields), **case.options)
    return randomise(model, SMALL_WEIGHTS)


def processor_settings(case: Case) -> dict[str, Any]:
    """Return the fields that an image processor saves: CLIP's kind crops, ViT's does not."""
    size = dict(zip(("height", "width"), case.image, strict=True))
    settings = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "image_processor_type": "ViTImageProcessor",
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": size,
    }
    if not case.crops:
        return settings
    crop = {"do_center_crop": True, "crop_size": size, "size": {"shortest_edge": case.image[0]}}
    return {**settings, **crop, "do_convert_rgb": True, "image_processor_type": "CLIPImageProcessor"}
