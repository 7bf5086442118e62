"""``vitrail.load``: load a Vision Transformer checkpoint of any common format, with a report on its tensors."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitrail.config import parse_value
from vitrail.data.class_names import assume_class_names, refuse_given_names
from vitrail.data.preprocess import Preprocess, assumed_changes, vit_preprocess
from vitrail.errors import VitrailError
from vitrail.layers.position import PositionResize
from vitrail.models.build import Model, build_on_meta, decoder_state, with_metadata_of
from vitrail.models.config import Gelu, ModelConfig, Pair
from vitrail.tasks.registry import model_task
from vitrail.tasks.task import Task
from vitrail.weights import hub
from vitrail.weights.adapt import WeightChanges, adapt
from vitrail.weights.catalogue import find_published
from vitrail.weights.convert import (
    aimv2,
    huggingface,
    mmpretrain,
    official,
    open_clip,
    perception_encoder,
    segmenter,
    timm,
    torchvision,
    vit_pytorch,
    vitdet,
)
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Decoder, Overrides
from vitrail.weights.convert.tensor_map import import_tensors
from vitrail.weights.convert.timm_architectures import known_architecture
from vitrail.weights.model_folder import (
    DECODER_FILE,
    WEIGHTS_FILE,
    is_model_folder,
    read_config,
    read_metadata,
    resolve_run,
    training_metadata,
)
from vitrail.weights.read_file import CLASS_NAMES_KEY, RawCheckpoint, own_copy, read_file

# The Perception Encoder before CLIP, and ViTDet before timm, whose names they have.
CONVERTERS = (
    official,
    segmenter,
    vitdet,
    timm,
    huggingface,
    torchvision,
    perception_encoder,
    open_clip,
    aimv2,
    mmpretrain,
    vit_pytorch,
)
logger = logging.getLogger("vitrail")


@dataclass(frozen=True)
class LoadReport:
    """How a checkpoint's tensors were used."""

    origin: str
    matched: int  # tensors of the model that have the file's values unchanged
    resized: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()  # in the file, not in the model
    assumed: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        lines = [f"read {self.origin} weights: {self.matched} tensors unchanged"]
        for title, items in (("assumed", self.assumed), ("resized", self.resized), ("new", self.new)):
            lines += [f"{title} {item}" for item in items]
        if self.unused:
            more = f" and {len(self.unused) - 6} more" if len(self.unused) > 6 else ""
            lines.append(f"not used: {', '.join(self.unused[:6])}{more}")
        return lines

    def log(self, source: str) -> None:
        """Log one line on what was assumed or changed; at level INFO, a line for each item."""
        first, *items = self.lines()
        if logger.isEnabledFor(logging.INFO):
            for line in (first, *items):
                logger.info("%s: %s", source, line)
        elif items:
            logger.warning("%s: %s", source, self.summary())

    def summary(self) -> str:
        """Return one sentence on what was assumed, resized, new or not used, without the reasons."""
        parts = []
        for title, items in (
            ("assumed", self.assumed),
            ("resized", self.resized),
            ("new", self.new),
            ("not used", self.unused),
        ):
            if items:
                short = [re.sub(r" \(.*\)$", "", item) for item in items[:6]]
                parts.append(f"{title} {', '.join(short)}{' ...' if len(items) > 6 else ''}")
        return "; ".join(parts)


