"""Initialise a run's model from a checkpoint, which is identified by a hash of its weights.

The head is new and zero (Dosovitskiy et al. 2021, section 3.2), unless the classes are the same and it is kept.
"""

import hashlib
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.models.build import Model, build, get_encoder
from vitrail.models.config import ModelConfig, ViTConfig
from vitrail.weights.load import load, quiet_loading, read_checkpoint


def weights_hash(source: str | Path) -> str:
    """Return the SHA-256 of names, shapes and float32 values, which does not depend on the file format."""
    digest = hashlib.sha256()
    for name, tensor in sorted(read_checkpoint(source).state.items()):
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def init_model_from(source: str, config: ModelConfig, expected_hash: str | None = None, keep_head: bool = False) -> Model:
    """Build a model of this config with the weights of a checkpoint, which must have the expected hash."""
    if expected_hash is not None and (actual_hash := weights_hash(source)) != expected_hash:
        raise VitrailError(
            f"{source} contains other weights than the recipe was written for (hash {actual_hash[:12]} instead "
            f"of {expected_hash[:12]}); restore the old ones, or use these with init_sha256={actual_hash}"
        )
    rule = config.position_resize if isinstance(config, ViTConfig) else "origin"
    classes = None if keep_head else 0  # no classes, no head
    with quiet_loading():
        loaded = get_encoder(load(source, image=config.image, classes=classes, resize=rule, channels=config.channels))
    model = build(config)
    state = loaded.state_dict()
    expected_shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    mismatched = [name for name, tensor in state.items() if expected_shapes.get(name) != tuple(tensor.shape)]
    mismatched += [name for name in expected_shapes if name not in state and (keep_head or not name.startswith("head."))]
    if mismatched:
        raise VitrailError(
            f"the weights in {source} do not fit the recipe's model: {', '.join(mismatched[:5])}"
            f"{f' and {len(mismatched) - 5} more' if len(mismatched) > 5 else ''}; change only settings such as model.dropout"
        )
    model.load_state_dict(state, strict=False)
    model.load_report = loaded.load_report
    return model
