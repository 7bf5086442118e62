"""What tells the answers of one model from those of another: its weights and settings, how it sees, what it calls things."""

import hashlib
from pathlib import Path

import torch

from vitrail.models.build import Model


def model_identity(model: Model) -> str:
    """A hash, the same on every host and device."""
    alone = model.facts.get("recipe", {}).get("loss")  # says what the logits mean
    digest = hashlib.sha256(repr((model.config, model.preprocess, model.labels, alone)).encode())
    digest.update(model.extra_repr().encode())  # tokens merged, patches dropped
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def file_identity(path: Path) -> str:
    """Of an exported file, which cannot be looked into."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
