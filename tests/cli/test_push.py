"""``vitrail push`` against a hub that answers over HTTP: what arrives is the model, its facts without paths, and a card."""

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

from tests.cli.hub_server import Hub, hub, without_a_hub
from tests.small import vit
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.models.masked import masked
from vitrail.models.masking import Masking
from vitrail.weights.checkpoint import save
from vitrail.weights.load import load as load_model

Capture = pytest.CaptureFixture[str]
FACTS: dict[str, Any] = {
    "recipe": {"name": "small", "data": "/home/somebody/secret/photos", "start": "~/runs/older/best", "steps": 7, "batch": 3},
    "data": {"name": "/home/somebody/secret/photos", "fingerprint": "ab" * 32},
    "score": {"step": 5, "validation": {"top1": 0.75}, "test": {"top1": 0.5, "top5": 0.9, "loss": 1.25}},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = vit()
    made.preprocess, made.labels = Preprocess(made.config.image), tuple(f"kind {n}" for n in range(made.config.classes))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    (tmp_path / "run" / "checkpoints").mkdir()
    return save(made, tmp_path / "run" / "best", facts=FACTS).parent


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The client reads its settings when it is imported, so they are set where it keeps them."""
    constants = pytest.importorskip("huggingface_hub.constants")
    with hub() as made:
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{made.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", made.token)
        yield made


def test_what_is_pushed_can_be_loaded_and_tells_nobodys_paths(model: Path, served: Hub, capsys: Capture) -> None:
    assert run(["push", str(model), "me/mine", "--license", "mit", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    files = served.files["me/mine"]
    assert set(files) == set(said["files"]) == {"README.md", "model.safetensors", "vitrail.json"}
    assert said["files"] == {name: len(content) for name, content in files.items()}
    assert said["pushed"] == f"{served.url}/me/mine"
    for content in files.values():
        assert b"somebody" not in content
        assert b"secret" not in content
        assert str(model.parent).encode() not in content
    facts = json.loads(files["vitrail.json"])
    assert (facts["recipe"]["data"], facts["recipe"]["start"], facts["data"]["name"]) == ("photos", "older", "photos")
    assert facts["score"] == FACTS["score"]
    pushed = load(files["model.safetensors"])
    for name, weight in load_model(model).state_dict().items():
        assert_close(pushed[name], weight, rtol=0, atol=0)
    assert not any("agent" in path for path in served.asked)  # the client would ask who drives it


def test_it_comes_back_as_it_went(model: Path, served: Hub) -> None:
    assert run(["push", str(model), "hf:me/mine"]) == 0
    back = load_model("hf:me/mine")
    there = load_model(model)
    images = torch.randn(2, there.config.channels, *there.config.image)
    assert_close(back(images), there(images), rtol=0, atol=0)
    assert (back.labels, back.preprocess) == (there.labels, there.preprocess)


def test_a_second_push_takes_away_what_the_first_left(model: Path, served: Hub, tmp_path: Path, capsys: Capture) -> None:
    pretrained = masked(vit(classes=0), Masking("masked-patch"))
    save(pretrained, tmp_path / "older")
    assert run(["push", str(tmp_path / "older"), "me/mine"]) == 0
    assert "decoder.safetensors" in served.files["me/mine"]
    served.files["me/mine"] |= {"notes.txt": b"mine", ".gitattributes": b""}
    assert run(["push", str(model), "me/mine"]) == 0
    assert set(served.files["me/mine"]) == {"README.md", "model.safetensors", "vitrail.json", "notes.txt", ".gitattributes"}
    assert len(served.commits) == 2  # one each: nobody ever sees half a model


def test_private_is_kept_or_refused(model: Path, served: Hub, capsys: Capture) -> None:
    assert run(["push", str(model), "me/hidden", "--private"]) == 0
    assert served.private["me/hidden"]
    assert run(["push", str(model), "me/open"]) == 0
    assert not served.private["me/open"]
    served.files["me/open"].clear()
    capsys.readouterr()
    assert run(["push", str(model), "me/open", "--private"]) == 2
    assert "everybody can see it" in capsys.readouterr().err
    assert not served.files["me/open"]


def test_a_token_that_may_not_write_is_one_sentence(
    model: Path, served: Hub, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert run(["push", str(model), "me/mine"]) == 2
    assert "the hub refuses it (403); is me yours, and may your token write there?" in capsys.readouterr().err
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert run(["push", str(model), "me/mine"]) == 2
    assert "the hub does not know who you are" in capsys.readouterr().err
    assert not served.files


def test_a_folder_is_written_without_any_hub(model: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "deep" / "parcel"
    assert run(["push", str(model), "me/mine", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "no licence is named" in shown
    assert sorted(os.listdir(out)) == ["README.md", "model.safetensors", "vitrail.json"]
    assert os.listdir(out.parent) == ["parcel"]
    assert load_model(out).labels == load_model(model).labels
    assert run(["push", str(model), "me/mine", "--out", str(out)]) == 2
    assert "exists and is not empty" in capsys.readouterr().err


def test_transformers_layout_where_it_can_hold_the_model(model: Path, tmp_path: Path, capsys: Capture) -> None:
    made = vit(image=(12, 12), patch=(4, 4))
    made.preprocess = Preprocess((12, 12))
    save(made, tmp_path / "square")
    assert run(["push", str(tmp_path / "square"), "me/x", "--format", "huggingface", "--out", str(tmp_path / "hf")]) == 0
    names = ["README.md", "config.json", "model.safetensors", "preprocessor_config.json"]
    assert sorted(os.listdir(tmp_path / "hf")) == names
    text = (tmp_path / "hf" / "README.md").read_text()
    assert 'library_name: "transformers"' in text
    assert "from transformers import pipeline" in text
    save(vit(pool="gap"), tmp_path / "gap")
    assert run(["push", str(tmp_path / "gap"), "me/x", "--format", "huggingface", "--out", str(tmp_path / "no")]) == 2
    assert "format='timm'" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "me/x", "--out", "o"], "does not exist"),
        (["run", "mine", "--out", "o"], "reads hf:owner/name"),
        (["run", "me/x", "--out", "o", "--license", "Apache 2"], "try apache-2.0"),
        (["run", "me/x", "--out", "o", "--private"], "leave one of them out"),
        (["run", "me/x", "--out", "run"], "exists and is not empty"),
        (["run", "me/x", "--out", "o", "--format", "timm"], "'vitrail', 'huggingface'"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], said: str, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(model.parent)
    assert run(["push", *words]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert len(shown.splitlines()) == 1
    assert not Path("o").exists()


@pytest.mark.parametrize("kind", ["closed", "silent"])
def test_without_a_hub_it_is_given_up_soon(kind: str, model: Path, tmp_path: Path) -> None:
    with without_a_hub(kind, tmp_path) as environment:
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
