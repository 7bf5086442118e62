"""A run resumes exactly where it was, whatever happened to it (FAULTS 9 to 13)."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.tiers import quick_only
from tests.training.small_run import recipe, write_noise_images
from vitrail.config import to_json
from vitrail.errors import VitrailError
from vitrail.training.autotune import AutoTune
from vitrail.training.callbacks import Callback
from vitrail.training.checkpoint import find_valid_checkpoint, list_checkpoints, write_checkpoint
from vitrail.training.run import Run
from vitrail.training.signals import TrainingStopped
from vitrail.training.trainer import Hardware, fit


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    fit(recipe(), folder, hardware=Hardware(workers=1))
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of the last and of the best step."""
    files = {kind: load_file(folder / kind / "model.safetensors") for kind in ("last", "best")}
    return {f"{kind}.{name}": value for kind, values in files.items() for name, value in values.items()}


def same(one: Path, two: Path) -> bool:
    """Whether the logs and all weights are equal, bit for bit."""
    ours, theirs = weights(one), weights(two)
    return Run(one).log_rows() == Run(two).log_rows() and all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)


class RaisesAt(Callback):
    """Interrupts the run at a step with an error."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at, self.error = at, error

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        if step == self.at:
            raise self.error


@pytest.mark.parametrize("at", quick_only(range(1, 13), 5, 12))
def test_a_run_interrupted_at_any_step_ends_as_the_uninterrupted_one(at: int, uninterrupted: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        fit(recipe(), tmp_path / "run", hardware=Hardware(workers=0), callbacks=[RaisesAt(at, OSError("broke"))])
    fit(recipe(), tmp_path / "run", hardware=Hardware(workers=2))
    assert same(tmp_path / "run", uninterrupted)


def test_the_log_and_the_result_say_what_happened(uninterrupted: Path) -> None:
    lines = Run(uninterrupted).log_rows()
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert [line["step"] for line in lines if "validation" in line] == [4, 8, 12]
    result = Run(uninterrupted).result()
    assert result is not None
    assert result["reported_on"] == "test"
    with np.load(uninterrupted / "predictions.npz") as file:
        assert result["test"]["top1"] == pytest.approx((file["logits"].argmax(1) == file["labels"]).mean())
    assert (uninterrupted / "recipe.json").read_text() == to_json(recipe()) + "\n"


def test_the_micro_batch_size_may_change_when_resuming(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        fit(recipe(micro_batch_size=2), tmp_path / "run", hardware=Hardware(workers=0), callbacks=[RaisesAt(4, KeyError())])
    fit(recipe(micro_batch_size=5), tmp_path / "run", hardware=Hardware(workers=0))
    checkpoint = find_valid_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.scalars["micro_batch_size"] == 5


def test_a_finished_run_says_so_and_does_nothing(uninterrupted: Path) -> None:
    class MessageRecorder(Callback):
        messages = ""

        def on_message(self, message: str) -> None:
            self.messages += message

    before = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*") if path.name != ".lock"}
    callback = MessageRecorder()
    assert fit(recipe(), uninterrupted, callbacks=[callback]).result == Run(uninterrupted).result()
    assert "is finished: nothing to do" in callback.messages
    assert before == {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*") if path.name != ".lock"}


def test_another_recipe_or_dataset_is_refused_in_the_folder_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        fit(recipe(), tmp_path / "run", hardware=Hardware(workers=0), callbacks=[RaisesAt(7, OSError("broke"))])
    with pytest.raises(VitrailError, match=r"started with another recipe: seed was 5, is 6; use another folder for this one"):
        fit(recipe(seed=6), tmp_path / "run")
    newest = next(iter(list_checkpoints(tmp_path / "run" / "checkpoints")))
    checkpoint = find_valid_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    tensors = load_file(checkpoint.path / "state.safetensors")
    write_checkpoint(newest.parent, checkpoint.scalars["step"], tensors, {**checkpoint.scalars, "data": "other"}, 2)
    with pytest.raises(VitrailError, match="was started on other images or labels"):
        fit(recipe(), tmp_path / "run")


@pytest.mark.parametrize(
    "damage", ["flip", "manifest", *(pytest.param(damage, marks=pytest.mark.thorough) for damage in ("cut", "gone"))]
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(damage: str, uninterrupted: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        fit(recipe(), tmp_path / "run", hardware=Hardware(workers=0), callbacks=[RaisesAt(8, OSError("broke"))])
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[0]
    file = newest / ("manifest.json" if damage == "manifest" else "state.safetensors")
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[: len(content) // 2] if damage != "flip" else content[:-9] + b"x" + content[-8:])
    messages: list[str] = []

    class MessageRecorder(Callback):
        def on_message(self, message: str) -> None:
            messages.append(message)

    fit(recipe(), tmp_path / "run", hardware=Hardware(workers=0), callbacks=[MessageRecorder()])
    assert "step-6 is damaged" in messages[0]
    assert "resumed from step 3" in messages
    assert same(tmp_path / "run", uninterrupted)


def test_if_all_checkpoints_are_damaged_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        fit(recipe(), tmp_path / "run", hardware=Hardware(workers=0), callbacks=[RaisesAt(8, OSError("broke"))])
    for path in list_checkpoints(tmp_path / "run" / "checkpoints"):
        (path / "state.json").write_text("{}")
    with pytest.raises(VitrailError, match=r"no checkpoint in .* is valid"):
        fit(recipe(), tmp_path / "run")


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    class TrainsAgain(Callback):
        def on_step(self, step: int, metrics: dict[str, float]) -> None:
            if step == 2:
                fit(recipe(), tmp_path / "run")

    with pytest.raises(VitrailError, match="another process is training in"):
        fit(recipe(), tmp_path / "run", hardware=Hardware(workers=0), callbacks=[TrainsAgain()])


@pytest.fixture
def _as_in_a_terminal() -> Iterator[None]:
    """Restore both signals, which nohup or a shell's & may have set to be ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_as_in_a_terminal")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.thorough)],
)
def test_on_a_stop_signal_it_saves_and_can_be_resumed(number: int, code: int, uninterrupted: Path, tmp_path: Path) -> None:
    class SendsSignal(Callback):
        def on_step(self, step: int, metrics: dict[str, float]) -> None:
            if step == 5:
                os.kill(os.getpid(), number)

    with pytest.raises(TrainingStopped, match="stopped at step 5") as stop:
        fit(recipe(), tmp_path / "run", hardware=Hardware(workers=1), callbacks=[SendsSignal()])
    assert stop.value.code == code
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[0].name == "step-5"
    fit(recipe(), tmp_path / "run")
    assert same(tmp_path / "run", uninterrupted)