@torch.inference_mode(False)  # what is loaded for inference may be trained later
def load(
    source: str | Path,
    image: int | Pair | None = None,
    classes: int | None = None,
    resize: PositionResize | Literal["origin"] = "origin",
    grid: Pair | None = None,
    heads: int | None = None,
    gelu: Gelu | None = None,
    pool: Literal["cls", "gap", "map"] | None = None,
    patch: int | Pair | None = None,
    channels: int | None = None,
) -> Model:
    """Load a model, ready to predict, from a model folder, a run (its best weights), .npz, .safetensors, .pth, a folder of
    Hugging Face or timm, ``hf:owner/name``, or the name of a published model such as ``dinov2-s14``.

    ``image``, ``patch``, ``channels`` and ``classes`` change the model; ``grid``, ``heads``, ``gelu`` and ``pool`` supply what
    a file does not record. What was assumed, resized, new or not used is logged and recorded in ``model.load_report``.
    """
    parse_value(resize, PositionResize | Literal["origin"], "resize")
    published = find_published(source)
    if published is not None and image is None and patch is None:
        image = published.image  # its position table may be of another size
    size = parse_value(image, Pair | None, "image")
    overrides = Overrides(
        parse_value(grid, Pair | None, "grid"),
        parse_value(heads, int | None, "heads"),
        parse_value(gelu, Gelu | None, "gelu"),
        pool,
        size if patch is None else None,  # of other patches than the file's
    )
    checkpoint = read_checkpoint(source, overrides)
    model = build_on_meta(checkpoint.config)
    check_shapes(str(source), model, checkpoint.state)
    config, state, changes = adapt(
        checkpoint.config,
        checkpoint.state,
        image=size,
        patch=parse_value(patch, Pair | None, "patch"),
        channels=parse_value(channels, int | None, "channels"),
        classes=parse_value(classes, int | None, "classes"),
        rule=None if resize == "origin" else resize,
    )
    model = _fill_model(model if config == checkpoint.config else build_on_meta(config), checkpoint, config, state, changes)
    model.load_report.log(str(source))
    return (model if checkpoint.decoder is None else attach_decoder(model, model_task(model), checkpoint.decoder)).eval()


def _fill_model(
    model: Model, checkpoint: ConvertedCheckpoint, config: ModelConfig, state: dict[str, Tensor], changes: WeightChanges
) -> Model:
    """Give a model the adapted weights of a checkpoint and its metadata."""
    matched = sum(tensor is checkpoint.state.get(name) for name, tensor in state.items())
    checkpoint.state.clear()
    for name in state:
        state[name] = own_copy(state[name])  # one at a time, so that the memory of each original is freed at once
    model.load_state_dict(state, assign=True)
    model.preprocess = adapt_preprocess(checkpoint, config)
    model.class_names = _class_names(checkpoint, config)
    model.metadata = _valid_metadata(checkpoint, config)
    model.load_report = LoadReport(
        checkpoint.origin,
        matched,
        tuple(changes.resized),
        tuple(changes.new),
        (*checkpoint.unused, *changes.unused),
        tuple(checkpoint.assumed),
    )
    return model


def _class_names(checkpoint: ConvertedCheckpoint, config: ModelConfig) -> tuple[str, ...] | None:
    """Return the class names that the file records, else assumed ones; none for a new head."""
    if checkpoint.decoder is not None and not config.classes:  # those of the outputs of the decoder
        return checkpoint.class_names
    if config.classes != checkpoint.config.classes or not config.classes:
        return None
    if checkpoint.class_names and len(checkpoint.class_names) == config.classes:
        refuse_given_names()
        return checkpoint.class_names
    if checkpoint.records_preprocess and not checkpoint.class_names:  # our own, whose classes have no names
        return assume_class_names("vitrail", config.classes, checkpoint.assumed)
    return assume_class_names(checkpoint.origin, config.classes, checkpoint.assumed)


def attach_decoder(encoder: Model, task: Task, decoder: Decoder, needed: bool = False) -> Any:
    """Return the model that a task has built around an encoder, with this decoder; if it is not kept after training and not
    ``needed``, the encoder alone."""
    model = task.build_model(encoder) if task.keeps_decoder or needed else encoder
    if model is encoder:
        return encoder
    tensors, where = (read_file(decoder).tensors, decoder) if isinstance(decoder, Path) else (decoder, "the file")
    state = {name: _finite_float32(name, tensor) for name, tensor in tensors.items()}
    if misfits := _misfits(decoder_state(model), state):
        raise VitrailError(f"{where} does not have the decoder of this task: {misfits[0]}")
    model.load_state_dict(state, strict=False)
    return with_metadata_of(encoder, model)


