"""Recording activations at no cost otherwise: a tap returns its input, and stores it only during recording.

``with record_activations(model, "blocks.11.attention.weights") as values: model(images)`` stores the weights in ``values``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

from torch import Tensor, nn

from vitrail.errors import VitrailError, did_you_mean


class Tap(nn.Module):
    """An identity module whose input can be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.recorders: list[Callable[[Tensor], None]] = []  # empty: not recording

    def forward(self, x: Tensor) -> Tensor:
        for recorder in self.recorders:
            recorder(x)
        return x


def is_recording(module: nn.Module) -> bool:
    """Whether any tap in the module is recording."""
    return any(tap.recorders for tap in module.modules() if isinstance(tap, Tap))


@contextmanager
def pause_recording(module: nn.Module) -> Iterator[None]:
    """Pause recording: a recomputed forward pass must take the same path, and is not recorded twice."""
    taps = [tap for tap in module.modules() if isinstance(tap, Tap)]
    saved = [tap.recorders for tap in taps]
    try:
        for tap in taps:
            tap.recorders = []
        yield
    finally:
        for tap, recorders in zip(taps, saved, strict=True):
            tap.recorders = recorders


@contextmanager
def record_activations(
    model: nn.Module, *patterns: str, transform: Callable[[Tensor], Tensor] = lambda x: x
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
    selected = {name: tap for pattern in patterns for name, tap in _match_taps(pattern, taps).items()}
    activations: dict[str, list[Tensor]] = {name: [] for name in taps if name in selected}
    recorders = {name: _make_recorder(values, transform) for name, values in activations.items()}
    try:
        for name, recorder in recorders.items():
            taps[name].recorders.append(recorder)
        yield activations
    finally:
        for name, recorder in recorders.items():
            taps[name].recorders.remove(recorder)


def _match_taps(pattern: str, taps: dict[str, Tap]) -> dict[str, Tap]:
    matches = {name: tap for name, tap in taps.items() if fnmatchcase(f".{name}", f"*.{pattern}")}
    if not matches:
        names = ", ".join(taps) or "none"
        raise VitrailError(f"no tap matches {pattern!r}{did_you_mean(pattern, taps)}; the model has: {names}")
    return matches


def _make_recorder(values: list[Tensor], transform: Callable[[Tensor], Tensor]) -> Callable[[Tensor], None]:
    def record(x: Tensor) -> None:
        values.append(transform(x))

    return record
