"""The models of the studio: any weights, and runs with all their checkpoints. One is used at a time.

Recording activations is not thread-safe (``layers.tap``), and one image already uses all cores.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any

from vitrail.config import to_dict
from vitrail.errors import VitrailError
from vitrail.explain.attention import as_vit
from vitrail.models.build import Model
from vitrail.models.config import ViTConfig
from vitrail.models.cost import cost
from vitrail.studio.run_log import is_training, last_logged_step
from vitrail.tasks.registry import model_task
from vitrail.training.load_checkpoint import checkpoint_steps, load_checkpoint
from vitrail.training.run import Run
from vitrail.weights.load import load, quiet_loading
from vitrail.weights.model_folder import is_model_folder

MAX_CACHED_MODELS = 4  # models in memory, so that switching between models or checkpoints is quick
MAX_CACHED_BYTES = 2**31  # total size of their weights, except the one in use
SHOWN_FIELDS = (
    "width", "depth", "heads", "mlp", "patch", "image", "channels", "classes", "registers", "pool", "position", "norm",
    "rotary", "relative_bias", "window", "relative_axes"
)  # fmt: skip


@dataclass(frozen=True)
class StoredModel:
    """A model of the store. ``source`` is the command-line argument; the page uses only the id, never a path."""

    id: str
    name: str
    source: str
    run: Run | None

    def checkpoint_steps(self) -> list[int]:
        return checkpoint_steps(self.run) if self.run is not None else []

    def dataset(self) -> str | None:
        return self.run.recipe().data if self.run is not None else None


class Cancelled(Exception):
    """The client has disconnected, so the computation is cancelled."""


class ModelStore:
    """Store of loaded models. ``class_names`` are for weights that have none."""

    def __init__(self, sources: Sequence[str], class_names: Sequence[str] = ()) -> None:
        models = [_stored_model(f"m{index}", source) for index, source in enumerate(sources)]
        self.models = {model.id: model for model in _with_unique_names(models)}
        self._loaded: OrderedDict[tuple[str, int | None, int], Model] = OrderedDict()
        self._class_names = tuple(class_names)
        self._descriptions: dict[str, tuple[int, dict[str, Any]]] = {}  # by id, with the version of the weights
        self._lock = Lock()

    def find(self, id: str) -> StoredModel:
        if id not in self.models:
            raise VitrailError(f"the studio has no model {id[:20]!r}; it has {', '.join(self.models)}")
        model = self.models[id]
        if model.run is not None and not model.run.folder.is_dir():
            raise VitrailError(f"the folder of {model.name} is no longer there; restore it, or start the studio with another")
        return model

    @contextmanager
    def acquire(self, id: str, step: int | None = None, cancel_event: Event | None = None) -> Iterator[Model]:
        """Acquire a model exclusively. Once the event is set, its next forward pass raises ``Cancelled``."""

        def check_cancelled(*_: Any) -> None:
            if cancel_event is not None and cancel_event.is_set():
                raise Cancelled

        with self._lock:
            model = self._load_cached(self.find(id), step)
            hook = model.register_forward_pre_hook(check_cancelled)
            try:
                yield model
            finally:
                hook.remove()

    def version(self, id: str, step: int | None) -> int:
        """Return a number that changes with the weights of ``acquire``: a run that trains finds better ones."""
        model = self.find(id)
        if step is not None or model.run is None:
            return 0
        best = model.run.folder / "best" / "model.safetensors"
        return best.stat().st_mtime_ns if best.is_file() else max(model.checkpoint_steps(), default=0)

    def describe(self, id: str) -> dict[str, Any]:
        """Return what the page shows of a model without an image."""
        model, version = self.find(id), self.version(id, None)
        if self._descriptions.get(id, (None, {}))[0] != version:  # do not load all models for every page
            self._descriptions[id] = version, self._describe(model)
        return self._descriptions[id][1] | {
            "training": model.run is not None and is_training(model.run),
            "finished": model.run is not None and model.run.result() is not None,
            "last_step": -1 if model.run is None else last_logged_step(model.run),
            "checkpoint_steps": model.checkpoint_steps(),
        }

    def _describe(self, stored: StoredModel) -> dict[str, Any]:
        with self.acquire(stored.id) as model:
            vit, task = as_vit(model), model_task(model)
            config, class_names, preprocess = vit.config, model.class_names, model.preprocess
            patch_channels = vit.embed.project.weight.shape[1]  # a hybrid's stem has many
            num_parameters = sum(weight.numel() for weight in model.parameters())
        fields = to_dict(config)
        return {
            "id": stored.id,
            "name": stored.name,
            "source": stored.source,
            "dataset": stored.dataset(),
            "is_run": stored.run is not None,
            "segments": task.has_pixel_classes,
            "detects": task.config.has_boxes,
            "kind": "hybrid" if config.stem is not None else "vit",
            "config": {name: fields.get(name, getattr(config, name)) for name in SHOWN_FIELDS}
            | {
                "prefix": config.prefix_tokens,
                "class_token": config.has_class_token,
                "head_dim": config.width // config.heads,
                "patch_channels": patch_channels,
            },
            "stride": list(config.patch_stride),
            "grid": list(config.grid),
            "tokens": config.tokens,
            "has_class_names": bool(class_names),
            "class_names": list(class_names or (f"class {index}" for index in range(config.classes))),
            "preprocess": to_dict(preprocess),
            "parameters": num_parameters,
            "macs": cost(config).macs,
            "python": f"vitrail.load({stored.source!r})",
            "python_at_step": f"vitrail.load_checkpoint({stored.source!r}, STEP)",
        }

    def config(self, id: str) -> ViTConfig:
        with self.acquire(id) as model:
            return as_vit(model).config

    def _load_cached(self, stored: StoredModel, step: int | None) -> Model:
        key = stored.id, step, self.version(stored.id, step)
        if key not in self._loaded:
            with quiet_loading():
                model = self._loaded[key] = _require_eight_bits(_load_model(stored, step), stored)
            if not model.class_names and len(self._class_names) == model.config.classes:
                model.class_names = self._class_names or None
        self._loaded.move_to_end(key)
        while len(self._loaded) > 1 and (
            len(self._loaded) > MAX_CACHED_MODELS or sum(map(_weight_bytes, self._loaded.values())) > MAX_CACHED_BYTES
        ):
            self._loaded.popitem(last=False)
        return self._loaded[key]


def _load_model(stored: StoredModel, step: int | None) -> Model:
    if stored.run is not None and step is None and not is_model_folder(stored.run.folder / "best"):
        available_steps = stored.checkpoint_steps()  # not evaluated yet
        if not available_steps:
            raise VitrailError(f"{stored.name} has no weights yet; wait for its first checkpoint")
        step = available_steps[-1]
    if step is None:
        return load(stored.source)
    if stored.run is None:
        raise VitrailError(f"{stored.name} is not a run, so it has no checkpoints; leave the step out")
    return load_checkpoint(stored.run, step)


def _require_eight_bits(model: Model, stored: StoredModel) -> Model:
    if model.preprocess is not None and model.preprocess.raw:
        raise VitrailError(
            f"the studio draws 8-bit images, and {stored.name} takes {model.preprocess.channels} bands; try vitrail explain"
        )
    return model


def _stored_model(id: str, source: str) -> StoredModel:
    path = Path(source).expanduser()
    name = path.resolve().name if path.exists() else source
    return StoredModel(id, name, source, Run(path) if (path / "recipe.json").is_file() else None)


def _with_unique_names(models: list[StoredModel]) -> list[StoredModel]:
    """Add the id to names that occur twice."""
    names = [model.name for model in models]
    return [
        model if names.count(model.name) == 1 else StoredModel(model.id, f"{model.name} ({model.id})", model.source, model.run)
        for model in models
    ]


def _weight_bytes(model: Model) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def validate_models(store: ModelStore) -> None:
    """Check that every model can be loaded and has attention."""
    for id in store.models:
        with store.acquire(id) as model:
            as_vit(model)
