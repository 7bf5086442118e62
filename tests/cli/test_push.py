"""``vitrail push`` against a hub over HTTP: the model, its metadata without paths, and a model card arrive."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch.testing import assert_close

from tests.cli.fake_hub import FakeHub, running_hub, unreachable_hub, use_hub
from tests.small_models import small_vit
from tests.tiers import quick_first
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.models.masked_autoencoders import build_masked_model
from vitrail.models.masking_config import Masking
from vitrail.weights.load import load as load_model
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]
METADATA: dict[str, Any] = {
    "recipe": {
        "name": "small",
        "data": "/home/somebody/secret/photos",
        "init_from": "~/runs/older/best",
        "steps": 7,
        "batch_size": 3,
    },
    "dataset": {"name": "/home/somebody/secret/photos", "fingerprint": "ab" * 32},
    "metrics": {"step": 5, "validation": {"top1": 0.75}, "test": {"top1": 0.5, "top5": 0.9, "loss": 1.25}},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    built = small_vit()
    built.preprocess, built.class_names = (
        Preprocess(built.config.image),
        tuple(f"kind {n}" for n in range(built.config.classes)),
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    (tmp_path / "run" / "checkpoints").mkdir()
    return save(built, tmp_path / "run" / "best", metadata=METADATA).parent


@pytest.fixture
def hub_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Start a hub, and direct the client to it."""
    constants = pytest.importorskip("huggingface_hub.constants")
    with running_hub() as built:
        use_hub(built, tmp_path / "cache", monkeypatch, constants)
        yield built


def test_a_pushed_model_can_be_loaded_and_contains_no_paths(model: Path, hub_server: FakeHub, capsys: Capture) -> None:
    assert run(["push", str(model), "me/mine", "--license", "mit", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    files = hub_server.files["me/mine"]
    assert set(files) == set(answer["files"]) == {"README.md", "model.safetensors", "vitrail.json"}
    assert answer["files"] == {name: len(content) for name, content in files.items()}
    assert answer["pushed"] == f"{hub_server.url}/me/mine"
    for content in files.values():
        assert b"somebody" not in content
        assert b"secret" not in content
        assert str(model.parent).encode() not in content
    facts = json.loads(files["vitrail.json"])
    assert (facts["recipe"]["data"], facts["recipe"]["init_from"], facts["dataset"]["name"]) == ("photos", "older", "photos")
    assert facts["metrics"] == METADATA["metrics"]
    pushed = load(files["model.safetensors"])
    for name, weight in load_model(model).state_dict().items():
        assert_close(pushed[name], weight, rtol=0, atol=0)
    assert not any("agent" in path for path in hub_server.requests)  # no telemetry


def test_a_pushed_model_loads_bit_for_bit(model: Path, hub_server: FakeHub) -> None:
    assert run(["push", str(model), "hf:me/mine"]) == 0
    back = load_model("hf:me/mine")
    local = load_model(model)
    images = torch.randn(2, local.config.channels, *local.config.image)
    assert_close(back(images), local(images), rtol=0, atol=0)
    assert (back.class_names, back.preprocess) == (local.class_names, local.preprocess)


def test_a_second_push_removes_stale_files(model: Path, hub_server: FakeHub, tmp_path: Path, capsys: Capture) -> None:
    pretrained = build_masked_model(small_vit(classes=0), Masking("masked-patch"))
    save(pretrained, tmp_path / "older")
    assert run(["push", str(tmp_path / "older"), "me/mine"]) == 0
    assert "decoder.safetensors" in hub_server.files["me/mine"]
    hub_server.files["me/mine"] |= {"notes.txt": b"mine", ".gitattributes": b""}
    assert run(["push", str(model), "me/mine"]) == 0
    assert set(hub_server.files["me/mine"]) == {"README.md", "model.safetensors", "vitrail.json", "notes.txt", ".gitattributes"}
    assert len(hub_server.commits) == 2  # one each, so that no client sees half a model


def test_private_is_kept_or_refused(model: Path, hub_server: FakeHub, capsys: Capture) -> None:
    assert run(["push", str(model), "me/hidden", "--private"]) == 0
    assert hub_server.private["me/hidden"]
    assert run(["push", str(model), "me/open"]) == 0
    assert not hub_server.private["me/open"]
    hub_server.files["me/open"].clear()
    capsys.readouterr()
    assert run(["push", str(model), "me/open", "--private"]) == 2
    assert "already exists and is public" in capsys.readouterr().err
    assert not hub_server.files["me/open"]


def test_a_token_that_may_not_write_is_one_sentence(
    model: Path, hub_server: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert run(["push", str(model), "me/mine"]) == 2
    assert "the hub refuses it (403); is me your account, and does your token have write access?" in capsys.readouterr().err
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert run(["push", str(model), "me/mine"]) == 2
    assert "you are not logged in to the hub" in capsys.readouterr().err
    assert not hub_server.files


def test_a_folder_is_written_without_any_hub(model: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "deep" / "parcel"
    assert run(["push", str(model), "me/mine", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "no licence is set" in printed
    assert sorted(os.listdir(out)) == ["README.md", "model.safetensors", "vitrail.json"]
    assert os.listdir(out.parent) == ["parcel"]
    assert load_model(out).class_names == load_model(model).class_names
    assert run(["push", str(model), "me/mine", "--out", str(out)]) == 2
    assert "exists and is not empty" in capsys.readouterr().err


def test_transformers_layout_where_it_can_hold_the_model(model: Path, tmp_path: Path, capsys: Capture) -> None:
    built = small_vit(image=(12, 12), patch=(4, 4))
    built.preprocess = Preprocess((12, 12))
    save(built, tmp_path / "square")
    assert run(["push", str(tmp_path / "square"), "me/x", "--format", "huggingface", "--out", str(tmp_path / "hf")]) == 0
    names = ["README.md", "config.json", "model.safetensors", "preprocessor_config.json"]
    assert sorted(os.listdir(tmp_path / "hf")) == names
    text = (tmp_path / "hf" / "README.md").read_text()
    assert 'library_name: "transformers"' in text
    assert "from transformers import pipeline" in text
    save(small_vit(pool="gap"), tmp_path / "gap")
    assert run(["push", str(tmp_path / "gap"), "me/x", "--format", "huggingface", "--out", str(tmp_path / "no")]) == 2
    assert "format='timm'" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["nowhere", "me/x", "--out", "o"], "does not exist"),
        (["run", "mine", "--out", "o"], "must be written hf:owner/name"),
        (["run", "me/x", "--out", "o", "--license", "Apache 2"], "try apache-2.0"),
        (["run", "me/x", "--out", "o", "--private"], "leave one of them out"),
        (["run", "me/x", "--out", "run"], "exists and is not empty"),
        (["run", "me/x", "--out", "o", "--format", "timm"], "'vitrail', 'huggingface'"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], answer: str, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(model.parent)
    assert run(["push", *words]) == 2
    printed = capsys.readouterr().err
    assert answer in printed
    assert len(printed.splitlines()) == 1
    assert not Path("o").exists()


@pytest.mark.parametrize("kind", quick_first(["closed", "silent"]))
def test_without_a_hub_push_fails_soon(kind: str, model: Path, tmp_path: Path) -> None:
    with unreachable_hub(kind, tmp_path) as environment:
        done = subprocess.run(
            [sys.executable, "-m", "vitrail", "push", str(model), "me/mine"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            env=environment,
        )
    assert done.returncode == 2
    assert done.stderr == (
        "vitrail: me/mine cannot be pushed: the hub cannot be reached; --out DIR writes what would be pushed\n"
    )
