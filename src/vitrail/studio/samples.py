"""Pictures that need no data set: windows of ``panes``, each class once and then some more."""

import numpy as np
from numpy import ndarray

from vitrail.data.sources.panes import CLASSES, panes

SAMPLES, SIDE = 12, 256  # how many, and pixels of each one's sides


class Samples:
    """A source like any other. Each picture is drawn when it is first asked for."""

    names = CLASSES

    def __init__(self) -> None:
        self._source = panes("test", 100 * len(CLASSES), (SIDE, SIDE))
        labels = self._source.labels
        firsts = [int(np.flatnonzero(labels == label)[0]) for label in range(len(CLASSES))]
        rest = [index for index in range(len(labels)) if index not in firsts]
        self._indices = [*firsts, *rest][:SAMPLES]
        self.labels: ndarray = labels[self._indices]
        self._drawn: dict[int, ndarray] = {}

    def __len__(self) -> int:
        return SAMPLES

    def where(self, index: int) -> str:
        return self.names[self.labels[index]]

    def content(self, index: int) -> ndarray:
        if index not in self._drawn:  # drawn twice by two threads it is the same picture
            self._drawn[index] = self._source.content(self._indices[index])
        return self._drawn[index]
