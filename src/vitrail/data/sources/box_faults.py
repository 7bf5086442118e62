"""Boxes that cannot be used, and boxes that reach out of their image: one rule for every kind of dataset. m boxes.

A box that is not finite, degenerate or wholly outside of its image is left out; one that is partly outside is kept as it is.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Int8
from numpy import ndarray

NOT_FINITE, DEGENERATE, OUTSIDE, PARTLY_OUTSIDE = "not finite", "degenerate", "outside", "partly outside"
LEFT_OUT = (NOT_FINITE, DEGENERATE, OUTSIDE)
KINDS = ("", *LEFT_OUT, PARTLY_OUTSIDE)  # by the codes of ``find_faults``
LEFT_OUT_CODES = tuple(KINDS.index(kind) for kind in LEFT_OUT)
TOLERANCE = 1.0  # pixels that a box may reach out by rounding, or by counting from 0 or 1
FRACTION_TOLERANCE = 0.005  # of an image, likewise
MAX_NAMED = 3  # boxes that a note names
REMARKS = {
    NOT_FINITE: "not finite and left out",
    DEGENERATE: "degenerate, without a width or a height, and left out",
    OUTSIDE: "wholly outside of the image and left out",
    PARTLY_OUTSIDE: "partly outside of the image and kept; training clips them",
}


@dataclass(frozen=True)
class BoxFault:
    """A box that is left out, or that reaches out of its image."""

    image: int  # index in the dataset
    number: int  # of the object in its source, for ``Dataset.describe_object``
    kind: str  # one of ``KINDS``
    box: tuple[float, float, float, float]  # left, top, right, bottom

    @property
    def is_left_out(self) -> bool:
        return self.kind in LEFT_OUT

    @property
    def reason(self) -> str:
        """The rest of a sentence that begins with the object."""
        return f"is {self.kind}, from {self.box[0]:g}, {self.box[1]:g} to {self.box[2]:g}, {self.box[3]:g}"


def find_faults(boxes: Float[ndarray, "m 4"], sizes: Int[ndarray, "m 2"], tolerance: float = TOLERANCE) -> Int8[ndarray, " m"]:
    """Return the code of what is wrong with each box in an image of this height and width, 0 if they are not known; 0: it is
    fine."""
    left, top, right, bottom = boxes.T
    height, width = np.where(sizes > 0, sizes, np.inf).T
    with np.errstate(invalid="ignore"):
        tests = {
            NOT_FINITE: ~np.isfinite(boxes).all(axis=1),
            DEGENERATE: (right <= left) | (bottom <= top),
            OUTSIDE: (right <= 0) | (bottom <= 0) | (left >= width) | (top >= height),
            PARTLY_OUTSIDE: (np.minimum(left, top) < -tolerance) | (right > width + tolerance) | (bottom > height + tolerance),
        }
    return np.select(list(tests.values()), [KINDS.index(kind) for kind in tests], 0).astype(np.int8)


def describe_faults(faults: Iterable[BoxFault], describe_object: Callable[[int, int], str]) -> Iterator[str]:
    """Yield a note for each kind of fault: how many boxes have it, and the first of them."""
    by_kind: dict[str, list[BoxFault]] = {kind: [] for kind in KINDS}
    for fault in faults:
        by_kind[fault.kind].append(fault)
    for kind, found in by_kind.items():
        if found:
            named = ", ".join(describe_object(fault.image, fault.number) for fault in found[:MAX_NAMED])
            more = f" and {len(found) - MAX_NAMED:,} more" if len(found) > MAX_NAMED else ""
            yield f"{len(found):,} {'box is' if len(found) == 1 else 'boxes are'} {REMARKS[kind]}: {named}{more}"
