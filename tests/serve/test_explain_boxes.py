"""``POST /explain`` of a detection model: the map of a box, which is in pixels of the image."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.serve.fake_predictor import FakePredictor
from tests.serve.test_app import PNG, noise_image, run_app
from tests.small_detector import CLASSES, random_detector
from vitrail.evaluation.box_selection import BoxSelection
from vitrail.evaluation.explanations import explain_images
from vitrail.inference.predictor import TorchPredictor

IMAGE = noise_image(2, (22, 31))


def test_the_map_of_a_box_is_that_of_explain() -> None:
    model = random_detector()
    with run_app(TorchPredictor(model)) as client:
        for query, box, target in (("", None, None), ("&box=3", BoxSelection(3), None), ("&class=star", None, 2)):
            (row,) = client.post(f"/explain?method=gradcam{query}", content=IMAGE, headers=PNG).json()["explanations"]
            (expected,) = explain_images(model, [IMAGE], ["gradcam"], target, box=box)
            region: Any = expected.region
            assert (row["label"], row["score"]) == (region.label, pytest.approx(region.score))
            assert row["box"] == pytest.approx(region.box, abs=1e-4)
            assert row["explained"] == CLASSES[expected.target or 0]
            assert np.allclose(row["map"], expected.saliency_maps["gradcam"].numpy(), atol=1e-6)
        drawn = client.post("/explain?box=0", content=IMAGE, headers={**PNG, "Accept": "image/png"})
        assert drawn.headers["content-type"] == "image/png"
        with Image.open(io.BytesIO(drawn.content)) as image:
            assert image.width * 12 == image.height * 15
        beyond = client.post("/explain?box=999", content=IMAGE, headers=PNG)
        assert (beyond.status_code, "the index of a box must be from 0 to" in beyond.json()["error"]) == (422, True)
        wrong = client.post("/explain?box=-1", content=IMAGE, headers=PNG)
        assert wrong.json()["error"] == "box must be a whole number from 0 to 10,000, got '-1'; try box=0"


def test_a_model_without_boxes_takes_no_index_of_one() -> None:
    with run_app(FakePredictor()) as client:
        assert client.post("/explain?box=0", content=IMAGE, headers=PNG).status_code == 501
