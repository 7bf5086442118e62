"""Detection by queries: the set loss against brute force and by hand, what the outputs mean, and runs to an exported file."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import vitrail
from tests.exporters.small import random_images
from tests.reference_libraries import randomise_weights
from tests.small_models import small_config
from tests.tiers import quick_only
from tests.training.test_loop import RaisesAt, same
from vitrail.augment.policy import Policy
from vitrail.data.loader import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.exporters.onnx import write_onnx
from vitrail.exporters.torch_export import write_program
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.build import build
from vitrail.models.config import ViTConfig
from vitrail.recipes.task_config import Detection
from vitrail.tasks.box_loss import generalised_iou
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.detection_queries import QueryDetector, decode_queries, to_centres, to_edges
from vitrail.tasks.registry import build_task, model_task
from vitrail.tasks.set_loss import match_boxes, set_losses
from vitrail.training.load_checkpoint import load_checkpoint
from vitrail.training.trained_run import TrainedRun

SIZE = (24, 40)
PANES = "panes:train_size=60,size=24x32"
SHORT: dict[str, Any] = {"steps": 8, "schedule.warmup_steps": 0, "eval_every": 4, "checkpoint_every": 3, "batch_size": 10}
QUERIES = {"task.head": "queries", "task.queries": 9}


def build_detector(config: ViTConfig | None = None, **settings: Any) -> tuple[DetectionTask, QueryDetector]:
    config = config or small_config(classes=0, depth=3, image=SIZE, patch=(8, 8))
    task = build_task(
        Detection(**{"classes": 3, "head": "queries", "queries": 7, **settings}),
        config,
        Preprocess(config.image, 1.0, "stretch"),
        ("ant", "bee", "cat"),
    )
    model = task.build_model(build(config))
    assert isinstance(task, DetectionTask)
    assert isinstance(model, QueryDetector)
    randomise_weights(model)
    return task, model


def random_boxes(count: int) -> Tensor:
    """Return boxes inside of the input, in pixels."""
    centres, sides = torch.rand(count, 2) * 0.6 + 0.2, torch.rand(count, 2) * 0.3 + 0.05
    return to_edges(torch.cat([centres, sides], dim=1)) * torch.tensor([SIZE[1], SIZE[0]]).repeat(2)


def objects_of(boxes: Tensor, labels: list[int], crowd: list[int] | None = None) -> Tensor:
    columns = [torch.tensor(labels), torch.tensor(crowd or [0] * len(labels))]
    return torch.cat([boxes, torch.stack(columns, dim=1).float()], dim=1)


def output_of(logits: Tensor, boxes: Tensor) -> Tensor:
    return torch.cat([logits, boxes], dim=1).mT[..., None]


def pair_cost(box: Tensor, target: Tensor) -> Tensor:
    """Compute 5 L1 + 2 (1 - GIoU), with centres and sides as fractions."""
    scale = torch.tensor([SIZE[1], SIZE[0]]).repeat(2)
    distance = (to_centres(box / scale) - to_centres(target / scale)).abs().sum()
    return 5 * distance + 2 * (1 - generalised_iou(box[None] / scale, target[None] / scale)[0])


def test_objects_are_matched_with_the_queries_of_the_smallest_total_cost() -> None:
    scale = torch.tensor([SIZE[1], SIZE[0]]).repeat(2)
    for _ in range(5):
        logits, boxes, targets, labels = torch.randn(5, 4), random_boxes(5), random_boxes(3), torch.tensor([2, 0, 2])
        cost = torch.stack([torch.stack([pair_cost(box, target) for target in targets]) for box in boxes])
        cost -= logits.softmax(-1)[:, labels]
        best = min(sum(cost[query, m].item() for m, query in enumerate(chosen)) for chosen in permutations(range(5), 3))
        queries, matched = match_boxes(logits, boxes / scale, labels, targets / scale, box_weight=2.0)
        assert sorted(matched.tolist()) == [0, 1, 2]
        assert cost[queries, matched].sum().item() == pytest.approx(best, abs=1e-5)


def test_the_loss_of_an_image_by_hand() -> None:
    boxes = random_boxes(4)
    logits, objects = torch.randn(4, 4), objects_of(boxes[[2, 0]] + 0.5, [1, 2])  # the nearest queries are known
    classes, distances = set_losses(output_of(logits, boxes), objects, SIZE, box_weight=200.0)
    targets = torch.tensor([2, 3, 1, 3])
    weights = torch.tensor([1.0, 0.1, 1.0, 0.1])  # 0.1 of those without an object
    negative = -logits.log_softmax(-1)[torch.arange(4), targets]
    assert_close(classes, (negative * weights).sum() / weights.sum())
    expected = (pair_cost(boxes[2], boxes[2] + 0.5) + pair_cost(boxes[0], boxes[0] + 0.5)) / 2
    assert_close(2 * distances, expected)
    weighted, _ = set_losses(output_of(logits, boxes), objects, SIZE, 200.0, torch.tensor([1.0, 3.0, 0.5]))
    weights = torch.tensor([0.5, 0.1, 3.0, 0.1])
    assert_close(weighted, (negative * weights).sum() / weights.sum())


def test_crowds_and_empty_rows_are_no_objects_and_an_image_may_have_none() -> None:
    logits, boxes = torch.randn(4, 4, requires_grad=True), random_boxes(4)
    none = F.cross_entropy(logits, torch.full((4,), 3))
    padding = objects_of(torch.zeros(2, 4), [-1, -1])
    for objects in (padding, objects_of(random_boxes(1), [1], [1]), padding[:0]):
        classes, distances = set_losses(output_of(logits, boxes), objects, SIZE, 2.0)
        assert_close(classes, none)
        assert distances == 0
    classes.backward()
    assert logits.grad is not None


def test_a_perfect_prediction_costs_nothing_and_is_decoded_as_it_was() -> None:
    boxes, labels = random_boxes(3), [2, 0, 1]
    logits = torch.full((4, 4), -30.0)
    logits[[0, 1, 2, 3], [1, 3, 2, 0]] = 30.0  # the second query predicts none
    order = torch.tensor([2, 0, 0, 1])
    output = output_of(logits, boxes[order])
    classes, distances = set_losses(output, objects_of(boxes, labels), SIZE, 2.0)
    assert classes < 1e-6
    assert distances < 1e-6
    found = decode_queries(output[None], max_detections=3)
    rows = sorted((label, box) for label, box in zip(found.labels[0].tolist(), found.boxes[0].tolist(), strict=True))
    for (label, box), index in zip(rows, (1, 2, 0), strict=True):
        assert label == labels[index]
        assert box == pytest.approx(boxes[index].tolist(), abs=1e-5)
    assert_close(found.scores, torch.ones(1, 3))
    assert decode_queries(output[None]).scores.shape == (1, 4)  # there are no more queries


def test_the_order_of_the_queries_is_that_of_their_outputs_only() -> None:
    task, model = build_detector(query_blocks=2)
    images, order = torch.randn(2, 3, *SIZE), torch.randperm(7)
    with torch.no_grad():
        before = model(images)
        model.head.queries.data = model.head.queries.data[order]
        assert_close(model(images), before[:, :, order], rtol=1e-4, atol=1e-4)
        assert_close(task.decode(model(images)).boxes, task.decode(before).boxes, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "changes", [{}, {"position_at": "every-layer", "registers": 2}, {"window": 2, "relative_axes": True}], ids=str
)
def test_outputs_are_boxes_in_pixels_and_the_last_of_every_block(changes: dict[str, Any]) -> None:
    config = small_config(classes=0, depth=3, image=SIZE, patch=(8, 8), **changes)
    _, model = build_detector(config, query_blocks=2, query_positions=True)
    images = torch.randn(2, 3, *SIZE)
    with torch.no_grad():
        outputs, every, predicted = model(images), model(images, every_block=True), model.predict(images)
    assert every.shape == (2, 2, 3 + 1 + 4, 7, 1)
    assert_close(every[-1], outputs)
    assert (every[0] - every[1]).abs().max() > 1e-3
    edges = to_edges(predicted.boxes) * torch.tensor([SIZE[1], SIZE[0]]).repeat(2)
    assert_close(outputs[:, -4:, :, 0].mT, edges)
    assert_close(to_centres(to_edges(predicted.boxes)), predicted.boxes)
    assert_close(outputs[:, :4, :, 0].mT, predicted.classes)


def test_the_loss_of_a_batch_is_the_mean_over_its_images_and_blocks() -> None:
    task, model = build_detector(query_blocks=2)
    images = torch.randn(3, 3, *SIZE)
    objects = torch.stack(
        [objects_of(random_boxes(2), [0, 2]), objects_of(random_boxes(2), [1, -1]), objects_of(random_boxes(2), [-1, -1])]
    )
    loss, metrics = task.loss(model, Batch(images, objects, torch.arange(3)))
    each = [task.loss(model, Batch(images[[i]], objects[[i]], torch.arange(1)))[0] for i in range(3)]
    assert_close(loss, torch.stack(each).mean())
    assert metrics.keys() == {"class_loss", "box_loss"}
    outputs = model(images, every_block=True)
    parts = [task.image_losses(outputs[step, i], objects[i], SIZE) for step in range(2) for i in range(3)]
    assert_close(loss, sum(classes + 2 * boxes for classes, boxes in parts) / 6)


CASES: dict[str, tuple[ViTConfig, dict[str, Any]]] = {
    "small": (small_config(classes=0, depth=3, image=SIZE, patch=(8, 8)), {"query_blocks": 2}),
    "YOLOS": (
        small_config(classes=0, depth=3, image=SIZE, patch=(8, 8), position_at="every-layer"),
        {"query_blocks": 3, "query_positions": True},
    ),
    "windows": (small_config(classes=0, depth=3, image=SIZE, patch=(8, 8), window=2, global_blocks=()), {"query_blocks": 2}),
}


@pytest.mark.parametrize(("config", "settings"), CASES.values(), ids=CASES)
def test_the_cost_is_that_of_the_built_model(config: ViTConfig, settings: dict[str, Any]) -> None:
    task, model = build_detector(config, **settings)
    total = task.config.cost(config, 2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        outputs = model.to("meta")(torch.empty(1, 3, *SIZE, device="meta"))
    assert total.macs == counter.get_total_flops() // 2
    assert total.parameters == sum(weight.numel() for weight in model.parameters())
    assert total.stages[-1].shape == (2, *outputs.shape[1:])


@pytest.mark.parametrize(("config", "settings"), CASES.values(), ids=CASES)
def test_training_memory_is_close_to_what_autograd_saves(config: ViTConfig, settings: dict[str, Any]) -> None:
    task, model = build_detector(config, **{**settings, "queries": 50})
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    saved_storages: dict[int, Tensor] = {}

    def pack(saved: Tensor) -> Tensor:
        if saved.numel() and saved.untyped_storage().data_ptr() not in weights:
            saved_storages[saved.untyped_storage().data_ptr()] = saved
        return saved

    objects = torch.stack([objects_of(random_boxes(4), [0, 2, 1, 1])] * 2)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        task.loss(model.train(), Batch(torch.randn(2, 3, *SIZE), objects, torch.arange(2)))
    measured = sum(saved.untyped_storage().nbytes() for saved in saved_storages.values())
    assert task.config.cost(config, 2).memory.training == pytest.approx(measured, rel=0.05)


def train(out: Path, **options: Any) -> TrainedRun:
    settings = {**SHORT, **QUERIES, **options.pop("settings", {})}
    run = vitrail.train(PANES, task="detect", model="mu/8", settings=settings, out=out, **{"workers": 0, **options})
    assert isinstance(run, TrainedRun)
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(tmp_path_factory.mktemp("runs") / "run")


def test_a_run_learns_and_its_model_is_saved_with_the_queries(trained: TrainedRun) -> None:
    losses = [row["loss"] for row in trained.history if "loss" in row]
    assert losses[-1] < losses[0]
    assert {"ap", "ap50", "ap75"} <= set(trained.result["test"])
    model, last = vitrail.load(trained.folder / "last"), load_checkpoint(trained.folder, 8)
    assert isinstance(model, QueryDetector)
    images = torch.randn(2, 3, 24, 32)
    with torch.no_grad():
        assert_close(last(images), model(images), rtol=0, atol=0)
    found, expected = vitrail.evaluate(trained.folder, PANES).details["test"], trained.result["test"]
    finite = {name: value for name, value in expected.items() if np.isfinite(float(value)) and name != "loss"}
    assert {name: found[name] for name in finite} == pytest.approx(finite)


@pytest.mark.parametrize("at", quick_only(range(1, 9), 5))
def test_an_interrupted_run_ends_as_the_uninterrupted_one(at: int, trained: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        train(tmp_path / "run", callbacks=[RaisesAt(at, OSError("broke"))])
    assert same(train(tmp_path / "run", workers=2).folder, trained.folder)


def test_exported_files_find_the_same_boxes(trained: TrainedRun, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    images = random_images(3, 24, 32)
    model: Any = vitrail.load(trained.folder)
    expected = TorchPredictor(model).outputs(images)
    write_onnx(model, tmp_path / "x.onnx")
    write_program(model, tmp_path / "x.pt2")
    for file in ("x.onnx", "x.pt2"):
        assert_allclose(load_predictor(tmp_path / file).outputs(images), expected, rtol=0, atol=1e-3)
    task: Any = model_task(model.encoder)
    for prediction in task.predictions(torch.from_numpy(np.asarray(expected)), 5):
        assert len(prediction.boxes) == 9
        assert [box.score for box in prediction.boxes] == sorted((box.score for box in prediction.boxes), reverse=True)
        assert {box.label for box in prediction.boxes} <= {"figure", "ornament"}


def test_settings_that_do_not_fit_the_model_are_refused() -> None:
    config = small_config(classes=0)
    task = Detection(classes=3, head="queries")
    assert task.num_query_blocks(12) == 3
    assert task.decoder_shape == replace(task, layers=(1,), map_width=3).decoder_shape
    refused: list[tuple[dict[str, Any], ViTConfig, str]] = [
        (
            {"query_blocks": 5},
            config,
            "task.query_blocks must be at most 4, the model's blocks, got 5; try task.query_blocks=1",
        ),
        ({}, replace(config, position="relative"), "queries have no relative positions"),
    ]
    for settings, model, text in refused:
        with pytest.raises(VitrailError, match=text):
            replace(task, **settings).check(model, Policy())
    with pytest.raises(VitrailError, match=r"task\.queries must be at least 1, got 0"):
        replace(task, queries=0)
