"""The cost calculator agrees with ``vitrail.cost``, and its Python code builds the configuration."""

from typing import Any

import pytest

import vitrail
from tests.small_models import small_config
from vitrail.errors import VitrailError
from vitrail.models.config import ViTConfig
from vitrail.studio.cost_calculator import cost_of, python_code


def test_the_cost_is_that_of_the_configuration() -> None:
    found = cost_of({"name": "S/16", "depth": "6", "image": "96x160", "batch": "3"})
    known = vitrail.cost(vitrail.variant("S/16", depth=6, image=(96, 160)), batch=3)
    assert found["parameters"] == known.parameters
    assert found["macs"] == known.macs
    assert found["grid"] == [6, 10]
    assert [stage["shape"] for stage in found["stages"]] == [list(stage.shape) for stage in known.stages]
    assert found["memory"]["training"] == known.memory.training


@pytest.mark.parametrize(
    "settings",
    [
        vitrail.variant("B/16"),
        vitrail.variant("Ti/16", image=384, classes=10, registers=4),
        vitrail.variant("L/14", pool="gap", position="rotary"),
        vitrail.variant("R50+B/16"),
        small_config(),
        small_config(pool="map", class_token=True, position="sincos2d-moco"),
    ],
)
def test_the_python_builds_this_very_configuration(settings: Any) -> None:
    assert isinstance(settings, ViTConfig)
    known: dict[str, Any] = {}
    exec(python_code(settings).partition("\nmodel =")[0], known)
    assert known["config"] == settings


@pytest.mark.parametrize(
    ("asked", "words"),
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
def test_an_invalid_configuration_is_refused(asked: dict[str, str], words: str) -> None:
    with pytest.raises(VitrailError, match=words):
        cost_of(asked)
