"""Fine-tuning against timm: from the same weights, on the same batches, for the same time, chosen on validation."""

import json
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import pytest
import torch

from tests.reference_libraries import reference_library
from tests.small_models import small_vit
from vitrail.bench import finetune as bench
from vitrail.bench.finetune import CurvePoint, FinetuneRun, benchmark_finetune, best_on_validation, seconds_to_reach, to_timm
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]
PANES = "panes:train_size=90,size=16"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    model = small_vit(gelu="exact")
    model.preprocess = Preprocess((12, 15))
    save(model, "mine")


def run_with_curve(*tests: float) -> FinetuneRun:
    curve = [CurvePoint(step, 10.0 * step, 0.5, test) for step, test in enumerate(tests, 1)]
    return FinetuneRun(0, curve[-1].validation, curve[-1].test, curve)


@pytest.mark.parity
def test_the_peer_starts_where_ours_does() -> None:
    reference_library("timm")
    model, images = small_vit(gelu="exact"), torch.randn(7, 3, 12, 15)
    torch.testing.assert_close(to_timm(model).eval()(images), model(images), atol=1e-5, rtol=1e-5)


def test_the_first_evaluation_that_is_best_on_validation_is_selected() -> None:
    curve = [CurvePoint(1, 1.0, 0.5, 0.9), CurvePoint(2, 2.0, 0.7, 0.4), CurvePoint(3, 3.0, 0.7, 0.8)]
    assert best_on_validation(curve) is curve[1]  # whatever the test accuracy


@pytest.mark.parametrize(("bar", "seconds"), [(0.3, 10.0), (0.6, 20.0), (0.75, 30.0), (0.9, None)])
def test_the_mean_of_the_seeds_reaches_the_bar_or_does_not(bar: float, seconds: float | None) -> None:
    assert seconds_to_reach(bar, [run_with_curve(0.4, 0.5, 0.7), run_with_curve(0.2, 0.7, 0.8)]) == seconds


@pytest.mark.thorough
@pytest.mark.parity
def test_it_runs_for_real_and_its_numbers_follow_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    reference_library("timm")
    monkeypatch.setattr(bench, "STEPS_PER_TURN", 1)
    stages: set[str] = set()
    speed = benchmark_finetune("mine", PANES, 2, steps=6, rounds=1, progress=lambda what, done, total: stages.add(what))
    assert {"measuring", "ours, seed 0", "timm, seed 1"} <= stages
    assert speed.accuracy == mean(each.test for each in speed.ours)
    assert speed.peer_accuracy == mean(each.test for each in speed.peer)
    assert [point.step for point in speed.ours[0].curve] == [1, 2, 3, 4, 5, 6]
    for name, runs in (("ours", speed.ours), ("peer", speed.peer)):
        cost = speed.seconds_per_step[name]
        for one in runs:
            assert all(point.seconds == pytest.approx(point.step * cost) for point in one.curve)
            assert abs(one.curve[-1].seconds - speed.peer_seconds) <= cost  # the same time, to the step
            assert (one.validation, one.test) == (best_on_validation(one.curve).validation, best_on_validation(one.curve).test)
    assert speed.ours[0].curve != speed.ours[1].curve  # another seed
    assert speed.ours_seconds == seconds_to_reach(speed.peer_accuracy, speed.ours)
    assert (speed.ratio is None) == (speed.ours_seconds is None)
    assert 0 <= speed.linear_probe_accuracy <= 1


@pytest.mark.parametrize("ratio", [0.5, None])
def test_the_command_prints_the_curves_and_the_final_accuracies(
    ratio: float | None, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    ours, theirs = (
        [run_with_curve(0.4, 0.95), run_with_curve(0.6, 0.93)],
        [run_with_curve(0.3, 0.91), run_with_curve(0.5, 0.90)],
    )
    seconds = None if ratio is None else 10.0
    speed = bench.FinetuneSpeed(0.94, 0.905, 0.89, seconds, 20.0, ratio, ours, theirs, {"ours": 10.0, "peer": 10.0})
    monkeypatch.setattr(bench, "benchmark_finetune", lambda *_, **__: speed)
    assert run(["bench", "finetune", "mine", PANES, "--seeds", "2"]) == 0
    output = capsys.readouterr().out
    assert "94.00%" in output
    assert "90.50%" in output
    assert "89.00%" in output
    assert ("0.50 of the time" if ratio else "ours does not reach 90.50% in 20 s") in output
    assert run(["bench", "finetune", "mine", PANES, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == asdict(speed)


def test_errors_are_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert run(["bench", "finetune", "mine", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert run(["bench", "finetune", "yours", PANES]) == 2
    assert "yours" in capsys.readouterr().err

    def missing(_: object) -> None:
        raise ImportError

    monkeypatch.setattr(bench, "timm_vit", missing)
    assert run(["bench", "finetune", "mine", PANES, "--steps", "1", "--rounds", "1"]) == 2
    assert "bench finetune compares with timm; try pip install -c constraints.txt timm" in capsys.readouterr().err
