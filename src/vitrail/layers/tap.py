"""Recording activations at no cost otherwise: a tap returns its input, and stores it only during recording.

``with record_activations(model, "blocks.11.attention.weights") as values: model(images)`` stores the weights in ``values``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

from torch import Tensor, nn

from vitrail.errors import VitrailError, suggestion


class Tap(nn.Module):
    """An identity module whose input can be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks: list[Callable[[Tensor], None]] = []  # empty: not recording

    def forward(self, x: Tensor) -> Tensor:
        for sink in self.sinks:
            sink(x)
        return x


def watched(module: nn.Module) -> bool:
    """Whether any tap in the module is recording."""
    return any(tap.sinks for tap in module.modules() if isinstance(tap, Tap))


@contextmanager
def unwatched(module: nn.Module) -> Iterator[None]:
    """Pause recording: a recomputed forward pass must take the same path, and is not recorded twice."""
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
    """Record the inputs of the matching taps, by name, one entry per forward pass.

    A pattern is a tap's full name or the end of it, with ``*`` for any part. ``transform`` is applied before storing:
    ``transform=lambda weights: weights[:, [0, 3]].detach()`` for two heads.
    """
    if not patterns:
        raise VitrailError(
            "record_activations needs the name of a tap, got none; try record_activations(model, 'attention.weights')"
        )
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
