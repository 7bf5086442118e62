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
        self.sinks: list[Callable[[Tensor], None]] = []  # empty: nobody is looking

    def forward(self, x: Tensor) -> Tensor:
        for sink in self.sinks:
            sink(x)
        return x


def watched(module: nn.Module) -> bool:
    """Whether somebody is looking at a tap inside."""
    return any(tap.sinks for tap in module.modules() if isinstance(tap, Tap))


@contextmanager
def unwatched(module: nn.Module) -> Iterator[None]:
    """Nobody looks for a while: a pass that is only run again must take the path it took, and is no second pass."""
    taps = [tap for tap in module.modules() if isinstance(tap, Tap)]
    before = [tap.sinks for tap in taps]
    try:
        for tap in taps:
            tap.sinks = []
        yield
    finally:
        for tap, sinks in zip(taps, before, strict=True):
            tap.sinks = sinks


@contextmanager
def recording(
    model: nn.Module, *patterns: str, keep: Callable[[Tensor], Tensor] = lambda x: x
) -> Iterator[dict[str, list[Tensor]]]:
    """Keep what passes the matching taps, by name, one entry a pass.

    A pattern is a tap's full name or the end of it, with ``*`` for any part. ``keep`` chooses what is held on to:
    ``keep=lambda weights: weights[:, [0, 3]].detach()`` for two heads.
    """
    if not patterns:
        raise VitrailError("recording needs the name of a tap, got none; try recording(model, 'attention.weights')")
    taps = {name: module for name, module in model.named_modules() if isinstance(module, Tap)}
    chosen = {name: tap for pattern in patterns for name, tap in _matching(pattern, taps).items()}
    seen: dict[str, list[Tensor]] = {name: [] for name in taps if name in chosen}
    sinks = {name: _sink(kept, keep) for name, kept in seen.items()}
    try:
        for name, sink in sinks.items():
            taps[name].sinks.append(sink)
        yield seen
    finally:
        for name, sink in sinks.items():
            taps[name].sinks.remove(sink)


def _matching(pattern: str, taps: dict[str, Tap]) -> dict[str, Tap]:
    found = {name: tap for name, tap in taps.items() if fnmatchcase(f".{name}", f"*.{pattern}")}
    if not found:
        names = ", ".join(taps) or "none"
        raise VitrailError(f"no tap matches {pattern!r}{suggestion(pattern, taps)}; the model has: {names}")
    return found


def _sink(kept: list[Tensor], keep: Callable[[Tensor], Tensor]) -> Callable[[Tensor], None]:
    def sink(x: Tensor) -> None:
        kept.append(keep(x))

    return sink
