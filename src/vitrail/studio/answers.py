"""Predictions of a finished run: the confusion matrix, and the images behind it. b images, k classes."""

from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from vitrail.errors import VitrailError
from vitrail.evaluate.accuracy import confusion
from vitrail.studio.album import PAGE, Album
from vitrail.studio.history import plain, steps_done
from vitrail.tasks.classify import marks
from vitrail.train.run import Run
from vitrail.weights.folder import is_model, read_facts

MOST_CLASSES = 100  # rows of a matrix
WORST = 24


@dataclass(frozen=True)
class Said:
    """Per image: index in the split, label, predicted class, its probability, and the loss."""

    split: str
    names: tuple[str, ...]
    fingerprint: str | None  # of the dataset
    indices: ndarray
    labels: ndarray
    guesses: ndarray
    odds: ndarray
    losses: ndarray


class Answers:
    """The predictions in ``predictions.npz`` of a run, cached; the images are those of a dataset of the library."""

    def __init__(self, run: Run, album: Album, data_index: int) -> None:
        self.run, self.album, self.data_index = run, album, data_index
        self._lock = Lock()
        self._known: tuple[tuple[int, int], Said] | None = None  # with the file's mtime and size

    def confusion(self) -> dict[str, Any]:
        """Return the confusion matrix: true classes in rows, predicted ones in columns. With very many classes, only the most
        confused; ``class_indices`` has the class of each row."""
        said = self._said()
        count = len(said.names)
        whole = confusion(torch.from_numpy(said.guesses), torch.from_numpy(said.labels), count).numpy()
        classes = np.arange(count)
        if count > MOST_CLASSES:
            wrong = whole.sum(0) + whole.sum(1) - 2 * whole.diagonal()
            classes = np.sort(np.argsort(-wrong, kind="stable")[:MOST_CLASSES])
        return {
            "split": said.split,
            "class_names": [said.names[number] for number in classes],
            "class_indices": classes.tolist(),
            "matrix": whole[np.ix_(classes, classes)].tolist(),
            "total": len(said.labels),
        }

    def confused(self, true: int, said: int) -> dict[str, Any]:
        """Return the images of a cell of the matrix, most confident first."""
        known = self._said()
        for name, number in (("true", true), ("predicted", said)):
            if not 0 <= number < len(known.names):
                raise VitrailError(f"{name} must be a class index from 0 to {len(known.names) - 1}, got {number}")
        rows = np.flatnonzero((known.labels == true) & (known.guesses == said))
        order = rows[np.argsort(-known.odds[rows], kind="stable")]
        return {"total": len(rows), "images": self._pictures(known, order[:PAGE])}

    def worst(self) -> dict[str, Any]:
        """Return the images with the highest losses."""
        known = self._said()
        order = np.argsort(-known.losses, kind="stable")[:WORST]
        rows = self._pictures(known, order)
        return {"images": [{**row, "loss": plain(float(known.losses[at]))} for row, at in zip(rows, order, strict=True)]}

    def _pictures(self, known: Said, rows: ndarray) -> list[dict[str, Any]]:
        self._check(known)
        return [
            {
                **self.album.told(self.album.data_id(self.data_index, known.split, int(known.indices[row]))),
                "predicted": known.names[known.guesses[row]],
                "probability": plain(float(known.odds[row])),
            }
            for row in rows
        ]

    def _check(self, known: Said) -> None:
        """Raise if the indices no longer refer to the same images."""
        data = self.album.data(self.data_index)
        labels = data.splits[known.split].labels
        same = known.indices.max(initial=-1) < len(labels) and bool((labels[known.indices] == known.labels).all())
        if not same or known.fingerprint not in (None, data.fingerprint):
            raise VitrailError(
                f"the images of {data.name} are not those that {self.run.folder.name} was evaluated on, so none "
                "can be shown; restore them, or train again"
            )

    def _said(self) -> Said:
        path = self.run.folder / "predictions.npz"
        with self._lock:
            if self.run.result() is None or not path.is_file():
                raise VitrailError(self._why_not())
            stamp = path.stat().st_mtime_ns, path.stat().st_size
            if self._known is None or self._known[0] != stamp:
                self._known = stamp, _read(self.run)
            return self._known[1]

    def _why_not(self) -> str:
        """Explain why there are no predictions."""
        recipe, name = self.run.recipe(), self.run.folder.name
        if recipe.masking is not None:
            return f"{name} trains without labels, so it has no confusion matrix; `vitrail finetune` trains a classifier on it"
        if self.run.result() is None:
            at = f"step {steps_done(self.run):,} of {recipe.steps:,}"
            return f"the predictions of {name} are saved when it is finished; it is at {at}"
        return f"{name} has no predictions.npz; `vitrail train --recipe-from` trains a run that has"


def _read(run: Run) -> Said:
    recipe, split = run.recipe(), str((run.result() or {})["reported_on"])
    try:
        # opened here, since numpy would leave a damaged file open
        with open(run.folder / "predictions.npz", "rb") as stream, np.load(stream, allow_pickle=False) as file:
            logits, labels, indices = (torch.from_numpy(file[name]) for name in ("logits", "labels", "indices"))
    except Exception as error:  # a damaged file can raise any exception
        raise VitrailError(f"predictions.npz of {run.folder.name} cannot be read: {error}; train the run again") from None
    guesses = logits.argmax(1)
    odds = logits.double().sigmoid() if recipe.loss == "sigmoid" else logits.double().softmax(1)
    facts = read_facts(run.folder / "best") if is_model(run.folder / "best") else {}
    names = facts.get("class_names") or []
    if len(names) != logits.shape[1]:
        names = [str(number) for number in range(logits.shape[1])]
    return Said(
        split,
        tuple(names),
        facts.get("dataset", {}).get("fingerprint"),
        indices.numpy(),
        labels.numpy(),
        guesses.numpy(),
        odds.gather(1, guesses[:, None])[:, 0].numpy(),
        marks(logits, labels)["loss"].numpy(),
    )
