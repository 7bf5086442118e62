"""Equal classes and boxes of every query to transformers' YOLOS with the same random weights, at several image sizes, in both
directions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vitrail
from tests.reference_libraries import randomise_sharply, reference_library
from tests.small_models import small_config
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.recipes.task_config import Detection
from vitrail.tasks.detection_queries import QueryDetector
from vitrail.tasks.registry import build_task, model_task
from vitrail.weights.load import load

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": [24, 40],
    "patch_size": 8,
    "num_detection_tokens": 7,
    "num_labels": 5,
}
CASES: dict[str, dict[str, Any]] = {
    "tiny": {"use_mid_position_embeddings": False},
    "positions before every block": {"layer_norm_eps": 1e-3},
    "tanh, no biases": {"hidden_act": "gelu_new", "qkv_bias": False},
}


def their_model(**changes: Any) -> Any:
    transformers: Any = reference_library("transformers")
    model: nn.Module = transformers.YolosForObjectDetection(transformers.YolosConfig(**{**SMALL, **changes}))
    randomise_sharply(model)
    for name, weight in model.named_parameters():
        if "position_embeddings" in name:
            nn.init.normal_(weight)
    return model


def assert_equal_predictions(theirs: Any, ours: QueryDetector) -> None:
    images = torch.randn(2, 3, *ours.config.image)
    with torch.no_grad():
        expected, found, outputs = theirs(images), ours.predict(images), ours(images)
    for given, wanted in ((found.classes, expected.logits), (found.boxes, expected.pred_boxes)):
        assert_close(given, wanted, rtol=1e-5, atol=1e-5 * max(wanted.abs().max().item(), 1))
    x, y, width, height = expected.pred_boxes.unbind(-1)
    corners = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], dim=1)
    pixels = corners * torch.tensor([images.shape[3], images.shape[2]]).repeat(2)[:, None]
    assert_close(outputs, torch.cat([expected.logits.mT, pixels], dim=1)[..., None], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_predictions_of_a_model_of_transformers_are_equal_at_every_size(case: str, tmp_path: Path) -> None:
    theirs = their_model(**CASES[case])
    theirs.save_pretrained(tmp_path)
    for size in ((24, 40), (40, 24), (16, 56)):
        ours: Any = load(tmp_path, image=size)
        assert isinstance(ours, QueryDetector)
        assert ours.config.image == size
        assert_equal_predictions(theirs, ours)
    task: Detection = model_task(ours.encoder).config
    assert (task.head, task.queries, task.query_blocks, task.classes) == ("queries", 7, 3, 5)
    assert ours.encoder.class_names == tuple(f"LABEL_{index}" for index in range(5))


def test_names_before_transformers_5_are_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    theirs = their_model()
    theirs.save_pretrained(tmp_path)
    state = {name.replace("encoder.interpolation.", "encoder."): tensor for name, tensor in theirs.state_dict().items()}
    assert "vit.encoder.mid_position_embeddings" in state
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert_equal_predictions(theirs, load(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_model_is_written_back(case: str, tmp_path: Path) -> None:
    transformers: Any = reference_library("transformers")
    theirs = their_model(**CASES[case])
    theirs.config.id2label = {index: f"class {index}" for index in range(5)}
    theirs.save_pretrained(tmp_path / "theirs")
    ours: Any = load(tmp_path / "theirs")
    vitrail.save(ours, tmp_path / "ours", format="huggingface")
    again, report = transformers.YolosForObjectDetection.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert_equal_predictions(again.eval(), ours)
    assert again.config.id2label == theirs.config.id2label
    vitrail.save(ours, tmp_path / "folder")
    assert_equal_predictions(theirs, vitrail.load(tmp_path / "folder"))  # type: ignore[arg-type]


def own_model(query_blocks: int = 3, fit: Any = "stretch", **changes: Any) -> QueryDetector:
    config = small_config(**{"classes": 0, "depth": 3, "gelu": "exact", "image": (24, 40), "patch": (8, 8), **changes})
    preprocess = Preprocess(config.image, 1.0, fit, "bilinear")
    settings = Detection(classes=3, head="queries", queries=7, query_blocks=query_blocks, query_positions=True)
    task = build_task(settings, config, preprocess, ("car", "bus", "van"))
    encoder: Any = build(config)
    encoder.preprocess, encoder.class_names = preprocess, task.class_names
    model = task.build_model(encoder)
    assert isinstance(model, QueryDetector)
    randomise_sharply(model)
    return model


@pytest.mark.parametrize(
    "changes",
    [{}, {"position": "sincos2d", "fit": "pad"}, {"position_at": "every-layer", "position_prefix": "none"}],
    ids=str,
)
def test_a_model_of_ours_is_written_for_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    transformers: Any = reference_library("transformers")
    model = own_model(**changes)
    vitrail.save(model, tmp_path, format="huggingface")
    theirs = transformers.YolosForObjectDetection.from_pretrained(tmp_path).eval()
    assert_equal_predictions(theirs, model)
    again: Any = load(tmp_path)
    assert again.encoder.class_names == ("car", "bus", "van")
    assert again.encoder.preprocess == model.encoder.preprocess
    processor = transformers.YolosImageProcessor.from_pretrained(tmp_path)
    assert processor.image_mean == pytest.approx([0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_blocks": 2}, "queries in the last blocks only; train with task.query_blocks=3"),
        ({"class_token": False, "pool": "gap"}, "a YOLOS without a class token"),
        ({"window": 2}, "attention in windows"),
        ({"position": "rotary"}, "position embeddings of type rotary"),
        ({"gelu": "quick"}, "QuickGELU"),
        ({"fit": "crop"}, "images that are cropped"),
    ],
    ids=str,
)
def test_what_yolos_lacks_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=message):
        vitrail.save(own_model(**changes), tmp_path / "model", format="huggingface")


def test_the_preprocessing_is_read(tmp_path: Path) -> None:
    transformers: Any = reference_library("transformers")
    their_model().save_pretrained(tmp_path)
    for size, fit in (({"shortest_edge": 24, "longest_edge": 40}, "pad"), ({"height": 24, "width": 40}, "stretch")):
        transformers.YolosImageProcessor(size=size).save_pretrained(tmp_path)
        model = load(tmp_path)
        preprocess = model.preprocess
        assert preprocess is not None
        assert (preprocess.fit, preprocess.interpolation, preprocess.image_size) == (fit, "bilinear", (24, 40))
        assert preprocess.mean == pytest.approx((0.485, 0.456, 0.406))
        assert any("padded to the input" in item for item in model.load_report.assumed) == (fit == "pad")


def test_without_its_heads_the_encoder_is_read_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    theirs = their_model(use_mid_position_embeddings=False)
    theirs.vit.save_pretrained(tmp_path)
    encoder: Any = load(tmp_path)
    images = torch.randn(2, 3, 24, 40)
    with torch.no_grad():
        expected = theirs.vit(images).last_hidden_state[:, 0]
        assert_close(encoder.features(images), expected, rtol=1e-5, atol=1e-5)
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"image_size": [24, 48]}))
    with pytest.raises(
        VitrailError, match=r"image_size in config\.json does not fit the positions, which are those of 15 patches"
    ):
        load(tmp_path)
