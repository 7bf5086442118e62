"""Nearest neighbours in tiles equal those of a full sort."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.evaluation.synthetic_features import gaussian_features
from tests.reference_libraries import reference_library
from vitrail.evaluation.knn import knn_probe
from vitrail.inference.features import Features
from vitrail.inference.search import top_k_cosine

TILES = [(1024, 16384), (7, 11), (1, 1), (50, 3)]


def cosines(queries: Features, candidates: Features) -> Any:
    x, y = (part.values.astype(float) for part in (queries, candidates))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)) @ (y / np.linalg.norm(y, axis=1, keepdims=True)).T


@pytest.mark.parametrize("tile", TILES)
def test_nearest_is_what_sorting_everything_finds(tile: tuple[int, int]) -> None:
    train, queries = gaussian_features(83), gaussian_features(29, seed=1)
    similarity, indices = top_k_cosine(queries.values, train.values, 9, tile)
    every = cosines(queries, train)
    order = np.argsort(-every, axis=1)[:, :9]
    assert np.array_equal(indices.numpy(), order)
    np.testing.assert_allclose(similarity.numpy(), np.take_along_axis(every, order, axis=1), atol=1e-6)


@pytest.mark.parametrize("tile", TILES)
def test_votes_are_weighted_by_the_exponential_of_the_cosine_over_the_temperature(tile: tuple[int, int]) -> None:
    train, test = gaussian_features(83, spread=3), gaussian_features(41, seed=1, spread=3)
    every = cosines(test, train)
    expected = {}
    for k in (3, 20):
        votes = np.zeros((41, 5))
        for row in range(41):
            for column in np.argsort(-every[row])[:k]:
                votes[row, train.labels[column]] += np.exp(every[row, column] / 0.07)
        expected[k] = (votes.argmax(axis=1) == test.labels).mean()
    assert knn_probe(train, test, 5, (3, 20), tile) == pytest.approx(expected)
    assert expected[3] != expected[20]  # else k would have no effect


@pytest.mark.parity
def test_knn_is_scikit_learns_classifier() -> None:
    neighbors = reference_library("sklearn.neighbors")
    train, test = gaussian_features(230, spread=3), gaussian_features(61, seed=1, spread=3)
    for k, accuracy in knn_probe(train, test, 5).items():
        model = neighbors.KNeighborsClassifier(k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
        assert accuracy == pytest.approx(model.fit(train.values, train.labels).score(test.values, test.labels))


def test_the_length_of_features_does_not_matter() -> None:
    train, test = gaussian_features(83, spread=3), gaussian_features(41, seed=1, spread=3)
    lengths = np.random.default_rng(5).uniform(0.1, 10, (83, 1)).astype(np.float32)
    assert knn_probe(replace(train, values=train.values * lengths), test, 5, (7,)) == knn_probe(train, test, 5, (7,))


def test_there_are_no_more_neighbours_than_images() -> None:
    train, test = gaussian_features(31), gaussian_features(12, seed=1)
    assert list(knn_probe(train, test, 5)) == [10, 20]
    assert list(knn_probe(gaussian_features(6), test, 5)) == [6]
    assert knn_probe(train, train, 5, (1,)) == {1: 1.0}  # each is its own nearest neighbour
