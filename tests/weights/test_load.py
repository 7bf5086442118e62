"""Loading: every change to the weights is correct and reported."""

import argparse
import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tests.small_models import small_config, small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.layers.position import resize_table
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig, StemConfig, ViTConfig
from vitrail.models.vit import ViT
from vitrail.weights.adapt import resample_patch
from vitrail.weights.load import load
from vitrail.weights.save import save

IMAGES = torch.randn(2, 3, 12, 15)


def save_and_load(folder: Path, model: Any, **overrides: Any) -> ViT:
    loaded = load(save(model, folder / "mine"), **overrides)
    assert isinstance(loaded, ViT)
    return loaded


# Another image size --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", ["learned1d", "learned2d", "learned2d-sum", "sincos1d", "sincos2d", "rotary"])
@pytest.mark.parametrize("rule", ["origin", "official", "huggingface"])
def test_a_resized_model_is_the_flexible_one_at_that_size(position: str, rule: Any, tmp_path: Path) -> None:
    model = small_vit(position=position, registers=2, flexible=True, position_resize="timm" if rule == "origin" else rule)
    model.preprocess = Preprocess((12, 15))
    larger = save_and_load(tmp_path, model, image=(24, 20), resize=rule)
    images = torch.randn(2, 3, 24, 20)
    assert larger.config.image == (24, 20)
    assert_close(larger(images), model(images), rtol=0, atol=1e-5)
    assert all("positions" in line for line in larger.load_report.resized)
    assert larger.load_report.resized
    assert larger.preprocess is not None
    assert larger.preprocess.image_size == (24, 20)
    reloaded = load(save(larger, tmp_path / "again"))
    assert_close(reloaded(images), larger(images), rtol=0, atol=0)


@pytest.mark.parametrize("table_grid", [None, (3, 2)])
def test_resized_relative_axes_are_those_of_the_flexible_model_and_a_table_of_its_own_grid_stays(
    table_grid: Any, tmp_path: Path
) -> None:
    changes = {"window": 2, "global_blocks": (2,), "relative_axes": True, "position_resize": "huggingface"}
    model = small_vit(**changes, flexible=True, table_grid=table_grid)
    larger = save_and_load(tmp_path, model, image=(24, 20))
    images = torch.randn(2, 3, 24, 20)
    assert_close(larger(images), model(images), rtol=0, atol=1e-5)
    axes = tuple(
        f"blocks.1.attention.relative.{line}"
        for line in ("rows: 3 offsets to 7, linearly", "columns: 5 offsets to 7, linearly")
    )
    assert larger.load_report.resized[:2] == axes
    assert len(larger.load_report.resized) == (3 if table_grid is None else 2)


def test_a_table_of_another_grid_is_written_at_that_of_the_model(tmp_path: Path) -> None:
    model = small_vit(table_grid=(3, 2))
    written = load(save(model, tmp_path / "x.npz", format="official"))
    assert_close(written(IMAGES), model(IMAGES), rtol=0, atol=1e-5)


def test_resizing_a_fixed_table_there_and_back_restores_it(tmp_path: Path) -> None:
    model = small_vit(position="sincos2d")
    larger = save_and_load(tmp_path, model, image=(24, 20))
    back = load(save(larger, tmp_path / "larger"), image=(12, 15))
    assert back.config == model.config
    assert_close(back(IMAGES), model(IMAGES), rtol=0, atol=0)


def test_the_rows_of_class_token_and_registers_are_unchanged(tmp_path: Path) -> None:
    model = small_vit(registers=2, position_prefix="all")
    larger = save_and_load(tmp_path, model, image=(24, 20))
    before, after = dict(model.named_parameters()), dict(larger.named_parameters())
    assert_close(after["positions.0.prefix"], before["positions.0.prefix"], rtol=0, atol=0)
    assert_close(after["positions.0.table.weight"], resize_table(before["positions.0.table.weight"], (4, 4), "timm"))


def test_relative_positions_are_not_resized(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="cannot be resized; keep image=12x15"):
        save_and_load(tmp_path, small_vit(position="relative"), image=(24, 20))


def test_a_size_that_patches_do_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="got image=25x20; try image=24x20"):
        save_and_load(tmp_path, small_vit(), image=(25, 20))


def test_a_resnet_accepts_another_size_unchanged(tmp_path: Path) -> None:
    model = build(ResNetConfig(stages=(1,), width=32, image=(32, 32), classes=3))
    larger = load(save(model, tmp_path / "mine"), image=48, classes=5)
    assert larger.config == ResNetConfig(stages=(1,), width=32, image=(48, 48), classes=5)


