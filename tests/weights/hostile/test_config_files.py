"""Config files are data: nonsense in them is refused, paths and code in them are not followed."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch.testing import assert_close

from tests.weights.hostile.damage import IMAGES, edit_json, load_outcome, read_tensors, refusal_message, save_small
from vitrail.weights.convert.inspect import Origin
from vitrail.weights.load import load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_small("huggingface", tmp_path)


def write_shard_index(folder: Path, name: str) -> None:
    """Write an index that puts all weights into one shard of that name."""
    weight_map = dict.fromkeys(read_tensors(folder), name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_read_together(folder: Path) -> None:
    model, tensors = load(folder), read_tensors(folder)
    weight_map = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        save_file({name: tensor for name, tensor in tensors.items() if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_close(load(folder)(IMAGES), model(IMAGES), rtol=0, atol=0)


@pytest.mark.parametrize("absolute", [True, False])
def test_shards_outside_the_folder_are_not_opened(absolute: bool, folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    shutil.copy(folder / "model.safetensors", outside)
    name = str(outside) if absolute else "../outside.safetensors"
    write_shard_index(folder, name)
    assert f"points outside its folder: {name!r}" in refusal_message(folder)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/",
        "../",
        "./model.safetensors",
        "sub/model.safetensors",
        "/dev/zero",
        "gone.safetensors",
        "config.json",
        "x" * 300 + ".safetensors",
        "\0.safetensors",
        "\ud800.safetensors",
        "a\nb.safetensors",
    ],
    ids=lambda name: ascii(name)[:30],
)
def test_missing_shards_are_refused(name: str, folder: Path) -> None:
    write_shard_index(folder, name)
    refusal_message(folder)


def test_a_missing_shard_and_a_missing_tensor_are_named(folder: Path) -> None:
    write_shard_index(folder, "model-2.safetensors")
    assert "lacks the shard model-2.safetensors" in refusal_message(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"vit.lost": "model.safetensors"}}')
    assert "lack vit.lost" in refusal_message(folder)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {}}', "{"])
def test_an_invalid_index_is_refused(index: str, folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    refusal_message(folder)


def test_a_config_that_brings_code_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", auto_map={"AutoModel": "evil.Model"})
    (folder / "evil.py").write_text(f"import os; os.mkdir({str(folder / 'executed')!r})")
    assert "would execute its own code (auto_map), which is never done" in refusal_message(folder)
    assert not (folder / "executed").exists()


def test_a_config_of_another_model_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="bert")
    assert "config.json describes a 'bert'" in refusal_message(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image_size", "ten"),
        ("image_size", 0),
        ("image_size", 11_000),
        ("image_size", [10]),
        ("image_size", None),
        ("num_attention_heads", "3"),
        ("num_attention_heads", 3.0),
        ("num_attention_heads", 0),
        ("num_attention_heads", 7),
        ("layer_norm_eps", "small"),
        ("layer_norm_eps", -1),
        ("layer_norm_eps", float("nan")),
        ("layer_norm_eps", 10**400),
        ("hidden_act", "relu"),
        ("hidden_act", ["gelu"]),
        ("hidden_act", {}),
        ("model_type", ["vit"]),
        ("model_type", "v" * 100_000),
        ("hidden_act", "gelu\n" * 1000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_config_with_nonsense_is_refused(key: str, value: Any, folder: Path) -> None:
    edit_json(folder / "config.json", **{key: value})
    refusal_message(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image_mean", "grey"),
        ("image_mean", None),
        ("image_mean", [None] * 3),
        ("image_mean", [float("nan")] * 3),
        ("image_mean", [10**400] * 3),
        ("image_mean", []),
        ("image_std", [0, 0, 0]),
        ("image_std", {"r": 1}),
        ("size", {"shortest_edge": 0}),
        ("size", {"shortest_edge": -3}),
        ("size", {"shortest_edge": 3}),
        ("resample", []),
        ("resample", {}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_preprocessor_with_nonsense_is_refused(key: str, value: Any, folder: Path) -> None:
    edit_json(folder / "preprocessor_config.json", **{key: value})
    refusal_message(folder)


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "model.safetensors.index.json"])
def test_json_that_is_huge_deep_or_no_object_is_refused(name: str, folder: Path) -> None:
    for content in (
        "[" * 200_000,
        '{"a":' * 200_000,
        " " * (17 * 2**20),
        "[]",
        "7",
        "",
        "{",
        "\0",
        '{"a": ' + "9" * 5000 + "}",
    ):
        (folder / name).write_text(content)
        assert name in refusal_message(folder)


def test_metadata_that_is_deep_or_huge_is_refused(tmp_path: Path) -> None:
    folder = save_small("vitrail", tmp_path)
    for content in ("[" * 200_000, '{"a":' * 200_000, '{"format": 1, "model": ' + "9" * 5000 + "}"):
        (folder / "vitrail.json").write_text(content)
        assert "vitrail.json" in refusal_message(folder)


NONSENSE: list[Any] = [None, True, -1, 0, 1.5, 10**30, 10**400, float("nan"), float("inf"), "", "many", "a\nb", [], [[]], {}]
NONSENSE += [[-1, -1], [0, 0], [0, 0, 0], ["a", "b", "c"], [None, None, None], [10**400] * 3, {"a": {}}, "x" * 10_000]


def _leaves(content: Any, *above: Any) -> Iterator[tuple[Any, ...]]:
    for key, value in content.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _leaves(value, *above, key)


def _replaced(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    head, *rest = path
    return {**content, head: _replaced(content[head], tuple(rest), value) if rest else value}


TIMM_CONFIG: dict[str, Any] = {
    "architecture": "vit_small_patch16_224",
    "num_classes": 5,
    "global_pool": "token",
    "label_names": ["a", "b", "c", "d", "e"],
    "model_args": {"num_heads": 3, "embed_dim": 24, "depth": 1, "act_layer": "gelu", "class_token": True, "mlp_ratio": 5 / 3},
    "pretrained_cfg": {
        "input_size": [3, 10, 10],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    },
}


@pytest.mark.parametrize(
    ("format", "name"),
    [
        pytest.param("huggingface", "config.json", marks=pytest.mark.thorough),
        pytest.param("huggingface", "preprocessor_config.json", marks=pytest.mark.thorough),
        pytest.param("timm", "config.json", marks=pytest.mark.thorough),
        ("vitrail", "vitrail.json"),
    ],
)
def test_any_nonsense_in_any_field_is_ignored_or_refused(format: Origin, name: str, tmp_path: Path) -> None:
    file = save_small(format, tmp_path)
    if format == "timm":
        (tmp_path / "timm").mkdir()
        save_file(read_tensors(file), tmp_path / "timm" / "model.safetensors")  # without our own metadata
        file = tmp_path / "timm"
        (file / name).write_text(json.dumps(TIMM_CONFIG))
        assert load_outcome(file) == "loaded"
    content = json.loads((file / name).read_text())
    wrong = {}
    for path in _leaves(content):
        for value in NONSENSE:
            if path[-1] in ("depth", "width") and value in (10**30, 10**400):
                continue  # tested in test_memory_bombs.py, in a process with limits
            (file / name).write_text(json.dumps(_replaced(content, path, value)))
            if (outcome := load_outcome(file)) not in ("loaded", "refused"):
                wrong[f"{'.'.join(path)} = {str(value)[:30]}"] = outcome[:100]
    assert wrong == {}
