"""Two processes split a step, and the JSON has the promised keys."""

import json

import pytest

from vitrail.cli.main import run

Capture = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_two_processes_are_compared_with_one_of_two_threads(capsys: Capture) -> None:
    assert run(["bench", "scaling", "--batch-size", "2", "--rounds", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["images_per_second"]) == {"single", "ddp", "fsdp"}
    for name in ("ddp", "fsdp"):
        ratio = result["images_per_second"][name] / result["images_per_second"]["single"]
        assert result[f"{name}_efficiency"] == pytest.approx(ratio, rel=0.05)


def test_an_indivisible_batch_and_an_unknown_model_are_refused(capsys: Capture) -> None:
    assert run(["bench", "scaling", "--batch-size", "3"]) == 2
    assert "batch must be a multiple of the 2 processes, got 3; try 4" in capsys.readouterr().err
    assert run(["bench", "scaling", "--model", "Ti/17"]) == 2
    assert "image must be a multiple of patch 17x17" in capsys.readouterr().err
