"""``vitrail bench speed``: every path gives the model's own answers, and ratios are to the fastest peer."""

import numpy as np
import pytest

from tests.export.small import noise, ready
from vitrail.bench.speed import EAGER, INT8, MERGED, MERGED_INT8, ONNX, Paths, _row, speed
from vitrail.errors import VitrailError
from vitrail.export.engine import TorchEngine
from vitrail.export.trial import Trial


@pytest.mark.compile
def test_every_path_answers_and_what_it_keeps_is_told() -> None:
    pytest.importorskip("onnx")
    model, pictures = ready(depth=3), noise(24)
    labels = TorchEngine(model).logits(pictures).argmax(1)
    labels[:6] = (labels[:6] + 1) % 5  # a quarter is wrong
    tried = Trial(pictures, labels, "noise")
    paths = Paths(model, tried, merge=(1, 1), compile=False)
    assert set(paths.asks) == {EAGER, MERGED, ONNX, INT8, MERGED_INT8}
    for ask in paths.asks.values():
        ask(3)
    kept = paths.kept(tried)
    assert kept[EAGER].top1 == kept[ONNX].top1 == 0.75
    assert kept[EAGER].agreement == kept[ONNX].agreement == 1
    assert kept[INT8].agreement >= 0.9


def test_ratios_are_to_the_fastest_peer() -> None:
    rates = {EAGER: 10.0, ONNX: 12.0, INT8: 20.0, MERGED_INT8: 25.0, "timm": 8.0, "torchvision": 5.0}
    row = _row("Ti/16", 8, rates, ("timm", "torchvision"), 10)
    assert (row.eager_ratio, row.float_ratio, row.int8_ratio, row.merged_int8_ratio) == (1.25, 1.5, 2.5, 3.125)
    assert row.gemm_share == 10.0 * 2 * 10  # what it does a second, until the peak is known
    assert _row("Ti/16", 8, {EAGER: 1.0}, (), 10).eager_ratio is None
    assert np.isclose(row.images_per_second["timm"], 8)


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(VitrailError, match="Ti/16, S/16, B/16, got 'Q/16'"):
        speed(sizes=("Q/16",))
    with pytest.raises(VitrailError, match="name some with --data"):
        speed(weights="mine.npz")
