"""The centre head: its loss, its targets, its map, and the boxes that are decoded from it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.small_models import small_config
from vitrail.data.loader import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Detection
from vitrail.tasks.box_decoding import decode_boxes
from vitrail.tasks.box_loss import box_loss, cells_to_boxes, centre_targets, generalised_iou, heat_loss
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.detection_model import DenseDetector
from vitrail.tasks.registry import build_task

NAMES = ("cat", "dog", "owl")
SIZE, CELLS = (48, 80), (12, 20)  # of the input in pixels, and of the map in cells of four


def rows(*objects: tuple[float, ...]) -> Tensor:
    """Objects as a batch has them, filled up by one that is none."""
    return torch.tensor([*objects, (-1.0,) * 6])


def perfect_map(objects: Tensor) -> Tensor:
    """The outputs that are right for objects: high logits at centres, exact boxes."""
    targets = centre_targets(objects, len(NAMES), CELLS, SIZE)
    heat = torch.where(targets.heat == 1, 9.0, -9.0)
    zero = cells_to_boxes(torch.zeros(4, *CELLS), SIZE)
    sign = torch.tensor([-1.0, -1.0, 1.0, 1.0])[:, None, None]
    return torch.cat([heat, sign * (targets.boxes - zero)])


def make_task(**settings: Any) -> DetectionTask:
    task = build_task(Detection(classes=3, **settings), small_config(classes=0), Preprocess(SIZE, 1.0, "stretch"), NAMES)
    assert isinstance(task, DetectionTask)
    return task


OBJECTS = rows((4, 8, 24, 40, 1, 0), (30, 3, 70, 20, 0, 0), (33, 30, 36, 34, 2, 0), (50, 25, 79, 47, 1, 0))


def test_boxes_are_decoded_from_the_map_that_is_right_for_them() -> None:
    outputs = torch.stack([perfect_map(OBJECTS), perfect_map(rows())])
    found = decode_boxes(outputs, SIZE, max_detections=7)
    assert found.boxes.shape == (2, 7, 4)
    is_found = found.scores > 0.5
    assert is_found.sum(1).tolist() == [4, 0]
    order = found.boxes[0, :4, 0].argsort()
    assert_close(found.boxes[0, :4][order], OBJECTS[:4][OBJECTS[:4, 0].argsort(), :4], atol=1e-4, rtol=0)
    assert found.labels[0, :4][order].tolist() == OBJECTS[:4][OBJECTS[:4, 0].argsort(), 4].tolist()
    loss = box_loss(outputs[0, -4:], centre_targets(OBJECTS, 3, CELLS, SIZE), SIZE)
    assert loss < 1e-5


def test_one_peak_remains_of_a_hill_and_two_of_two_classes() -> None:
    outputs = torch.full((1, 2 + 4, 5, 9), -6.0)
    outputs[0, 0, 1:4, 2:5] = 1.0
    outputs[0, 0, 2, 3] = 2.0
    outputs[0, 1, 2, 4] = 1.5  # a neighbour, but of the other class
    found = decode_boxes(outputs, (20, 36), 6)
    assert found.labels[0, :2].tolist() == [0, 1]
    assert_close(found.scores[0, :2], torch.tensor([2.0, 1.5]).sigmoid())
    assert (found.scores[0, 2:] < 0.01).all()


def test_a_gaussian_is_one_at_the_centre_of_its_object_and_falls_with_its_sides() -> None:
    heat = centre_targets(rows((4, 8, 24, 40, 1, 0)), 3, CELLS, SIZE).heat
    assert heat[1].argmax() == (24 // 4) * CELLS[1] + 14 // 4
    assert heat[1].max() == 1
    assert heat[[0, 2]].abs().max() == 0
    assert heat[1, 7, 3] > heat[1, 6, 4], "the object is higher than wide"
    assert heat[1, 6, 3 + 2] == 0, "beyond three deviations"


def test_a_small_object_keeps_its_cells_inside_of_a_large_one() -> None:
    targets = centre_targets(rows((0, 0, 80, 48, 0, 0), (38, 22, 43, 27, 1, 0)), 3, CELLS, SIZE)
    assert targets.boxes[:, 6, 10].tolist() == [38, 22, 43, 27]
    assert targets.boxes[:, 6, 12].tolist() == [0, 0, 80, 48]
    assert_close(targets.weights.sum(), torch.tensor(2.0))


def test_detections_inside_of_a_crowd_cost_nothing() -> None:
    empty, crowd = (centre_targets(each, 3, CELLS, SIZE) for each in (rows(), rows((8, 8, 40, 40, 1, 1))))
    logits = torch.full((3, *CELLS), -5.0)
    logits[1, 5, 5] = 4.0  # a detection of the crowd's class, inside of it
    assert heat_loss(logits, crowd) < 0.01 < heat_loss(logits, empty)
    logits[1, 5, 5], logits[0, 5, 5] = -5.0, 4.0
    assert heat_loss(logits, crowd) > 0.01, "of another class it is wrong"


def test_the_heat_loss_is_the_formula_of_centernet() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, *CELLS, generator=generator, dtype=torch.float64)
    targets = centre_targets(OBJECTS, 3, CELLS, SIZE)
    expected = 0.0
    for probability, target in zip(logits.sigmoid().flatten().tolist(), targets.heat.flatten().tolist(), strict=True):
        if target == 1:
            expected -= (1 - probability) ** 2 * np.log(probability)
        else:
            expected -= (1 - target) ** 4 * probability**2 * np.log(1 - probability)
    assert float(heat_loss(logits, targets)) == pytest.approx(expected / 4, rel=1e-5)


def test_the_generalised_iou_of_known_boxes() -> None:
    one = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 4], [0, 0, 2, 2], [1, 1, 1, 1]])
    other = torch.tensor([[0.0, 0, 4, 4], [2, 0, 6, 4], [4, 0, 6, 2], [1, 1, 1, 1]])
    assert_close(generalised_iou(one, other), torch.tensor([1.0, 8 / 24, -4 / 12, 0.0]))


class Fixed(nn.Module):
    """A model whose outputs are given."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = nn.Parameter(outputs)

    def forward(self, images: Tensor) -> Tensor:
        return self.outputs[images[:, 0, 0, 0].long()]


