"""Segmentation from training to a saved model: losses over the counted pixels, metrics at the images' sizes, exact resume."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.small_models import small_config
from tests.tiers import quick_only
from tests.training.test_loop import RaisesAt, same
from vitrail.data.loader import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import IGNORED
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.config import ViTConfig
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.dense import classes_of_pixels, restored_bands
from vitrail.tasks.pixel_loss import dice_loss
from vitrail.tasks.registry import build_task
from vitrail.tasks.segmentation import SegmentationTask
from vitrail.tasks.segmentation_model import LinearSegmenter
from vitrail.training.load_checkpoint import load_checkpoint
from vitrail.training.trained_run import TrainedRun

PANES = "panes:train_size=60,size=24x32"
SHORT = {"steps": 12, "schedule.warmup_steps": 0, "eval_every": 4, "checkpoint_every": 3, "batch_size": 10}
NAMES = ("sky", "tree", "road")


def train(out: Path, task: str = "segment", settings: dict[str, Any] | None = None, **options: Any) -> TrainedRun:
    run = vitrail.train(
        PANES, task=task, model="mu/8", settings={**SHORT, **(settings or {})}, out=out, **{"workers": 0, **options}
    )
    assert isinstance(run, TrainedRun)
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(tmp_path_factory.mktemp("runs") / "run")


def make_task(preprocess: Preprocess | None = None, **settings: Any) -> SegmentationTask:
    task = build_task(
        Segmentation(classes=3, **settings), small_config(classes=0), preprocess or Preprocess((16, 24), 1.0, "stretch"), NAMES
    )
    assert isinstance(task, SegmentationTask)
    return task


def make_batch(images: int = 4) -> tuple[Tensor, Tensor]:
    """Logits, and masks with ignored pixels, one image of which has none other."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(images, 3, 6, 5, generator=generator)
    masks = torch.randint(0, 3, (images, 6, 5), generator=generator)
    masks[torch.rand(images, 6, 5, generator=generator) < 0.3] = IGNORED
    masks[-1] = IGNORED
    return logits, masks


class Constant(torch.nn.Module):
    """A model whose logits are given."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits[: len(images)]


def loss_of(task: SegmentationTask, logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient for the logits."""
    model = Constant(logits)
    loss, _ = task.loss(model, Batch(torch.zeros(len(logits), 3, 2, 2), masks.short(), torch.arange(len(logits))))
    loss.backward()
    assert model.logits.grad is not None
    return loss.detach(), model.logits.grad


def test_the_loss_is_the_mean_over_the_counted_pixels_of_each_image_and_over_images() -> None:
    logits, masks = make_batch()
    expected = torch.stack(
        [
            F.cross_entropy(logit[:, mask != IGNORED].T, mask[mask != IGNORED]) if (mask != IGNORED).any() else torch.zeros(())
            for logit, mask in zip(logits, masks, strict=True)
        ]
    ).mean()
    loss, gradient = loss_of(make_task(), logits, masks)
    assert_close(loss, expected)
    assert (gradient.movedim(1, -1)[masks == IGNORED] == 0).all()


@pytest.mark.parametrize("settings", [{}, {"loss": "focal"}, {"dice_weight": 0.7}, {"label_smoothing": 0.2}])
def test_a_batch_in_two_parts_has_the_same_gradient(settings: dict[str, Any]) -> None:
    logits, masks = make_batch()
    task = make_task(**settings)
    whole = loss_of(task, logits, masks)[1]
    parts = [loss_of(task, logits[rows], masks[rows])[1] * len(logits[rows]) / 4 for rows in (slice(0, 3), slice(3, 4))]
    assert_close(torch.cat(parts), whole)


def test_the_focal_loss_with_gamma_0_is_the_cross_entropy_and_dice_is_its_formula() -> None:
    logits, masks = make_batch()
    assert_close(loss_of(make_task(loss="focal", focal_gamma=0.0), logits, masks)[0], loss_of(make_task(), logits, masks)[0])
    coefficients = []
    for logit, mask in zip(logits.softmax(1), masks, strict=True):
        for label in range(3):
            predicted, true = logit[label][mask != IGNORED], (mask == label)[mask != IGNORED].float()
            coefficients.append((2 * (predicted * true).sum() + 1) / (predicted.sum() + true.sum() + 1))
    assert_close(dice_loss(logits, masks), 1 - torch.stack(coefficients).mean())


@pytest.mark.parametrize("size", [(16, 24), (37, 53), (7, 9)])
def test_outputs_are_restored_to_the_size_of_the_image_as_torch_interpolates(size: tuple[int, int]) -> None:
    outputs = torch.randn(3, 16, 24)
    restored = torch.cat([band for _, band in restored_bands(outputs, make_task().preprocess, size)], dim=1)
    assert_close(restored, F.interpolate(outputs[None], size, mode="bilinear")[0], rtol=1e-5, atol=1e-5)


