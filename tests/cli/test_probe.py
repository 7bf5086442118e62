"""``vitrail probe``: one dataset or a suite, as a table and as JSON."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.probe_data import save_models_and_dataset
from tests.data import images as sample_images
from vitrail.cli.main import run
from vitrail.data.sources.dataset import ArrayDataset, Subset, empty_dataset
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.evaluation.linear_probe import LinearProbeResult
from vitrail.evaluation.probe import load_suite, mean_metrics, probe
from vitrail.weights.load import load

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "real"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    save_models_and_dataset(tmp_path)


def probe_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run(["probe", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_command_has_the_values_of_the_function(capsys: Capture) -> None:
    found = probe_json(capsys, "model", "set")
    expected = json.loads(json.dumps(asdict(probe(load("model"), "set"))))
    assert found == {"model": "model", **expected}
    assert [few["shots"] for few in found["fewshot"]] == [1, 5, 10, 25]
    assert list(found["knn"]) == ["10", "20"]
    assert 0 <= found["linear"]["accuracy"] <= 1
    assert (found["eval_split"], found["classes"]) == ("test", 3)
    assert found["num_images"] == {"train": 22, "validation": 13, "test": 10}
    assert run(["probe", "model", "set"]) == 0
    printed = capsys.readouterr().out
    for few in found["fewshot"]:
        assert f"{few['accuracy']:.2%}" in printed
    assert f"{found['linear']['accuracy']:.2%}" in printed
    assert "3 of 3 classes have fewer than 10 training images" in printed


def test_a_protocol_alone_needs_only_what_it_reads(capsys: Capture) -> None:
    found = probe_json(capsys, "bare", "set", "--protocol", "knn")
    assert (found["fewshot"], found["linear"]) == (None, None)
    assert found["num_images"] == {"train": 22, "test": 10}  # and not validation


def test_without_a_test_split_validation_is_reported_with_a_note(tmp_path: Path, capsys: Capture) -> None:
    for file in (tmp_path / "set" / "test").rglob("*.jpg"):
        file.unlink()
    found = probe_json(capsys, "model", "set")
    assert found["eval_split"] == "validation"
    assert "on which the linear probe's penalty was selected too" in found["notes"][0]
    assert found["linear"]["accuracy"] == max(one["accuracy"] for one in found["linear"]["penalty_results"])


def test_bad_images_are_left_out_and_counted(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "set" / "train" / "bee" / "1.jpg").write_bytes(b"none")
    found = probe_json(capsys, "model", "set")
    assert (found["unreadable_images"], found["num_images"]["train"]) == (1, 21)
    assert run(["probe", "model", "set"]) == 0
    assert "1 unreadable" in capsys.readouterr().out


def test_the_example_suite_runs_and_its_groups_are_means(tmp_path: Path, capsys: Capture) -> None:
    suite = tmp_path / "suite.toml"  # the same with fewer images, so that it takes seconds
    text = (ROOT / "examples" / "suite.toml").read_text()
    assert {entry.group for entry in load_suite(ROOT / "examples" / "suite.toml")} == {"specialised", "structured"}
    suite.write_text(
        text.replace('"fashion"\ngroup', '"set"\ngroup').replace("train_size=2000", "train_size=90").replace("=500", "=80")
    )
    found = probe_json(capsys, "model", "--suite", str(suite))
    assert [(one["name"], one["group"]) for one in found["data"]] == [
        ("fashion", "specialised"), ("panes", "structured"), ("panes-small", "structured"),
    ]  # fmt: skip
    shots = [one["fewshot"][1]["accuracy"] for one in found["data"]]
    assert found["groups"]["structured"]["5-shot"] == pytest.approx(np.mean(shots[1:]))
    assert found["mean"]["5-shot"] == pytest.approx(np.mean(shots))
    assert "linear" not in found["mean"]  # one dataset of the suite does not use it
    assert found["data"][2]["linear"] is None
    assert run(["probe", "model", "--suite", str(suite)]) == 0
    printed = capsys.readouterr().out
    assert f"{found['groups']['structured']['kNN']:.2%}" in printed
    found = probe_json(capsys, "model", "--suite", str(suite), "--protocol", "linear")
    assert [one["name"] for one in found["data"]] == ["fashion", "panes"]


def test_a_missing_dataset_of_a_suite_is_reported_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("vitrail.evaluation.probe.embed", lambda *_: pytest.fail("began"))
    sample_images.write_class_folders(tmp_path / "one", {"ant": 12})
    for missing, sentence in (("gone", "gone of s.toml: there is no"), ("one", "one of s.toml: one has a single class")):
        (tmp_path / "s.toml").write_text(f'[[data]]\nsource = "set"\n[[data]]\nsource = "{missing}"')
        assert run(["probe", "model", "--suite", "s.toml"]) == 2
        assert sentence in capsys.readouterr().err


def test_a_model_is_probed_on_the_test_split_of_its_training(tmp_path: Path) -> None:
    sample_images.write_class_folders(tmp_path / "flat", {"ant": 20, "bee": 20})
    one = load("model")
    one.metadata = {"recipe": {"val_fraction": 0.05, "test_fraction": 0.3}}
    found = probe(one, "flat", ("knn",))
    assert found.num_images == {"train": 26, "test": 12}
    assert found.notes == ("no splits given; validation and test are split off by content",)


def test_a_probe_needs_labels_and_skips_images_without() -> None:
    data = open_dataset("set")
    paths = data.train
    empty = ArrayDataset(np.zeros((4, 9, 9, 3), np.uint8), np.full(4, -1), ())
    bare = replace(data, train=empty, validation=empty, test=empty)
    with pytest.raises(VitrailError, match="has no labels, which a probe needs"):
        probe(load("model"), bare)
    half = Subset(paths, np.arange(len(paths)))
    half.labels[::2] = -1
    found = probe(load("model"), replace(data, train=half), ("knn",))
    assert found.num_images["train"] == len(paths) // 2
    with pytest.raises(VitrailError, match="has no validation split to select the linear probe's penalty on"):
        probe(load("model"), replace(data, validation=empty_dataset(data.train)))


def test_the_mean_covers_the_columns_of_every_row() -> None:
    assert mean_metrics([{"a": 0.25, "b": 0.5}, {"a": 0.75}]) == {"a": 0.5}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["model"], "name one dataset or one suite"),
        (["model", "set", "--suite", "x.toml"], "name one dataset or one suite"),
        (["model", "set", "--protocol", "knm"], "there are fewshot, knn, linear; did you mean 'knn'?"),
        (["model", "nowhere"], "there is no 'nowhere'"),
        (["nothing", "set"], "nothing does not exist"),
        (["model", "flat"], "has a single class"),
        (["model", "unlabelled-train"], "no labelled training images"),
        (["model", "loose"], "has 12 images but no class folders"),
        (["model", "--suite", "gone.toml"], "cannot be read: No such file"),
        (["model", "--suite", "bad.toml"], "is not valid TOML"),
        (["model", "--suite", "empty.toml"], "must hold [[data]] tables"),
        (["model", "--suite", "typo.toml"], "unknown field 'sorce'; did you mean 'source'?"),
        (["model", "--suite", "twice.toml"], "are named 'set'"),
        (["model", "--suite", "wrong.toml"], "there is no protocol 'nn'"),
        (["model", "--suite", "number.toml"], 'needs source = "..."'),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path, capsys: Capture) -> None:
    sample_images.write_class_folders(tmp_path / "flat", {"ant": 12})
    sample_images.write_class_folders(tmp_path / "unlabelled-train" / "test", {"ant": 3, "bee": 4})
    for number in range(12):
        sample_images.write_image(tmp_path / "loose" / f"{number}.png", number)
    for name, text in {
        "bad": "[[data",
        "empty": "",
        "typo": '[[data]]\nsorce = "set"',
        "twice": '[[data]]\nsource = "set"\n' * 2,
        "wrong": '[[data]]\nsource = "set"\nprotocols = ["nn"]',
        "number": "[[data]]\nsource = 3",
    }.items():
        (tmp_path / f"{name}.toml").write_text(text)
    assert run(["probe", *arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="no real weights next to the project")
def test_on_real_photographs_it_is_as_good_as_scikit_learn_on_timms_features() -> None:
    found = probe(load(REAL / "vit_tiny_patch16_224.safetensors"), REAL / "clothing", ("linear",))
    assert isinstance(found.linear, LinearProbeResult)
    assert found.linear.accuracy * 372 > 337 - 2.5  # scikit-learn has 337 correct; rounding may cost one or two