def _valid_metadata(checkpoint: ConvertedCheckpoint, config: ModelConfig) -> dict[str, Any]:
    """Return the metadata that still holds: a changed model has other metrics; at another size all else holds."""
    if config == checkpoint.config:
        return checkpoint.metadata
    if config.classes != checkpoint.config.classes or config.channels != checkpoint.config.channels:
        return {}
    return {name: value for name, value in checkpoint.metadata.items() if name != "metrics"}


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Suppress the log messages of loading, for callers that report them in another way."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def read_checkpoint(source: str | Path, overrides: Overrides | None = None) -> ConvertedCheckpoint:
    """Read the model of a file, with our tensor names, changed in nothing but the precision."""
    with wrap_read_errors(source):
        path = resolve_source(source)
        return check_finite_weights(
            read_own(path, overrides or Overrides())
            if is_model_folder(path)
            else convert_foreign(read_file(path), path, overrides or Overrides())
        )


def resolve_source(source: str | Path) -> Path:
    """Return the path of the weights: for a run its best ones, for a file in a model folder the folder."""
    path = resolve_run(hub.locate(source))
    return path.parent if path.name == WEIGHTS_FILE and is_model_folder(path.parent) else path


@contextmanager
def wrap_read_errors(source: str | Path) -> Iterator[None]:
    """Turn any error while reading an untrusted file into a VitrailError."""
    try:
        yield
    except VitrailError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise VitrailError(f"{source} cannot be read: {reason[0] if reason else type(error).__name__}") from error


@contextmanager
def wrap_misfits(path: Path) -> Iterator[None]:
    """Turn an error of torch about tensors of unforeseen shapes into a VitrailError."""
    try:
        yield
    except VitrailError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise VitrailError(
            f"{path} has tensors or settings that do not fit each other: {reason[0]}; the file is damaged, or of another model "
            "with the same names"
        ) from error


def convert_foreign(raw: RawCheckpoint, path: Path, overrides: Overrides) -> ConvertedCheckpoint:
    """Convert another library's tensors to a model of ours."""
    # Apple's folders have a config.json of Hugging Face's kind next to tensors in the names of their own code.
    by_config = huggingface.names_family(raw.sidecar) and not aimv2.matches(raw.tensors)
    for converter in CONVERTERS:
        if converter is huggingface if by_config else converter.matches(raw.tensors):
            may_be_empty = getattr(converter, "MAY_BE_EMPTY", ())
            empty = [name for name, tensor in raw.tensors.items() if not tensor.numel() and not name.endswith(may_be_empty)]
            if empty:
                raise VitrailError(f"{path} is damaged: {empty[0]} is empty")
            sidecar = {**raw.sidecar, "wrapper": raw.wrapper, "file_name": path.name}
            with wrap_misfits(path):
                checkpoint = _from_metadata(converter, raw, sidecar, overrides) or converter.convert_checkpoint(
                    raw.tensors, sidecar, overrides
                )
            wrapper_note = [f"the weights under {raw.wrapper!r}"] if raw.wrapper and raw.unused else []
            return replace(checkpoint, unused=[*raw.unused, *checkpoint.unused], assumed=[*wrapper_note, *checkpoint.assumed])
    if "embed.project.weight" in raw.tensors or "stages.0.0.conv1.weight" in raw.tensors:
        raise VitrailError(f"{path} has our tensor names, but the vitrail.json with the model's config is not next to it")
    if isinstance(raw.sidecar.get("architecture"), str):
        known_architecture(raw.sidecar["architecture"])  # refuses it by the feature that is missing
    first_names = ", ".join(list(raw.tensors)[:3]) or "nothing"
    raise VitrailError(f"{path} has the tensor names of no known Vision Transformer: {first_names} ...")


def read_own(path: Path, overrides: Overrides) -> ConvertedCheckpoint:
    """Read the model of a Vitrail folder."""
    config, metadata = read_config(path), read_metadata(path)
    _check_overrides(config, overrides)
    decoder = path / DECODER_FILE
    return ConvertedCheckpoint(
        "vitrail",
        config,
        read_file(path).tensors,
        [],
        [],
        *parse_metadata(metadata),
        decoder=decoder if decoder.is_file() else None,
        records_preprocess=True,
    )


