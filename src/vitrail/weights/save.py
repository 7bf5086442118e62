"""``vitrail.save``: write a model folder, or a file in another library's format, whole or not at all.

The only pickle written is torch's own, for .pth."""

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from vitrail.config import parse_value, to_dict
from vitrail.errors import VitrailError, first_line
from vitrail.io import atomic_folder, atomic_path
from vitrail.models.build import Model, decoder_state, get_encoder
from vitrail.models.config import ModelConfig, ResNetConfig, RotaryConfig, ViTConfig, format_size
from vitrail.models.masked_autoencoders import MAE
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.detection_queries import QueryDetector
from vitrail.tasks.registry import model_task
from vitrail.tasks.segmentation_eomt import EoMT
from vitrail.weights.convert import (
    huggingface,
    huggingface_eomt,
    huggingface_yolos,
    inspect,
    mae,
    official,
    segmenter,
    timm,
    timm_folder,
    timm_writer,
    torchvision,
)
from vitrail.weights.convert.inspect import Origin, Overrides, unsupported
from vitrail.weights.convert.tensor_map import export_tensors
from vitrail.weights.model_folder import (
    DECODER_FILE,
    FORMAT_VERSION,
    METADATA_FILE,
    TRAINING_KEYS,
    WEIGHTS_FILE,
    task_metadata,
)
from vitrail.weights.read_file import CLASS_NAMES_KEY, METADATA_KEY, SEGMENTER_FILES

MODEL_FILES = {WEIGHTS_FILE, METADATA_FILE, DECODER_FILE, "config.json", "preprocessor_config.json", *SEGMENTER_FILES}
FORMAT_SUFFIXES: dict[str, tuple[str, ...]] = {
    "official": (".npz",),
    "timm": (".safetensors", ".pth"),
    "torchvision": (".pth", ".safetensors"),
}


def save(model: nn.Module, path: str | Path, format: Origin = "vitrail", metadata: Mapping[str, Any] | None = None) -> Path:
    """Write a model folder, or the same weights in the official, timm, huggingface, torchvision or segmenter format.

    A model with a decoder is written with it: in our folder next to the encoder; an MAE also in the published format or as
    Hugging Face's ViTMAE, and an EoMT as theirs. timm's is a file, or a folder if the path has no suffix; only the folder
    records the GELU and the kinds of models that no tensor shows. Segmenter's is a folder.
    What a format cannot represent exactly is refused. An existing model of that name is replaced. ``metadata`` is about the
    training: ``recipe``, ``dataset``, ``metrics``; it describes these weights, so of a loaded model's only the task and its
    state, such as thresholds, are saved by default.
    """
    parse_value(format, Origin, "format")
    model = getattr(model, "_orig_mod", model)  # a compiled model is saved as the module it was compiled from
    training = _check_metadata(task_metadata(get_encoder(model).metadata) if metadata is None else metadata)
    if any(weight.is_meta for weight in model.parameters()):
        raise VitrailError("the model is on the meta device, so it has no weights to save; build it on the cpu")
    path = Path(path).expanduser().resolve()
    match format:
        case "vitrail":
            return _write_atomically(path, lambda temporary: _write_model_folder(model, temporary, training), folder=True)
        case "huggingface":
            return _write_atomically(path, lambda temporary: _write_huggingface(model, temporary, training), folder=True)
        case "segmenter":
            return _write_atomically(path, lambda temporary: _write_segmenter(model, temporary), folder=True)
    if format == "timm" and not path.suffix:
        return _write_atomically(path, lambda temporary: _write_timm(model, temporary, training), folder=True)
    if path.suffix not in FORMAT_SUFFIXES[format]:
        raise VitrailError(f"a file in the {format} format ends in {' or '.join(FORMAT_SUFFIXES[format])}, got {path.name!r}")
    config, tensors = _converted(model, format)
    if format == "timm" and isinstance(config, ViTConfig) and config.gelu != "exact" and config.mlp_kind == "gelu":
        unsupported(
            f"a GELU in its {config.gelu} form in a file (it assumes the exact one)",
            format,
            "name a folder, whose config.json records it, or use format='huggingface' or 'official'",
        )
    if path.suffix == ".pth":
        _check_pth(config, format)
    is_published_mae = get_encoder(model) is not model and path.suffix == ".pth"
    content = {"model": tensors} if is_published_mae else tensors
    return _write_atomically(
        path, lambda temporary: _write_file(content, temporary, path.suffix, model_metadata(model, config, training))
    )


