"""Metadata of a model folder."""

import pytest

from vitrail.weights.model_folder import strip_paths


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("/home/me/photos", "photos"),
        ("photos/", "photos"),
        ("../deep/er.csv", "er.csv"),
        ("C:\\Users\\me\\photos", "photos"),
        ("runs/mine/best/model.safetensors", "mine"),
        ("best", "best"),
        ("~", ""),
        ("fashion", "fashion"),
        ("panes:train_size=100,size=16", "panes:train_size=100,size=16"),
        ("hf:owner/name", "hf:owner/name"),
    ],
)
def test_of_a_path_the_last_component_is_left(path: str, left: str) -> None:
    assert strip_paths({"a": [path, 3, None, {"b": path}]}) == {"a": [left, 3, None, {"b": left}]}