# Another patch size --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patch", [(12, 10), (7, 8), (6, 9)])
def test_a_larger_patch_embeds_an_upscaled_image_as_before(patch: tuple[int, int]) -> None:
    """The product of the kernels with a bilinearly upscaled patch equals the old product with the patch."""
    weight, pixels = torch.randn(4, 3, 6, 5), torch.randn(2, 3, 6, 5)
    upscaled = F.interpolate(pixels, patch, mode="bilinear")
    old = torch.einsum("bcpq,dcpq->bd", pixels, weight)
    assert_close(torch.einsum("bcpq,dcpq->bd", upscaled, resample_patch(weight, patch)), old, rtol=1e-4, atol=1e-4)


def test_another_patch_changes_kernels_grid_and_positions(tmp_path: Path) -> None:
    model = small_vit(image=(24, 30))  # 4 x 6 patches of 6 x 5
    other = save_and_load(tmp_path, model, patch=(12, 10))
    assert (other.config.patch, other.config.grid, other.config.image) == ((12, 10), (2, 3), (24, 30))
    assert len(other.load_report.resized) == 2
    same_grid = save_and_load(tmp_path, model, patch=(12, 10), image=(48, 60))
    assert_close(
        same_grid(F.interpolate(torch.ones(1, 3, 24, 30), (48, 60))), model(torch.ones(1, 3, 24, 30)), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("position", ["sincos2d", "rotary"])
def test_another_patch_size_keeps_fixed_positions(position: str, tmp_path: Path) -> None:
    model = small_vit(position=position, image=(24, 30))
    other = save_and_load(tmp_path, model, patch=(12, 10))
    assert other.config.position_grid == (4, 6)
    assert save_and_load(tmp_path, model, patch=(12, 10), image=(48, 60)).config.position_grid is None


def test_a_hybrid_keeps_its_patch_size(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="changed only for a Vision Transformer without a stem"):
        save_and_load(tmp_path, small_vit(stem=StemConfig(), patch=(2, 1), image=(16, 12)), patch=(1, 1))


# Other channels and classes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "word"), [(1, "averaged"), (2, "averaged"), (6, "repeated"), (5, "averaged")])
def test_an_image_with_equal_channels_has_the_same_embedding(channels: int, word: str, tmp_path: Path) -> None:
    model = small_vit()
    other = save_and_load(tmp_path, model, channels=channels)
    grey = torch.randn(2, 1, 12, 15)
    assert_close(other(grey.expand(2, channels, 12, 15)), model(grey.expand(2, 3, 12, 15)), rtol=1e-4, atol=1e-5)
    assert word in other.load_report.resized[0]
    assert other.preprocess is not None
    assert len(other.preprocess.mean) == channels


def test_other_classes_give_a_zero_head_and_are_reported(tmp_path: Path) -> None:
    model = small_vit(head="mlp", head_hidden=13)
    model.class_names = ("a", "b", "c", "d", "e")
    other = save_and_load(tmp_path, model, classes=7)
    assert_close(other(IMAGES), torch.zeros(2, 7))
    assert_close(other.features(IMAGES), model.features(IMAGES), rtol=0, atol=1e-6)
    assert other.class_names is None
    assert other.config.head == "linear"
    assert other.load_report.new == ("head.weight: zeros for 7 classes", "head.bias: zeros")
    assert set(other.load_report.unused) == {"head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"}
    assert save_and_load(tmp_path, model, classes=5).class_names == model.class_names


def test_without_classes_the_model_returns_features(tmp_path: Path) -> None:
    model = small_vit()
    assert_close(save_and_load(tmp_path, model, classes=0)(IMAGES), model.features(IMAGES), rtol=0, atol=1e-6)


# What is reported --------------------------------------------------------------------------------------------------------


def test_what_is_assumed_is_logged_and_can_be_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = small_vit(gelu="exact")
    save(model, tmp_path / "tiny.pth", format="timm")
    with pytest.raises(VitrailError, match=r"the position table has 7 rows, which is not a square grid; .* grid=2x3"):
        load(tmp_path / "tiny.pth")
    with caplog.at_level(logging.WARNING, "vitrail"):
        assumed = load(tmp_path / "tiny.pth", grid=(2, 3))
    assert "1 heads (64 channels per head, the usual; heads= overrides it)" in assumed.load_report.assumed
    assert any("1 heads" in record.message for record in caplog.records)
    overridden = load(tmp_path / "tiny.pth", grid=(2, 3), heads=3, gelu="exact", pool="cls")
    assert [item.split()[0] for item in overridden.load_report.assumed] == ["images"]
    assert_close(overridden(IMAGES), model(IMAGES), rtol=0, atol=1e-6)
    tanh = load(tmp_path / "tiny.pth", grid=(2, 3), heads=3, gelu="tanh")
    assert isinstance(tanh.config, ViTConfig)
    assert tanh.config.gelu == "tanh"


def test_what_a_file_records_is_not_overridden(tmp_path: Path) -> None:
    save(small_vit(gelu="exact"), tmp_path / "x.safetensors", format="timm")
    with pytest.raises(VitrailError, match="the file records heads=3, got heads=2; leave heads out"):
        load(tmp_path / "x.safetensors", heads=2)
    for overrides in ({"heads": 2}, {"gelu": "exact"}, {"grid": (9, 9)}, {"pool": "gap"}):
        with pytest.raises(VitrailError, match=r"the file records .* leave .* out"):
            save_and_load(tmp_path, small_vit(), **overrides)
    assert save_and_load(tmp_path, small_vit(), heads=3, grid=(2, 3)).config == small_config()
    assert load(tmp_path / "mine" / "model.safetensors").config == small_config()


AMBIGUOUS: list[dict[str, Any]] = [
    {"pool": "gap", "class_token": True},
    {"pool": "cls", "final_norm": "pooled"},
    {"image": (6, 20)},  # a grid of 1 x 4, which has as many patches as 2 x 2
    {"image": (12, 20)},  # a grid of 2 x 4, which has with its class token as many rows as 3 x 3
]


def test_qk_norm_reveals_the_number_of_heads(tmp_path: Path) -> None:
    model = small_vit(gelu="exact", qk_norm=True)
    save(model, tmp_path / "x.pth", format="timm")
    assert_close(load(tmp_path / "x.pth", grid=(2, 3))(IMAGES), model(IMAGES), rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", AMBIGUOUS, ids=str)
def test_what_tensors_do_not_record_is_in_the_header(options: dict[str, Any], tmp_path: Path) -> None:
    model = small_vit(gelu="exact", **options)
    model.class_names, model.preprocess = ("a", "b", "c", "d", "e"), Preprocess(model.config.image, 0.7, mean=(0.1, 0.2, 0.3))
    reloaded = load(save(model, tmp_path / "x.safetensors", format="timm"))
    assert (reloaded.config, reloaded.class_names, reloaded.preprocess) == (model.config, model.class_names, model.preprocess)
    assert reloaded.load_report.assumed == ()
    with pytest.raises(VitrailError, match=r"in a .pth, which would be read as .*; use .safetensors"):
        save(model, tmp_path / "x.pth", format="timm")


def test_an_npz_records_it_in_its_comment(tmp_path: Path) -> None:
    model = small_vit(image=(6, 20))
    model.class_names = ("a", "b", "c", "d", "e")
    reloaded = load(save(model, tmp_path / "x.npz", format="official"))
    assert (reloaded.config.image, reloaded.class_names) == ((6, 20), model.class_names)
    many = small_vit(classes=9000)
    many.class_names = tuple(f"class number {index}" for index in range(9000))
    assert load(save(many, tmp_path / "many.npz", format="official")).class_names is None  # more than a comment can hold


def test_a_training_scripts_options_are_ignored_and_other_entries_reported(tmp_path: Path) -> None:
    model = small_vit(gelu="exact", image=(12, 10))
    save(model, tmp_path / "bare.pth", format="timm")
    state = torch.load(tmp_path / "bare.pth", weights_only=True)
    content = {"teacher": state, "student": state, "args": argparse.Namespace(lr=0.1), "epoch": 3}
    torch.save(content, tmp_path / "dino.pth")
    loaded = load(tmp_path / "dino.pth", heads=3)
    assert loaded.load_report.unused == ("student",)
    assert "the weights under 'teacher'" in loaded.load_report.assumed
    assert loaded.preprocess is not None
    assert loaded.preprocess.mean[0] == 0.485
    torch.save(
        {**state, **{f"module.{name}": weight for name, weight in state.items()}, "module.more": state["norm.bias"]},
        tmp_path / "two.pth",
    )
    with pytest.raises(VitrailError, match=r"the same names with and without the prefix 'module.'"):
        load(tmp_path / "two.pth")


def test_a_wrong_grid_is_refused_with_those_that_fit(tmp_path: Path) -> None:
    save(small_vit(gelu="exact"), tmp_path / "tiny.pth", format="timm")
    with pytest.raises(VitrailError, match="a grid of 4x4 does not fit a position table of 7 rows; grids that do: 2x3 or 3x2"):
        load(tmp_path / "tiny.pth", grid=(4, 4))


def test_a_report_is_readable(tmp_path: Path) -> None:
    lines = save_and_load(tmp_path, small_vit(), image=(24, 20), classes=7).load_report.lines()
    assert lines[0].startswith("read vitrail weights: ")
    assert any(line.startswith("resized positions.0.table.weight: 2x3 to 4x4 as in timm") for line in lines)
    assert lines[-1] in ("not used: head.weight, head.bias", "not used: head.bias, head.weight")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"resize": "tim"}, "resize must be .* got 'tim'; did you mean 'timm'"),
        ({"image": "224"}, "image must be a whole number or a pair such as 224x448 or none, got '224'"),
        ({"channels": 0}, "channels must be at least 1"),
        ({"channels": "3"}, "channels must be a whole number or none, got '3'"),
        ({"patch": 0}, "patch must be from 1 to 4,096, got 0x0; try patch=6x5"),
        ({"patch": 5000}, "patch must be from 1 to 4,096"),
        ({"grid": "2x2"}, "grid must be a whole number or a pair"),
        ({"classes": -1}, "classes must be at least 0"),
    ],
)
def test_an_invalid_argument_is_refused_with_a_clear_message(overrides: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=message):
        save_and_load(tmp_path, small_vit(), **overrides)


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing.npz", "does not exist"), ("notes.txt", "an unknown format"), ("a.onnx", "is an exported file")],
)
def test_other_files_than_checkpoints_are_refused(name: str, message: str, tmp_path: Path) -> None:
    for file in ("notes.txt", "a.onnx"):
        (tmp_path / file).write_text("hello")
    with pytest.raises(VitrailError, match=message):
        load(tmp_path / name)