def _check_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Check that the training metadata consists of JSON objects."""
    for name, value in metadata.items():
        try:
            json.dumps(value, allow_nan=False)
            valid = name in TRAINING_KEYS and isinstance(value, Mapping)
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise VitrailError(f"metadata must be JSON objects named {', '.join(TRAINING_KEYS)}, got {name}={str(value)[:40]}")
    return dict(metadata)


def model_metadata(model: nn.Module, config: ModelConfig, training: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``vitrail.json``: everything that the tensors do not record."""
    grid = {"grid": list(config.grid)} if isinstance(config, ViTConfig) else {}
    masking = {"masking": to_dict(model.masking)} if hasattr(model, "masking") else {}
    encoder = get_encoder(model)
    return {
        "format": FORMAT_VERSION,
        "model": to_dict(config),
        **grid,
        **masking,
        "preprocess": to_dict(encoder.preprocess),
        "class_names": to_dict(encoder.class_names),
        **training,
        "versions": {"vitrail": version("vitrail"), "torch": torch.__version__},
    }


def _check_pth(config: ModelConfig, format: str) -> None:
    """Refuse a model whose config a reader would infer wrongly, since a .pth of tensors holds no metadata.

    The number of heads is the exception: these formats never record it, and every reader has to be given it.
    """
    if not isinstance(config, ViTConfig):
        return
    prefix_counts = dict.fromkeys((config.prefix_tokens, int(config.has_class_token), 0))
    try:
        inferred = inspect.infer_grid(config.patches + config.prefix_positions, prefix_counts, Overrides(), [])
    except VitrailError:  # not square: the reader will ask for it
        inferred = config.grid, config.prefix_positions
    if inferred != (config.grid, config.prefix_positions):
        unsupported(
            f"a grid of {format_size(config.grid)} in a .pth, which would be read as {format_size(inferred[0])}",
            format,
            "use .safetensors",
        )
    if format == "timm" and not config.qkv_bias and not config.qk_norm:
        unsupported("q, k and v without biases in a .pth, which could be of another model", format, "use .safetensors")
    if format == "timm" and config.mlp_kind == "swiglu" and config.layer_scale is None:
        unsupported("a gated MLP without layer scale in a .pth, which could be of another model", format, "use .safetensors")
    if format == "timm" and config.embed_norm:
        unsupported("a norm before the blocks in a .pth, whose epsilon would be read as CLIP's", format, "use .safetensors")
    if config.has_class_token and (config.pool == "gap") != (config.final_norm == "pooled"):
        unsupported("this pooling with a class token in a .pth, which would be read as another", format, "use .safetensors")


def _write_model_folder(model: nn.Module, folder: Path, training: dict[str, Any]) -> None:
    encoder, decoder = get_encoder(model), decoder_state(model)
    save_file({name: weight.contiguous() for name, weight in encoder.state_dict().items()}, folder / WEIGHTS_FILE)
    if decoder:
        save_file({name: weight.contiguous() for name, weight in decoder.items()}, folder / DECODER_FILE)
    (folder / METADATA_FILE).write_text(json.dumps(model_metadata(model, encoder.config, training), indent=2) + "\n")


