"""Generated requests: every response is as the OpenAPI schema documents it."""

import time
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.serve.fake_predictor import coloured_image
from tests.small_models import small_vit
from tests.small_segmenter import small_segmenter
from vitrail.data.preprocess import Preprocess
from vitrail.inference.predictor import TorchPredictor
from vitrail.serve.app import create_serve_app
from vitrail.serve.config import ServeConfig


def _predictor() -> TorchPredictor:
    model = small_vit()
    model.preprocess, model.class_names = Preprocess((12, 15)), tuple("abcde")
    return TorchPredictor(model, "small")


app = create_serve_app(_predictor, ServeConfig(max_body=100_000, max_queue=64), "small")
schema = schemathesis.openapi.from_asgi("/openapi.json", app).exclude(path="/segment")  # 501
masks_app = create_serve_app(lambda: TorchPredictor(small_segmenter(), "masks"), ServeConfig(max_body=100_000), "masks")
masks_schema = schemathesis.openapi.from_asgi("/openapi.json", masks_app)


@schema.parametrize()
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
def test_every_response_is_documented(case: "schemathesis.Case[Any]") -> None:
    """Random bytes are not images, so a refusal is right; status, type and schema are checked, and no server error."""
    while app.state.server_state.batcher.predictor is None:  # 503 until then
        time.sleep(0.01)
    case.call_and_validate(excluded_checks=[positive_data_acceptance])


@masks_schema.include(path_regex="^/(predict|segment)$").parametrize()
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
def test_every_response_of_a_segmentation_model_is_documented(case: "schemathesis.Case[Any]") -> None:
    while masks_app.state.server_state.batcher.predictor is None:
        time.sleep(0.01)
    case.call_and_validate(excluded_checks=[positive_data_acceptance])


def test_masks_are_as_the_schema_documents_them() -> None:
    """Of images that are, which random bytes are not."""
    for output in ("rle", "mask", "overlay"):
        case = masks_schema["/segment"]["POST"].Case(
            query={"output": output}, body=coloured_image(83), media_type="image/png", headers={"Content-Type": "image/png"}
        )
        while masks_app.state.server_state.batcher.predictor is None:
            time.sleep(0.01)
        assert case.call_and_validate(excluded_checks=[positive_data_acceptance]).status_code == 200