def test_the_class_of_a_pixel_is_the_first_with_the_largest_score() -> None:
    scores = torch.randint(0, 3, (2, 5, 7, 4)).float()
    labels = classes_of_pixels(scores)
    assert_close(labels.long(), scores.movedim(1, -1).argmax(-1))
    assert_close(classes_of_pixels(scores[0]), labels[0])


def test_the_margins_of_a_padded_image_are_cut_off() -> None:
    """A 20 x 60 image lies in the middle third of a square input, between rows 8 and 16."""
    outputs = torch.full((2, 24, 24), -1.0)
    outputs[:, 8:16] = torch.arange(24.0)
    preprocess = Preprocess((24, 24), 1.0, "pad")
    restored = torch.cat([band for _, band in restored_bands(outputs, preprocess, (20, 60))], dim=1)
    assert restored[:, 2:-2].min() >= 0
    assert_close(restored[:, 9, 30], torch.full((2,), 11.7), rtol=0, atol=0.21)


def test_the_head_predicts_each_pixel_from_the_token_of_its_patch() -> None:
    config = small_config(classes=0)
    encoder = build(config)
    assert isinstance(encoder, ViT)
    model = LinearSegmenter(encoder, 3).eval()
    torch.nn.init.normal_(model.head.linear.weight)
    images = torch.randn(2, 3, *config.image)
    with torch.no_grad():
        logits = model(images)
        tokens = model.head.norms[0](encoder.encode(encoder.embed_patches(images), encoder.grid(images)))
        rows = model.head.linear(tokens[:, config.prefix_tokens :]).reshape(2, -1, 3, *config.patch_stride)
    assert logits.shape == (2, 3, *config.image)
    columns = encoder.grid(images)[1]
    for patch in (0, 1, columns):
        top, left = (patch // columns) * config.patch_stride[0], (patch % columns) * config.patch_stride[1]
        part = logits[:, :, top : top + config.patch_stride[0], left : left + config.patch_stride[1]]
        assert_close(part, rows[:, patch])


def test_tokens_of_several_blocks_end_with_those_of_the_encoder() -> None:
    config = small_config(classes=0)
    encoder = build(config)
    assert isinstance(encoder, ViT)
    images = torch.randn(2, 3, *config.image)
    grid, patches = encoder.grid(images), encoder.embed_patches(images)
    first, second, last = encoder.encode_layers(patches, grid, (0, 2, config.depth))
    assert_close(encoder.norm(last), encoder.encode(patches, grid))
    assert not torch.equal(first, second)


def test_a_run_reports_its_metrics_at_the_sizes_of_the_images(trained: TrainedRun) -> None:
    result = trained.result["test"]
    assert set(result["iou"]) == {"background", "figure"}
    assert result["miou"] == pytest.approx(np.mean(list(result["iou"].values())))
    data = vitrail.open_dataset(PANES, columns=Columns(masks=True))
    assert data.class_names == ("background", "figure")
    model: Any = vitrail.load(trained.folder)
    confusion = torch.zeros(2, 2)
    for index in range(len(data.test)):
        with torch.no_grad():
            logits = model(vitrail.preprocess(model.encoder, [data.test.read(index)]))[0]
        truth = torch.from_numpy(data.test.mask(index)).long()
        restored = F.interpolate(logits[None], truth.shape, mode="bilinear")[0].argmax(0)
        confusion += torch.stack([((truth == a) & (restored == b)).sum() for a in range(2) for b in range(2)]).reshape(2, 2)
    iou = confusion.diag() / (confusion.sum(0) + confusion.sum(1) - confusion.diag())
    rows = trained.result["classes"]
    assert [row["iou"] for row in rows] == list(result["iou"].values())
    assert [row["pixels"] for row in rows] == confusion.sum(1).int().tolist()
    for name in ("dice", "boundary_iou"):
        assert result[name] == pytest.approx(np.mean([row[name] for row in rows]))
    assert all(row["interval"][0] <= row["iou"] <= row["interval"][1] for row in rows)
    assert rows[1]["recall"] == pytest.approx(float(confusion[1, 1] / confusion[1].sum()), abs=1e-3)
    assert rows[1]["precision"] == pytest.approx(float(confusion[1, 1] / confusion[:, 1].sum().clamp(min=1)), abs=1e-3)
    assert result["iou"]["figure"] == pytest.approx(iou[1].item(), abs=1e-3)
    assert result["pixel_accuracy"] == pytest.approx((confusion.diag().sum() / confusion.sum()).item(), abs=1e-3)


def test_evaluate_reproduces_the_result_of_a_run(trained: TrainedRun) -> None:
    found = vitrail.evaluate(trained.folder, PANES)
    repeated, result = dict(found.details["test"]), dict(trained.result["test"])
    assert repeated.pop("loss") == pytest.approx(result.pop("loss"))
    assert repeated == result
    for row, expected in zip(found.details["classes"], trained.result["classes"], strict=True):
        assert {name: row[name] for name in ("iou", "precision", "pixels")} == {
            name: expected[name] for name in ("iou", "precision", "pixels")
        }


@pytest.mark.parametrize("at", quick_only(range(1, 13), 5, 12))
def test_an_interrupted_run_ends_as_the_uninterrupted_one(at: int, trained: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        train(tmp_path / "run", callbacks=[RaisesAt(at, OSError("broke"))])
    assert same(train(tmp_path / "run", workers=2).folder, trained.folder)


def test_micro_batches_change_nothing_but_the_last_bits(trained: TrainedRun, tmp_path: Path) -> None:
    run = train(tmp_path / "run", settings={"micro_batch_size": 3, "ema_decay": 0.998})
    losses = [[row["loss"] for row in each.history if "loss" in row] for each in (trained, run)]
    assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-3, atol=1e-4)


def test_a_model_is_saved_with_its_head_and_loaded_from_a_checkpoint(trained: TrainedRun) -> None:
    model, last = vitrail.load(trained.folder / "last"), load_checkpoint(trained.folder, 12)
    assert isinstance(model, LinearSegmenter)
    images = torch.randn(2, 3, 24, 32)
    with torch.no_grad():
        assert_close(last(images), model(images), rtol=0, atol=0)
    assert model.encoder.class_names == ("background", "figure")


def test_only_the_head_learns_on_frozen_features(tmp_path: Path, trained: TrainedRun) -> None:
    run = vitrail.finetune(
        trained.folder, PANES, task="segment", trainable="head", settings={**SHORT, "steps": 4}, out=tmp_path / "run", workers=0
    )
    assert isinstance(run, TrainedRun)
    before, after = (vitrail.load(folder).state_dict() for folder in (trained.folder, run.folder))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith("head.") for name in changed)


