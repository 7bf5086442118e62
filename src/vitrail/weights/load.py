"""``vitrail.load``: load a Vision Transformer checkpoint of any common format, with a report on its tensors."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitrail.config import read as read_as
from vitrail.data.preprocess import Preprocess
from vitrail.data.preprocess import vit as vit_preprocess
from vitrail.errors import VitrailError
from vitrail.layers.position import Resize
from vitrail.models.build import Model, skeleton
from vitrail.models.settings import ModelConfig, Pair
from vitrail.weights import hub
from vitrail.weights.convert import huggingface, official, timm, torchvision
from vitrail.weights.convert.detect import Found, Wishes
from vitrail.weights.convert.link import read as read_links
from vitrail.weights.files import Loose, held, read_file
from vitrail.weights.folder import WEIGHTS, best_of, is_model, read_config, read_facts, training_facts
from vitrail.weights.resize import adapt

FORMATS = (official, timm, huggingface, torchvision)
log = logging.getLogger("vitrail")


@dataclass(frozen=True)
class Report:
    """How a checkpoint's tensors were used."""

    origin: str
    matched: int  # tensors of the model that have the file's values unchanged
    resized: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # in the file, not in the model
    assumed: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        said = [f"read {self.origin} weights: {self.matched} tensors unchanged"]
        for title, items in (("assumed", self.assumed), ("resized", self.resized), ("new", self.new)):
            said += [f"{title} {item}" for item in items]
        if self.left:
            more = f" and {len(self.left) - 6} more" if len(self.left) > 6 else ""
            said.append(f"not used: {', '.join(self.left[:6])}{more}")
        return said


@torch.inference_mode(False)  # what is loaded for inference may be trained later
def load(
    source: str | Path,
    image: int | Pair | None = None,
    classes: int | None = None,
    resize: Resize | Literal["origin"] = "origin",
    grid: Pair | None = None,
    heads: int | None = None,
    gelu: Literal["tanh", "exact"] | None = None,
    pool: Literal["cls", "gap", "map"] | None = None,
    patch: int | Pair | None = None,
    channels: int | None = None,
) -> Model:
    """Load a model, ready to predict, from a model folder, a run (its best weights), .npz, .safetensors, .pth, a folder of
    Hugging Face or timm, or ``hf:owner/name``.

    ``image``, ``patch``, ``channels`` and ``classes`` change the model; ``grid``, ``heads``, ``gelu`` and ``pool`` supply what
    a file does not record. What was assumed, resized, new or not used is logged and kept in ``model.report``.
    """
    read_as(resize, Resize | Literal["origin"], "resize")
    wishes = Wishes(read_as(grid, Pair | None, "grid"), read_as(heads, int | None, "heads"), gelu, pool)
    found = find(source, wishes)
    model = skeleton(found.config)
    match(str(source), model, found.state)
    config, state, changes = adapt(
        found.config,
        found.state,
        image=read_as(image, Pair | None, "image"),
        patch=read_as(patch, Pair | None, "patch"),
        channels=read_as(channels, int | None, "channels"),
        classes=read_as(classes, int | None, "classes"),
        rule=None if resize == "origin" else resize,
    )
    matched = sum(tensor is found.state.get(name) for name, tensor in state.items())
    if config != found.config:
        model = skeleton(config)
    found.state.clear()
    for name in state:
        state[name] = held(state[name])  # one at a time, so that the memory of each original is freed at once
    model.load_state_dict(state, assign=True)
    model.preprocess = preprocessing(found, config)
    model.labels = found.labels if found.labels and len(found.labels) == config.classes else None
    model.facts = _facts(found, config)
    report = model.report = Report(
        found.origin,
        matched,
        tuple(changes.resized),
        tuple(changes.new),
        (*found.left, *changes.left),
        tuple(found.assumed),
    )
    for line in report.lines()[1:]:
        log.warning("%s: %s", source, line)
    return model.eval()


def _facts(found: Found, config: ModelConfig) -> dict[str, Any]:
    """Return the metadata that still holds: a changed model has other metrics; at another size its recipe and dataset hold."""
    if config == found.config:
        return found.facts
    if config.classes != found.config.classes or config.channels != found.config.channels:
        return {}
    return {name: value for name, value in found.facts.items() if name in ("recipe", "dataset")}


@contextmanager
def untold() -> Iterator[None]:
    """Suppress the log messages of loading, for callers that report them in another way."""
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def find(source: str | Path, wishes: Wishes | None = None) -> Found:
    """Read the model of a file, with our tensor names, changed in nothing but the precision."""
    with guarded(source):
        path = place(source)
        return sound(own(path, wishes or Wishes()) if is_model(path) else found_in(read_file(path), path, wishes or Wishes()))


