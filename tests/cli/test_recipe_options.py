"""The options that people type first set the fields of the recipe that ``--set`` reaches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.augment.policy import get_policy
from vitrail.cli.main import run
from vitrail.config import to_dict

Capture = pytest.CaptureFixture[str]
SMALL = ["--set", "model.depth=1", "--set", "model.width=24", "--set", "model.mlp=24", "--threads", "1", "--workers", "0"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five photos of one class and fifteen of another, with sides of different lengths."""
    for number in range(20):
        folder = tmp_path / "photos" / ("rare" if number < 5 else "common")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30 + number, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return tmp_path / "photos"


def printed_recipe(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--print-recipe"]) == 0
    recipe: dict[str, Any] = json.loads(capsys.readouterr().out)
    return recipe


@pytest.mark.parametrize("command", [["train"], ["pretrain", "fashion"]])
def test_an_option_is_the_field_that_set_reaches(command: list[str], capsys: Capture) -> None:
    options = [
        "--batch-size",
        "32",
        "--lr",
        "0.002",
        "--weight-decay",
        "0.3",
        "--seed",
        "7",
        "--precision",
        "bfloat16",
        "--compile",
    ]
    fields = ["batch_size=32", "optim.lr=0.002", "optim.weight_decay=0.3", "seed=7", "precision=bfloat16", "compile=true"]
    by_set = [word for field in fields for word in ("--set", field)]
    assert printed_recipe(capsys, *command, *options) == printed_recipe(capsys, *command, *by_set)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--lr", "0.1"], "optim.lr"),
        (["--batch-size", "8"], "batch_size"),
        (["--epochs", "2"], "steps"),
        (["--weight-decay", "0"], "optim.weight_decay"),
        (["--seed", "1"], "seed"),
        (["--precision", "float32"], "precision"),
        (["--compile"], "compile"),
    ],
)
def test_an_option_and_set_for_one_field_are_an_error(options: list[str], field: str, capsys: Capture) -> None:
    assert run(["train", *options, "--set", f"{field}=1"]) == 2
    sentence = f"vitrail: {options[0]} and --set {field} set the same field; leave one of them out\n"
    assert capsys.readouterr().err == sentence


def test_epochs_become_steps_of_the_batch_size(capsys: Capture) -> None:
    recipe = printed_recipe(capsys, "train", "--epochs", "2", "--batch-size", "100")
    assert run(["data", "check", "fashion", "--json"]) == 0
    images = json.loads(capsys.readouterr().out)["splits"]["train"]
    assert recipe["steps"] == round(2 * images / 100)
    assert recipe["schedule"]["warmup_steps"] <= recipe["steps"] // 10


def test_augment_chooses_a_policy_and_set_changes_it(capsys: Capture) -> None:
    recipe = printed_recipe(capsys, "train", "--augment", "medium1", "--set", "augment.cutmix=0.5")
    assert recipe["augment"] == {**to_dict(get_policy("medium1")), "cutmix": 0.5}
    assert run(["train", "--augment", "medum1"]) == 2
    assert "did you mean 'medium1'?" in capsys.readouterr().err


def test_fewer_steps_shorten_the_warm_up(tmp_path: Path, capsys: Capture) -> None:
    assert run(["train", *SMALL, "--set", "steps=12", "--batch-size", "8", "--set", "eval_every=12", "--out", "run"]) == 0
    assert "the warm-up is shortened from 150 steps to 1, to fit into 12 steps" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["schedule"]["warmup_steps"] == 1