def gradient(task: DetectionTask, parts: list[list[int]]) -> Tensor:
    """The gradient of the mean loss over images that come in these parts."""
    generator = torch.Generator().manual_seed(1)
    model = Fixed(torch.randn(4, 3 + 4, *CELLS, generator=generator))
    targets = torch.stack([OBJECTS, OBJECTS.roll(2, 0), rows(*[(-1.0,) * 6] * 4), OBJECTS.flip(0)])
    for part in parts:
        images = torch.tensor(part)[:, None, None, None].expand(-1, 3, *SIZE).float()
        loss, _ = task.loss(model, Batch(images, targets[part], torch.tensor(part)))
        (loss * len(part) / 4).backward()
    assert model.outputs.grad is not None
    return model.outputs.grad


def test_a_batch_in_parts_has_the_same_gradient() -> None:
    task = make_task()
    assert_close(gradient(task, [[0], [1, 2, 3]]), gradient(task, [[0, 1, 2, 3]]))


def test_the_map_has_cells_of_about_four_pixels_and_sees_the_tokens_of_its_blocks() -> None:
    for patch, upscale_blocks, side in ((16, 2, 4), (14, 2, 3.5), (8, 1, 4), (4, 0, 4), (2, 0, 2)):
        steps = Detection().num_upscale_blocks((patch, patch))
        assert (steps, patch / 2**steps) == (upscale_blocks, side)
    config = small_config(classes=0, image=(16, 32), patch=(8, 8))
    encoder = build(config)
    assert isinstance(encoder, ViT)
    model = DenseDetector(encoder, 3, (1,), upscale_blocks=1, map_width=6).eval()
    images = torch.randn(2, config.channels, 16, 32)
    outputs = model(images)
    assert outputs.shape == (2, 3 + 4, 4, 8)
    assert (outputs[:, -4:-2] + outputs[:, -2:] > 0).all(), "width and height of every box are positive"
    outputs.sum().backward()
    first, last = encoder.blocks[0], encoder.blocks[-1]
    assert all(weight.grad is not None for weight in first.parameters())
    assert len(encoder.blocks) == 1 or all(weight.grad is None for weight in last.parameters())


def test_boxes_are_brought_back_to_the_image_and_cut_at_its_edges() -> None:
    task = make_task()
    restored = task.restore_boxes(torch.tensor([[-8.0, 12, 40, 60]]), (96, 40))  # the input is 48 x 80
    assert_close(restored, torch.tensor([[0.0, 24, 20, 96]]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"map_width": 0}, "task.map_width must be at least 1, got 0"),
        ({"max_detections": 0}, "task.max_detections must be at least 1"),
        ({"upscale_blocks": 9}, "task.upscale_blocks must be from 0 to 4, got 9"),
        ({"box_weight": 0.0}, "task.box_weight must be above 0"),
        ({"layers": (2, 1)}, "task.layers must be numbers of blocks from 1, in rising order"),
        ({"head": "anchors"}, "head must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(VitrailError, match=message):
        Detection(**settings)
