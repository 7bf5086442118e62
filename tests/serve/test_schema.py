"""What the OpenAPI page says, holds for whatever a machine can think of to send."""

import time
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.small import vit
from vitrail.data.preprocess import Preprocess
from vitrail.export.engine import TorchEngine
from vitrail.serve.app import make_app
from vitrail.serve.settings import Serving


def _engine() -> TorchEngine:
    model = vit()
    model.preprocess, model.labels = Preprocess((12, 15)), tuple("abcde")
    return TorchEngine(model, "small")


app = make_app(_engine, Serving(max_body=100_000, queue=64), "small")
schema = schemathesis.openapi.from_asgi("/openapi.json", app)


@schema.parametrize()
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
def test_every_answer_is_one_that_is_documented(case: "schemathesis.Case[Any]") -> None:
    """Random bytes are no pictures, so to be refused is right; all else is checked: status, type, shape, no server error."""
    while app.state.house.batcher.engine is None:  # 503 until then, which is right but no news
        time.sleep(0.01)
    case.call_and_validate(excluded_checks=[positive_data_acceptance])
