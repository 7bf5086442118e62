"""Hash of a model and all that its predictions depend on: weights, config, preprocessing, class names."""

import hashlib
from pathlib import Path

import torch

from vitrail.models.build import Model


def model_hash(model: Model) -> str:
    """Return a hash, the same on every host and device."""
    loss_kind = model.metadata.get("recipe", {}).get("loss")  # decides between softmax and sigmoid
    digest = hashlib.sha256(repr((model.config, model.preprocess, model.class_names, loss_kind)).encode())
    digest.update(model.extra_repr().encode())  # token merging, patch dropping
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """Return the hash of an exported file, which is opaque."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
