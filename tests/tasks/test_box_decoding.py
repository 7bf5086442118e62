"""Boxes from the outputs of a detection model: peaks of its heat map, whatever its size and its other channels."""

from dataclasses import replace

import torch
from torch.testing import assert_close

from tests.small_detector import random_detector
from vitrail.tasks.box_decoding import decode_boxes, find_peaks
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.registry import model_task


def test_peaks_are_those_of_every_cell_compared_with_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(2)
    outputs = torch.randn(2, 3 + 4, 5, 7, generator=generator)
    expected = []
    for image in outputs:
        rows = [
            (float(image[label, y, x]), label, 7 * y + x)
            for label in range(3)
            for y in range(5)
            for x in range(7)
            if image[label, y, x] == image[label, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2].max()
        ]
        expected.append(sorted(rows, reverse=True))
    peaks = find_peaks(outputs, 40)
    for number, rows in enumerate(expected):
        assert [*zip(peaks.labels[number].tolist(), peaks.cells[number].tolist(), strict=True)][: len(rows)] == [
            (label, cell) for _, label, cell in rows
        ]
        assert_close(peaks.scores[number, : len(rows)], torch.tensor([logit for logit, _, _ in rows]).sigmoid())
        assert (peaks.scores[number, len(rows) :] == 0).all()


def test_logits_whose_sigmoids_are_equal_are_told_apart() -> None:
    outputs = torch.zeros(1, 2 + 4, 3, 4)
    outputs[0, 0, 1] = torch.tensor([30.0, 31.0, 32.0, 31.0])
    assert find_peaks(outputs, 3).cells[0, 0] == 6
    assert (find_peaks(outputs, 12).scores[0] == 1).sum() == 1


def test_a_map_has_fewer_detections_than_asked_for_only_if_it_has_fewer_cells() -> None:
    assert decode_boxes(torch.zeros(2, 3 + 4, 2, 5), (8, 20), 100).boxes.shape == (2, 30, 4)


def test_a_map_of_another_size_is_that_of_a_larger_image() -> None:
    """An exported file may have a dynamic size: the boxes of a part of the map are those of the same cells."""
    task = model_task(random_detector(image=(24, 30)))
    assert isinstance(task, DetectionTask)
    outputs = torch.randn(1, 3 + 4, 16, 18, generator=torch.Generator().manual_seed(0))
    outputs[:, :3, 3, 5] = 9
    whole, part = task.decode(outputs), task.decode(outputs[..., :8, :12])
    assert_close(whole.boxes[:, :3].sort(1).values, part.boxes[:, :3].sort(1).values)
    centre = torch.tensor([5.5 * 2.5, 3.5 * 3])
    assert_close(part.boxes[0, 0], torch.cat([centre, centre]) + outputs[0, 3:, 3, 5] * torch.tensor([-1, -1, 1, 1]))


def test_agreement_is_that_of_the_boxes_that_are_predicted() -> None:
    task = model_task(random_detector(image=(24, 30)))
    assert isinstance(task, DetectionTask)
    outputs = torch.full((2, 3 + 4, 8, 12), -4.0)
    outputs[:, 3:] = 4.0
    outputs[0, 0, 2, 3] = outputs[1, 2, 5, 9] = 3.0
    low = outputs.clone()
    low[1, 1, 6, 2] = -1.0  # below the threshold
    assert task.agreement(low, outputs) == 1
    assert replace(task, thresholds=(0.5, 0.2, 0.5)).agreement(low, outputs) == 0.8
    other = outputs.clone()
    other[1, 2, 5, 9], other[1, 1, 5, 9] = -4.0, 3.0
    assert task.agreement(other, outputs) == 0.5
    for each in (outputs, other):
        each[:, :3] -= 6
    assert 0 < task.agreement(other, outputs) < 1, "no box is predicted, so that all are compared"
