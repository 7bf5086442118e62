"""The cost calculator agrees with ``vitrail.cost``, and its Python code builds the configuration."""

from typing import Any

import pytest

import vitrail
from tests.small_models import PUBLISHED_KINDS, small_config
from vitrail.errors import VitrailError
from vitrail.models.config import ViTConfig
from vitrail.studio.cost_calculator import cost_of, python_code


def test_the_cost_is_that_of_the_configuration() -> None:
    result = cost_of({"name": "S/16", "depth": "6", "image": "96x160", "batch": "3"})
    expected = vitrail.cost(vitrail.variant("S/16", depth=6, image=(96, 160)), batch=3)
    assert result["parameters"] == expected.parameters
    assert result["macs"] == expected.macs
    assert result["grid"] == [6, 10]
    assert [stage["shape"] for stage in result["stages"]] == [list(stage.shape) for stage in expected.stages]
    assert result["memory"]["training"] == expected.memory.training


@pytest.mark.parametrize(
    "settings",
    [
        vitrail.variant("B/16"),
        vitrail.variant("Ti/16", image=384, classes=10, registers=4),
        vitrail.variant("L/14", pool="gap", position="rotary"),
        vitrail.variant("R50+B/16"),
        small_config(),
        small_config(pool="map", class_token=True, position="sincos2d-moco"),
        *(small_config(**changes) for changes in PUBLISHED_KINDS.values()),
    ],
)
def test_the_python_builds_this_very_configuration(settings: Any) -> None:
    assert isinstance(settings, ViTConfig)
    expected: dict[str, Any] = {}
    exec(python_code(settings).partition("\nmodel =")[0], expected)
    assert expected["config"] == settings


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"patch": "15"}, "multiple"),
        ({"depth": "1000000000"}, "depth must be a number from 1 to 400"),
        ({"batch": "0"}, "batch must be"),
        ({"batch": "-"}, "batch must be"),
        ({"heads": "7"}, "heads"),
        ({"width": "a"}, "width must be"),
        ({"name": "R50x1"}, "not a Vision Transformer"),
        ({"name": "B/17x"}, "no model is named"),
        ({"image": "99999999999"}, "image"),
        ({"pool": "all"}, "pool must be"),
    ],
)
def test_an_invalid_configuration_is_refused(fields: dict[str, str], text: str) -> None:
    with pytest.raises(VitrailError, match=text):
        cost_of(fields)
