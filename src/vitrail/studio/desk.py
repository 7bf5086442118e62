"""Responses to the requests of the page, computed once and cached.

A model is identified by its id and step, an image by its id: nothing that comes from the page is a path.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.evaluate.ready import prepare
from vitrail.explain.maps import METHODS
from vitrail.models.build import Model
from vitrail.report.shades import path as ramp
from vitrail.studio.about import about
from vitrail.studio.album import Album
from vitrail.studio.answers import Answers
from vitrail.studio.flow import BASELINES, ablated, flow
from vitrail.studio.pack import packed
from vitrail.studio.pair import pair
from vitrail.studio.shelf import Shelf
from vitrail.studio.trace import rows, trace

ROOM = 2**27  # bytes of cached responses
MEASURED = 16  # images for head statistics
PATIENCE = 5.0  # seconds to wait for a dataset that is being opened; then a sample is shown
ORDER = ("rollout", "gradient_rollout", "relevance")  # shown first; the others follow

Which = tuple[str, int | None]  # a model's id and step


class Kept:
    """LRU cache of responses, limited by total bytes."""

    def __init__(self, room: int = ROOM) -> None:
        self.room, self.bytes = room, 0
        self._held: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, question: tuple[Any, ...], answer: Callable[[], bytes]) -> bytes:
        with self._lock:
            if question in self._held:
                self._held.move_to_end(question)
                return self._held[question]
        made = answer()
        with self._lock:
            self.bytes += len(made) - len(self._held.pop(question, b""))
            self._held[question] = made
            while self.bytes > self.room and len(self._held) > 1:
                _, gone = self._held.popitem(last=False)
                self.bytes -= len(gone)
        return made


class Desk:
    def __init__(self, shelf: Shelf, album: Album) -> None:
        self.shelf, self.album, self.kept = shelf, album, Kept()
        self._ready: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()  # the last preprocessed images
        self._answers: dict[str, Answers] = {}
        for one in shelf.models.values():
            if one.run is not None:
                self._answers[one.id] = Answers(one.run, album, album.include(one.run.recipe()))

    def facts(self) -> dict[str, Any]:
        return {
            "colormap": ramp().tolist(),
            "methods": [*ORDER, *(name for name in METHODS if name not in ORDER), *BASELINES],
            "models": self._models(),
            "datasets": self.album.albums(),
            "first_image": self.first(),
        }

    def _models(self) -> list[dict[str, Any]]:
        """Describe all models that can be read; one whose folder is gone is skipped."""
        found, problem = [], VitrailError("the studio has no model")
        for id in self.shelf.models:
            try:
                found.append(self.shelf.facts(id))
            except VitrailError as error:
                problem = error
        if not found:
            raise problem
        return found

    def first(self) -> str:
        """Return the id of the first image to show: from the first model's dataset, else from any other, else a sample."""
        for number in self._numbers(next(iter(self.shelf.models))):
            try:
                return self._pictures(number, PATIENCE)[0]
            except VitrailError:  # shown by the page in the list of datasets
                continue
        return "sample-0"

    def _numbers(self, id: str) -> list[int]:
        """Return the dataset indices for a model: its own, then those that can be opened."""
        own = [self._answers[id].data_index] if id in self._answers else []
        others = [int(album["id"][1:]) for album in self.album.albums() if album["id"][0] == "d" and "error" not in album]
        return [*own, *others]

    def trace(self, which: Which, picture: str, target: int | None) -> bytes:
        def answer() -> bytes:
            content = self.album.content(picture)
            with self.shelf.using(*which) as model:
                facts, arrays = trace(model, content, target)
            facts["image"] |= self.album.told(picture) | self.album.python(picture)
            return packed({**facts, "model": which[0], "step": which[1]}, arrays)

        return self.kept.get(("trace", *self._stamped(which), picture, target), answer)

    def rows(self, which: Which, picture: str, query: int) -> bytes:
        return self._of_picture(("rows", query), which, picture, lambda model, images: packed(*rows(model, images, query)))

    def flow(self, which: Which, picture: str, target: int | None, method: str) -> bytes:
        return self._of_picture(
            ("flow", method, target), which, picture, lambda model, images: packed(*flow(model, images, method, target))
        )

    def pair(self, which: Which, picture: str, layer: int, head: int, query: int, key: int) -> dict[str, Any]:
        with self.shelf.using(*which) as model:
            return pair(model, self._images(model, which, picture), layer, head, query, key)

    def ablate(
        self, which: Which, picture: str, patches: Sequence[int], how: str, seed: int, target: int | None
    ) -> dict[str, Any]:
        with self.shelf.using(*which) as model:
            return ablated(model, self._images(model, which, picture), patches, how, seed, target)

    def about(self, which: Which) -> bytes:
        """Return the model view; head statistics use images of the model's own dataset if possible, else the samples."""

        def answer() -> bytes:
            pictures = self._measured(which[0])
            contents = [self.album.content(picture) for picture in pictures]
            with self.shelf.using(*which) as model:
                facts, arrays = about(model, [prepare(model, [content]) for content in contents])
            return packed({**facts, "measured_on": self._told(pictures)}, arrays)

        return self.kept.get(("about", *self._stamped(which)), answer)

    def answers(self, id: str) -> Answers:
        one = self.shelf.find(id)
        if id not in self._answers:
            raise VitrailError(f"{one.name} is not a run: it has neither curves nor predictions; try vitrail studio runs/NAME")
        return self._answers[id]

    def _measured(self, id: str) -> list[str]:
        for number in self._numbers(id):
            with suppress(VitrailError):  # its dataset may be gone
                return self._pictures(number)
        return [row["id"] for row in self.album.page("samples", "all", 0, MEASURED)["images"]]

    def _told(self, pictures: list[str]) -> dict[str, Any]:
        """Describe the images that heads are measured on, as text and as Python."""
        first = self.album.python(pictures[0])
        source, content, _ = first["python"].rpartition(".content(")
        words = f"the first {len(pictures)} images of {self.album.about(pictures[0])}"
        listed = (
            f"[part.content(at) for part in [{source}] for at in range({len(pictures)})]" if content else f"[{first['python']}]"
        )
        return {"text": words, "python": listed, "imports": first["imports"]}

    def _pictures(self, number: int, seconds: float | None = None) -> list[str]:
        """Return the first images of a dataset, from the test or validation split if it has one."""
        splits = self.album.data(number, seconds).splits
        split = next((name for name in ("test", "validation", "train") if len(splits[name])), None)
        if split is None:
            raise VitrailError(f"{self.album.data(number).name} has no images; try another dataset")
        return [self.album.data_id(number, split, at) for at in range(min(MEASURED, len(splits[split])))]

    def _of_picture(self, what: tuple[Any, ...], which: Which, picture: str, answer: Callable[[Model, Tensor], bytes]) -> bytes:
        def computed() -> bytes:
            with self.shelf.using(*which) as model:
                return answer(model, self._images(model, which, picture))

        return self.kept.get((*what, *self._stamped(which), picture), computed)

    def _images(self, model: Model, which: Which, picture: str) -> Tensor:
        """Preprocess an image, cached. Called only while a model is acquired, so by one thread at a time."""
        key = (*self._stamped(which), picture)
        if key not in self._ready:
            self._ready[key] = prepare(model, [self.album.content(picture)])
            while len(self._ready) > 4:
                self._ready.popitem(last=False)
        return self._ready[key]

    def _stamped(self, which: Which) -> tuple[Any, ...]:
        return (*which, self.shelf.stamp(*which))
