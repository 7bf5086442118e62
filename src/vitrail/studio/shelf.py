"""The models of the studio: any weights, and runs with all their checkpoints. One is used at a time.

Recording activations is not thread-safe (``layers.tap``), and one image already uses all cores.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any

from vitrail.config import to_plain
from vitrail.errors import VitrailError
from vitrail.explain.attention import checked
from vitrail.models.build import Model
from vitrail.models.cost import cost
from vitrail.models.settings import ViTConfig
from vitrail.studio.history import steps_done, training
from vitrail.train.past import model_at, steps
from vitrail.train.run import Run
from vitrail.weights.folder import is_model
from vitrail.weights.load import load, untold

KEPT = 4  # models in memory, so that switching between models or checkpoints is quick
BYTES = 2**31  # total size of their weights, except the one in use
FIELDS = (
    "width", "depth", "heads", "mlp", "patch", "image", "channels", "classes", "registers", "pool", "position", "norm"
)  # fmt: skip


@dataclass(frozen=True)
class Opened:
    """A model of the store. ``source`` is the command-line argument; the page uses only the id, never a path."""

    id: str
    name: str
    source: str
    run: Run | None

    def steps(self) -> list[int]:
        return steps(self.run) if self.run is not None else []

    def data(self) -> str | None:
        return self.run.recipe().data if self.run is not None else None


class GivenUp(Exception):
    """The client has disconnected, so the computation is cancelled."""


GONE: ContextVar[Event | None] = ContextVar("GONE", default=None)  # set when the client disconnects


class Shelf:
    """Store of loaded models. ``labels`` are class names for weights that have none."""

    def __init__(self, sources: Sequence[str], labels: Sequence[str] = ()) -> None:
        taken = [_opened(f"m{place}", source) for place, source in enumerate(sources)]
        self.models = {one.id: one for one in _told_apart(taken)}
        self._kept: OrderedDict[tuple[str, int | None, int], Model] = OrderedDict()
        self._labels = tuple(labels)
        self._facts: dict[str, tuple[int, dict[str, Any]]] = {}  # by id, with the version of the weights
        self._lock = Lock()

    def find(self, id: str) -> Opened:
        if id not in self.models:
            raise VitrailError(f"the studio has no model {id[:20]!r}; it has {', '.join(self.models)}")
        one = self.models[id]
        if one.run is not None and not one.run.folder.is_dir():
            raise VitrailError(f"the folder of {one.name} is no longer there; restore it, or start the studio with another")
        return one

    @contextmanager
    def using(self, id: str, step: int | None = None) -> Iterator[Model]:
        """Acquire a model exclusively. A cancelled computation stops at its next forward pass."""
        gone = GONE.get()

        def go_on(*_: Any) -> None:
            if gone is not None and gone.is_set():
                raise GivenUp

        with self._lock:
            model = self._model(self.find(id), step)
            hook = model.register_forward_pre_hook(go_on)
            try:
                yield model
            finally:
                hook.remove()

    def stamp(self, id: str, step: int | None) -> int:
        """Changes when what ``using`` would give has changed: a run that trains finds better weights."""
        one = self.find(id)
        if step is not None or one.run is None:
            return 0
        best = one.run.folder / "best" / "model.safetensors"
        return best.stat().st_mtime_ns if best.is_file() else max(one.steps(), default=0)

    def facts(self, id: str) -> dict[str, Any]:
        """Return what the page shows of a model without an image."""
        one, stamp = self.find(id), self.stamp(id, None)
        if self._facts.get(id, (None, {}))[0] != stamp:  # do not load all models for every page
            self._facts[id] = stamp, self._described(one)
        return self._facts[id][1] | {
            "training": one.run is not None and training(one.run),
            "finished": one.run is not None and one.run.result() is not None,
            "last_step": -1 if one.run is None else steps_done(one.run),
            "checkpoint_steps": one.steps(),
        }

    def _described(self, one: Opened) -> dict[str, Any]:
        with self.using(one.id) as model:
            vit = checked(model)
            config, labels, how = vit.config, vit.labels, vit.preprocess
            inputs = vit.embed.project.weight.shape[1]  # input channels of the patch embedding: a hybrid's stem has many
            weights = sum(weight.numel() for weight in vit.parameters())
        plain = to_plain(config)
        return {
            "id": one.id,
            "name": one.name,
            "source": one.source,
            "dataset": one.data(),
            "is_run": one.run is not None,
            "kind": "hybrid" if config.stem is not None else "vit",
            "config": {name: plain.get(name, getattr(config, name)) for name in FIELDS}
            | {
                "prefix": config.prefix,
                "class_token": config.has_class_token,
                "head_dim": config.width // config.heads,
                "patch_channels": inputs,
            },
            "stride": list(config.stride),
            "grid": list(config.grid),
            "tokens": config.tokens,
            "has_class_names": bool(labels),
            "class_names": list(labels or (f"class {number}" for number in range(config.classes))),
            "preprocess": to_plain(how),
            "parameters": weights,
            "macs": cost(config).macs,
            "python": f"vitrail.load({one.source!r})",
            "python_at_step": f"vitrail.model_at({one.source!r}, STEP)",
        }

    def config(self, id: str) -> ViTConfig:
        with self.using(id) as model:
            return checked(model).config

    def _model(self, one: Opened, step: int | None) -> Model:
        key = one.id, step, self.stamp(one.id, step)
        if key not in self._kept:
            with untold():
                model = self._kept[key] = _load(one, step)
            if not model.labels and len(self._labels) == model.config.classes:
                model.labels = self._labels or None
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and (len(self._kept) > KEPT or sum(map(_bytes, self._kept.values())) > BYTES):
            self._kept.popitem(last=False)
        return self._kept[key]


def _load(one: Opened, step: int | None) -> Model:
    if one.run is not None and step is None and not is_model(one.run.folder / "best"):
        known = one.steps()  # not evaluated yet
        if not known:
            raise VitrailError(f"{one.name} has no weights yet; wait for its first checkpoint")
        step = known[-1]
    if step is None:
        return load(one.source)
    if one.run is None:
        raise VitrailError(f"{one.name} is not a run, so it has no checkpoints; leave the step out")
    return model_at(one.run, step)


def _opened(id: str, source: str) -> Opened:
    path = Path(source).expanduser()
    name = path.resolve().name if path.exists() else source
    return Opened(id, name, source, Run(path) if (path / "recipe.json").is_file() else None)


def _told_apart(models: list[Opened]) -> list[Opened]:
    """Add the id to names that occur twice."""
    names = [one.name for one in models]
    return [
        one if names.count(one.name) == 1 else Opened(one.id, f"{one.name} ({one.id})", one.source, one.run) for one in models
    ]


def _bytes(model: Model) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def check(shelf: Shelf) -> None:
    """Check that every model can be loaded and has attention."""
    for id in shelf.models:
        with shelf.using(id) as model:
            checked(model)
