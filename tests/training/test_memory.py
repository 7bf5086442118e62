"""FAULTS 14: when out of memory, the batch is computed in micro-batches, with the same result."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from tests.small_models import classification_task
from tests.training.small_run import batch, build_test_model, deterministic_recipe
from vitrail.config import to_json
from vitrail.data.preprocess import Preprocess
from vitrail.models.config import ViTConfig
from vitrail.models.cost import cost
from vitrail.recipes.recipe import Optim, Recipe, Schedule
from vitrail.tasks.classification import ClassificationTask
from vitrail.training.state import create_state
from vitrail.training.step import is_out_of_memory, train_step
from vitrail.training.trainer import Hardware, fit
from vitrail.weights.load import load

LARGE = ViTConfig(width=96, depth=4, mlp=384, heads=3, patch=(4, 4), image=(32, 32), channels=3, classes=10, gelu="exact")

LIMITED_MEMORY_SCRIPT = """
import resource, sys, torch
torch.backends.mkldnn.set_flags(False)  # oneDNN does not recover from a shortage of addresses
from pathlib import Path
from vitrail.config import from_json
from vitrail.training.trainer import Hardware, fit
from vitrail.recipes.recipe import Recipe
from vitrail.training.callbacks import Callback
class Tells(Callback):
    def on_start(self, recipe, data, state, eta_seconds):
        print("planned", state.micro_batch_size, flush=True)
        now = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (now + int(sys.argv[3]), resource.RLIM_INFINITY))
    def on_evaluation(self, step, scores, is_best):
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    def on_message(self, message):
        print(message, flush=True)
try:
    fit(from_json(Recipe, Path(sys.argv[1]).read_text()), sys.argv[2], hardware=Hardware("cpu", workers=0), callbacks=[Tells()])
except Exception as error:
    print(type(error).__name__, error)
"""


def large(**changes: object) -> Recipe:
    optim = Optim(name="sgd", lr=0.1)
    fields = {
        "schedule": Schedule(),
        "model": LARGE,
        "preprocess": Preprocess((32, 32)),
        "batch_size": 64,
        "steps": 2,
        "eval_every": 2,
        "checkpoint_every": 2,
    }
    return Recipe(**{**vars(deterministic_recipe(optim=optim, ema_decay=None)), **fields, **changes})


def run_with_memory_limit(recipe: Recipe, folder: Path, spare: int) -> str:
    """The output of a run in a process that may allocate only so many more bytes from its first step on."""
    settings = folder.with_suffix(".json")
    settings.write_text(to_json(recipe))
    command = [sys.executable, "-c", LIMITED_MEMORY_SCRIPT, str(settings), str(folder), str(spare)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.thorough
def test_a_real_shortage_gives_smaller_micro_batches_and_the_same_weights(tmp_path: Path) -> None:
    recipe = large()
    activations = cost(LARGE, recipe.batch_size).memory.training
    output = run_with_memory_limit(recipe, tmp_path / "short", int(0.8 * activations))
    assert "planned None" in output, output
    assert "the batch did not fit into memory: now micro-batches of" in output
    assert "Error" not in output, output
    fit(recipe, tmp_path / "whole", hardware=Hardware("cpu", workers=0))
    one, two = load(tmp_path / "short" / "last").state_dict(), load(tmp_path / "whole" / "last").state_dict()
    for name, value in one.items():
        assert_close(value, two[name], rtol=1e-4, atol=1e-5, msg=name)
    (newest,) = (tmp_path / "short" / "checkpoints").glob("step-2")
    assert json.loads((newest / "state.json").read_text())["micro_batch_size"] < recipe.batch_size  # saved for a resumed run


@pytest.mark.thorough
def test_if_not_even_one_image_fits_the_error_says_so(tmp_path: Path) -> None:
    wide = replace(LARGE, image=(256, 256))
    output = run_with_memory_limit(
        large(batch_size=4, model=wide, preprocess=Preprocess(wide.image)), tmp_path / "run", 6 * 2**20
    )
    assert "VitrailError a single image does not fit into memory; try a smaller model or image size" in output


class OutOfMemoryTask(ClassificationTask):
    """Runs out of memory on micro-batches of more than three images, as a small device does."""

    def loss(self, model, batch):  # type: ignore[no-untyped-def]
        if len(batch.images) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().loss(model, batch)


def test_a_step_out_of_memory_is_retried_in_halves_and_is_the_same_step() -> None:
    settings = deterministic_recipe(optim=Optim(name="sgd", lr=0.1))
    one, two = create_state(build_test_model(settings), settings), create_state(build_test_model(settings), settings)
    assert train_step(
        one, OutOfMemoryTask(settings.task, settings.model, settings.preprocess), batch(), settings
    ) == pytest.approx(train_step(two, classification_task(10), batch(), settings))
    assert (one.micro_batch_size, two.micro_batch_size) == (2, None)
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_other_errors_are_not_mistaken_for_out_of_memory() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not is_out_of_memory(OSError("out of memory"))
