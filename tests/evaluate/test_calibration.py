"""The calibration error is Guo's and torchmetrics'; the fitted temperature is the one that the labels were sampled with."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from tests.evaluate.test_accuracy import CASES, answers
from tests.peers import peer
from vitrail.evaluate import calibration
from vitrail.evaluate.calibration import HOTTEST, reliability, temperature


def guo(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Compute the error as in the authors' code, bin by bin, open below and closed above."""
    confidence, predicted = logits.double().softmax(1).max(1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    error = 0.0
    for low, high in pairwise(edges.tolist()):
        inside = confidence.gt(low) & confidence.le(high)
        if inside.any():
            gap = (confidence[inside].mean() - (predicted == labels)[inside].double().mean()).abs()
            error += (gap * inside.double().mean()).item()
    return error


def sampled(num_images: int, classes: int, true_temperature: float, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return logits, and labels drawn from softmax(logits / true_temperature), so that this is the right temperature."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(num_images, classes, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial((logits / true_temperature).softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parity
@pytest.mark.parametrize(("num_images", "classes"), CASES)
def test_the_error_is_guos_and_torchmetrics(num_images: int, classes: int) -> None:
    metrics: Any = peer("torchmetrics.functional.classification")
    logits, labels = answers(num_images, classes)
    found = reliability(logits, labels).error
    assert found == pytest.approx(guo(logits, labels), abs=1e-14)
    theirs = metrics.multiclass_calibration_error(logits, labels, num_classes=classes, n_bins=15, norm="l1")
    assert found == pytest.approx(theirs.item(), abs=1e-6)


@pytest.mark.parametrize("classes", [3, 5, 15])
def test_confidences_on_the_edge_of_a_bin_belong_below_it(classes: int) -> None:
    """Equal logits have a confidence of 1 in 3, 5 or 15; saturated ones of 1, the edge of the last bin."""
    labels = torch.arange(classes)
    assert reliability(torch.zeros(classes, classes), labels).pictures.nonzero().item() == 15 // classes - 1
    certain = reliability(1e4 * torch.eye(classes), labels)
    assert certain.pictures[-1] == classes
    assert certain.error == 0


def test_the_bins_hold_every_image_once_and_average_to_the_accuracy() -> None:
    logits, labels = answers(503, 7)
    bins = reliability(logits, labels, 10)
    assert bins.pictures.sum() == 503
    accuracy = (bins.accuracy * bins.pictures).sum() / 503
    assert_close(accuracy, (logits.argmax(1) == labels).double().mean())


@pytest.mark.parametrize("true_temperature", [0.3, 1.0, 2.5])
def test_a_known_temperature_is_recovered_and_calibrates(true_temperature: float) -> None:
    logits, labels = sampled(20_000, 6, true_temperature)
    found = temperature(logits, labels)
    assert found == pytest.approx(true_temperature, rel=0.03)
    fresh, shown = sampled(20_000, 6, true_temperature, seed=2)
    assert reliability(fresh / found, shown).error < 0.01
    if true_temperature != 1:
        assert reliability(fresh, shown).error > 0.05


@pytest.mark.parametrize(("num_images", "classes"), [(503, 7), (211, 2), (64, 12)])
def test_the_temperature_is_where_lbfgs_ends(num_images: int, classes: int) -> None:
    logits, labels = answers(num_images, classes)
    inverse = torch.ones((), dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS(
        [inverse], max_iter=200, tolerance_grad=1e-13, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        search.zero_grad()
        value = F.cross_entropy(logits.double() * inverse, labels)
        value.backward()
        return value

    search.step(loss)
    assert temperature(logits, labels) == pytest.approx(1 / inverse.item(), rel=1e-6)


def test_without_a_best_temperature_the_result_is_an_end_of_the_range() -> None:
    labels = torch.arange(4)
    assert temperature(torch.eye(4), labels) == 1 / HOTTEST
    assert temperature(-torch.eye(4), labels) == HOTTEST
    assert temperature(torch.zeros(4, 4), labels) == 1
    assert temperature(1e4 * torch.eye(4), labels) == 1 / HOTTEST  # so confident that slopes underflow
    assert temperature(-1e4 * torch.eye(4), labels) == HOTTEST


def test_the_temperature_does_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = sampled(503, 6, 2.5)
    expected = temperature(logits, labels)
    for logits_at_once in (1, 100):
        monkeypatch.setattr(calibration, "AT_ONCE", logits_at_once)
        assert temperature(logits, labels) == pytest.approx(expected, rel=1e-12)


def test_dividing_by_the_temperature_divides_the_temperature() -> None:
    logits, labels = sampled(503, 6, 2.5)
    assert temperature(logits / 3, labels) == pytest.approx(temperature(logits, labels) / 3, rel=1e-8)
