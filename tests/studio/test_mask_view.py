"""A segmentation model in the studio: its mask, and the explanation of a pixel in every part, by the routes of the page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from torch.testing import assert_close

from tests.browser.sample_models import save_model
from tests.explain.test_region import NAMES, segmenter
from tests.studio.binary import decode_arrays
from vitrail.explain.ablate import ablate_images
from vitrail.inference.preprocess_images import preprocess
from vitrail.studio.app import create_studio_app
from vitrail.studio.image_library import ImageLibrary
from vitrail.studio.model_store import ModelStore, validate_models
from vitrail.studio.sample_images import Samples
from vitrail.studio.service import StudioService
from vitrail.weights.load import load
from vitrail.weights.save import save

TOKEN = "a-token-of-enough-letters"
HOME = f"http://127.0.0.1:1234/{TOKEN}/"
SAMPLE = {"model": "m0", "image": "sample-0"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "segmenter"
    save(segmenter(registers=1), path)
    return path


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    store = ModelStore([str(folder), str(save_model(folder.parent / "classifier"))])
    validate_models(store)
    with TestClient(create_studio_app(StudioService(store, ImageLibrary()), TOKEN), base_url=HOME) as test_client:
        yield test_client


def fetch(client: TestClient, route: str, **params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    response = client.get(f"{HOME}api/{route}", params={**SAMPLE, **params})
    assert response.status_code == 200, response.text
    return decode_arrays(response.content)


def test_the_mask_is_that_of_the_model_with_and_without_some_patches(client: TestClient, folder: Path) -> None:
    model: Any = load(str(folder))
    images = preprocess(model, [Samples().read(0)])
    for params, patches, mode in (({}, [], "mask"), ({"patches": "1-3,5"}, [1, 2, 3, 5], "mask"),
                                  ({"patches": "0,2", "mode": "shuffle"}, [0, 2], "shuffle")):  # fmt: skip
        meta, arrays = fetch(client, "mask", **params)
        with torch.no_grad():
            expected = model(ablate_images(model.encoder, images, patches, mode))[0].softmax(0)
        assert np.array_equal(arrays["classes"], expected.argmax(0).numpy())
        assert_close(torch.tensor(arrays["confidence"]), expected.amax(0))
        assert sum(one["fraction"] for one in meta["classes"]) == pytest.approx(1)
        assert {one["label"] for one in meta["classes"]} <= set(NAMES)


def test_a_pixel_is_what_every_part_explains(client: TestClient) -> None:
    _, mask = fetch(client, "mask")
    meta, arrays = fetch(client, "trace", pixel="7,4")
    assert meta["region"] == {"pixel": [7, 4], "pixels": 1, "class": None}
    assert meta["top"][0]["class"] == mask["classes"][4, 7]
    assert meta["top"][0]["probability"] == pytest.approx(float(mask["confidence"][4, 7]), abs=1e-5)
    assert arrays["pooling_weights"].nonzero()[0].tolist() == [meta["prefix"] + 1]  # patch of row 0 and column 1
    saliency, curves = fetch(client, "saliency", pixel="7,4", method="relevance")
    assert saliency["target"] == meta["target"]
    assert float(curves["deletion"][0]) == pytest.approx(meta["top"][0]["probability"], abs=1e-5)
    body = {**SAMPLE, "patches": [1], "pixel": [7, 4]}
    effect = client.post(f"{HOME}api/ablate", json=body).json()
    before = {one["class"]: one["before"] for one in effect["top"]}
    assert before[meta["target"]] == pytest.approx(meta["top"][0]["probability"], abs=1e-5)


def test_without_a_pixel_the_largest_class_is_explained_or_the_one_asked_for(client: TestClient) -> None:
    meta, _ = fetch(client, "mask")
    largest, *_, smallest = (one["class"] for one in meta["classes"])
    assert fetch(client, "trace")[0]["region"]["class"] == largest
    traced = fetch(client, "trace", **{"class": smallest})[0]
    assert (traced["region"]["class"], traced["target"]) == (smallest, smallest)


@pytest.mark.parametrize(
    ("route", "params", "sentence"),
    [
        ("trace", {"pixel": "15,0"}, "column must be an index from 0 to 14, got 15"),
        ("trace", {"pixel": "a"}, "pixel must be COLUMN,ROW"),
        ("trace", {"pixel": "1,1", "model": "m1"}, "pixels are explained of segmentation models only"),
        ("mask", {"model": "m1"}, "masks are predicted by segmentation models only"),
        ("mask", {"patches": "3-x"}, "patches must be ranges such as 3-7,12"),
        ("mask", {"patches": "6"}, "patches must be indices from 0 to 5"),
        ("mask", {"patches": "0", "mode": "drop"}, "mask or shuffle them instead"),
    ],
)
def test_bad_requests_are_named(client: TestClient, route: str, params: dict[str, str], sentence: str) -> None:
    response = client.get(f"{HOME}api/{route}", params={**SAMPLE, **params})
    assert response.status_code == 422
    assert sentence in response.json()["error"]