def test_names_of_another_architecture_are_refused(tmp_path: Path) -> None:
    torch.save({"layer1.0.conv1.weight": torch.ones(2)}, tmp_path / "resnet.pth")
    with pytest.raises(VitrailError, match=r"the tensor names of no known Vision Transformer: layer1.0.conv1.weight"):
        load(tmp_path / "resnet.pth")


# What a format cannot hold -------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("timm", {}, "a GELU in its tanh form"),
    ("timm", {"gelu": "exact", "norm_eps": 1e-12}, "epsilon 1e-12 .*; use format='huggingface'"),
    ("timm", {"gelu": "exact", "norm_eps": 1e-5}, "epsilon 1e-05 .*; name a folder, .* or use format='huggingface'"),
    ("timm", {"gelu": "exact", "norm": "branch"}, "norms at the end of the branches .* in a file; name a folder"),
    ("timm", {"gelu": "exact", "head": "mlp"}, "the pre-logits layer"),
    ("timm", {"gelu": "exact", "norm": "post"}, "post-norm"),
    ("timm", {"gelu": "exact", "position": "rotary"}, "position embeddings of type rotary"),
    ("timm", {"gelu": "exact", "position": "relative"}, "position embeddings of type relative"),
    ("timm", {"gelu": "exact", "position_at": "every-layer"}, "learned1d at every layer"),
    ("timm", {"gelu": "exact", "registers": 2}, "registers without a position and a class token with one"),
    ("timm", {"gelu": "exact", "stem": StemConfig(), "patch": (2, 1), "image": (16, 12)}, "a stem with the official epsilons"),
    ("official", {"gelu": "exact"}, "an exact GELU"),
    ("official", {"registers": 1}, "registers, layer scale"),
    ("official", {"final_norm": "pooled"}, "a norm after pooling"),
    ("official", {"pool": "gap", "class_token": True}, "a class token with another pooling"),
    ("torchvision", {"gelu": "exact"}, "not square"),
    ("torchvision", {"gelu": "exact", "channels": 1, "image": (12, 12), "patch": (6, 6)}, "images of 1 channels"),
    ("torchvision", {}, "a GELU in its tanh form"),
    ("torchvision", {"gelu": "exact", "pool": "gap"}, "anything but a class token"),
    ("huggingface", {"head": "mlp"}, "the pre-logits layer"),
    ("huggingface", {"pool": "map"}, "anything but a class token"),
    ("huggingface", {"layer_scale": 0.1}, "layer scale"),
    ("huggingface", {"classes": 0}, "a model without a classifier"),
]
NAMES = {"timm": "x.safetensors", "official": "x.npz", "torchvision": "x.pth", "huggingface": "x"}


