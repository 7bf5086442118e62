"""Initialise a run's model from a checkpoint, which is identified by a hash of its weights.

The head is new and zero (Dosovitskiy et al. 2021, section 3.2), unless the classes are the same and it is kept.
"""

import hashlib
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.models.build import Model, build
from vitrail.models.settings import ModelConfig, ViTConfig
from vitrail.weights.load import find, load, untold


def fingerprint(source: str | Path) -> str:
    """Return the SHA-256 of names, shapes and float32 values, which does not depend on the file format."""
    digest = hashlib.sha256()
    for name, tensor in sorted(find(source).state.items()):
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def begin(source: str, config: ModelConfig, expected: str | None = None, keep_head: bool = False) -> Model:
    """Build a model of this config with the weights of a checkpoint, which must have the expected hash."""
    if expected is not None and (now := fingerprint(source)) != expected:
        raise VitrailError(
            f"{source} contains other weights than the recipe was written for (hash {now[:12]} instead of {expected[:12]}); "
            f"restore the old ones, or use these with --set start_hash={now}"
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
            f"{f' and {len(wrong) - 5} more' if len(wrong) > 5 else ''}; change only settings such as model.dropout"
        )
    model.load_state_dict(state, strict=False)
    model.report = loaded.report
    return model
