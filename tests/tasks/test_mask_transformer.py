"""Segmenter's mask transformer, and the linear head of patches: from training to a saved model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.small_models import small_config, small_vit
from tests.tasks.test_segmentation import PANES, SHORT, make_task, train
from tests.training.test_loop import RaisesAt, same
from vitrail.augment.policy import get_policy
from vitrail.data.loader import Batch
from vitrail.errors import VitrailError
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.segmentation_model import LinearSegmenter, MaskTransformerSegmenter
from vitrail.training.load_checkpoint import load_checkpoint
from vitrail.training.trained_run import TrainedRun

SEGMENTER = {"task.head": "segmenter", "task.decoder_depth": 1, "task.decoder_width": 24, "task.decoder_heads": 3}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(tmp_path_factory.mktemp("runs") / "run", settings=SEGMENTER)


def build_segmenter(classes: int = 5) -> MaskTransformerSegmenter:
    torch.manual_seed(0)
    return MaskTransformerSegmenter(small_vit(classes=0), classes, depth=2, width=30, heads=2).eval()


def test_the_logits_follow_the_order_of_the_class_tokens() -> None:
    model, images, order = build_segmenter(), torch.randn(2, 3, 12, 15), torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        logits = model(images)
        model.head.cls.copy_(model.head.cls[order])
        assert_close(model(images), logits[:, order])
    assert not torch.allclose(logits[:, order], logits)


def test_the_logits_of_a_patch_are_normalised_over_the_classes_and_interpolated() -> None:
    model, images = build_segmenter(), torch.randn(2, 3, 12, 15)
    with torch.no_grad():
        logits = model(images)
    corners = logits[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]  # beyond the centres of the outer patches nothing is mixed
    assert_close(corners.mean(1), torch.zeros(2, 4), rtol=0, atol=1e-5)
    assert_close(corners.std(1, correction=0), torch.ones(2, 4), rtol=0, atol=3e-2)
    assert logits.shape == (2, 5, 12, 15)


def test_the_linear_head_of_patches_is_one_layer_and_an_interpolation() -> None:
    encoder = small_vit(classes=0)
    model = LinearSegmenter(encoder, 4, subpatch=False).eval()
    torch.nn.init.normal_(model.head.linear.weight)
    images = torch.randn(2, 3, 12, 15)
    with torch.no_grad():
        tokens = encoder.encode(encoder.embed_patches(images), (2, 3))[:, 1:]
        rows = (tokens @ model.head.linear.weight.T).mT.reshape(2, 4, 2, 3)
        assert_close(model(images), F.interpolate(rows, (12, 15), mode="bilinear"))


@pytest.mark.parametrize("settings", [{"head": "segmenter"}, {"subpatch": False}])
def test_each_patch_of_a_batch_can_be_learned(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    task = make_task(**settings)
    model = task.build_model(small_vit(classes=0)).train()
    patches = torch.randint(0, 3, (4, 2, 3))
    masks = patches.repeat_interleave(6, 1).repeat_interleave(5, 2)
    batch = Batch(torch.randn(4, 3, 12, 15) + masks[:, None], masks.short(), torch.arange(4))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimiser.zero_grad()
        loss, metrics = task.loss(model, batch)
        loss.backward()
        optimiser.step()
    with torch.no_grad():  # at the centre of each patch, where its logits are not mixed with others
        centres = model(batch.images)[:, :, 3::6, 2::5].argmax(1)
    assert metrics["accuracy"] > 0.7
    assert (centres == patches).float().mean() > 0.95


def test_an_interrupted_run_ends_as_the_uninterrupted_one(trained: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        train(tmp_path / "run", settings=SEGMENTER, callbacks=[RaisesAt(5, OSError("broke"))])
    assert same(train(tmp_path / "run", settings=SEGMENTER, workers=2).folder, trained.folder)


def test_a_model_is_saved_with_its_mask_transformer(trained: TrainedRun, tmp_path: Path) -> None:
    model, last = vitrail.load(trained.folder / "last"), load_checkpoint(trained.folder, 12)
    assert isinstance(model, MaskTransformerSegmenter)
    vitrail.save(model, tmp_path / "copy")
    images = torch.randn(2, 3, 24, 32)
    with torch.no_grad():
        logits = model(images)
        assert_close(last(images), logits, rtol=0, atol=0)
        assert_close(vitrail.load(tmp_path / "copy")(images), logits, rtol=0, atol=0)


def test_only_the_mask_transformer_learns_on_frozen_features(trained: TrainedRun, tmp_path: Path) -> None:
    run = vitrail.finetune(
        trained.folder, PANES, trainable="head", settings={**SHORT, **SEGMENTER, "steps": 2}, out=tmp_path / "run", workers=0,
        task="segment",
    )  # fmt: skip
    assert isinstance(run, TrainedRun)
    before, after = (vitrail.load(folder).state_dict() for folder in (trained.folder, run.folder))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "head.cls" in changed
    assert all(name.startswith("head.") for name in changed)


@pytest.mark.parametrize(("settings", "keeps"), [({}, True), ({"task.decoder_heads": 2}, False)])
def test_the_mask_transformer_is_kept_if_it_has_the_same_shape(
    settings: dict[str, Any], keeps: bool, trained: TrainedRun, tmp_path: Path
) -> None:
    options = {**SHORT, **SEGMENTER, **settings, "steps": 1, "columns.masks": True}
    run = vitrail.finetune(trained.folder, PANES, settings=options, out=tmp_path / "run", workers=0)
    assert isinstance(run, TrainedRun)
    assert json.loads((run.folder / "recipe.json").read_text())["keep_head"] == keeps


def test_a_decoder_that_its_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(VitrailError, match=r"task.decoder_depth must be at least 1, got 0"):
        Segmentation(decoder_depth=0)
    task = Segmentation(head="segmenter", decoder_width=31)
    message = "task.decoder_width must be a multiple of its 3 heads, got 31; try task.decoder_width=30"
    with pytest.raises(VitrailError, match=message):
        task.check(small_config(), get_policy("none"))
