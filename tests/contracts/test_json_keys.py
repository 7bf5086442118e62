"""Keys of the JSON that programs read from ``vitrail bench`` and ``vitrail inspect``: they stay."""

import json
from dataclasses import fields
from typing import Any

import pytest

from vitrail.bench.data import DataSpeed
from vitrail.bench.distributed_scaling import ScalingResult
from vitrail.bench.inference import InferenceRow, InferenceSpeed
from vitrail.bench.time_to_accuracy import TimeToAccuracy
from vitrail.bench.train_step import TrainSpeed
from vitrail.cli.main import run

BENCHMARKS: list[tuple[Any, set[str]]] = [
    (DataSpeed, {"files_ratio", "pack_ratio"}),
    (TrainSpeed, {"demo_ratio", "small_ratio", "s16_ratio"}),
    (TimeToAccuracy, {"ratio"}),
    (ScalingResult, {"ddp_efficiency"}),
    (InferenceSpeed, {"rows"}),
    (InferenceRow, {"eager_ratio", "float_ratio", "int8_ratio", "merged_int8_ratio"}),
]


@pytest.mark.parametrize(("result", "keys"), BENCHMARKS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_benchmark_keeps_its_keys(result: Any, keys: set[str]) -> None:
    """The command prints the fields of its result."""
    assert keys <= {field.name for field in fields(result)}


def test_inspect_keeps_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "Ti/16", "--json"]) == 0
    assert {"parameters", "macs", "tokens", "grid", "stages", "memory"} <= set(json.loads(capsys.readouterr().out))