def test_a_segmentation_model_is_fine_tuned_with_its_head_for_the_same_classes(tmp_path: Path, trained: TrainedRun) -> None:
    def first_row(out: Path, **settings: Any) -> tuple[bool, float]:
        steps = {**SHORT, "steps": 1, "augment.crop": "none", **settings}
        run = vitrail.finetune(trained.folder, PANES, settings=steps, out=out, workers=0)
        assert isinstance(run, TrainedRun)
        kept = json.loads((run.folder / "recipe.json").read_text())["keep_head"]
        return kept, next(row["loss"] for row in run.history if "loss" in row)

    keeps, loss = first_row(tmp_path / "kept", **{"columns.masks": True})
    assert keeps
    assert loss < np.log(2) - 0.01  # a new head starts at the loss of equal probabilities
    keeps, loss = first_row(tmp_path / "new", **{"columns.masks": True, "task.layers": [1]})
    assert not keeps
    assert loss == pytest.approx(np.log(2), abs=1e-3)


def test_class_weights_are_larger_for_rare_classes() -> None:
    data = vitrail.open_dataset(PANES, columns=Columns(masks=True))
    config = replace(small_config(classes=0), image=(24, 32), patch=(8, 8))
    task = build_task(
        Segmentation(classes=2, balanced_loss=True), config, Preprocess((24, 32), 1.0, "stretch"), data.class_names
    ).with_data(data)
    assert isinstance(task, SegmentationTask)
    weights = task.class_weights
    assert weights is not None
    pixels = np.bincount(np.concatenate([data.train.mask(index).ravel() for index in range(len(data.train))]))
    assert_close(float(weights[1] / weights[0]), float(np.sqrt(pixels[0] / pixels[1])), rtol=1e-5, atol=0)
    assert_close(float((weights.numpy() * pixels).sum() / pixels.sum()), 1.0, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_smoothing": 1.5}, "task.label_smoothing must be from 0 to below 1, got 1.5; try task.label_smoothing=0.1"),
        ({"dice_weight": -1.0}, "task.dice_weight must be at least 0"),
        ({"layers": (2, 1)}, "task.layers must be numbers of blocks from 1, in rising order"),
        ({"queries": 0}, "task.queries must be at least 1"),
        ({"head": "conv"}, "task.head|head must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(VitrailError, match=message):
        Segmentation(**settings)


def test_what_cannot_be_segmented_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="fashion has no masks"):
        vitrail.train("fashion", task="segment", out=tmp_path / "a")
    with pytest.raises(
        VitrailError, match=r"task must be classify, regress, segment, detect, multi-label, got 'segmnt'; did you mean"
    ):
        vitrail.train(PANES, task="segmnt", out=tmp_path / "b")
    with pytest.raises(VitrailError, match=r"task.layers must be at most 1"):
        train(tmp_path / "c", settings={"task.layers": [1, 9]})
    config = ViTConfig(width=24, depth=2, mlp=48, heads=3, patch=(8, 8), image=(16, 16), channels=3, classes=0)
    task = build_task(Segmentation(classes=5), config, Preprocess((16, 16), 1.0, "stretch"), NAMES)
    with pytest.raises(VitrailError, match=r"task.classes must be 2"):
        task.with_data(vitrail.open_dataset(PANES, columns=Columns(masks=True)))