@pytest.mark.usefixtures("_as_in_a_terminal")
def test_a_stop_signal_before_the_first_step_ends_it_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int | None) -> None:
        if what == "finding the learning rate":
            os.kill(os.getpid(), signal.SIGINT)

    callback = Callback()
    callback.progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        fit(recipe(), tmp_path / "run", hardware=Hardware(workers=1), callbacks=[callback], autotune=AutoTune(find_lr=True))
    assert not (tmp_path / "run").exists()


def test_a_refused_recipe_leaves_no_folder_but_keeps_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=r"model.classes must be 10, the number of classes of panes.*, got 7"):
        fit(recipe(model=replace(recipe().model, classes=7)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(VitrailError, match=r"model.classes"):
        fit(recipe(model=replace(recipe().model, classes=7)), tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").is_file()


def test_a_run_that_stopped_early_stays_stopped_when_resumed(tmp_path: Path) -> None:
    """Stopped early, and killed before it could write its result."""
    impatient = recipe(steps=400, eval_every=2, checkpoint_every=100, early_stop_patience=1)
    fit(impatient, tmp_path / "whole", hardware=Hardware(workers=0))
    result = Run(tmp_path / "whole").result()
    assert result is not None
    assert result["steps"] == result["best"]["step"] + 2 < 400
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    fit(impatient, tmp_path / "run", hardware=Hardware(workers=0))
    assert same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(("fractions", "selected", "reported"), [((0.0, 0.0), "train", "train"), ((0.0, 0.1), "train", "test")])
def test_without_validation_or_test_the_result_names_the_splits_it_used(
    fractions: tuple[float, float], selected: str, reported: str, tmp_path: Path
) -> None:
    write_noise_images(tmp_path / "images", classes=2, each=12)
    model = replace(recipe().model, classes=2)
    settings = recipe(
        data=str(tmp_path / "images"), val_fraction=fractions[0], test_fraction=fractions[1], steps=4, model=model
    )
    result = fit(settings, tmp_path / "run", hardware=Hardware(workers=0)).result
    assert (result["selected_on"], result["reported_on"]) == (selected, reported)
    assert 0 <= result[reported]["top1"] <= 1


TRAIN = """
import sys, time
from pathlib import Path
from vitrail.config import from_json
from vitrail.training import checkpoint
from vitrail.training.trainer import Hardware, fit
from vitrail.recipes.recipe import Recipe
from vitrail.training.callbacks import Callback
slow = float(sys.argv[3])
class Tells(Callback):
    def on_step(self, step, metrics):
        print(step, flush=True)
whole = checkpoint._hash
def hashed(path):  # in the middle of writing a checkpoint, before it is renamed
    print("writing", flush=True)
    time.sleep(slow)
    return whole(path)
checkpoint._hash = hashed
fit(from_json(Recipe, Path(sys.argv[1]).read_text()), sys.argv[2], hardware=Hardware(workers=1), callbacks=[Tells()])
"""


def start_and_kill(settings: Path, folder: Path, word: str, count: int, wait: float, slow: float) -> bool:
    """Start the run and kill it a while after a word was printed so often; return whether it was still running."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TRAIN, str(settings), str(folder), str(slow)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            count -= (word == "writing") == (line.strip() == "writing")
            if count <= 0:
                break
        time.sleep(wait)
        alive = process.poll() is None
        process.kill()
    return alive


@pytest.mark.slow
def test_killed_twenty_times_it_ends_as_the_uninterrupted_one(tmp_path: Path) -> None:
    """SIGKILL at random moments, and five times while writing a checkpoint."""
    long = recipe(steps=60, eval_every=20, checkpoint_every=2)
    fit(long, tmp_path / "whole", hardware=Hardware(workers=1))
    settings = tmp_path / "recipe.json"
    settings.write_text(to_json(long))
    rng, kills, writes = np.random.default_rng(0), 0, 0
    while kills < 20:
        inside = writes < 5
        word, count = ("writing", int(rng.integers(2, 5))) if inside else ("step", int(rng.integers(1, 4)))
        assert start_and_kill(settings, tmp_path / "run", word, count, float(rng.uniform(0, 0.05)), 0.3 if inside else 0.0)
        kills, writes = kills + 1, writes + inside
        left = (tmp_path / "run" / "checkpoints").glob("step-*")
        assert all((path / "manifest.json").is_file() for path in left)
    fit(long, tmp_path / "run", hardware=Hardware(workers=2))
    assert same(tmp_path / "run", tmp_path / "whole")


def test_a_full_disk_leaves_the_last_checkpoint_whole(uninterrupted: Path, tmp_path: Path) -> None:
    """A limit on the size of files, of which Python ignores the signal, fails as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    class FillsDisk(Callback):
        def on_step(self, step: int, metrics: dict[str, float]) -> None:
            if step == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))

    try:
        with pytest.raises(OSError, match="File too large"):
            fit(recipe(), tmp_path / "run", hardware=Hardware(workers=0), callbacks=[FillsDisk()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-3"]
    fit(recipe(), tmp_path / "run")
    assert same(tmp_path / "run", uninterrupted)


def test_a_run_folder_that_is_deleted_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    class Removes(Callback):
        def on_step(self, step: int, metrics: dict[str, float]) -> None:
            if step == 2:
                shutil.rmtree(tmp_path / "run")

    with pytest.raises(OSError, match=r"run was deleted during its run"):
        fit(recipe(), tmp_path / "run", hardware=Hardware(workers=0), callbacks=[Removes()])
    (tmp_path / "file").touch()
    with pytest.raises(VitrailError, match=r"file/run cannot be written \(Not a directory\); name another folder"):
        fit(recipe(), tmp_path / "file" / "run", hardware=Hardware(workers=0))
    with pytest.raises(VitrailError, match=r"/proc/run cannot be written"):
        fit(recipe(), "/proc/run", hardware=Hardware(workers=0))