def place(source: str | Path) -> Path:
    """Return the path of the weights: for a run its best ones, for a file in a model folder the folder."""
    path = best_of(hub.fetch(str(source)) if str(source).startswith("hf:") else Path(source).expanduser())
    return path.parent if path.name == WEIGHTS and is_model(path.parent) else path


@contextmanager
def guarded(source: str | Path) -> Iterator[None]:
    """Turn any error while reading an untrusted file into a VitrailError."""
    try:
        yield
    except VitrailError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise VitrailError(f"{source} cannot be read: {reason[0] if reason else type(error).__name__}") from error


def found_in(loose: Loose, path: Path, wishes: Wishes) -> Found:
    """Convert another library's tensors to a model of ours."""
    for converter in FORMATS:
        if converter.matches(loose.tensors):
            empty = [name for name, tensor in loose.tensors.items() if not tensor.numel()]
            if empty:
                raise VitrailError(f"{path} is damaged: {empty[0]} is empty")
            found = _noted(converter, loose, wishes) or converter.find(
                loose.tensors, {**loose.side, "wrapper": loose.wrapper}, wishes
            )
            chosen = [f"the weights under {loose.wrapper!r}"] if loose.wrapper and loose.left else []
            return replace(found, left=[*loose.left, *found.left], assumed=[*chosen, *found.assumed])
    if "embed.project.weight" in loose.tensors or "stages.0.0.conv1.weight" in loose.tensors:
        raise VitrailError(f"{path} has our tensor names, but the vitrail.json with the model's config is not next to it")
    some = ", ".join(list(loose.tensors)[:3]) or "nothing"
    raise VitrailError(f"{path} has the tensor names of no known Vision Transformer: {some} ...")


def own(path: Path, wishes: Wishes) -> Found:
    """Read the model of a Vitrail folder."""
    config, facts = read_config(path), read_facts(path)
    _refuse_contradiction(config, wishes)
    return Found("vitrail", config, read_file(path).tensors, [], [], *travelling(facts))


def _noted(converter: Any, loose: Loose, wishes: Wishes) -> Found | None:
    """Read a file by the metadata that our own ``save`` wrote into it; return None if it has none."""
    if "model" not in loose.note:
        return None
    config = read_as(loose.note["model"], ModelConfig, "model")
    _refuse_contradiction(config, wishes)
    state, left = read_links(converter.links(config), loose.tensors)
    return Found(converter.__name__.rpartition(".")[2], config, state, left, [], *travelling(loose.note))


def _refuse_contradiction(config: ModelConfig, wishes: Wishes) -> None:
    for name, wish in vars(wishes).items():
        said = getattr(config, name, None)
        if wish is not None and wish != said:
            raise VitrailError(f"the file records {name}={said}, got {name}={wish}; leave {name} out")


def travelling(facts: dict[str, Any]) -> tuple[Preprocess | None, tuple[str, ...] | None, dict[str, Any]]:
    """Parse what is stored with the weights: preprocessing, class names, training metadata."""
    preprocess = read_as(facts.get("preprocess"), Preprocess | None, "preprocess")
    return preprocess, read_as(facts.get("class_names"), tuple[str, ...] | None, "class_names"), training_facts(facts)


def sound(found: Found) -> Found:
    return replace(found, state={name: _sound(name, tensor) for name, tensor in found.state.items()})


def _sound(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor in float32; refuse values that are not finite."""
    if not tensor.is_floating_point():
        raise VitrailError(f"{name} is in {str(tensor.dtype).removeprefix('torch.')}; weights must be floating-point")
    tensor = tensor.float()
    if not torch.isfinite(tensor).all():
        bad = int((~torch.isfinite(tensor)).sum())
        raise VitrailError(f"the file is damaged: {name} has {bad} of {tensor.numel()} values that are not finite (NaN/Inf)")
    return tensor


def match(source: str, model: nn.Module, state: dict[str, Tensor]) -> None:
    """Refuse weights whose names or shapes are not exactly the model's."""
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    problems = [f"{name} is missing" for name in expected if name not in state]
    problems += [f"{name} is unexpected" for name in state if name not in expected]
    problems += [
        f"{name} is {list(tensor.shape)} instead of {list(expected[name])}"
        for name, tensor in state.items()
        if name in expected and tuple(tensor.shape) != expected[name]
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise VitrailError(f"the weights in {source} do not fit their config: {', '.join(problems[:5])}{more}")


def preprocessing(found: Found, config: ModelConfig) -> Preprocess:
    """Return the preprocessing the model was trained with, at its present image size and channels."""
    known = found.preprocess or vit_preprocess(found.config.image, found.config.channels)
    return replace(known.with_channels(config.channels), image=config.image)
