"""Responses to the requests of the page, computed once and cached.

A model is identified by its id and step, an image by its id: nothing that comes from the page is a path.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Lock
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.explain.saliency import SALIENCY_METHODS
from vitrail.inference.predictor import require_preprocess
from vitrail.inference.preprocess_images import preprocess
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.plot.colormap import colormap
from vitrail.studio.binary_format import encode_arrays
from vitrail.studio.box_view import box_view, object_view
from vitrail.studio.explained_model import Selection, explained_model
from vitrail.studio.forward_trace import Metadata, NamedArrays, attention_rows, trace_image
from vitrail.studio.image_library import ImageLibrary
from vitrail.studio.mask_view import mask_view
from vitrail.studio.model_store import ModelStore
from vitrail.studio.run_predictions import RunPredictions
from vitrail.studio.views import BASELINES, ablation_effect, attention_pair, model_view, saliency_with_curves
from vitrail.tasks.registry import model_task

MAX_CACHED_BYTES = 2**27  # bytes of cached responses
NUM_STATISTICS_IMAGES = 16  # images for head statistics
DATASET_TIMEOUT = 5.0  # seconds to wait for a dataset that is being opened; then a sample is shown
WHOLE = Selection()
METHOD_ORDER = ("rollout", "gradient_rollout", "relevance")  # shown first; the others follow

ModelRef = tuple[str, int | None]  # a model's id and step
View = tuple[Metadata, NamedArrays]  # of a model and an image


def saliency_of(model: Model, images: Tensor, method: str, target: int | None, selection: Selection) -> View:
    """Return a map and its curves, of a segmentation model for a pixel or a region, of a detection model for a box."""
    return saliency_with_curves(explained_model(model, images, selection, target)[0], images, method, target)


def attention_rows_of(model: Model, images: Tensor, query: int) -> View:
    """Return the attention of a token, of a model for another task as its head runs the encoder."""
    return attention_rows(explained_model(model, images, Selection())[0], images, query)


class ByteLRUCache:
    """LRU cache of responses, limited by total bytes."""

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._responses: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[Any, ...], compute: Callable[[], bytes]) -> bytes:
        with self._lock:
            if key in self._responses:
                self._responses.move_to_end(key)
                return self._responses[key]
        response = compute()
        with self._lock:
            self.num_bytes += len(response) - len(self._responses.pop(key, b""))
            self._responses[key] = response
            while self.num_bytes > self.max_bytes and len(self._responses) > 1:
                _, evicted = self._responses.popitem(last=False)
                self.num_bytes -= len(evicted)
        return response


class StudioService:
    """Once a ``cancel_event`` is set, the computation stops at its next forward pass."""

    def __init__(self, store: ModelStore, library: ImageLibrary) -> None:
        self.store, self.library, self.cache = store, library, ByteLRUCache()
        self._preprocessed: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()  # the last preprocessed images
        self._predictions: dict[str, RunPredictions] = {}
        for model in store.models.values():
            if model.run is not None:
                self._predictions[model.id] = RunPredictions(model.run, library, library.add_dataset(model.run.recipe()))

    def info(self) -> dict[str, Any]:
        return {
            "colormap": colormap().tolist(),
            "methods": [*METHOD_ORDER, *(name for name in SALIENCY_METHODS if name not in METHOD_ORDER), *BASELINES],
            "models": self._models(),
            "datasets": self.library.list_datasets(),
            "first_image": self.first_image(),
        }

    def _models(self) -> list[dict[str, Any]]:
        """Describe all models that can be read; one whose folder is gone is skipped."""
        described, failure = [], VitrailError("the studio has no model")
        for id in self.store.models:
            try:
                described.append(self.store.describe(id))
            except VitrailError as error:
                failure = error
        if not described:
            raise failure
        return described

    def first_image(self) -> str:
        """Return the id of the first image to show: from the first model's dataset, else from any other, else a sample."""
        for index in self._dataset_indices(next(iter(self.store.models))):
            try:
                return self._first_images(index, DATASET_TIMEOUT)[0]
            except VitrailError:  # shown by the page in the list of datasets
                continue
        return "sample-0"

    def _dataset_indices(self, id: str) -> list[int]:
        """Return the dataset indices for a model: its own, then those that can be opened."""
        own = [self._predictions[id].dataset_index] if id in self._predictions else []
        others = [
            int(dataset["id"][1:])
            for dataset in self.library.list_datasets()
            if dataset["id"][0] == "d" and "error" not in dataset
        ]
        return [*own, *others]

    def trace(
        self,
        model_ref: ModelRef,
        image: str,
        target: int | None,
        selection: Selection = WHOLE,
        cancel_event: Event | None = None,
    ) -> bytes:
        def compute() -> bytes:
            content = self.library.read(image)
            region: Metadata | None = None

            def select(images: Tensor) -> ViT:
                nonlocal region
                vit, region = explained_model(model, images, selection, target)
                return vit

            with self.store.acquire(*model_ref, cancel_event) as model:
                metadata, arrays = trace_image(model, content, target, select)
                metadata["objects"] = self._objects(model, image)
            metadata["region"] = region
            metadata["image"] |= self.library.describe(image) | self.library.python_code(image)
            return encode_arrays({**metadata, "model": model_ref[0], "step": model_ref[1]}, arrays)

        return self.cache.get(("trace", *self._versioned(model_ref), image, target, selection), compute)

    def _objects(self, model: Model, image: str) -> list[Metadata] | None:
        """Return the objects of an image that the model should detect; None if it detects none, or nobody knows them."""
        task = model_task(model)
        labelled = self.library.objects(image) if task.config.has_boxes else None
        return None if labelled is None else object_view(labelled, require_preprocess(model), task.class_names)

    def attention_rows(self, model_ref: ModelRef, image: str, query: int, cancel_event: Event | None = None) -> bytes:
        return self._cached_view(model_ref, image, cancel_event, attention_rows_of, query)

    def saliency(
        self,
        model_ref: ModelRef,
        image: str,
        target: int | None,
        method: str,
        selection: Selection = WHOLE,
        cancel_event: Event | None = None,
    ) -> bytes:
        return self._cached_view(model_ref, image, cancel_event, saliency_of, method, target, selection)

    def mask(
        self, model_ref: ModelRef, image: str, patches: tuple[int, ...], mode: str, seed: int, cancel_event: Event | None = None
    ) -> bytes:
        return self._cached_view(model_ref, image, cancel_event, mask_view, patches, mode, seed)

    def boxes(
        self, model_ref: ModelRef, image: str, patches: tuple[int, ...], mode: str, seed: int, cancel_event: Event | None = None
    ) -> bytes:
        return self._cached_view(model_ref, image, cancel_event, box_view, patches, mode, seed)

    def attention_pair(
        self, model_ref: ModelRef, image: str, layer: int, head: int, query: int, key: int, cancel_event: Event | None = None
    ) -> dict[str, Any]:
        with self.store.acquire(*model_ref, cancel_event) as model:
            images = self._preprocess(model, model_ref, image)
            return attention_pair(explained_model(model, images, Selection())[0], images, layer, head, query, key)

    def ablate(
        self,
        model_ref: ModelRef,
        image: str,
        patches: Sequence[int],
        mode: str,
        seed: int,
        target: int | None,
        selection: Selection = WHOLE,
        cancel_event: Event | None = None,
    ) -> dict[str, Any]:
        with self.store.acquire(*model_ref, cancel_event) as model:
            images = self._preprocess(model, model_ref, image)
            vit, _ = explained_model(model, images, selection, target)
            return ablation_effect(vit, images, patches, mode, seed, target)

    def model_view(self, model_ref: ModelRef, cancel_event: Event | None = None) -> bytes:
        """Return the model view; head statistics use images of the model's own dataset if possible, else the samples."""

        def compute() -> bytes:
            image_ids = self._statistics_images(model_ref[0])
            contents = [self.library.read(image_id) for image_id in image_ids]
            with self.store.acquire(*model_ref, cancel_event) as model:
                metadata, arrays = model_view(model, [preprocess(model, [content]) for content in contents])
            return encode_arrays({**metadata, "measured_on": self._describe_images(image_ids)}, arrays)

        return self.cache.get(("model_view", *self._versioned(model_ref)), compute)

    def predictions(self, id: str) -> RunPredictions:
        model = self.store.find(id)
        if id not in self._predictions:
            raise VitrailError(
                f"{model.name} is not a run: it has neither curves nor predictions; try vitrail studio runs/NAME"
            )
        return self._predictions[id]

    def _statistics_images(self, id: str) -> list[str]:
        for index in self._dataset_indices(id):
            with suppress(VitrailError):  # its dataset may be gone
                return self._first_images(index)
        return [row["id"] for row in self.library.page("samples", "all", 0, NUM_STATISTICS_IMAGES)["images"]]

    def _describe_images(self, image_ids: list[str]) -> dict[str, Any]:
        """Describe the images that heads are measured on, as text and as Python."""
        first = self.library.python_code(image_ids[0])
        source, method, _ = first["python"].rpartition(".read(")
        text = f"the first {len(image_ids)} images of {self.library.describe_source(image_ids[0])}"
        expression = (
            f"[split.read(index) for split in [{source}] for index in range({len(image_ids)})]"
            if method
            else f"[{first['python']}]"
        )
        return {"text": text, "python": expression, "imports": first["imports"]}

    def _first_images(self, index: int, timeout: float | None = None) -> list[str]:
        """Return the first images of a dataset, from the test or validation split if it has one."""
        splits = self.library.get_dataset(index, timeout).splits
        split = next((name for name in ("test", "validation", "train") if len(splits[name])), None)
        if split is None:
            raise VitrailError(f"{self.library.get_dataset(index).name} has no images; try another dataset")
        return [
            self.library.image_id(index, split, position) for position in range(min(NUM_STATISTICS_IMAGES, len(splits[split])))
        ]

    def _cached_view(
        self, model_ref: ModelRef, image: str, cancel_event: Event | None, view: Callable[..., View], *arguments: Any
    ) -> bytes:
        def compute() -> bytes:
            with self.store.acquire(*model_ref, cancel_event) as model:
                return encode_arrays(*view(model, self._preprocess(model, model_ref, image), *arguments))

        return self.cache.get((view.__name__, *arguments, *self._versioned(model_ref), image), compute)

    def _preprocess(self, model: Model, model_ref: ModelRef, image: str) -> Tensor:
        """Preprocess an image, cached. Called only while a model is acquired, so by one thread at a time."""
        key = (*self._versioned(model_ref), image)
        if key not in self._preprocessed:
            self._preprocessed[key] = preprocess(model, [self.library.read(image)])
            while len(self._preprocessed) > 4:
                self._preprocessed.popitem(last=False)
        return self._preprocessed[key]

    def _versioned(self, model_ref: ModelRef) -> tuple[Any, ...]:
        return (*model_ref, self.store.version(*model_ref))
