"""Weights to start a run from: what they are, told by a hash, and the recipe's own model filled with them.

The head is new and zero (Dosovitskiy et al. 2021, section 3.2), unless the classes are the same ones and it is to be kept.
"""

import hashlib
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.models.build import Model, build
from vitrail.models.settings import ModelConfig, ViTConfig
from vitrail.weights.load import find, load, untold


def fingerprint(source: str | Path) -> str:
    """SHA-256 of names, shapes and values in float32: the same for the same weights, whatever format holds them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(find(source).state.items()):
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def begin(source: str, config: ModelConfig, expected: str | None = None, keep_head: bool = False) -> Model:
    """The model of these settings with the weights of a checkpoint, which has to have the expected hash."""
    if expected is not None and (now := fingerprint(source)) != expected:
        raise VitrailError(
            f"{source} holds other weights than the recipe was written for (hash {now[:12]} instead of {expected[:12]}); "
            f"bring the old ones back, or take these with --set start_hash={now}"
        )
    rule = config.resize if isinstance(config, ViTConfig) else "origin"
    classes = None if keep_head else 0  # no classes, no head
    with untold():
        loaded = load(source, image=config.image, classes=classes, resize=rule, channels=config.channels)
    model = build(config)
    state = loaded.state_dict()
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wrong = [name for name, tensor in state.items() if own.get(name) != tuple(tensor.shape)]
    wrong += [name for name in own if name not in state and (keep_head or not name.startswith("head."))]
    if wrong:
        raise VitrailError(
            f"the weights in {source} do not fit the recipe's model: {', '.join(wrong[:5])}"
            f"{f' and {len(wrong) - 5} more' if len(wrong) > 5 else ''}; change only what has no weights, such as model.dropout"
        )
    model.load_state_dict(state, strict=False)
    model.report = loaded.report
    return model
