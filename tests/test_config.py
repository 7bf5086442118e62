"""Settings survive JSON, take strict overrides, and reject invalid values."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.small_models import small_config
from vitrail.config import build_config, from_json, override, to_json
from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig, ResNetConfig, StemConfig, ViTConfig
from vitrail.models.variants import parse_name, variant


@dataclass(frozen=True)
class Recipe:
    model: ModelConfig
    lr: float = 1e-3
    steps: int = 10
    warm: bool = False
    name: str = ""
    betas: tuple[float, ...] = (0.9, 0.999)
    schedule: Literal["cosine", "linear"] = "cosine"


recipes = st.builds(
    Recipe,
    model=st.sampled_from(
        [small_config(), small_config(stem=StemConfig(stages=(1, 2)), patch=(1, 1), image=(16, 24)), variant("R50x2")]
    ),
    lr=st.floats(allow_nan=False, allow_infinity=False),
    steps=st.integers(),
    warm=st.booleans(),
    name=st.text(),
    betas=st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
    schedule=st.sampled_from(["cosine", "linear"]),
)


@given(recipes)
def test_json_loses_nothing(recipe: Recipe) -> None:
    assert from_json(Recipe, to_json(recipe)) == recipe


def test_json_distinguishes_the_model_families() -> None:
    for model in (variant("R50+B/16"), variant("R50x1")):
        assert type(from_json(Recipe, to_json(Recipe(model))).model) is type(model)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("model.depth=6", lambda r: replace(r, model=replace(r.model, depth=6))),
        ("model.image=24x30", lambda r: replace(r, model=replace(r.model, image=(24, 30)))),
        ("model.image=30", lambda r: replace(r, model=replace(r.model, image=(30, 30)))),
        ("model.layer_scale=1e-4", lambda r: replace(r, model=replace(r.model, layer_scale=1e-4))),
        ("model.layer_scale=none", lambda r: r),
        ("model.position=learned2d-sum", lambda r: replace(r, model=replace(r.model, position="learned2d-sum"))),
        ("lr=3", lambda r: replace(r, lr=3.0)),
        ("warm=true", lambda r: replace(r, warm=True)),
        ("name=7", lambda r: replace(r, name="7")),
        ("betas=0.8,0.9,1", lambda r: replace(r, betas=(0.8, 0.9, 1.0))),
        ("schedule = linear", lambda r: replace(r, schedule="linear")),
    ],
)
def test_an_override_changes_one_field(text: str, changed) -> None:  # type: ignore[no-untyped-def]
    recipe = Recipe(small_config())
    assert override(recipe, [text]) == changed(recipe)


def test_overrides_that_are_valid_only_together_are_applied_together() -> None:
    changed = override(Recipe(small_config()), ["model.width=35", "model.heads=5", "model.stem=none"])
    assert isinstance(changed.model, ViTConfig)
    assert (changed.model.width, changed.model.heads) == (35, 5)


def test_a_nested_field_is_overridden() -> None:
    recipe = Recipe(small_config(stem=StemConfig(stages=(1, 2)), patch=(1, 1), image=(16, 24)))
    changed = override(recipe, ["model.stem.stages=2,3", "model.stem.width=96"])
    assert isinstance(changed.model, ViTConfig)
    assert changed.model.stem == StemConfig(stages=(2, 3), width=96)


def test_a_name_is_built_once_with_its_overrides() -> None:
    kind, values = parse_name("B/15")  # whose default image size of 224 would be rejected
    assert build_config(kind, values, ["model.image=240"], prefix="model.") == variant("B/15", image=240)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model.dept=6", "no field is named 'model.dept'; did you mean 'model.depth'?"),
        ("depth=6", "no field is named 'depth'; did you mean 'model.depth'?"),
        ("model.depth", "an override reads FIELD=VALUE, got 'model.depth'; try 'model.depth=...'"),
        ("model.depth=six", "model.depth must be a whole number, got 'six'"),
        ("model.depth=6.5", "model.depth must be a whole number, got 6.5"),
        ("lr=fast", "lr must be a number, got 'fast'"),
        ("lr=nan", "lr must be a number, got nan"),
        ("warm=yes", "warm must be true or false, got 'yes'"),
        ("schedule=cosin", "schedule must be 'cosine' or 'linear', got 'cosin'; did you mean 'cosine'?"),
        ("model.image=1x2x3", "model.image must be a whole number or a pair such as 224x448, got [1, 2, 3]"),
    ],
)
def test_an_invalid_override_is_rejected_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(VitrailError) as refused:
        override(Recipe(small_config()), [text])
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("plain", "sentence"),
    [
        ("{", "not JSON"),
        ("[]", r"the settings must be a Recipe, got \[\]"),
        ('{"lr": 1}', "the field 'model' is missing"),
        ('{"model": {"family": "vit", "widht": 3}}', "no field is named 'model.widht'; did you mean 'width'"),
        ('{"model": {"family": "cnn"}}', "model must be a ViTConfig or a ResNetConfig"),
    ],
)
def test_invalid_json_is_rejected_with_a_sentence(plain: str, sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        from_json(Recipe, plain)


def test_a_wrong_type_is_rejected_when_settings_are_created() -> None:
    with pytest.raises(VitrailError, match="depth must be a whole number, got '6'"):
        small_config(depth="6")
    with pytest.raises(VitrailError, match="stages must be a list of values, each a whole number, got"):
        ResNetConfig(stages=(3, True))
