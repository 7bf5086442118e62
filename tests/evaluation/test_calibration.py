"""The calibration error is Guo's and torchmetrics'; the fitted temperature is the one that the labels were sampled with."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from tests.evaluation.test_per_class import CASES, random_logits
from tests.reference_libraries import reference_library
from vitrail.evaluation import calibration
from vitrail.evaluation.calibration import MAX_TEMPERATURE, compute_reliability, fit_temperature


def guo_error(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
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


def sample_labels(num_images: int, classes: int, true_temperature: float, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return logits, and labels drawn from softmax(logits / true_temperature), so that this is the right temperature."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(num_images, classes, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial((logits / true_temperature).softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parity
@pytest.mark.parametrize(("num_images", "classes"), CASES)
def test_the_error_is_guos_and_torchmetrics(num_images: int, classes: int) -> None:
    metrics: Any = reference_library("torchmetrics.functional.classification")
    logits, labels = random_logits(num_images, classes)
    ece = compute_reliability(logits, labels).ece
    assert ece == pytest.approx(guo_error(logits, labels), abs=1e-14)
    theirs = metrics.multiclass_calibration_error(logits, labels, num_classes=classes, n_bins=15, norm="l1")
    assert ece == pytest.approx(theirs.item(), abs=1e-6)


@pytest.mark.parametrize("classes", [3, 5, 15])
def test_confidences_on_the_edge_of_a_bin_belong_below_it(classes: int) -> None:
    """Equal logits have a confidence of 1 in 3, 5 or 15; saturated ones of 1, the edge of the last bin."""
    labels = torch.arange(classes)
    assert compute_reliability(torch.zeros(classes, classes), labels).counts.nonzero().item() == 15 // classes - 1
    certain = compute_reliability(1e4 * torch.eye(classes), labels)
    assert certain.counts[-1] == classes
    assert certain.ece == 0


def test_the_bins_hold_every_image_once_and_average_to_the_accuracy() -> None:
    logits, labels = random_logits(503, 7)
    bins = compute_reliability(logits, labels, 10)
    assert bins.counts.sum() == 503
    accuracy = (bins.accuracy * bins.counts).sum() / 503
    assert_close(accuracy, (logits.argmax(1) == labels).double().mean())


@pytest.mark.parametrize("true_temperature", [0.3, 1.0, 2.5])
def test_a_known_temperature_is_recovered_and_calibrates(true_temperature: float) -> None:
    logits, labels = sample_labels(20_000, 6, true_temperature)
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(true_temperature, rel=0.03)
    fresh_logits, fresh_labels = sample_labels(20_000, 6, true_temperature, seed=2)
    assert compute_reliability(fresh_logits / temperature, fresh_labels).ece < 0.01
    if true_temperature != 1:
        assert compute_reliability(fresh_logits, fresh_labels).ece > 0.05


@pytest.mark.parametrize(("num_images", "classes"), [(503, 7), (211, 2), (64, 12)])
def test_the_temperature_is_where_lbfgs_ends(num_images: int, classes: int) -> None:
    logits, labels = random_logits(num_images, classes)
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
    assert fit_temperature(logits, labels) == pytest.approx(1 / inverse.item(), rel=1e-6)


def test_without_a_best_temperature_the_result_is_an_end_of_the_range() -> None:
    labels = torch.arange(4)
    assert fit_temperature(torch.eye(4), labels) == 1 / MAX_TEMPERATURE
    assert fit_temperature(-torch.eye(4), labels) == MAX_TEMPERATURE
    assert fit_temperature(torch.zeros(4, 4), labels) == 1
    assert fit_temperature(1e4 * torch.eye(4), labels) == 1 / MAX_TEMPERATURE  # so confident that slopes underflow
    assert fit_temperature(-1e4 * torch.eye(4), labels) == MAX_TEMPERATURE


def test_the_temperature_does_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = sample_labels(503, 6, 2.5)
    expected = fit_temperature(logits, labels)
    for logits_at_once in (1, 100):
        monkeypatch.setattr(calibration, "SOFTMAX_CHUNK_NUMEL", logits_at_once)
        assert fit_temperature(logits, labels) == pytest.approx(expected, rel=1e-12)


def test_dividing_by_the_temperature_divides_the_temperature() -> None:
    logits, labels = sample_labels(503, 6, 2.5)
    assert fit_temperature(logits / 3, labels) == pytest.approx(fit_temperature(logits, labels) / 3, rel=1e-8)


def test_the_temperature_of_sigmoids_minimises_their_likelihood() -> None:
    torch.manual_seed(0)
    labels = torch.randint(5, (200,))
    target = torch.nn.functional.one_hot(labels, 5).double()
    logits = 3 * torch.randn(200, 5, dtype=torch.float64) + 6 * target - 3
    found = fit_temperature(logits, labels, "sigmoid")

    def loss(temperature: float) -> float:
        return torch.nn.functional.binary_cross_entropy_with_logits(logits / temperature, target).item()

    assert loss(found) < min(loss(found * 1.001), loss(found / 1.001))