def _write_huggingface(model: nn.Module, folder: Path, training: dict[str, Any]) -> None:
    config, tensors = _converted(model, "huggingface")
    metadata, encoder = {}, get_encoder(model)
    if isinstance(model, QueryDetector):
        config_file = {"config.json": huggingface_yolos.config_file(model, encoder.class_names)}
        sidecars = {**config_file, **huggingface_yolos.preprocessor_file(encoder.preprocess)}
    elif isinstance(model, EoMT):
        config_file = {"config.json": huggingface_eomt.config_file(model, encoder.class_names)}
        sidecars = {**config_file, **huggingface.preprocessor_file(encoder.preprocess)}
    elif encoder is model:
        several_labels = bool(model_task(encoder).config.several_labels)
        sidecars = huggingface.sidecar_files(config, encoder.preprocess, encoder.class_names, several_labels)
    else:
        masked = _require_mae(model, "huggingface")
        if masked.config.pool != "cls":  # their MAE does not pool, so config.json has no field
            metadata = {METADATA_KEY: json.dumps(model_metadata(model, config, training))}
        config_file = {"config.json": mae.config_file(masked.config, masked.masking)}
        sidecars = {**config_file, **huggingface.preprocessor_file(encoder.preprocess)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", **metadata})
    for name, content in sidecars.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def _write_timm(model: nn.Module, folder: Path, training: dict[str, Any]) -> None:
    encoder = get_encoder(model)
    if encoder is not model:
        unsupported("a decoder in a folder", "timm", "name a file that ends in .pth, or save model.encoder alone")
    if not isinstance(encoder.config, ViTConfig) or encoder.config.stem:
        unsupported("a ResNet or a hybrid in a folder", "timm", "use a file that ends in .safetensors")
    config, state = _with_learned_positions(encoder, "timm", may_lack_table=True)
    assert isinstance(config, ViTConfig)
    base = timm_writer.choose_base(config)
    common = export_tensors(timm.tensor_maps(config), state)
    tensors = timm_writer.to_class_names(common, config, base)
    metadata = model_metadata(model, config, training)
    if any(tensors.get(name) is not tensor for name, tensor in common.items()):
        metadata[CLASS_NAMES_KEY] = True
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", METADATA_KEY: json.dumps(metadata)})
    content = timm_folder.config_file(config, base, encoder.preprocess, encoder.class_names)
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n")


def _write_segmenter(model: nn.Module, folder: Path) -> None:
    """Write ``checkpoint.pth`` and ``variant.yml``, from which the authors' code builds encoder and decoder."""
    encoder, task = get_encoder(model), model_task(model).config if model is not get_encoder(model) else None
    if not isinstance(task, Segmentation) or not isinstance(encoder.config, ViTConfig):
        unsupported("a model without a head of segmentation", "segmenter", "use format='timm'")
    config, state = _with_learned_positions(encoder, "segmenter")
    assert isinstance(config, ViTConfig)
    segmenter.check_supported(config, task)
    tensors = export_tensors(segmenter.encoder_maps(config), state)
    tensors |= export_tensors(segmenter.decoder_maps(task, config), decoder_state(model))
    tensors |= {name: torch.zeros(shape) for name, shape in segmenter.classifier_shapes(config).items()}
    variant = segmenter.variant_file(config, task, encoder.preprocess, encoder.class_names)
    with (folder / SEGMENTER_FILES[0]).open("wb") as file:
        torch.save({"model": tensors, "n_cls": task.classes}, file)
    (folder / SEGMENTER_FILES[1]).write_text(variant)


def _converted(model: nn.Module, format: Origin) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the config and the tensors in another library's names and layout."""
    converter: Any = {"official": official, "timm": timm, "huggingface": huggingface, "torchvision": torchvision}[format]
    encoder = get_encoder(model)
    if encoder is model:
        if isinstance(encoder.config, ViTConfig) and encoder.config.position == "none":
            converter.check_supported(encoder.config)  # names what it has in place of a table
        config, state = _with_learned_positions(encoder, format)
        converter.check_supported(config)
        return config, export_tensors(converter.tensor_maps(config), state)
    if isinstance(model, QueryDetector) and format == "huggingface":
        return encoder.config, huggingface_yolos.export_model(model)
    if isinstance(model, EoMT) and format == "huggingface":
        config, state = _with_learned_positions(encoder, format)
        assert isinstance(config, ViTConfig)  # only a ViT has queries
        return config, huggingface_eomt.export_model(model, config, state)
    masked = _require_mae(model, format)
    encoder_config, state = _with_learned_positions(encoder, format)
    assert isinstance(encoder_config, ViTConfig)
    encoder_config, state = mae.with_decoder(masked, encoder_config, state)
    layout: mae.DecoderLayout = "timm" if format == "timm" else "huggingface"
    return encoder_config, export_tensors(
        [*converter.tensor_maps(encoder_config), *mae.decoder_maps(encoder_config, masked.masking, layout)], state
    )


def _require_mae(model: nn.Module, format: Origin) -> MAE:
    """Return the model as the only one with a decoder that other libraries have."""
    masked: Any = model
    if not hasattr(masked, "masking"):
        unsupported(f"the decoder of a {type(model).__name__}", format, "use format='vitrail', or save model.encoder alone")
    mae.check_decoder_supported(masked.config, masked.masking, format)
    config, hint = masked.config, "save model.encoder alone"
    inspect.refuse_published_features(config, format, hint)
    if config.norm != "pre" or config.final_norm != "tokens" or config.embed_norm or not config.patch_bias:
        unsupported("an MAE with norms in other places or patches without a bias", format, hint)
    if config.pool == "cls+gap" or config.gelu == "quick":
        unsupported("an MAE with a head on the class token and the mean, or with QuickGELU", format, hint)
    assert isinstance(model, MAE)
    return model


def _write_file(tensors: dict[str, Any], path: Path, suffix: str, metadata: dict[str, Any]) -> None:
    match suffix:
        case ".npz":
            with path.open("wb") as file:
                np.savez(file, **{name: tensor.float().cpu().numpy() for name, tensor in tensors.items()})
            with zipfile.ZipFile(path, "a") as archive:
                archive.comment = _npz_comment(metadata)
        case ".pth":
            with path.open("wb") as file:  # by its path, torch would write the temporary name into it
                torch.save(tensors, file)
        case ".safetensors":
            save_file(tensors, path, metadata={"format": "pt", METADATA_KEY: json.dumps(metadata)})


def _npz_comment(metadata: dict[str, Any]) -> bytes:
    """Return the metadata for a zip comment, which holds 64 KiB: without the class names if they are too many."""
    encoded = json.dumps(metadata).encode()
    return encoded if len(encoded) < 2**16 else json.dumps(metadata | {"class_names": None}).encode()


def _with_learned_positions(model: Model, format: str, may_lack_table: bool = False) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return config and weights with the position table that every library has: one learned row per position.

    A sin-cos or 2-D table added at the input is replaced by its values, which changes no logit. ``may_lack_table``: a model
    whose positions are in the attention stays as it is.
    """
    state = {name: weight.detach() for name, weight in model.state_dict().items()}
    if isinstance(model.config, ResNetConfig):
        return model.config, state
    assert isinstance(model, ViT)
    config = model.config
    if config.position == "learned1d" and config.position_at == "input" and config.table_grid is None:
        return config, state
    if may_lack_table and config.position in ("none", "rotary"):
        rotary = RotaryConfig() if config.position == "rotary" else config.rotary
        return replace(config, position="none", rotary=rotary), state
    if config.position in ("none", "relative", "rotary") or config.position_at != "input":
        kind = (
            config.position if config.position_at == "input" else f"{config.position} at {config.position_at.replace('-', ' ')}"
        )
        unsupported(f"position embeddings of type {kind}", format, "use format='vitrail'")
    positions: Any = model.positions[0]
    state = {name: weight for name, weight in state.items() if not name.startswith("positions.")}
    with torch.no_grad():
        state["positions.0.table.weight"] = positions.table_at(config.grid).clone()
    if config.prefix_positions:
        rows = torch.zeros(config.prefix_positions, config.width) if positions.prefix is None else positions.prefix.detach()
        state["positions.0.prefix"] = rows
    rescales = config.rotary is not None and config.rotary.coordinates in ("centre", "scaled")
    position_grid = config.position_grid if rescales else None
    return replace(config, position="learned1d", position_grid=position_grid, table_grid=None), state


def _write_atomically(path: Path, write_to: Callable[[Path], None], folder: bool = False) -> Path:
    """Write a file or folder whole or not at all: what has the final name is always complete."""
    try:
        existing = {file.name for file in path.iterdir()} if path.is_dir() else set()
        if existing and not (existing <= MODEL_FILES and existing & {WEIGHTS_FILE, METADATA_FILE, SEGMENTER_FILES[0]}):
            raise VitrailError(
                f"{path} exists and contains files other than a model's, so it is not overwritten; choose another name"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(path) if folder else atomic_path(path) as temporary:
            write_to(temporary)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise VitrailError(f"{path} cannot be written: {first_line(error)}") from error
    return path