@pytest.mark.parametrize(("format", "options", "message"), REFUSED)
def test_what_a_format_cannot_hold_is_refused_and_nothing_is_written(
    format: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(VitrailError, match=f"the {format} format cannot hold .*{message}"):
        save(small_vit(**options), tmp_path / NAMES[format], format=format)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_format_or_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=r"format must be 'vitrail', 'official', .* got 'tim'; did you mean 'timm'"):
        save(small_vit(), tmp_path / "x", format="tim")  # type: ignore[arg-type]
    with pytest.raises(VitrailError, match=r"a file in the official format ends in .npz, got 'x.pth'"):
        save(small_vit(), tmp_path / "x.pth", format="official")


def test_an_existing_file_is_replaced_whole(tmp_path: Path) -> None:
    save(small_vit(gelu="exact"), tmp_path / "x.safetensors", format="timm")
    newer = small_vit(gelu="exact", depth=2)
    save(newer, tmp_path / "x.safetensors", format="timm")
    assert load(tmp_path / "x.safetensors").config.image == newer.config.image
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    model = small_vit(gelu="exact")
    save(model, tmp_path / "x.pth", format="timm")
    state = torch.load(tmp_path / "x.pth", weights_only=True)
    torch.save({name: weight.to(dtype) for name, weight in state.items()}, tmp_path / "half.pth")
    loaded = load(tmp_path / "half.pth", grid=(2, 3), heads=3)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    assert_close(loaded(IMAGES), model(IMAGES), rtol=0.1, atol=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("format", "name", "ratio"),
    [
        ("vitrail", "x", 1.25),
        ("huggingface", "x", 1.5),
        ("official", "x.npz", 1.75),
    ],
)
def test_loading_takes_little_more_memory_than_the_weights(format: Any, name: str, ratio: float, tmp_path: Path) -> None:
    """An L/16 of four blocks, in a separate process. Formats with separate q, k and v need memory to concatenate them."""
    model = build("L/16", depth=4, classes=2000)
    weights = sum(weight.nbytes for weight in model.parameters())
    path, small = save(model, tmp_path / name, format=format), save(small_vit(), tmp_path / "small")
    script = (
        "import sys, json, vitrail.weights.load as w\n"
        "from tests.peak_memory import peak_growth\n"
        "w.load(sys.argv[2])  # imports everything it needs\n"
        "print(json.dumps(peak_growth(lambda: w.load(sys.argv[1]))))"
    )
    done = subprocess.run([sys.executable, "-c", script, path, small], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) < ratio * weights


