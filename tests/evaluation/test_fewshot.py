"""Few-shot evaluation in closed form is ridge regression with big_vision's constants."""

from dataclasses import replace

import numpy as np
import pytest

from tests.evaluation.synthetic_features import gaussian_features
from tests.reference_libraries import reference_library
from vitrail.evaluation.fewshot import fewshot_probe, ridge_regression


@pytest.mark.parity
@pytest.mark.parametrize("count", [11, 60])  # fewer images than features and bias, and more
def test_ridge_is_scikit_learns_on_standardised_features_with_a_bias_of_100(count: int) -> None:
    linear_model = reference_library("sklearn.linear_model")
    train, test = gaussian_features(count, width=13), gaussian_features(17, width=13, seed=1)
    mean, deviation = train.values.mean(axis=0, dtype=float), train.values.std(axis=0, dtype=float) + 1e-5
    x_train, x_test = (np.pad((x.values - mean) / deviation, ((0, 0), (0, 1)), constant_values=100.0) for x in (train, test))
    model = linear_model.Ridge(alpha=1024.0, fit_intercept=False).fit(x_train, 2 * np.eye(5)[train.labels] - 1)
    np.testing.assert_allclose(
        ridge_regression(train.values, train.labels, test.values, 5), model.predict(x_test), rtol=1e-6, atol=1e-8
    )


def test_shots_are_drawn_per_class_and_more_include_fewer() -> None:
    train, test = gaussian_features(60), gaussian_features(45, seed=1)
    rng = np.random.default_rng(2)  # the third seed
    orders = [rng.permutation(np.flatnonzero(train.labels == label)) for label in range(5)]
    for result, shots in zip(fewshot_probe(train, test, 5, shots=(1, 4)), (1, 4), strict=True):
        few = np.concatenate([order[:shots] for order in orders])
        predicted = ridge_regression(train.values[few], train.labels[few], test.values, 5).argmax(axis=1)
        assert result.per_seed[2] == (predicted == test.labels).mean()
        assert result.accuracy == pytest.approx(np.mean(result.per_seed))
        assert result.std == pytest.approx(np.std(result.per_seed, ddof=1))


def test_a_class_with_fewer_images_than_shots_uses_all_and_is_counted() -> None:
    train, test = gaussian_features(60), gaussian_features(45, seed=1)
    keep = (train.labels != 3) | (np.arange(60) < 10)  # two images of class 3 instead of twelve
    poor = replace(train, values=train.values[keep], labels=train.labels[keep], indices=train.indices[keep])
    result = {one.shots: one for one in fewshot_probe(poor, test, 5, shots=(2, 5, 25))}
    assert {shots: one.short_classes for shots, one in result.items()} == {2: 0, 5: 1, 25: 5}
    everything = (ridge_regression(poor.values, poor.labels, test.values, 5).argmax(axis=1) == test.labels).mean()
    assert result[25].per_seed == pytest.approx((everything,) * 3)
    assert result[25].std == pytest.approx(0)


def test_classes_far_apart_need_one_shot() -> None:
    assert (
        fewshot_probe(gaussian_features(30, spread=0.01), gaussian_features(20, seed=1, spread=0.01), 5, shots=(1,))[0].accuracy
        == 1
    )
