"""The linear probe finds scikit-learn's optimum, and selects the penalty on validation."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.evaluate.probes import clouds
from tests.peers import peer
from vitrail.evaluate.features import Features
from vitrail.evaluate.linear import linear, logistic, scores


@pytest.mark.parity
@pytest.mark.parametrize("c", [0.003, 0.1, 3.0])
def test_the_optimum_is_scikit_learns_at_the_same_c(c: float) -> None:
    linear_model = peer("sklearn.linear_model")
    train = clouds(90)
    model = linear_model.LogisticRegression(C=c, tol=1e-10, max_iter=10_000).fit(train.values.astype(float), train.labels)
    x, y = torch.from_numpy(train.values).double(), torch.from_numpy(train.labels)
    weight = logistic(x, y, 1 / (c * 90), torch.zeros(8, 5, dtype=torch.float64), still=1e-9, steps=10_000)
    assert_close(weight[:-1].T, torch.from_numpy(model.coef_), rtol=0, atol=2e-4)
    assert_close(scores(x, weight).softmax(1), torch.from_numpy(model.predict_proba(train.values)), rtol=0, atol=2e-4)


def test_the_gradient_is_that_of_autograd() -> None:
    """At the optimum the gradient is zero: no weights near it have a lower loss."""
    train = clouds(60)
    x, y = torch.from_numpy(train.values).double(), torch.from_numpy(train.labels)
    weight = logistic(x, y, 0.01, torch.zeros(8, 5, dtype=torch.float64), still=1e-8, steps=5000).requires_grad_()
    loss = torch.nn.functional.cross_entropy(scores(x, weight), y) + 0.005 * weight[:-1].square().sum()
    (slope,) = torch.autograd.grad(loss, weight)
    assert slope.abs().max() < 1e-6


def test_the_starting_point_does_not_matter() -> None:
    train = clouds(60)
    x, y = torch.from_numpy(train.values).double(), torch.from_numpy(train.labels)
    cold, warm = torch.zeros(8, 5, dtype=torch.float64), torch.randn(8, 5, dtype=torch.float64)
    ends = [logistic(x, y, 0.05, start, still=1e-9, steps=5000) for start in (cold, warm - warm.mean(1, keepdim=True))]
    assert_close(ends[0], ends[1], rtol=0, atol=1e-5)


def test_the_penalty_is_selected_on_validation_and_not_on_test() -> None:
    train, validation, test = clouds(40, width=23), clouds(70, width=23, seed=1), clouds(90, width=23, seed=2)
    found = linear(train, validation, test, 5)
    best = max(found.tried, key=lambda one: (one.accuracy, -one.loss))
    assert found.penalty == best.penalty
    assert len({one.accuracy for one in found.tried}) > 2
    other = Features(test.values[::-1].copy(), test.labels, test.indices)
    assert linear(train, validation, other, 5).tried == found.tried


def test_it_is_fitted_on_train_and_validation_for_test_and_on_train_alone_without_one() -> None:
    train, validation, test = clouds(40), clouds(35, seed=1), clouds(90, seed=2)
    found, alone = linear(train, validation, test, 5), linear(train, validation, None, 5)
    assert alone.accuracy == max(one.accuracy for one in alone.tried)
    mean = train.values.mean(axis=0)
    deviation = (train.values - mean).std()
    x = torch.from_numpy((np.concatenate([train.values, validation.values]) - mean) / deviation)
    y = torch.from_numpy(np.concatenate([train.labels, validation.labels]))
    weight = logistic(x, y, found.penalty, torch.zeros(8, 5))
    answers = scores(torch.from_numpy((test.values - mean) / deviation), weight).argmax(1)
    assert found.accuracy == float((answers.numpy() == test.labels).mean())


def test_the_scale_of_features_does_not_matter() -> None:
    train, validation, test = (clouds(count, seed=seed) for seed, count in enumerate((60, 35, 45)))

    def moved(part: Features) -> Features:
        return Features(part.values * np.float32(64) + 32, part.labels, part.indices)

    found, other = linear(train, validation, test, 5), linear(moved(train), moved(validation), moved(test), 5)
    assert (found.accuracy, found.penalty) == (other.accuracy, other.penalty)
    flat = Features(np.ones_like(train.values), train.labels, train.indices)
    assert linear(flat, flat, flat, 5).accuracy == pytest.approx(1 / 5)
