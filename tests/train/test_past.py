"""The model of a checkpoint is the one that the run evaluated and kept at that step."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

from tests.train.distributed.torchrun import noted, torchrun
from tests.train.small_run import recipe
from tests.train.test_loop import Breaks
from vitrail.augment.policy import policy
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import Model
from vitrail.models.masking import Masking
from vitrail.models.settings import ViTConfig
from vitrail.train import past
from vitrail.train.checkpoint import Places, fill
from vitrail.train.loop import Machine, fit
from vitrail.train.past import model_at, steps
from vitrail.train.run import Run
from vitrail.weights.load import load

OFTEN: dict[str, object] = {"evaluate": 4, "checkpoint": 4, "keep": 9}


def unlabelled() -> dict[str, object]:
    plain = recipe().model
    assert isinstance(plain, ViTConfig)
    masking = Masking("mae", 0.75, decoder_width=24, decoder_depth=1, decoder_heads=3)
    return {"masking": masking, "model": replace(plain, classes=0, patch=(4, 4)), "augment": policy("none")}


@pytest.fixture(scope="module", params=["average", "plain", "unlabelled"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / request.param
    kinds: dict[str, dict[str, object]] = {"average": {}, "plain": {"ema": None}, "unlabelled": unlabelled()}
    changes = kinds[request.param]
    fit(recipe(**OFTEN, **changes), folder, Machine(workers=1))
    return Run(folder)


@pytest.fixture
def copy(tmp_path: Path) -> Run:
    """One to damage."""
    folder = tmp_path / "run"
    fit(recipe(**OFTEN, steps=8), folder, Machine(workers=0))
    return Run(folder)


def same(one: Model, two: Model) -> None:
    """To the bit, and everything that a model knows."""
    ours, theirs = one.state_dict(), two.state_dict()
    assert list(ours) == list(theirs)
    assert_close(ours, theirs, rtol=0, atol=0)
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(one(images), two(images))
    assert (one.config, one.preprocess, one.labels) == (two.config, two.preprocess, two.labels)
    assert not one.training


def test_the_last_checkpoint_answers_exactly_as_the_weights_kept_last(run: Run) -> None:
    assert steps(run) == [4, 8, 12]
    made, kept = model_at(run, 12), load(run.folder / "last")
    same(made, kept)
    assert made.facts == kept.facts


def test_the_checkpoint_of_the_best_step_answers_exactly_as_the_run(run: Run) -> None:
    result = run.result()
    assert result is not None
    made, kept = model_at(run, result["best"]["step"]), load(run.folder)
    same(made, kept)
    assert made.facts["score"]["validation"] == kept.facts["score"]["validation"]


def test_other_steps_have_other_weights_which_can_be_explained_by_gradients(run: Run) -> None:
    with torch.inference_mode():
        first, last = model_at(run, 4), model_at(run, 12)
    assert any(not torch.equal(first.state_dict()[name], value) for name, value in last.state_dict().items())
    first(torch.randn(1, 3, 16, 16)).sum().backward()
    assert next(first.parameters()).grad is not None


def test_before_the_first_evaluation_the_names_come_from_the_data(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        fit(recipe(checkpoint=2, evaluate=12), tmp_path / "run", Machine(workers=0), Breaks(5, OSError("broke")))
    run = Run(tmp_path / "run")
    assert not (run.folder / "best").exists()
    made = model_at(run, steps(run)[-1])
    assert made.labels is not None
    assert made.labels[:2] == ("cross", "saltire")
    assert made.facts["score"] == {"step": 4, "validation": {}}
    assert made.preprocess == Preprocess((16, 16))


def test_only_the_wanted_tensors_are_read(copy: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noting(path: Path, places: Places) -> None:
        def wanted(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
            found = places(shapes)
            read.extend(found)
            return found

        fill(path, wanted)

    monkeypatch.setattr(past, "fill", noting)
    model_at(copy, 8)
    with safe_open(copy.checkpoints / "step-8" / "state.safetensors", "pt") as file:
        assert sorted(read) == sorted(name for name in file.keys() if name.startswith("average."))  # noqa: SIM118


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_a_sentence_with_a_step_that_works(copy: Run, name: str) -> None:
    for content in (b"", b"\xff" * 40, (copy.checkpoints / "step-8" / name).read_bytes()[:-30]):
        (copy.checkpoints / "step-8" / name).write_bytes(content)
        with pytest.raises(VitrailError, match=r"the checkpoint of step 8 .* try 4, the nearest there is"):
            model_at(copy, 8)
    (copy.checkpoints / "step-8" / name).unlink()
    with pytest.raises(VitrailError, match=r"the checkpoint of step 8 .* try 4, the nearest there is"):
        model_at(copy, 8)
    model_at(copy, 4)


def test_weights_that_are_no_numbers_are_a_sentence(copy: Run) -> None:
    path = copy.checkpoints / "step-8" / "state.safetensors"
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    start = 8 + int.from_bytes(content[:8], "little") + header["average.head.bias"]["data_offsets"][0]
    path.write_bytes(content[:start] + b"\xff" * 4 + content[start + 4 :])
    with pytest.raises(VitrailError, match=r"head\.bias has 1 of 10 values that are no numbers\); try 4"):
        model_at(copy, 8)


def test_a_checkpoint_that_has_gone_is_a_sentence(copy: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VitrailError, match="has no checkpoint of step 7; try 8, the nearest there is"):
        model_at(copy, 7)
    monkeypatch.setattr(past, "fill", lambda path, places: shutil.rmtree(path))
    with pytest.raises(VitrailError, match="step 8 was taken away while it was read, to make room; try 4, the nearest"):
        model_at(copy, 8)
    monkeypatch.undo()
    shutil.rmtree(copy.checkpoints)
    assert steps(copy) == []
    with pytest.raises(VitrailError, match="take the run's best weights"):
        model_at(copy, 8)


@pytest.mark.slow
def test_checkpoints_that_ranks_have_written_in_parts_are_put_together(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    done = torchrun(2, "train", "--again", noted(recipe(**OFTEN), tmp_path), "--out", run.folder, "--set", "parallel=fsdp")
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(list((run.checkpoints / "step-12").glob("*.safetensors"))) == 2
    same(model_at(run, 12), load(run.folder / "last"))
    next((run.checkpoints / "step-12").glob("*.safetensors")).unlink()
    with pytest.raises(VitrailError, match=r"is missing\); try 8"):
        model_at(run, 12)