@pytest.mark.parametrize(
    ("format", "name", "gelu"), [("vitrail", "x", "tanh"), ("timm", "x.safetensors", "exact"), ("official", "x.npz", "tanh")]
)
def test_weights_are_copied_and_aligned_like_those_of_a_new_model(format: Any, name: str, gelu: str, tmp_path: Path) -> None:
    """A mapped file could be overwritten while in use, and its alignment would change the rounding of sums."""
    path = save(small_vit(gelu=gelu), tmp_path / name, format=format)
    loaded = load(path)
    before = {key: value.clone() for key, value in loaded.state_dict().items()}
    assert {weight.data_ptr() % 64 for weight in loaded.parameters()} == {0}
    file = path / "model.safetensors" if path.is_dir() else path
    with open(file, "r+b") as stream:
        stream.write(bytes(file.stat().st_size))
    assert_close(dict(loaded.state_dict()), before, rtol=0, atol=0)


def test_six_threads_may_save_to_one_path(tmp_path: Path) -> None:
    model = small_vit()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: save(model, tmp_path / "mine"), range(30)))
    assert_close(load(tmp_path / "mine")(IMAGES), model(IMAGES), rtol=0, atol=0)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_model_loaded_in_inference_mode_can_be_trained(tmp_path: Path) -> None:
    with torch.inference_mode():
        loaded = save_and_load(tmp_path, small_vit(), image=(24, 20))
    loaded.train()(torch.randn(2, 3, 24, 20)).sum().backward()
    assert all(weight.grad is not None for weight in loaded.parameters())


def test_what_is_written_can_be_read_by_others(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    default_mode = (tmp_path / "usual").stat().st_mode
    save(small_vit(gelu="exact"), tmp_path / "x.safetensors", format="timm")
    for file in (*save(small_vit(), tmp_path / "mine").iterdir(), tmp_path / "x.safetensors"):
        assert file.stat().st_mode == default_mode


def test_the_config_is_that_of_the_file(tmp_path: Path) -> None:
    assert save_and_load(tmp_path, small_vit(registers=1)).config == small_config(registers=1)
