"""A segmentation run on two processes is the run on one: losses, confusion of every image, weights."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.tasks.test_segmentation import PANES, train
from tests.training.distributed.torchrun import steps, torchrun

SETTINGS = {"steps": 8, "eval_every": 4, "checkpoint_every": 4, "optim.name": "adamw", "optim.lr": 1e-3}


@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_two_ranks_make_the_same_run(parallel: str, tmp_path: Path) -> None:
    one, two = train(tmp_path / "one", settings=SETTINGS).folder, tmp_path / "two"
    settings = json.loads((one / "recipe.json").read_text())
    changes = {**SETTINGS, "schedule.warmup_steps": 0, "batch_size": settings["batch_size"], "parallel": parallel}
    options = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    done = torchrun(2, "train", PANES, "--task", "segment", "--model", "mu/8", *options, "--out", two, "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    assert {name: value for name, value in json.loads((two / "recipe.json").read_text()).items() if name != "parallel"} == {
        name: value for name, value in settings.items() if name != "parallel"
    }
    for ours, theirs in zip(steps(one).values(), steps(two).values(), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-5)
    first, second = (json.loads((run / "result.json").read_text())["test"] for run in (one, two))
    assert second.pop("iou") == pytest.approx(first.pop("iou"), abs=2e-3)
    assert second == pytest.approx(first, abs=2e-3)
    expected, actual = (np.load(run / "predictions.npz") for run in (one, two))
    assert (actual["indices"] == expected["indices"]).all()
    assert np.abs(actual["confusion"] - expected["confusion"]).sum() <= 0.002 * expected["confusion"].sum()
    assert_close(
        load_file(two / "last" / "model.safetensors"), load_file(one / "last" / "model.safetensors"), atol=5e-4, rtol=1e-3
    )
