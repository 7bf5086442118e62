"""The linear probe finds scikit-learn's optimum, and selects the penalty on validation."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.evaluation.synthetic_features import gaussian_features
from tests.reference_libraries import reference_library
from vitrail.evaluation.linear_probe import fit_logistic, linear_logits, linear_probe
from vitrail.inference.features import Features


@pytest.mark.parity
@pytest.mark.parametrize("c", [0.003, 0.1, 3.0])
def test_the_optimum_is_scikit_learns_at_the_same_c(c: float) -> None:
    linear_model = reference_library("sklearn.linear_model")
    train = gaussian_features(90)
    model = linear_model.LogisticRegression(C=c, tol=1e-10, max_iter=10_000).fit(train.values.astype(float), train.labels)
    x, y = torch.from_numpy(train.values).double(), torch.from_numpy(train.labels)
    weight = fit_logistic(x, y, 1 / (c * 90), torch.zeros(8, 5, dtype=torch.float64), tolerance=1e-9, steps=10_000)
    assert_close(weight[:-1].T, torch.from_numpy(model.coef_), rtol=0, atol=2e-4)
    assert_close(linear_logits(x, weight).softmax(1), torch.from_numpy(model.predict_proba(train.values)), rtol=0, atol=2e-4)


def test_the_gradient_is_that_of_autograd() -> None:
    """At the optimum the gradient is zero: no weights near it have a lower loss."""
    train = gaussian_features(60)
    x, y = torch.from_numpy(train.values).double(), torch.from_numpy(train.labels)
    weight = fit_logistic(x, y, 0.01, torch.zeros(8, 5, dtype=torch.float64), tolerance=1e-8, steps=5000).requires_grad_()
    loss = torch.nn.functional.cross_entropy(linear_logits(x, weight), y) + 0.005 * weight[:-1].square().sum()
    (slope,) = torch.autograd.grad(loss, weight)
    assert slope.abs().max() < 1e-6


def test_the_starting_point_does_not_matter() -> None:
    train = gaussian_features(60)
    x, y = torch.from_numpy(train.values).double(), torch.from_numpy(train.labels)
    cold, warm = torch.zeros(8, 5, dtype=torch.float64), torch.randn(8, 5, dtype=torch.float64)
    ends = [fit_logistic(x, y, 0.05, start, tolerance=1e-9, steps=5000) for start in (cold, warm - warm.mean(1, keepdim=True))]
    assert_close(ends[0], ends[1], rtol=0, atol=1e-5)


def test_the_penalty_is_selected_on_validation_and_not_on_test() -> None:
    train, validation, test = (
        gaussian_features(40, width=23),
        gaussian_features(70, width=23, seed=1),
        gaussian_features(90, width=23, seed=2),
    )
    result = linear_probe(train, validation, test, 5)
    best = max(result.penalty_results, key=lambda one: (one.accuracy, -one.loss))
    assert result.penalty == best.penalty
    assert len({one.accuracy for one in result.penalty_results}) > 2
    other = Features(test.values[::-1].copy(), test.labels, test.indices)
    assert linear_probe(train, validation, other, 5).penalty_results == result.penalty_results


def test_it_is_fitted_on_train_and_validation_for_test_and_on_train_alone_without_one() -> None:
    train, validation, test = gaussian_features(40), gaussian_features(35, seed=1), gaussian_features(90, seed=2)
    result, alone = linear_probe(train, validation, test, 5), linear_probe(train, validation, None, 5)
    assert alone.accuracy == max(one.accuracy for one in alone.penalty_results)
    mean = train.values.mean(axis=0)
    deviation = (train.values - mean).std()
    x = torch.from_numpy((np.concatenate([train.values, validation.values]) - mean) / deviation)
    y = torch.from_numpy(np.concatenate([train.labels, validation.labels]))
    weight = fit_logistic(x, y, result.penalty, torch.zeros(8, 5))
    predicted = linear_logits(torch.from_numpy((test.values - mean) / deviation), weight).argmax(1)
    assert result.accuracy == float((predicted.numpy() == test.labels).mean())


def test_the_scale_of_features_does_not_matter() -> None:
    train, validation, test = (gaussian_features(count, seed=seed) for seed, count in enumerate((60, 35, 45)))

    def rescale(part: Features) -> Features:
        return Features(part.values * np.float32(64) + 32, part.labels, part.indices)

    result, other = (
        linear_probe(train, validation, test, 5),
        linear_probe(rescale(train), rescale(validation), rescale(test), 5),
    )
    assert (result.accuracy, result.penalty) == (other.accuracy, other.penalty)
    flat = Features(np.ones_like(train.values), train.labels, train.indices)
    assert linear_probe(flat, flat, flat, 5).accuracy == pytest.approx(1 / 5)
