"""``vitrail explain`` from the command line: a page, drawings, numbers; and a sentence for every mistake."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.small import vit
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.explain.maps import METHODS, saliency
from vitrail.models.build import build
from vitrail.models.variants import variant
from vitrail.weights.checkpoint import save
from vitrail.weights.load import load

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    model = vit()
    model.preprocess, model.labels = Preprocess((12, 15)), ("ant", "bee", "cow", "<dog>", "elk")
    save(model, "mine")
    pixels = np.random.default_rng(0).integers(0, 255, (2, 24, 30, 3)).astype(np.uint8)
    for name, values in zip(("a b.png", "c.png"), pixels, strict=True):
        Image.fromarray(values).save(name)


def test_a_page_with_every_method_and_its_numbers(capsys: Capture) -> None:
    assert run(["explain", "mine", "a b.png", "c.png", "--out", "seen", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["file"] for one in told["pictures"]] == ["a b.png", "c.png"]
    assert set(told["pictures"][0]["maps"]) == set(METHODS)
    assert all(Path("seen", name).is_file() for name in told["files"])
    assert told["files"][-1] == "index.html"
    assert {"positions.png", "filters.png", "distance.svg", "00-a_b-heads.png", "01-c.npz"} <= set(told["files"])
    with np.load("seen/01-c.npz", allow_pickle=False) as numbers:
        assert np.allclose(numbers["rollout"], told["pictures"][1]["maps"]["rollout"])
        assert numbers["heads"].shape == (4, 3, 2, 3)
        assert numbers["lens"].shape == (5, 5)
    page = Path("seen/index.html").read_text()
    assert "<dog>" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_the_maps_are_those_of_the_class_that_is_asked_for(capsys: Capture) -> None:
    model = load("mine")
    for name, number in (("cow", 2), ("4", 4)):
        assert run(["explain", "mine", "c.png", "--class", name, "--method", "relevance", "--out", "seen", "--json"]) == 0
        (one,) = json.loads(capsys.readouterr().out)["pictures"]
        with np.load("seen/00-c.npz") as numbers:
            assert numbers["target"] == number
        from vitrail.data.prepare import prepare

        assert model.preprocess is not None
        image = prepare(Image.open("c.png"), model.preprocess)[None]
        expected = saliency(model, image, "relevance", torch.tensor([number]))[0]
        assert np.allclose(one["maps"]["relevance"], expected.numpy(), atol=1e-6)
        assert set(one["maps"]) == {"relevance"}


def test_trust_is_a_table_with_baselines(capsys: Capture) -> None:
    assert run(["explain", "mine", "--trust", "panes:count=40,size=16", "--limit", "3", "--method", "rollout"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("random", "edges", "rollout", "deletion", "pointing", "page: explained"))
    assert "Which map to trust" in Path("explained/index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mine"], "to explain takes pictures, got none; name files or a folder, or measure with --trust DATA"),
        (["mine", "nowhere.png"], "the picture nowhere.png cannot be read"),
        (["mine", "c.png", "--method", "rolout"], "--method 'rolout' is none"),
        (["mine", "c.png", "--class", "cat"], "the model has no class 'cat'"),
        (["mine", "c.png", "--class", "5"], "the model has no class '5'"),
        (["mine", "c.png", "--out", "c.png"], "--out must be a folder, got the file c.png"),
        (["yours", "c.png"], "yours"),
        (["convolves", "c.png"], "a ResNet has no attention to look at"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(arguments: list[str], sentence: str, capsys: Capture) -> None:
    resnet = build(variant("R50x1", image=32, classes=3))
    resnet.preprocess = Preprocess((32, 32))
    save(resnet, "convolves")
    assert run(["explain", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") <= 2