def _from_metadata(
    converter: Any, raw: RawCheckpoint, sidecar: dict[str, Any], overrides: Overrides
) -> ConvertedCheckpoint | None:
    """Read a file by the metadata that our own ``save`` wrote into it; return None if it has none."""
    if "model" not in raw.vitrail_metadata or not hasattr(converter, "tensor_maps"):  # of a format that is never written
        return None
    config = parse_value(raw.vitrail_metadata["model"], ModelConfig, "model")
    _check_overrides(config, overrides)
    if raw.vitrail_metadata.get(CLASS_NAMES_KEY) is True:  # its tensors are renamed by what config.json says
        converted = converter.convert_checkpoint(raw.tensors, sidecar, overrides)
        state, unused = converted.state, converted.unused
    else:
        state, unused = import_tensors(converter.tensor_maps(config), raw.tensors)
    return ConvertedCheckpoint(
        converter.__name__.rpartition(".")[2],
        config,
        state,
        unused,
        [],
        *parse_metadata(raw.vitrail_metadata),
        records_preprocess=True,
    )


def _check_overrides(config: ModelConfig, overrides: Overrides) -> None:
    for name in ("grid", "heads", "gelu", "pool"):
        override = getattr(overrides, name)
        recorded = getattr(config, name, None)
        if override is not None and override != recorded:
            raise VitrailError(f"the file records {name}={recorded}, got {name}={override}; leave {name} out")


def parse_metadata(metadata: dict[str, Any]) -> tuple[Preprocess | None, tuple[str, ...] | None, dict[str, Any]]:
    """Parse what is stored with the weights: preprocessing, class names, training metadata."""
    preprocess = parse_value(metadata.get("preprocess"), Preprocess | None, "preprocess")
    return (
        preprocess,
        parse_value(metadata.get("class_names"), tuple[str, ...] | None, "class_names"),
        training_metadata(metadata),
    )


def check_finite_weights(checkpoint: ConvertedCheckpoint) -> ConvertedCheckpoint:
    return replace(checkpoint, state={name: _finite_float32(name, tensor) for name, tensor in checkpoint.state.items()})


def _finite_float32(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor in float32; refuse values that are not finite."""
    if not tensor.is_floating_point():
        raise VitrailError(f"{name} is in {str(tensor.dtype).removeprefix('torch.')}; weights must be floating-point")
    tensor = tensor.float()
    if not torch.isfinite(tensor).all():
        non_finite = int((~torch.isfinite(tensor)).sum())
        raise VitrailError(
            f"the file is damaged: {name} has {non_finite} of {tensor.numel()} values that are not finite (NaN/Inf)"
        )
    return tensor


def check_shapes(source: str, model: nn.Module, state: dict[str, Tensor]) -> None:
    """Refuse weights whose names or shapes are not exactly the model's."""
    if problems := _misfits(model.state_dict(), state):
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise VitrailError(f"the weights in {source} do not fit their config: {', '.join(problems[:5])}{more}")


def _misfits(model: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """List the weights that a model and a file do not have in common, or in another shape."""
    expected = {name: tuple(weight.shape) for name, weight in model.items()}
    problems = [f"{name} is missing" for name in expected if name not in state]
    problems += [f"{name} is unexpected" for name in state if name not in expected]
    problems += [
        f"{name} is {list(tensor.shape)} instead of {list(expected[name])}"
        for name, tensor in state.items()
        if name in expected and tuple(tensor.shape) != expected[name]
    ]
    return problems


def adapt_preprocess(checkpoint: ConvertedCheckpoint, config: ModelConfig) -> Preprocess:
    """Return the preprocessing the model was trained with, at its present image size and channels."""
    preprocess = checkpoint.preprocess or vit_preprocess(checkpoint.config.image, checkpoint.config.channels)
    if (changes := assumed_changes()) is not None:
        if checkpoint.records_preprocess:
            raise VitrailError(
                "the model records its preprocessing; leave --mean, --std, --interpolation, --crop and --fit out"
            )
        preprocess = changes.apply(preprocess)
    trim = preprocess.trim if config.image == preprocess.image_size else (0, 0)
    return replace(preprocess.with_channels(config.channels), image_size=config.image, trim=trim)