def test_resume_continues_a_run_by_its_folder_alone(tmp_path: Path, capsys: Capture) -> None:
    few = ["panes:train_size=40,size=16", "--batch-size", "8", "--set", "steps=3", "--set", "checkpoint_every=2"]
    assert run(["train", *few, *SMALL, "--out", "run"]) == 0
    before = (tmp_path / "run" / "log.jsonl").read_text()
    (tmp_path / "run" / "result.json").unlink()
    newest = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    for file in newest.iterdir():
        file.write_bytes(b"")  # so that the one before it is resumed
    capsys.readouterr()
    assert run(["train", "--resume", "run", "--threads", "1", "--workers", "0"]) == 0
    assert "resumed from step 2" in capsys.readouterr().err
    assert (tmp_path / "run" / "log.jsonl").read_text() == before  # bit for bit
    for arguments, sentence in (
        (["fashion", "--resume", "run"], "--resume continues run with its own recipe and dataset; leave out DATA"),
        (["--resume", "run", "--out", "other"], "run is resumed where it is, got --out other; leave it out"),
        (["--resume", "nowhere"], "--resume must be a run folder with a recipe.json, got nowhere"),
    ):
        assert run(["train", *arguments]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--epochs", "0"], "--epochs must be above 0, got 0; try --epochs 10"),
        (["train", "--epochs", "2", "--minutes", "1"], "--epochs and --minutes both set the number of steps"),
        (["pretrain"], "pretrain needs a dataset, such as a folder of images; try vitrail pretrain photos --method mae"),
        (["finetune"], "finetune needs weights and a dataset; try vitrail finetune dinov2-s14 photos"),
        (
            ["finetune", "owner/name", "photos"],
            "owner/name does not exist; if it is a model on the Hugging Face hub, write hf:",
        ),
    ],
)
def test_a_mistake_says_what_would_work(arguments: list[str], sentence: str, capsys: Capture) -> None:
    assert run(arguments) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_any_variant_trains_with_the_default_recipe(photos: Path, capsys: Capture) -> None:
    named = printed_recipe(capsys, "train", "photos", "--model", "S/16")
    assert (named["name"], named["model"]["width"], named["model"]["patch"]) == ("small", 384, [16, 16])
    assert named["model"]["image"] == named["preprocess"]["image_size"] == [224, 224]
    assert printed_recipe(capsys, "train", "photos", "--model", "Ti/15", "--image-size", "60")["model"]["image"] == [60, 60]
    assert printed_recipe(capsys, "train", "--model", "Ti/8")["model"]["image"] == [32, 32]  # fashion's 28 in patches of 8
    assert run(["train", "photos", "--model", "R50x1", "--print-recipe"]) == 2


def test_a_folder_is_trained_on_and_evaluated(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["train", "photos", "--set", "steps=2", *SMALL, "--out", "run"]) == 0
    printed = capsys.readouterr()
    assert "training from scratch on" in printed.err
    assert "vitrail finetune hf:google/vit-base-patch16-224 photos" in printed.err
    assert "always predicting the largest class" in printed.out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["majority_class"] >= 0.5  # three quarters of the images are of one class
    photos.rename("others")  # another folder without splits is evaluated as a whole
    assert run(["evaluate", "run", "others", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["split"], scores["images"]) == ("all", 20)
    Path("others").rename("photos")  # on its own dataset the test split counts
    assert run(["evaluate", "run", "photos", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["split"] == "test"
    assert scores["images"] < 20


def save_timm_weights(path: str) -> int:
    """Save a small model under timm's names, without metadata of ours. Return its number of parameters."""
    model = vitrail.build("mu/16", image=32, classes=2, gelu="exact", position_resize="timm")
    vitrail.save(model, "with_metadata.safetensors", format="timm")
    save_file(load_file("with_metadata.safetensors"), path)
    return sum(weight.numel() for weight in model.parameters())


def test_loading_says_its_assumptions_once_in_one_line(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_timm_weights("bare.safetensors")
    command = ["predict", "bare.safetensors", "photos/rare/00.png"]
    for arguments, lines in ((command, 1), (["--quiet", *command], 0), ([*command, "--verbose"], 6)):
        caplog.clear()
        assert run(arguments) == 0
        assert len(caplog.records) == lines
    assert sum("assumed" in record.getMessage() for record in caplog.records) == 5


def test_inspect_reads_a_weight_file(capsys: Capture) -> None:
    parameters = save_timm_weights("weights.safetensors")
    assert run(["inspect", "weights.safetensors", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == parameters
    assert run(["inspect", "weights.safetensors", "--image-size", "64", "--classes", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["grid"] == [4, 4]


def test_finetune_says_its_assumptions_in_one_line(photos: Path, capsys: Capture) -> None:
    save_timm_weights("bare.safetensors")
    for index, (flags, lines) in enumerate((([], 1), (["--quiet"], 0), (["--verbose"], 5))):
        assert run(["finetune", "bare.safetensors", "photos", "--set", "steps=1", "--out", f"run{index}", *flags]) == 0
        assert sum("assumed" in line for line in capsys.readouterr().err.splitlines()) == lines
