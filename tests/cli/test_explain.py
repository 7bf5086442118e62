"""``vitrail explain`` from the command line: a page, figures, numbers; and a sentence for every mistake."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.preprocess_image import preprocess_image
from tests.small_detector import random_detector
from tests.small_models import small_vit
from tests.tasks.test_own_task import Brightness
from tests.tiers import quick_first
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.explain.attention import attention
from vitrail.explain.saliency import SALIENCY_METHODS, saliency
from vitrail.inference.predict import predict
from vitrail.models.build import build
from vitrail.models.variants import variant
from vitrail.weights.load import load
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]
PER_IMAGE = ("patches", "heads", "lens", "norms", "lengths")  # figures of every image, besides the saliency maps


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    model = small_vit()
    model.preprocess, model.class_names = Preprocess((12, 15)), ("ant", "bee", "cow", "<dog>", "elk")
    save(model, "mine")
    pixels = np.random.default_rng(0).integers(0, 255, (2, 24, 30, 3)).astype(np.uint8)
    for name, values in zip(("a b.png", "c.png"), pixels, strict=True):
        Image.fromarray(values).save(name)


def test_a_page_with_every_method_and_its_numbers(capsys: Capture) -> None:
    assert run(["explain", "mine", "a b.png", "c.png", "--out", "page", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["file"] for one in answer["images"]] == ["a b.png", "c.png"]
    assert set(answer["images"][0]["maps"]) == set(SALIENCY_METHODS)
    assert all(Path("page", name).is_file() for name in answer["files"])
    assert answer["files"][-1] == "index.html"
    drawings = {
        "positions",
        "filters",
        "distance",
        "entropy",
        "similarity",
        *(f"00-a_b-{name}" for name in (*SALIENCY_METHODS, *PER_IMAGE)),
    }
    assert {f"{name}.{ending}" for name in drawings for ending in ("png", "svg")} <= set(answer["files"])
    with np.load("page/01-c.npz", allow_pickle=False) as numbers:
        assert np.allclose(numbers["rollout"], answer["images"][1]["maps"]["rollout"])
        assert np.allclose(numbers["norms"], answer["images"][1]["token_norms"])
        assert numbers["heads"].shape == (1, 4, 3, 7)
        assert numbers["queries"].tolist() == ["pool"]
        assert numbers["lens"].shape == (5, 5)
    with np.load("page/model.npz", allow_pickle=False) as numbers:
        assert numbers["positions"].shape == (2, 3, 2, 3)
        for name in ("distance", "renormalised", "entropy", "similarity"):
            assert np.allclose(numbers[name], answer["heads"][name])
    page = Path("page/index.html").read_text()
    assert page.count("<svg ") == 5 + 2 * len((*SALIENCY_METHODS, *PER_IMAGE))  # every drawing is also in the page
    assert "<dog>" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_attention_of_the_requested_layers_heads_and_queries_only(capsys: Capture) -> None:
    options = ["--layers", "2,-1", "--heads", "0-1", "--query", "1,2", "--query", "class", "--method", "none"]
    assert run(["explain", "mine", "c.png", "--out", "page", "--json", *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["images"][0]["maps"] == {}
    assert {"00-c-heads-1-2.png", "00-c-heads-class.svg"} <= set(answer["files"])
    model = load("mine")
    assert model.preprocess is not None
    image = preprocess_image(Image.open("c.png"), model.preprocess)[None]
    expected = attention(model, image, [2, 3], [0, 1], [6, 0])[:, 0].numpy()
    with np.load("page/00-c.npz", allow_pickle=False) as numbers:
        assert numbers["queries"].tolist() == ["1,2", "class"]
        assert numbers["layers"].tolist() == [2, 3]
        assert numbers["head_numbers"].tolist() == [0, 1]
        assert np.allclose(numbers["heads"], expected.transpose(2, 0, 1, 3), atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    quick_first(
        [
            {"pool": "map", "registers": 2},
            {"pool": "gap"},
            {"registers": 2, "position": "rotary"},
            {"norm": "post", "position": "none"},
            {"position": "relative", "channels": 1},
        ]
    ),
    ids=str,
)
def test_every_kind_of_model_has_a_page(changes: dict[str, Any], capsys: Capture) -> None:
    model = small_vit(**changes)
    channels = changes.get("channels", 3)
    model.preprocess = Preprocess((12, 15), mean=(0.5,) * channels, std=(0.5,) * channels)
    save(model, "other")
    token = ["--query", "register1", "--query", "1,0"] if "registers" in changes else []
    assert run(["explain", "other", "c.png", "--out", "page", "--json", *token]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert ("positions.svg" in answer["files"]) == (changes.get("position") != "none")
    if token:
        with np.load("page/00-c.npz") as numbers:
            assert np.allclose(numbers["heads"].sum(-1), 1)


def test_probabilities_are_those_of_predict_also_after_the_sigmoid_loss(capsys: Capture) -> None:
    model = load("mine")
    model.metadata = {"recipe": {"task": {"kind": "classification", "loss": "sigmoid"}}}
    save(model, "sigmoid")
    reloaded = load("sigmoid")
    (expected,) = predict(reloaded, ["c.png"])
    assert run(["explain", "sigmoid", "c.png", "--method", "rollout", "--out", "page", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["images"]
    assert one["label"] == expected.label
    assert one["probability"] == pytest.approx(expected.probability, abs=1e-6)
    assert one["logit_lens"][-1] == pytest.approx(expected.probability, abs=1e-6)


def test_the_maps_are_those_of_the_requested_class(capsys: Capture) -> None:
    model = load("mine")
    for name, number in (("cow", 2), ("4", 4)):
        assert run(["explain", "mine", "c.png", "--class", name, "--method", "relevance", "--out", "page", "--json"]) == 0
        (one,) = json.loads(capsys.readouterr().out)["images"]
        with np.load("page/00-c.npz") as numbers:
            assert numbers["target"] == number
        assert model.preprocess is not None
        image = preprocess_image(Image.open("c.png"), model.preprocess)[None]
        expected = saliency(model, image, "relevance", torch.tensor([number]))[0]
        assert np.allclose(one["maps"]["relevance"], expected.numpy(), atol=1e-6)
        assert set(one["maps"]) == {"relevance"}


def test_faithfulness_is_a_table_with_baselines(capsys: Capture) -> None:
    assert run(["explain", "mine", "--faithfulness", "panes:train_size=40,size=16", "--limit", "3", "--method", "rollout"]) == 0
    output = capsys.readouterr().out
    assert all(word in output for word in ("random", "edges", "rollout", "deletion", "pointing", "page: explained"))
    assert "3 images are too few for a verdict" in output
    page = Path("explained/index.html").read_text()
    assert "Faithfulness of the saliency methods" in page
    assert "Deletion: most salient patches first" in page
    assert Path("explained/insertion.svg").is_file()


def test_faithfulness_takes_data_of_other_channels_and_prints_json(capsys: Capture) -> None:
    assert run(["explain", "mine", "c.png", "--faithfulness", "fashion", "--limit", "2", "--method", "rollout", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["faithfulness"]
    assert [row["method"] for row in rows] == ["random", "edges", "rollout"]
    assert all(row["pointing_game"] is None and len(row["deletion_curve"]) == 17 for row in rows)


def test_small_thin_and_grey_images_have_a_page_too(capsys: Capture) -> None:
    Image.new("L", (1, 1), 7).save("one.png")
    Image.new("RGB", (1, 900), (7, 8, 9)).save("thin.png")
    Image.new("LA", (40, 20)).save("grey.png")
    assert run(["explain", "mine", "one.png", "thin.png", "grey.png", "--method", "relevance"]) == 0
    assert capsys.readouterr().out.count(".png") == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mine"], "explain needs images, got none; name files or a folder, or use --faithfulness DATA"),
        (["mine", "nowhere.png"], "the image nowhere.png cannot be read"),
        (["mine", "notes.txt"], "the image notes.txt cannot be decoded"),
        (["mine", "c.png", "half.png"], "the image half.png cannot be decoded"),
        (["mine", "bare"], "there is no image in bare; name files, or a folder of images"),
        (["mine", "many"], "a page shows at most 50 images, got 51"),
        (["mine", "c.png", "--method", "rolout"], "--method must be attention, rollout, gradient_rollout"),
        (["mine", "c.png", "--layers", "1,4"], "--layers must be indices from 0 to 3"),
        (["mine", "c.png", "--layers", "3-1"], "--layers must be indices from 0 to 3"),
        (["mine", "c.png", "--heads", "all"], "--heads must be indices from 0 to 2"),
        (["mine", "c.png", "--query", "2,0"], "from 0,0 to 1,2, or class; got '2,0', try 1,1"),
        (["mine", "c.png", "--query", "register0"], "a query must be ROW,COLUMN of a patch"),
        (["mine", "c.png", "--out", "c.png/deep"], "--out must be a folder that can be written, got c.png/deep"),
        (["mine", "c.png", "--faithfulness", "nowhere"], "there is no 'nowhere'"),
        (["mine", "--faithfulness", "panes", "--limit", "0"], "--limit"),
        (["mine", "c.png", "--class", "cat"], "the model has no class 'cat'"),
        (["mine", "c.png", "--class", "5"], "the model has no class '5'"),
        (["mine", "c.png", "--out", "c.png"], "--out must be a folder, got the file c.png"),
        (["yours", "c.png"], "yours"),
        (["convolves", "c.png"], "a ResNet has no attention"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, capsys: Capture) -> None:
    if "convolves" in arguments:
        resnet = build(variant("R50x1", image=32, classes=3, stages=(1,)))
        resnet.preprocess = Preprocess((32, 32))
        save(resnet, "convolves")
    Path("notes.txt").write_text("no image")
    Path("half.png").write_bytes(Path("c.png").read_bytes()[:500])
    Path("bare").mkdir()
    Path("many").mkdir()
    for number in range(51):
        Path(f"many/{number}.png").symlink_to(Path("c.png").resolve())
    assert run(["explain", *arguments]) == 2
    output = capsys.readouterr().err
    assert sentence in output
    assert output.count("\n") == 1
    assert not Path("explained").exists()


def test_a_model_without_a_head_shows_its_attention(capsys: Capture) -> None:
    """Self-supervised encoders have no head."""
    encoder = small_vit(classes=0)
    encoder.preprocess = Preprocess((12, 15))
    save(encoder, "encoder")
    assert run(["explain", "encoder", "c.png", "--out", "page", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (one,) = answer["images"]
    assert set(one["maps"]) == {"attention", "rollout"}
    assert one["label"] is one["explained"] is one["logit_lens"] is None
    with np.load("page/00-c.npz", allow_pickle=False) as numbers:
        assert numbers["outputs"].shape == (0,)
        assert numbers["target"] == -1
    page = Path("page/index.html").read_text()
    assert "The model has no head" in page
    assert "Logit lens" not in page
    assert run(["explain", "encoder", "c.png", "--out", "page"]) == 0
    capsys.readouterr()
    for words, output in ((["--method", "relevance"], "needs a class"), (["--class", "ant"], "has no classes")):
        assert run(["explain", "encoder", "c.png", *words]) == 2
        assert output in capsys.readouterr().err


@pytest.mark.parametrize("outputs", [1, 7])
def test_a_model_for_another_task_shows_its_outputs(outputs: int, capsys: Capture) -> None:
    torch.manual_seed(1)
    model = small_vit(classes=outputs)
    model.head = torch.nn.Linear(24, outputs)
    model.preprocess, model.metadata = Preprocess((12, 15)), {"recipe": {"task": {"kind": Brightness().kind}}}
    save(model, "levels", metadata=model.metadata)
    image = preprocess_image(Image.open("c.png"), model.preprocess)[None]
    with torch.no_grad():
        expected = model.eval()(image)[0]
    target = int(expected.argmax())
    assert run(["explain", "levels", "c.png", "--out", "page", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["images"]
    assert one["outputs"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert (one["label"], one["probability"], one["explained"]) == (None, None, str(target))
    assert one["logit_lens"][-1] == pytest.approx(expected[target].item(), abs=1e-5)
    relevance = saliency(model, image, "relevance", torch.tensor([target]))[0].detach()
    assert np.allclose(one["maps"]["relevance"], relevance.numpy(), atol=1e-5)
    page = Path("page/index.html").read_text()
    assert f"{target}: {expected[target]:.4g}" in page
    assert "Outputs by layer" in page
    assert f"The output-specific maps explain <b>output {target}</b>" in page
    with np.load("page/00-c.npz", allow_pickle=False) as numbers:
        assert np.allclose(numbers["outputs"], expected.numpy(), atol=1e-5)
        assert "probabilities" not in numbers
    assert run(["explain", "levels", "c.png", "--out", "page", "--method", "rollout", "--class", "0"]) == 0
    assert "explained output" in capsys.readouterr().out
    assert run(["explain", "levels", "c.png", "--out", "page", "--class", "9"]) == 2
    assert "the model has no output '9'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_segmentation_model_explains_a_pixel(capsys: Capture) -> None:
    options = [
        "--model",
        "mu/8",
        "--set",
        "steps=6",
        "--set",
        "schedule.warmup_steps=0",
        "--set",
        "batch_size=10",
        "--workers",
        "0",
    ]
    assert run(["train", "panes:train_size=30,size=24x32", "--task", "segment", "--out", "seg", *options]) == 0
    capsys.readouterr()
    assert run(["explain", "seg", "c.png", "--pixel", "20,7", "--class", "figure", "--out", "page", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (image,) = answer["images"]
    assert image["explained"] == "figure"
    assert image["region"] == {"pixel": [20, 7], "box": None, "pixels": 1, "size": [30, 24]}
    assert set(image["curves"]) == {"random", "edges", *SALIENCY_METHODS}
    assert {"00-c-region.png", "00-c-deletion.svg", "00-c-context.png"} <= set(answer["files"])
    page = Path("page/index.html").read_text()
    assert "Prediction for the pixel at column 20, row 7" in page
    assert (
        run(["explain", "seg", "--faithfulness", "panes:train_size=30,size=24x32", "--limit", "3", "--method", "rollout"]) == 0
    )
    assert "insertion" in capsys.readouterr().out


def test_a_detection_model_explains_a_box(capsys: Capture) -> None:
    save(random_detector(), Path("boxes"))
    assert run(["predict", "boxes", "c.png", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    expected = found["boxes"][2]
    assert run(["explain", "boxes", "c.png", "--box", "2", "--method", "gradcam", "--out", "page", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (image,) = answer["images"]
    assert image["detection"] == {
        "index": 2,
        "label": expected["label"],
        "score": pytest.approx(expected["score"]),
        "box": pytest.approx(expected["box"]),
        "size": [30, 24],
    }
    assert (image["explained"], set(image["curves"])) == (expected["label"], {"random", "edges", "gradcam"})
    assert {"00-c-region.png", "00-c-deletion.svg", "00-c-gradcam.png"} <= set(answer["files"])
    page = Path("page/index.html").read_text()
    assert f"Prediction for detection 2 ({expected['label']}, columns " in page
    assert "Attention heads, query: the patch at the centre of the box" in page
    assert run(["explain", "boxes", "c.png", "--box", "best", "--class", "star", "--method", "rollout", "--out", "page"]) == 0
    assert "star" in capsys.readouterr().out
    assert run(["explain", "boxes", "c.png", "--box", "30,0"]) == 2
    assert "--box must lie in the image, which is 30x24, got 30,0; try --box best" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--box", "first"], "--box must be the index of a detection, best, or X,Y in pixels, got 'first'; try --box 0"),
        (["--box", "1"], "boxes are explained of detection models"),
        (["--pixel", "3"], "--pixel must be X,Y in pixels, got '3'; try --pixel 16,12"),
        (["--region", "1,2,3"], "--region must be X,Y,W,H in pixels, got '1,2,3'; try --region 16,12,40,30"),
        (["--pixel", "3,4", "--region", "1,2,3,4"], "--pixel and --region both say what is explained"),
        (["--pixel", "3,4"], "pixels are explained of segmentation models"),
    ],
)
def test_pixels_and_boxes_that_are_none(options: list[str], sentence: str, capsys: Capture) -> None:
    assert run(["explain", "mine", "c.png", *options]) == 2
    assert sentence in capsys.readouterr().err
