"""Files in the names and wrappers of other projects, compared with a reference model that computes the same."""

import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from scripts.coverage.compare import Checkpoint, Outcome, compare, pool_tokens, randomise
from scripts.coverage.project_cases import CASES, Case
from scripts.coverage.project_references import IMAGE
from vitrail.weights.verify import declare_torchvision_operators

# Positions, tokens and the bias of the patches, in the names of the reference models.
SMALL_WEIGHTS = (
    r"(^|\.)(\w*pos_embed(ding)?|\w*_tokens?|class_embedding|position_embedding\.weight|"
    r"(patch_embed\.proj|conv_proj|to_patch_embedding\.2)\.bias)$"
)


def list_names(pattern: str) -> list[str]:
    """Return the names of the cases that match a pattern."""
    return [name for name in CASES if re.search(pattern, name)]


def run_file(name: str) -> Outcome:
    """Build the reference, write it as its project does, load and compare it."""
    declare_torchvision_operators()
    start, case = time.perf_counter(), CASES[name]
    torch.manual_seed(0)
    model = randomise(case.build(), SMALL_WEIGHTS)
    case.prepare(model)
    images = 0.01 * torch.randn(1, 3, case.image or IMAGE, case.image or IMAGE)
    with torch.inference_mode():
        output = case.output(model, images)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / case.file
        write_file(case, model, images, path)
        for sidecar, fields in case.sidecars.items():
            (Path(folder) / sidecar).write_text(json.dumps(fields))
        checkpoint = Checkpoint(
            Path(folder) if case.sidecars else path, images, lambda config: pool_tokens(output, config), case.options
        )
        result, detail = compare(checkpoint)
    return Outcome("projects", name, "file", result, detail, round(time.perf_counter() - start, 2))


def write_file(case: Case, model: nn.Module, images: torch.Tensor, path: Path) -> None:
    """Write the weights, in the format of the file's suffix."""
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    content: Any = case.wrap(case.names(state))
    match "program" if case.traced else path.suffix:
        case ".npz":
            np.savez(path, **{name: tensor.numpy() for name, tensor in content.items()})
        case ".safetensors":
            save_file({name: tensor.contiguous() for name, tensor in content.items()}, path)
        case "program":
            torch.jit.save(torch.jit.trace(model, images), path)
        case _:
            torch.save(content, path)
