"""Looking inside without slowing down: a tap passes its input on, and keeps it only while somebody is recording.

``with recording(model, "blocks.11.attention.weights") as seen: model(images)`` leaves the weights in ``seen``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

from torch import Tensor, nn

from vitrail.errors import VitrailError, suggestion


class Tap(nn.Module):
    """A point of the model where a value can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.sink: Callable[[Tensor], None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.sink is not None:
            self.sink(x)
        return x


@contextmanager
def recording(
    model: nn.Module, *patterns: str, keep: Callable[[Tensor], Tensor] = lambda x: x
) -> Iterator[dict[str, list[Tensor]]]:
    """Keep what passes the matching taps, by name, one entry a pass.

    A pattern is a tap's full name or the end of it, with ``*`` for any part. ``keep`` chooses what is held on to:
    ``keep=lambda weights: weights[:, [0, 3]].detach()`` for two heads.
    """
    taps = {name: module for name, module in model.named_modules() if isinstance(module, Tap)}
    chosen = {name: tap for pattern in patterns for name, tap in _matching(pattern, taps).items()}
    seen: dict[str, list[Tensor]] = {name: [] for name in taps if name in chosen}
    before = {name: tap.sink for name, tap in chosen.items()}
    try:
        for name, tap in chosen.items():
            tap.sink = _sink(seen[name], keep, before[name])
        yield seen
    finally:
        for name, tap in chosen.items():
            tap.sink = before[name]


def _matching(pattern: str, taps: dict[str, Tap]) -> dict[str, Tap]:
    found = {name: tap for name, tap in taps.items() if fnmatchcase(f".{name}", f"*.{pattern}")}
    if not found:
        names = ", ".join(taps) or "none"
        raise VitrailError(f"no tap matches {pattern!r}{suggestion(pattern, taps)}; the model has: {names}")
    return found


def _sink(
    kept: list[Tensor], keep: Callable[[Tensor], Tensor], outer: Callable[[Tensor], None] | None
) -> Callable[[Tensor], None]:
    def sink(x: Tensor) -> None:
        kept.append(keep(x))
        if outer is not None:  # a recording inside a recording: both see it
            outer(x)

    return sink
