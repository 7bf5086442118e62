"""``vitrail finetune`` from the command line: any weights, new classes, frozen layers, and exact reruns."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.small_models import small_vit
from tests.tiers import quick_first
from tests.training.test_loop import RaisesAt
from vitrail.cli.main import run
from vitrail.config import from_json
from vitrail.data.preprocess import Preprocess
from vitrail.recipes.recipe import Recipe
from vitrail.training.trainer import Hardware, fit
from vitrail.weights.load import load
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]
PANES = "panes:train_size=60,size=16"
PREPROCESS = Preprocess((12, 15), crop_pct=0.8, interpolation="bilinear", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))


def save_model(folder: Path) -> None:
    """Save a model of five classes."""
    model = small_vit()
    model.preprocess = PREPROCESS
    save(model, folder)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a model of five classes in the current folder."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "mine")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ``mine`` and ``first``, a run that started from it."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("VITRAIL_CACHE", str(folder / "cache"))
        monkeypatch.chdir(folder)
        save_model(folder / "mine")
        assert run(command("--out", "first", "--json")) == 0
    return folder


@pytest.fixture
def first(finished_run: Path, tmp_path: Path) -> None:
    """Copy the finished run, and the model that it started from, into the current folder."""
    for name in ("mine", "first"):
        shutil.copytree(finished_run / name, tmp_path / name, dirs_exist_ok=True)


def command(*changes: str, weights: str = "mine", data: str = PANES, steps: int = 6) -> list[str]:
    """Return a command that takes seconds."""
    settings = (
        f"steps={steps}",
        "batch_size=8",
        "eval_every=3",
        "checkpoint_every=2",
        "schedule.warmup_steps=1",
        "optim.lr=0.1",
    )
    return ["finetune", weights, data, *(part for one in settings for part in ("--set", one)), "--workers", "0", *changes]


def read_recipe(folder: str) -> Recipe:
    return from_json(Recipe, Path(folder, "recipe.json").read_text())


def weights(folder: str) -> dict[str, torch.Tensor]:
    return load_file(Path(folder, "model.safetensors"))


def test_a_new_head_the_models_own_preprocessing_and_a_complete_recipe(capsys: Capture) -> None:
    assert run(command("--image-size", "18x20", "--out", "tuned")) == 0
    printed = capsys.readouterr()
    assert "init      mine: vitrail weights with a new head for 10 classes" in printed.err
    assert "resized positions.0.table.weight: 2x3 to 3x4" in printed.err
    assert "test top1" in printed.out
    model = load("tuned")
    assert (model.config.image, model.config.classes, model.config.pool) == ((18, 20), 10, "cls")  # type: ignore[union-attr]
    assert model.preprocess == Preprocess(
        (18, 20), PREPROCESS.crop_pct, PREPROCESS.fit, PREPROCESS.interpolation, PREPROCESS.mean, PREPROCESS.std
    )
    recipe = read_recipe("tuned")
    assert (recipe.model, recipe.preprocess, recipe.init_from) == (model.config, model.preprocess, "mine")
    assert recipe.init_sha256 is not None
    assert run(["train", "--recipe-from", "tuned/recipe.json", "--out", "again", "--workers", "1", "--json"]) == 0
    assert Path("tuned/log.jsonl").read_text() == Path("again/log.jsonl").read_text()
    assert all(torch.equal(weight, weights("again/last")[name]) for name, weight in weights("tuned/last").items())


def test_the_fit_reaches_the_recipe_the_model_and_its_predictions(capsys: Capture) -> None:
    assert run(command("--fit", "pad", "--out", "padded")) == 0
    model = load("padded")
    assert model.preprocess == PREPROCESS.with_fit("pad")
    assert read_recipe("padded").preprocess == model.preprocess
    assert run(command("--fit", "pad", "--set", "preprocess.fit=stretch", "--print-recipe")) == 2
    assert "--fit and --set preprocess.fit set the same field" in capsys.readouterr().err
    assert run(command("--set", "preprocess.fit=pad", "--print-recipe")) == 2
    assert "crop_pct must be 1 and trim 0 with --fit pad, which crops nothing" in capsys.readouterr().err


def test_the_image_size_is_the_models_own_and_384_in_the_papers_recipe(capsys: Capture) -> None:
    assert run(["finetune", "mine", PANES, "--print-recipe"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["image"] == [12, 15]
    assert run(["finetune", "mine", PANES, "--print-recipe", "--recipe", "paper-finetune"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["image"] == [384, 385]  # patches of 6 x 5


@pytest.mark.parametrize(
    ("train", "moving"), quick_first([("last:1", ("head.", "norm.", "blocks.3.")), ("head", ("head.",)), ("all", ("",))])
)
def test_frozen_weights_stay_bit_for_bit_and_have_no_optimizer_state(train: str, moving: Sequence[str]) -> None:
    """No gradient, no weight decay and no optimizer state, also with EMA weights."""
    trained = tuple(moving)
    settings = ("optim.name=adamw", "optim.weight_decay=0.5", "ema_decay=0.5")
    options = [part for setting in settings for part in ("--set", setting)]
    assert run(command("--trainable", train, *options, "--json")) == 0
    before, after = weights("mine"), weights("runs/finetune/last")
    for name, weight in after.items():
        if not name.startswith("head."):
            assert torch.equal(weight, before[name]) != name.startswith(trained), name
    assert after["head.weight"].any()
    (newest, _) = sorted(Path("runs/finetune/checkpoints").iterdir(), key=lambda path: -int(path.name[5:]))
    moments = [name.split(".", 3)[3] for name in load_file(newest / "state.safetensors") if name.startswith("optimizer.")]
    assert set(moments) == {name for name in after if name.startswith(trained)}


@pytest.mark.usefixtures("first")
def test_the_same_classes_keep_the_head(capsys: Capture) -> None:
    assert run(command("--set", "optim.lr=1e-9", "--out", "second", weights="first", steps=1)) == 0
    assert "init      first: vitrail weights with their head, since the classes are the same" in capsys.readouterr().err
    assert read_recipe("second").keep_head
    best, score = weights("first/best"), load("first").metadata["metrics"]["validation"]
    assert load("second").metadata["metrics"]["validation"]["top1"] == pytest.approx(score["top1"])
    torch.testing.assert_close(weights("second/best")["head.weight"], best["head.weight"], rtol=0, atol=1e-7)
    assert run(["finetune", "first", "panes:train_size=60,size=16", "--print-recipe", "--set", "keep_head=false"]) == 0


@pytest.mark.usefixtures("first")
def test_a_run_its_best_weights_and_a_converted_copy_have_one_hash(capsys: Capture) -> None:
    assert run(["weights", "convert", "first/best", "copy"]) == 0
    hashes = set()
    for source in ("first", "first/best", "first/best/model.safetensors", "copy"):
        capsys.readouterr()
        assert run(["finetune", source, "fashion", "--print-recipe"]) == 0
        hashes.add(json.loads(capsys.readouterr().out)["init_sha256"])
    assert len(hashes) == 1


@pytest.mark.usefixtures("first")
def test_a_run_resumes_without_the_weights_it_started_from(capsys: Capture) -> None:
    with pytest.raises(OSError, match="broke"):
        fit(read_recipe("first"), "broken", hardware=Hardware(workers=0), callbacks=[RaisesAt(5, OSError("broke"))])
    shutil.rmtree("mine")
    assert run(command("--out", "broken")) == 2
    remedy = "broken resumes without it: vitrail finetune --resume broken"
    assert remedy in capsys.readouterr().err
    assert run([*remedy.partition("vitrail ")[2].split(), "--json"]) == 0
    assert Path("first/log.jsonl").read_text() == Path("broken/log.jsonl").read_text()
    assert all(torch.equal(weight, weights("broken/last")[name]) for name, weight in weights("first/last").items())


@pytest.mark.usefixtures("first")
def test_changed_weights_are_refused(capsys: Capture) -> None:
    save_model(Path("mine"))  # the second model of this test, with other random weights
    assert run(["train", "--recipe-from", "first/recipe.json", "--out", "second"]) == 2
    message = capsys.readouterr().err
    assert "mine contains other weights than the recipe was written for" in message
    override = message.strip().rpartition(" ")[2]
    assert run(["train", "--recipe-from", "first/recipe.json", "--out", "third", "--set", override, "--json"]) == 0
    assert run(command("--out", "first")) == 2
    assert "started with another recipe: init_sha256 was" in capsys.readouterr().err


@pytest.mark.usefixtures("first")
def test_the_metrics_are_saved_with_the_weights_and_inspect_prints_them(capsys: Capture) -> None:
    result = json.loads(Path("first/result.json").read_text())
    best, last = load("first/best").metadata, load("first/last").metadata
    assert best["metrics"] == {
        "step": result["best"]["step"],
        "validation": best["metrics"]["validation"],
        "test": result["test"],
    }
    assert best["metrics"]["validation"]["top1"] == result["best"]["top1"]
    assert (last["metrics"]["step"], "test" in last["metrics"]) == (6, False)
    assert from_json(Recipe, json.dumps(best["recipe"])) == read_recipe("first")
    assert best["dataset"]["name"] == PANES
    assert run(["inspect", "first"]) == 0
    assert f"trained with finetune on {PANES}: validation {result['best']['top1']:.2%}, test" in capsys.readouterr().out
    assert run(["inspect", "first/best", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == best["metrics"]
    assert run(["weights", "convert", "first", "copy"]) == 0
    assert load("copy").metadata == best


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing.npz", PANES], "nothing.npz does not exist; WEIGHTS is a run, a model folder"),
        (["B/16", PANES], "B/16 does not exist"),
        (["hf:nobody", PANES], "a model on the hub must be written hf:owner/name"),
        (["mine", "nowhere"], "there is no 'nowhere'; name a folder of images"),
        (["mine", PANES, "--image-size", "13"], "image must be a multiple of patch 6x5, got image=13x13; try image=12x15"),
        (["mine", PANES, "--trainable", "last:5"], "the model has 4 blocks, got --trainable last:5; try --trainable last:2"),
        (["mine", PANES, "--trainable", "tail"], "--trainable must be all, head or last:N, got 'tail'; try --trainable last:2"),
        (["mine", PANES, "--recipe", "demo"], "demo trains from scratch, without weights; try --recipe finetune"),
        (["mine", PANES, "--recipe", "fintune"], "did you mean 'finetune'"),
        (["mine", PANES, "--set", "model.width=48", "--out", "x"], "do not fit the recipe's model"),
        (["mine"], "finetune needs weights and a dataset; try vitrail finetune dinov2-s14"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, capsys: Capture) -> None:
    assert run(["finetune", *arguments]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("vitrail: ")
    assert sentence in last
