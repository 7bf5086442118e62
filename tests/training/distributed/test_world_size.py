"""The same run on one process and on several: losses, scores and weights, up to the order of sums."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.training.distributed.torchrun import (
    deterministic_recipe,
    lines,
    start_torchrun,
    steps,
    torchrun,
    wait_until,
    workers,
    write_recipe,
)
from vitrail.augment.policy import get_policy
from vitrail.models.config import RelativeBiasConfig, ViTConfig
from vitrail.models.masking_config import Masking
from vitrail.recipes.recipe import Recipe
from vitrail.recipes.task_config import MaskedImage
from vitrail.training.checkpoint import list_checkpoints
from vitrail.training.trainer import Hardware, fit


@pytest.fixture(scope="module")
def single_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "single"
    fit(deterministic_recipe(), folder, hardware=Hardware(workers=1))
    return folder


def short_recipe() -> Recipe:
    return deterministic_recipe(steps=20, eval_every=10)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "short"
    fit(short_recipe(), folder, hardware=Hardware(workers=1))
    return folder


def assert_same_run(one: Path, two: Path, tolerance: float = 1e-5) -> None:
    """Assert equal metrics of every step, evaluations and results, and that each test image was counted once."""
    ours, theirs = steps(one), steps(two)
    assert list(ours) == list(theirs)
    for step, metrics in ours.items():
        assert theirs[step] == pytest.approx(metrics, rel=5e-5, abs=tolerance), step
    for before, now in zip(lines(one), lines(two), strict=True):
        if "validation" in before:
            assert now["validation"] == pytest.approx(before["validation"], abs=tolerance)
    first, second = (json.loads((run / "result.json").read_text()) for run in (one, two))
    assert second["test"] == pytest.approx(first["test"], abs=tolerance)
    expected, actual = (np.load(run / "predictions.npz") for run in (one, two))
    assert (actual["indices"] == expected["indices"]).all()
    # the key biases' gradient is only rounding, which Adam makes as large as any other
    assert_close(
        load_file(two / "last" / "model.safetensors"), load_file(one / "last" / "model.safetensors"), atol=5e-4, rtol=1e-3
    )


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (2, ["parallel=ddp"]),
        pytest.param(4, ["parallel=ddp", "micro_batch_size=2"], marks=pytest.mark.slow),
        pytest.param(2, ["parallel=fsdp", "micro_batch_size=5"], marks=pytest.mark.slow),
        pytest.param(4, ["parallel=fsdp", "activation_checkpointing=true"], marks=pytest.mark.slow),
        pytest.param(3, [], marks=pytest.mark.slow),
    ],
)
def test_any_world_size_makes_the_same_run(ranks: int, settings: list[str], short_run: Path, tmp_path: Path) -> None:
    file, run = write_recipe(short_recipe(), tmp_path), tmp_path / "run"
    changes = [word for setting in settings for word in ("--set", setting)]
    done = torchrun(ranks, "train", "--recipe-from", file, "--out", run, "--json", *changes)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["steps"] == 20  # one result, not one per rank
    assert_same_run(short_run, run)
    assert (run / "report.html").is_file()


@pytest.mark.parametrize(
    "sessions", [((2, 13),), pytest.param(((4, 13), (2, 31)), marks=pytest.mark.thorough)], ids=["two, one", "four, two, one"]
)
@pytest.mark.thorough
def test_a_run_resumed_on_fewer_ranks_stays_the_same_run(
    sessions: tuple[tuple[int, int], ...], single_process: Path, tmp_path: Path
) -> None:
    """Sharded by FSDP over the ranks of each session, which SIGTERM stops, then continued in one process."""
    file, run = write_recipe(deterministic_recipe(), tmp_path), tmp_path / "run"
    for ranks, at in sessions:
        call = ("train", "--recipe-from", file, "--out", run, "--set", "parallel=fsdp")
        with start_torchrun(ranks, *call) as process:
            wait_until(lambda at=at: len(steps(run)) >= at, process)  # type: ignore[misc]
            process.send_signal(signal.SIGTERM)
            _, output = process.communicate(timeout=120)
            assert process.returncode != 0
            assert output.count("the same command resumes from there") == 1, output[-2000:]
        newest = list_checkpoints(run / "checkpoints")[0]
        assert newest.name == f"step-{max(steps(run))}"
        assert len(list(newest.glob("*.safetensors"))) == ranks  # each has written its shard
        assert not list(newest.rglob(".metadata"))  # torch's pickle
        moments = {name for part in newest.glob("*.safetensors") for name in load_file(part) if name.startswith("optimizer.")}
        kinds = {tuple(name.split(".")[1:3]) for name in moments}
        assert kinds == {("0", "step"), ("0", "exp_avg"), ("0", "exp_avg_sq"), ("1", "momentum")}  # of AdamW and Muon
        assert not workers(process.pid)
    fit(deterministic_recipe(), run, hardware=Hardware(workers=1))
    assert_same_run(single_process, run)


MASKING = {
    "mae": Masking("mae", decoder_width=12, decoder_depth=1, decoder_heads=3),
    "simmim": Masking("simmim"),
    "masked-patch": Masking("masked-patch", target="mean-colour"),
}


def ssl_recipe(method: str) -> Recipe:
    plain = deterministic_recipe()
    return replace(
        plain,
        model=replace(plain.model, classes=0),
        task=MaskedImage(MASKING[method]),
        augment=get_policy("none"),
        steps=20,
        eval_every=10,
    )


@pytest.mark.parametrize(
    ("method", "parallel"),
    [
        pytest.param("mae", "ddp", marks=pytest.mark.thorough),
        pytest.param("mae", "fsdp", marks=pytest.mark.slow),
        pytest.param("simmim", "ddp", marks=pytest.mark.slow),
        pytest.param("simmim", "fsdp", marks=pytest.mark.slow),
        pytest.param("masked-patch", "ddp", marks=pytest.mark.slow),
        pytest.param("masked-patch", "fsdp", marks=pytest.mark.slow),
    ],
)
def test_self_supervised_training_is_the_same_on_two_ranks(method: str, parallel: str, tmp_path: Path) -> None:
    fit(ssl_recipe(method), tmp_path / "single", hardware=Hardware(workers=1))
    file, run = write_recipe(ssl_recipe(method), tmp_path), tmp_path / "run"
    done = torchrun(2, "train", "--recipe-from", file, "--out", run, "--json", "--set", f"parallel={parallel}")
    assert done.returncode == 0, done.stderr[-2000:]
    ours, theirs = steps(tmp_path / "single"), steps(run)
    assert list(theirs) == list(ours) == list(range(1, 21))
    rough = method == "simmim"  # an L1 loss, whose gradient is a sign, which the last bit may flip
    for step, metrics in ours.items():
        assert theirs[step]["loss"] == pytest.approx(metrics["loss"], abs=2e-5 if rough else 1e-5)
        assert theirs[step] == pytest.approx(metrics, rel=1e-2 if rough else 5e-5, abs=1e-5)
    evaluations = [[line["validation"] for line in lines(each) if "validation" in line] for each in (tmp_path / "single", run)]
    assert len(evaluations[0]) == 2
    for before, now in zip(*evaluations, strict=True):
        assert now == pytest.approx(before, abs=1e-4 if rough else 1e-5)
    assert (run / "reconstructions" / "step-20.npz").is_file()


INNER_NORMS = {"norm_kind": "rms", "attention_norm": True, "key_bias": False, "relative_bias": RelativeBiasConfig()}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"layer_scale": 0.1}, INNER_NORMS], ids=["scales", "RMSNorm, relative bias"])
def test_in_bfloat16_ddp_and_fsdp_make_the_same_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Norms and scales stay in float32 under both. Unlike in one process, gradients are rounded once per rank."""
    plain = deterministic_recipe(precision="bfloat16", steps=20)
    assert isinstance(plain.model, ViTConfig)
    file = write_recipe(replace(plain, model=replace(plain.model, **changes)), tmp_path)
    for parallel in ("ddp", "fsdp"):
        done = torchrun(2, "train", "--recipe-from", file, "--out", tmp_path / parallel, "--set", f"parallel={parallel}")
        assert done.returncode == 0, done.stderr[-2000:]
    ours, theirs = steps(tmp_path / "ddp"), steps(tmp_path / "fsdp")
    assert list(theirs) == list(ours) == list(range(1, 21))
    for step, metrics in ours.items():
        gradient = metrics.pop("grad_norm")  # bfloat16 has eight bits of precision
        assert theirs[step].pop("grad_norm") == pytest.approx(gradient, rel=3e-3)
        assert theirs[step] == pytest.approx(metrics, rel=1e-4, abs=1e-5)
