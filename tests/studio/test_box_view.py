"""A detection model in the studio: its boxes, and the explanation of one of them in every part, by the routes of the page."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from torch.testing import assert_close

from tests.browser.sample_models import save_model
from tests.small_detector import CLASSES, random_detector
from tests.studio.binary import decode_arrays
from vitrail.cli.main import run
from vitrail.explain.ablate import ablate_images
from vitrail.explain.box import box_classifier
from vitrail.explain.saliency import saliency
from vitrail.inference.preprocess_images import preprocess
from vitrail.studio.app import create_studio_app
from vitrail.studio.image_library import ImageLibrary
from vitrail.studio.model_store import ModelStore, validate_models
from vitrail.studio.sample_images import Samples
from vitrail.studio.service import StudioService
from vitrail.tasks.registry import model_task
from vitrail.weights.load import load
from vitrail.weights.save import save

TOKEN = "a-token-of-enough-letters"
HOME = f"http://127.0.0.1:1234/{TOKEN}/"
SAMPLE = {"model": "m0", "image": "sample-0"}
OF_DATASET = {"model": "m0", "image": "d0-train-1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "detector"
    save(random_detector(classes=("figure", *CLASSES[1:]), registers=1), path)
    return path


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    data = folder.parent / "cells"
    assert run(["data", "convert", "panes:train_size=3,size=30x40", str(data), "--to", "coco"]) == 0
    store = ModelStore([str(folder), str(save_model(folder.parent / "classifier"))])
    validate_models(store)
    with TestClient(create_studio_app(StudioService(store, ImageLibrary([str(data)])), TOKEN), base_url=HOME) as test_client:
        yield test_client


def fetch(client: TestClient, route: str, **params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    response = client.get(f"{HOME}api/{route}", params={**SAMPLE, **params})
    assert response.status_code == 200, response.text
    return decode_arrays(response.content)


def test_the_boxes_are_those_of_the_model_with_and_without_some_patches(client: TestClient, folder: Path) -> None:
    model: Any = load(str(folder))
    task: Any = model_task(model)
    images = preprocess(model, [Samples().read(0)])
    for params, patches, mode in (({}, [], "mask"), ({"patches": "1-3,5"}, [1, 2, 3, 5], "mask"),
                                  ({"patches": "0,2", "mode": "shuffle"}, [0, 2], "shuffle")):  # fmt: skip
        meta, _ = fetch(client, "boxes", **params)
        with torch.no_grad():
            found = task.decode(model(ablate_images(model.encoder, images, patches, mode)))
        count = int((found.scores > 0).sum())
        assert_close(torch.tensor([each["score"] for each in meta["boxes"]]), found.scores[0, :count])
        assert_close(torch.tensor([each["bounds"] for each in meta["boxes"]]), found.boxes[0, :count])
        assert [each["class"] for each in meta["boxes"]] == found.labels[0, :count].tolist()
        assert meta["thresholds"] == [0.5] * 3


def test_a_box_is_what_every_part_explains(client: TestClient, folder: Path) -> None:
    found = fetch(client, "boxes")[0]["boxes"][3]
    meta, arrays = fetch(client, "trace", box=3)
    region = meta["region"]
    assert (region["box"], region["index"], region["class"]) == (3, 3, found["class"])
    assert region["bounds"] == pytest.approx(found["bounds"])
    assert (meta["target"], meta["predicted"], meta["sigmoid"]) == (found["class"], found["class"], True)
    assert float(arrays["probabilities"][found["class"]]) == pytest.approx(found["score"], abs=1e-5)
    assert arrays["pooling_weights"].nonzero()[0].tolist() == [meta["prefix"] + found["patch"]]
    explained, curves = fetch(client, "saliency", box=3, method="gradcam")
    model = load(str(folder))
    images = preprocess(model, [Samples().read(0)])
    classifier = box_classifier(model, images, 3)
    assert np.allclose(curves["map"], saliency(classifier, images, "gradcam", classifier.labels)[0].numpy(), atol=1e-6)
    assert explained["target"] == found["class"]
    assert float(curves["deletion"][0]) == pytest.approx(found["score"], abs=1e-5)
    effect = client.post(f"{HOME}api/ablate", json={**SAMPLE, "patches": [1], "box": 3}).json()
    before = {one["class"]: one["before"] for one in effect["top"]}
    assert before[found["class"]] == pytest.approx(found["score"], abs=1e-5)


def test_without_a_box_the_best_one_is_explained_or_that_of_the_class_asked_for(client: TestClient) -> None:
    boxes = fetch(client, "boxes")[0]["boxes"]
    region = fetch(client, "trace")[0]["region"]
    assert (region["box"], region["index"], region["score"]) == (None, 0, pytest.approx(boxes[0]["score"]))
    for label in range(3):
        region = fetch(client, "trace", **{"class": label})[0]["region"]
        scores = [each["score"] for each in boxes if each["class"] == label]
        assert (region["class"], region["score"]) == (label, pytest.approx(max(scores, default=region["score"])))


def test_the_objects_of_a_dataset_are_at_the_size_of_the_input(client: TestClient) -> None:
    (model, other) = client.get(f"{HOME}api/studio").json()["models"]
    assert (model["detects"], other["detects"]) == (True, False)
    page = client.get(f"{HOME}api/images", params={"dataset": "d0", "split": "train"}).json()
    objects = fetch(client, "trace", **OF_DATASET)[0]["objects"]
    assert page["images"][1]["label"] == f"{len(objects)} object{'' if len(objects) == 1 else 's'}"
    colours = {each["label"]: each["colour"] for each in objects}
    model_colours = {each["label"]: each["colour"] for each in fetch(client, "boxes", **OF_DATASET)[0]["boxes"]}
    assert colours.get("figure", "#") in (model_colours.get("figure"), "#")
    for each in objects:
        left, top, right, bottom = each["bounds"]
        assert 0 <= left < right <= 15
        assert 0 <= top < bottom <= 12
    assert fetch(client, "trace")[0]["objects"] is None
    assert fetch(client, "trace", **{**OF_DATASET, "model": "m1"})[0]["objects"] is None


def test_thumbnails_have_boxes_where_they_are_asked_for(client: TestClient) -> None:
    params: dict[str, str | int] = {"image": "d0-train-1", "size": 64}
    plain, drawn = (client.get(f"{HOME}api/image", params={**params, **more}).content for more in ({}, {"boxes": 1}))
    pixels = [np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in (plain, drawn)]
    assert pixels[0].shape == pixels[1].shape
    assert (pixels[0] != pixels[1]).any()
    sample = [client.get(f"{HOME}api/image", params={"image": "sample-0", "size": 64, **more}) for more in ({}, {"boxes": 1})]
    assert sample[0].content == sample[1].content


@pytest.mark.parametrize("size", [(1, 1), (1, 90), (700, 500)])
def test_images_of_any_size_have_boxes_that_can_be_explained(client: TestClient, size: tuple[int, int]) -> None:
    stream = io.BytesIO()
    Image.new("RGB", size, (90, 40, 10)).save(stream, "PNG")
    uploaded = client.post(f"{HOME}api/upload", params={"name": "any.png"}, content=stream.getvalue()).json()
    assert fetch(client, "boxes", image=uploaded["id"])[0]["boxes"]
    assert fetch(client, "trace", image=uploaded["id"])[0]["region"]["index"] == 0


@pytest.mark.parametrize(
    ("route", "params", "sentence"),
    [
        ("trace", {"box": "31"}, "box must be an index from 0 to"),
        ("trace", {"box": "-1"}, "box must be an index from 0 to"),
        ("trace", {"box": "a"}, "box must be an integer"),
        ("trace", {"box": "1", "model": "m1"}, "boxes are explained of detection models only"),
        ("trace", {"pixel": "1,1"}, "pixels are explained of segmentation models only"),
        ("boxes", {"model": "m1"}, "boxes are predicted by detection models only"),
        ("boxes", {"patches": "0", "mode": "drop"}, "mask or shuffle them instead"),
    ],
)
def test_bad_requests_are_named(client: TestClient, route: str, params: dict[str, str], sentence: str) -> None:
    response = client.get(f"{HOME}api/{route}", params={**SAMPLE, **params})
    assert response.status_code == 422
    assert sentence in response.json()["error"]
