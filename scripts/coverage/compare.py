"""Load a checkpoint with Vitrail and compare its output with the reference model's."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.weights.load import load, quiet_loading

TOLERANCE = 1e-5  # of the largest output, if that is above 1
RESULTS = ("exact", "refused", "wrong", "not built")


@dataclass(frozen=True)
class Outcome:
    """What became of one checkpoint in one form."""

    family: str
    name: str
    form: str  # folder: with a config.json; bare: the weights alone; file: as its project writes it; none: not built
    result: str  # one of RESULTS
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk, and the output of the model that was saved in it."""

    path: Path
    images: Tensor
    expected: Callable[[Any], Tensor]  # given our config, because a model without a head returns tokens, and ours pools them
    options: dict[str, Any] = field(default_factory=dict)  # of load, for what the file does not record
    tolerance: float = TOLERANCE


def compare(checkpoint: Checkpoint) -> tuple[str, str]:
    """Return exact, refused or wrong, and the difference or the error."""
    try:
        with quiet_loading():
            ours = load(checkpoint.path, **checkpoint.options)
        with torch.inference_mode():
            got = ours(checkpoint.images[..., : ours.config.image[0], : ours.config.image[1]])
    except VitrailError as error:
        return "refused", str(error).replace(str(checkpoint.path), "PATH")
    except Exception as error:  # a Python exception is a mistake of the loader
        return "wrong", f"{type(error).__name__}: {error}"
    expected = checkpoint.expected(ours.config)
    if expected.shape != got.shape:
        return "wrong", f"shapes {list(expected.shape)} and {list(got.shape)}"
    difference = (expected - got).abs().max().item() / max(1.0, expected.abs().max().item())
    return ("exact" if difference <= checkpoint.tolerance else "wrong"), f"{difference:.1e}"


def pool_tokens(tokens: Tensor, config: Any) -> Tensor:
    """Return the output of our config's pooling, for a reference model that returns its tokens (b t d) unpooled."""
    if tokens.ndim != 3:
        return tokens
    return tokens[:, config.prefix_tokens :].mean(dim=1) if config.pool == "gap" else tokens[:, 0]


def randomise(model: nn.Module, small: str) -> nn.Module:
    """Give a model random weights, none at a value that hides a mistake; ``small`` is the pattern of positions and tokens."""
    for name, weight in model.named_parameters():
        noise = torch.randn_like(weight)
        if re.search(small, name):  # so that a wrong epsilon shows
            weight.data = 0.003 * noise
        elif weight.ndim in (2, 4):  # matrices and kernels: attention far from uniform, so that a wrong head shows
            weight.data = noise * (2 * weight.shape[0] / weight.numel()) ** 0.5
        else:
            weight.data.add_(0.1 * noise)
    return model.eval()


def count(outcomes: Iterable[Outcome]) -> dict[str, int]:
    results = [outcome.result for outcome in outcomes]
    return {result: results.count(result) for result in RESULTS}
