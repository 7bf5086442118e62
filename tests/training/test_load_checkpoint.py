"""The model of a checkpoint is the one that the run evaluated and saved at that step."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

from tests.tiers import quick_first
from tests.training.distributed.torchrun import torchrun, write_recipe
from tests.training.small_run import recipe
from tests.training.test_loop import RaisesAt
from vitrail.augment.policy import get_policy
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import Model
from vitrail.models.config import ViTConfig
from vitrail.models.masking_config import Masking
from vitrail.recipes.task_config import MaskedImage
from vitrail.training import load_checkpoint as module
from vitrail.training.checkpoint import LoadTargets, load_tensors
from vitrail.training.load_checkpoint import checkpoint_steps, load_checkpoint
from vitrail.training.run import Run
from vitrail.training.trainer import Hardware, fit
from vitrail.weights.load import load

FREQUENT: dict[str, object] = {"eval_every": 4, "checkpoint_every": 4, "keep_checkpoints": 9}


def ssl_fields() -> dict[str, object]:
    plain = recipe().model
    assert isinstance(plain, ViTConfig)
    masking = Masking("mae", 0.75, decoder_width=24, decoder_depth=1, decoder_heads=3)
    return {"task": MaskedImage(masking), "model": replace(plain, classes=0, patch=(4, 4)), "augment": get_policy("none")}


@pytest.fixture(scope="module", params=quick_first(["ema", "plain", "unlabelled"]))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / request.param
    kinds: dict[str, dict[str, object]] = {"ema": {}, "plain": {"ema_decay": None}, "unlabelled": ssl_fields()}
    changes = kinds[request.param]
    fit(recipe(**FREQUENT, **changes), folder, hardware=Hardware(workers=1))
    return Run(folder)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "short"
    fit(recipe(**FREQUENT, steps=8), folder, hardware=Hardware(workers=0))
    return folder


@pytest.fixture
def copy(short_run: Path, tmp_path: Path) -> Run:
    """A run to damage."""
    return Run(shutil.copytree(short_run, tmp_path / "run"))


def assert_same(one: Model, two: Model) -> None:
    """Assert that two models are equal bit for bit, with their metadata."""
    ours, theirs = one.state_dict(), two.state_dict()
    assert list(ours) == list(theirs)
    assert_close(ours, theirs, rtol=0, atol=0)
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(one(images), two(images))
    assert (one.config, one.preprocess, one.class_names) == (two.config, two.preprocess, two.class_names)
    assert not one.training


def test_the_last_checkpoint_predicts_exactly_as_the_weights_saved_last(run: Run) -> None:
    assert checkpoint_steps(run) == [4, 8, 12]
    loaded, saved = load_checkpoint(run, 12), load(run.folder / "last")
    assert_same(loaded, saved)
    assert loaded.metadata == saved.metadata


def test_the_checkpoint_of_the_best_step_predicts_exactly_as_the_run(run: Run) -> None:
    result = run.result()
    assert result is not None
    loaded, saved = load_checkpoint(run, result["best"]["step"]), load(run.folder)
    assert_same(loaded, saved)
    assert loaded.metadata["metrics"]["validation"] == saved.metadata["metrics"]["validation"]


def test_other_steps_have_other_weights_that_allow_gradients(run: Run) -> None:
    with torch.inference_mode():
        first, last = load_checkpoint(run, 4), load_checkpoint(run, 12)
    assert any(not torch.equal(first.state_dict()[name], value) for name, value in last.state_dict().items())
    first(torch.randn(1, 3, 16, 16)).sum().backward()
    assert next(first.parameters()).grad is not None


def test_before_the_first_evaluation_the_class_names_come_from_the_dataset(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        fit(
            recipe(checkpoint_every=2, eval_every=12),
            tmp_path / "run",
            hardware=Hardware(workers=0),
            callbacks=[RaisesAt(5, OSError("broke"))],
        )
    run = Run(tmp_path / "run")
    assert not (run.folder / "best").exists()
    loaded = load_checkpoint(run, checkpoint_steps(run)[-1])
    assert loaded.class_names is not None
    assert loaded.class_names[:2] == ("cross", "saltire")
    assert loaded.metadata["metrics"] == {"step": 4, "validation": {}}
    assert loaded.preprocess == Preprocess((16, 16))


def test_only_the_needed_tensors_are_read(copy: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def record_names(path: Path, load_targets: LoadTargets) -> None:
        def targets(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
            tensors = load_targets(shapes)
            read.extend(tensors)
            return tensors

        load_tensors(path, targets)

    monkeypatch.setattr(module, "load_tensors", record_names)
    load_checkpoint(copy, 8)
    with safe_open(copy.checkpoints / "step-8" / "state.safetensors", "pt") as file:
        assert sorted(read) == sorted(name for name in file.keys() if name.startswith("ema."))  # noqa: SIM118


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "manifest.json"])
def test_the_error_of_a_damaged_checkpoint_names_a_step_that_works(copy: Run, name: str) -> None:
    for content in (b"", b"\xff" * 40, (copy.checkpoints / "step-8" / name).read_bytes()[:-30]):
        (copy.checkpoints / "step-8" / name).write_bytes(content)
        with pytest.raises(VitrailError, match=r"the checkpoint of step 8 .* try 4, the nearest one"):
            load_checkpoint(copy, 8)
    (copy.checkpoints / "step-8" / name).unlink()
    with pytest.raises(VitrailError, match=r"the checkpoint of step 8 .* try 4, the nearest one"):
        load_checkpoint(copy, 8)
    load_checkpoint(copy, 4)


def test_weights_that_are_no_numbers_are_a_sentence(copy: Run) -> None:
    path = copy.checkpoints / "step-8" / "state.safetensors"
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    start = 8 + int.from_bytes(content[:8], "little") + header["ema.head.bias"]["data_offsets"][0]
    path.write_bytes(content[:start] + b"\xff" * 4 + content[start + 4 :])
    with pytest.raises(VitrailError, match=r"head\.bias has 1 of 10 values that are not finite \(NaN/Inf\)\); try 4"):
        load_checkpoint(copy, 8)


def test_a_deleted_checkpoint_is_an_error_in_one_sentence(copy: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VitrailError, match="has no checkpoint of step 7; try 8, the nearest one"):
        load_checkpoint(copy, 7)
    monkeypatch.setattr(module, "load_tensors", lambda path, load_targets: shutil.rmtree(path))
    with pytest.raises(
        VitrailError, match="step 8 was deleted while it was read, to make room for newer ones; try 4, the nearest"
    ):
        load_checkpoint(copy, 8)
    monkeypatch.undo()
    shutil.rmtree(copy.checkpoints)
    assert checkpoint_steps(copy) == []
    with pytest.raises(VitrailError, match="use the run's best weights"):
        load_checkpoint(copy, 8)


@pytest.mark.slow
def test_sharded_checkpoints_are_merged(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    done = torchrun(
        2, "train", "--recipe-from", write_recipe(recipe(**FREQUENT), tmp_path), "--out", run.folder, "--set", "parallel=fsdp"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(list((run.checkpoints / "step-12").glob("*.safetensors"))) == 2
    assert_same(load_checkpoint(run, 12), load(run.folder / "last"))
    next((run.checkpoints / "step-12").glob("*.safetensors")).unlink()
    with pytest.raises(VitrailError, match=r"is missing\); try 8"):
        load_checkpoint(run, 12)
