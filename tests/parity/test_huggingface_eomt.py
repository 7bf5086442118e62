"""Equal predictions of every query to transformers' EoMT with the same random weights, in both directions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.reference_libraries import randomise_sharply, reference_library
from tests.small_models import small_config
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.registry import build_task, model_task
from vitrail.tasks.segmentation_eomt import EoMT
from vitrail.weights.load import load

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "image_size": 32,
    "patch_size": 8,
    "num_queries": 7,
    "num_labels": 5,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "DINOv2": ("Eomt", {"mlp_ratio": 2, "num_blocks": 2}),
    "SwiGLU": ("Eomt", {"mlp_ratio": 4, "num_blocks": 4, "use_swiglu_ffn": True, "num_upscale_blocks": 1}),
    "no registers": ("Eomt", {"mlp_ratio": 2, "num_blocks": 1, "num_register_tokens": 0, "layer_norm_eps": 1e-3}),
    "DINOv3": ("EomtDinov3", {"intermediate_size": 40, "num_blocks": 2}),
}


def their_model(kind: str, settings: dict[str, Any]) -> nn.Module:
    transformers: Any = reference_library("transformers")
    config = getattr(transformers, f"{kind}Config")(**SMALL, **settings)
    model: Any = randomise_sharply(getattr(transformers, f"{kind}ForUniversalSegmentation")(config))
    model.attn_mask_probs.zero_()  # as after the training
    return model


def assert_equal_predictions(theirs: Any, ours: EoMT) -> None:
    images = torch.randn(2, 3, *ours.config.image)
    with torch.no_grad():
        expected, logits, semantic = theirs(images), ours.query_logits(images), ours(images)
    for given, wanted in ((logits.classes, expected.class_queries_logits), (logits.masks, expected.masks_queries_logits)):
        assert_close(given, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item())
    masks = F.interpolate(expected.masks_queries_logits, ours.config.image, mode="bilinear").sigmoid()
    scores = torch.einsum("bqk,bqhw->bkhw", expected.class_queries_logits.softmax(-1)[..., :-1], masks)
    assert_close(semantic.exp(), scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "settings"), CASES.values(), ids=CASES)
def test_predictions_of_a_model_of_transformers_are_equal(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    theirs: Any = their_model(kind, settings)
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert isinstance(ours, EoMT)
    assert ours.encoder.class_names == tuple(f"LABEL_{index}" for index in range(5))
    assert_equal_predictions(theirs, ours)
    assert model_task(ours.encoder).config.num_queries == 7


@pytest.mark.parametrize("case", ["DINOv2", "SwiGLU", "no registers"])
def test_a_loaded_model_is_written_back_with_the_same_tensors(case: str, tmp_path: Path) -> None:
    transformers: Any = reference_library("transformers")
    theirs: Any = their_model(*CASES[case])
    theirs.config.id2label = {index: f"class {index}" for index in range(5)}
    theirs.save_pretrained(tmp_path / "theirs")
    ours: Any = load(tmp_path / "theirs")
    vitrail.save(ours, tmp_path / "ours", format="huggingface")
    again, report = transformers.EomtForUniversalSegmentation.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    state = again.state_dict()
    for name, tensor in theirs.state_dict().items():
        assert_close(state[name], tensor, rtol=0, atol=0, msg=name)
    assert again.config.id2label == theirs.config.id2label
    vitrail.save(ours, tmp_path / "folder")
    assert_equal_predictions(theirs, vitrail.load(tmp_path / "folder"))  # type: ignore[arg-type]


def own_model(**changes: Any) -> EoMT:
    config = small_config(
        **{"classes": 0, "gelu": "exact", "image": (24, 24), "patch": (8, 8), "mlp": 48, "width": 24, **changes}
    )
    preprocess = Preprocess(config.image, 1.0, "stretch", "bilinear")
    task = build_task(Segmentation(classes=3, head="eomt"), config, preprocess, ("sky", "tree", "road"))
    encoder = build(config)
    encoder.preprocess, encoder.class_names = preprocess, task.class_names
    model = task.build_model(encoder)
    assert isinstance(model, EoMT)
    randomise_sharply(model)
    return model


@pytest.mark.parametrize(
    "changes",
    [{}, {"registers": 2, "position_prefix": "all"}, {"position": "sincos2d"}, {"layer_scale": 0.5, "position_prefix": "none"}],
)
def test_a_model_of_ours_is_written_for_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    transformers: Any = reference_library("transformers")
    model = own_model(**changes)
    vitrail.save(model, tmp_path, format="huggingface")
    theirs = transformers.EomtForUniversalSegmentation.from_pretrained(tmp_path).eval()
    assert_equal_predictions(theirs, model)
    again: Any = load(tmp_path)
    assert again.encoder.class_names == ("sky", "tree", "road")
    assert again.encoder.preprocess == model.encoder.preprocess


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_token": False, "pool": "gap"}, "an EoMT without a class token"),
        ({"image": (24, 32)}, "not square"),
        ({"mlp": 40}, "an EoMT whose MLP has 40 hidden channels"),
        ({"gelu": "tanh"}, "another GELU"),
    ],
)
def test_what_transformers_lacks_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=message):
        vitrail.save(own_model(**changes), tmp_path / "model", format="huggingface")


def test_masks_that_are_not_annealed_and_damaged_files_are_said(tmp_path: Path) -> None:
    theirs: Any = their_model(*CASES["DINOv2"])
    theirs.attn_mask_probs.fill_(1.0)
    theirs.save_pretrained(tmp_path)
    assert any("attend to all patches" in item for item in load(tmp_path).load_report.assumed)
    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    for change, message in (
        ({"num_blocks": 9}, "num_blocks in config.json must be from 1 to 4, got 9"),
        ({"hidden_act": "relu"}, "hidden_act in config.json must be 'gelu', got 'relu'"),
    ):
        file.write_text(json.dumps(content | change))
        with pytest.raises(VitrailError, match=message):
            load(tmp_path)


def test_the_preprocessing_is_read(tmp_path: Path) -> None:
    transformers: Any = reference_library("transformers")
    their_model(*CASES["DINOv2"]).save_pretrained(tmp_path)  # type: ignore[operator]
    for do_pad, fit in ((True, "pad"), (False, "stretch")):
        size = {"shortest_edge": 32, "longest_edge": 32}
        transformers.EomtImageProcessor(size=size, do_pad=do_pad).save_pretrained(tmp_path)
        preprocess = load(tmp_path).preprocess
        assert preprocess is not None
        assert (preprocess.fit, preprocess.interpolation) == (fit, "bilinear")
        assert preprocess.mean == pytest.approx((0.485, 0.456, 0.406))
