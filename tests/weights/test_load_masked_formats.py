"""Models pre-trained with a decoder in the published format and as Hugging Face's ViTMAE; and what these cannot hold."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from tests.small_models import small_vit
from tests.weights.test_load_masked import MAE, METHODS, assert_equal, build_masked
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.layers.position import sincos2d
from vitrail.models.config import ViTConfig
from vitrail.models.masked_autoencoders import MaskedModel
from vitrail.models.masking_config import Masking
from vitrail.weights.load import load
from vitrail.weights.load_masked import load_masked
from vitrail.weights.save import save

OTHER_METHODS = METHODS[1:]


def build_square(masking: Masking = MAE, **changes: Any) -> MaskedModel:
    """Build a model of 5 x 5 patches of 3 x 3 pixels: transformers needs a square, and so does a .pth."""
    return build_masked(masking, **{"image": (15, 15), "patch": (3, 3), **changes})


# As published --------------------------------------------------------------------------------------------------------


def published_tensors(model: MaskedModel, decoder: bool = True) -> dict[str, Tensor]:
    """Return the tensors with the names of the authors' files; without the decoder, they end with the norm."""
    c, state, grid = model.config, model.state_dict(), model.config.grid
    names = {"attention.qkv": "attn.qkv", "attention.out": "attn.proj", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    names |= {"norm1": "norm1", "norm2": "norm2"}

    def table(width: int) -> Tensor:
        return torch.cat([torch.zeros(1, width), sincos2d(grid, width, "mae").flatten(0, 1)])[None]

    def blocks(theirs: str, ours: str, depth: int) -> dict[str, Tensor]:
        return {
            f"{theirs}.{layer}.{their}.{part}": state[f"{ours}.{layer}.{our}.{part}"]
            for layer in range(depth)
            for our, their in names.items()
            for part in ("weight", "bias")
        }

    def linear(theirs: str, ours: str) -> dict[str, Tensor]:
        return {f"{theirs}.{part}": state[f"{ours}.{part}"] for part in ("weight", "bias")}

    file = {"cls_token": state["encoder.cls"][None, None], "pos_embed": table(c.width)}
    file |= linear("patch_embed.proj", "encoder.embed.project") | blocks("blocks", "encoder.blocks", c.depth)
    file |= linear("norm", "encoder.norm")
    if not decoder:
        return file
    file |= {"mask_token": state["decoder.mask"][None, None], "decoder_pos_embed": table(model.masking.decoder_width)}
    for theirs, ours in {"decoder_embed": "embed", "decoder_norm": "norm", "decoder_pred": "predict"}.items():
        file |= linear(theirs, f"decoder.{ours}")
    return file | blocks("decoder_blocks", "decoder.blocks", model.masking.decoder_depth)


WIDE: dict[str, Any] = {"width": 192, "heads": 3, "mlp": 40}  # 64 channels per head, as assumed for unpublished sizes


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_published_file_is_read_to_the_bit(wrapped: bool, tmp_path: Path) -> None:
    masking = replace(MAE, mask_ratio=0.75, decoder_heads=16)
    model = build_square(masking, **WIDE)
    torch.save({"model": published_tensors(model)} if wrapped else published_tensors(model), tmp_path / "mae.pth")
    loaded = load_masked(tmp_path / "mae.pth")
    assert_equal(model, loaded)
    assumed = " | ".join(loaded.encoder.load_report.assumed)
    for part in ("16 heads in the decoder (as in the published models; decoder_heads= overrides it)", "75 %", "normalised"):
        assert part in assumed
    assert not loaded.encoder.load_report.unused
    encoder = load(tmp_path / "mae.pth")
    images = torch.randn(2, 3, 15, 15)
    assert_close(encoder(images), model.encoder(images), rtol=0, atol=1e-5)
    assert all("decoder" in name or name == "mask_token" for name in encoder.load_report.unused)


def test_the_published_encoders_are_read(tmp_path: Path) -> None:
    model = build_square(**WIDE)
    torch.save({"model": published_tensors(model, decoder=False)}, tmp_path / "mae_pretrain_vit.pth")
    encoder = load(tmp_path / "mae_pretrain_vit.pth")
    images = torch.randn(2, 3, 15, 15)
    assert_close(encoder(images), model.encoder(images), rtol=0, atol=1e-5)
    assert encoder.preprocess is not None
    assert encoder.preprocess.mean == (0.485, 0.456, 0.406)  # they were trained with ImageNet's mean and std
    with pytest.raises(VitrailError, match="is an encoder without a decoder"):
        load_masked(tmp_path / "mae_pretrain_vit.pth")


def test_the_published_layout_is_written_to_the_bit(tmp_path: Path) -> None:
    model = build_square(**WIDE)
    save(model, tmp_path / "mae.pth", format="timm")
    save(model, tmp_path / "mae.safetensors", format="timm")
    content = torch.load(tmp_path / "mae.pth", weights_only=True)
    assert list(content) == ["model"]
    for file in (content["model"], load_file(tmp_path / "mae.safetensors")):
        expected = published_tensors(model)
        assert file.keys() == expected.keys()
        for name, tensor in expected.items():
            assert_close(file[name], tensor, rtol=0, atol=0)
    assert_equal(model, load_masked(tmp_path / "mae.pth", decoder_heads=4, mask_ratio=0.7))
    assert_equal(model, load_masked(tmp_path / "mae.safetensors"))


@pytest.mark.parametrize("changes", [{}, {"position": "learned1d"}, {"pool": "gap", "class_token": True}], ids=str)
def test_a_safetensors_file_records_what_the_published_layout_does_not(changes: dict[str, Any], tmp_path: Path) -> None:
    model = build_masked(**changes)
    loaded = load_masked(save(model, tmp_path / "mae.safetensors", format="timm", metadata={"dataset": {"name": "x"}}))
    assert_equal(model, loaded)
    assert not loaded.encoder.load_report.assumed
    assert (loaded.encoder.preprocess, loaded.encoder.metadata) == (model.encoder.preprocess, {"dataset": {"name": "x"}})
    with pytest.raises(VitrailError, match="the file records decoder_heads=4, got decoder_heads=2; leave decoder_heads out"):
        load_masked(tmp_path / "mae.safetensors", decoder_heads=2)


@pytest.mark.parametrize("position_prefix", ["none", "cls"])
@pytest.mark.parametrize("position", ["learned1d", "learned2d", "sincos2d"])
def test_other_tables_are_written_as_their_values(position: str, position_prefix: str, tmp_path: Path) -> None:
    model = build_masked(position=position, position_prefix=position_prefix)
    loaded = load_masked(save(model, tmp_path / "mae.safetensors", format="timm"))
    assert (loaded.config.position, loaded.config.position_prefix) == ("learned1d", "cls")
    noise, images = torch.rand(2, 18), torch.randn(2, 3, 12, 12)
    assert_close(loaded(images, noise)[0], model(images, noise)[0], rtol=0, atol=1e-6)


def with_changes(tensors: dict[str, Tensor], **changes: Tensor | None) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in {**tensors, **changes}.items() if tensor is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_pred.bias": None}, "the file lacks decoder_pred.bias"),
        ({"mask_token": None, "decoder_norm.weight": None}, "the file lacks mask_token, decoder_norm.weight"),
        ({"decoder_pos_embed": torch.zeros(1, 26, 64)}, "the positions of the decoder are not MAE's sin-cos table"),
        ({"decoder_pos_embed": torch.zeros(1, 25, 64)}, "decoder_pos_embed .* does not fit the other tensors"),
        ({"decoder_pred.weight": torch.zeros(28, 64)}, "do not fit their config: decoder.predict.weight is"),
        ({"decoder_blocks.0.mlp.fc1.weight": torch.zeros(99, 64)}, "must be 4 x 64 wide, got 99"),
        ({"decoder_blocks.0.attn.q_norm.weight": torch.zeros(4)}, "the decoder has decoder_blocks.0.attn.q_norm.weight, which"),
        ({"decoder_embed.weight": torch.zeros(64, 2, 3)}, "decoder_embed.weight must have 2 axes"),
        ({"mask_token": torch.zeros(1, 1, 0)}, "mask_token is empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_incomplete_mae_file_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    torch.save({"model": with_changes(published_tensors(build_square(**WIDE)), **changes)}, tmp_path / "mae.pth")
    with pytest.raises(VitrailError, match=message):
        load_masked(tmp_path / "mae.pth")


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_cut_file_is_refused(fraction: float, suffix: str, tmp_path: Path) -> None:
    path = save(build_square(), tmp_path / f"mae{suffix}", format="timm")
    path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])
    with pytest.raises(VitrailError, match="cannot be read"):
        load_masked(path)


def test_unrecorded_decoder_heads_must_be_given_if_sixteen_do_not_fit(tmp_path: Path) -> None:
    model = build_square(Masking("mae", 0.75, norm_pix_target=True, decoder_width=48, decoder_depth=1, decoder_heads=3), **WIDE)
    path = save(model, tmp_path / "mae.pth", format="timm")
    with pytest.raises(
        VitrailError, match=r"16, as published, do not fit a width of 48; give it, for example decoder_heads=12"
    ):
        load_masked(path)
    assert_equal(model, load_masked(path, decoder_heads=3))
    with pytest.raises(VitrailError, match="decoder_heads must be a whole number"):
        load_masked(path, decoder_heads="3")  # type: ignore[arg-type]


# As Hugging Face's ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"gelu": "tanh", "norm_eps": 1e-5, "position": "learned1d"}], ids=str)
def test_saving_and_loading_their_folder_is_exact_to_the_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    model = build_square(position_resize="huggingface", **changes)
    model.encoder.preprocess = Preprocess((15, 15), crop_pct=0.75, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0))
    folder = save(model, tmp_path / "mine", format="huggingface")
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "preprocessor_config.json"]
    loaded = load_masked(folder)
    assert_equal(model, loaded)
    assert not loaded.encoder.load_report.assumed
    assert loaded.encoder.preprocess == model.encoder.preprocess
    with pytest.raises(VitrailError, match=r"the file records mask_ratio=0.7, got mask_ratio=0.5"):
        load_masked(folder, mask_ratio=0.5)
    assert load(folder).config.classes == 0


def test_our_own_recipes_pooling_is_saved_in_the_metadata(tmp_path: Path) -> None:
    """Their MAE does not pool; the rest of the file is the same."""
    model = build_square(pool="gap", class_token=True)
    folder = save(model, tmp_path / "mine", format="huggingface", metadata={"dataset": {"name": "x"}})
    loaded = load_masked(folder)
    assert_equal(model, loaded)
    assert (loaded.encoder.preprocess, loaded.encoder.metadata) == (model.encoder.preprocess, {"dataset": {"name": "x"}})
    images = torch.randn(2, 3, 15, 15)
    assert_close(load(folder)(images), model.encoder(images), rtol=0, atol=1e-6)
    plain = save(build_square(), tmp_path / "plain", format="huggingface")
    assert (folder / "config.json").read_text() == (plain / "config.json").read_text()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"mask_ratio": 0.5}))
    with pytest.raises(VitrailError, match=r"config.json in .* contradicts the metadata"):
        load_masked(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_num_attention_heads": "8"}, "decoder_num_attention_heads in config.json must be a whole number"),
        ({"decoder_num_attention_heads": 5}, "masking.decoder_width must be a multiple of 4 and of masking.decoder_heads"),
        ({"mask_ratio": 0}, "masking.mask_ratio must be above 0"),
        ({"mask_ratio": 0.999}, "masks 25 of 25 patches"),
        ({"model_type": "convnext"}, "of Hugging Face's, 'vit', 'vit_mae',"),
    ],
)
def test_an_invalid_config_json_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = save(build_square(), tmp_path / "mine", format="huggingface")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(VitrailError, match=message):
        load_masked(folder)


def test_a_decoder_of_another_kind_is_not_maes(tmp_path: Path) -> None:
    """The decoder of transformers' masked image modelling is one convolution."""
    save(small_vit(image=(12, 12), patch=(4, 4)), tmp_path / "mine", format="huggingface")
    file = load_file(tmp_path / "mine" / "model.safetensors") | {"decoder.0.weight": torch.ones(48, 24, 1, 1)}
    save_file(file, tmp_path / "mine" / "model.safetensors")
    with pytest.raises(VitrailError, match="is an encoder without a decoder"):
        load_masked(tmp_path / "mine")


# What a format cannot hold -------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("timm", {"registers": 2}, "anything but a class token"),
    ("timm", {"pool": "gap"}, "anything but a class token"),
    ("huggingface", {"pool": "gap"}, "anything but a class token"),
    ("timm", {"norm": "post"}, "anything but a class token and pre-norm"),
    ("timm", {"layer_scale": 0.1}, "layer scale, qk-norm or q, k, v without bias"),
    ("timm", {"qk_norm": True}, "layer scale, qk-norm or q, k, v without bias"),
    ("huggingface", {"qkv_bias": False}, "layer scale, qk-norm or q, k, v without bias"),
    ("timm", {"position": "rotary", "heads": 2}, "position embeddings of type rotary"),
    ("huggingface", {"position": "none"}, "position embeddings of type none"),
    ("timm", {"gelu": "tanh"}, "GELU in its tanh form .* use format='huggingface'"),
    ("timm", {"norm_eps": 1e-5}, "epsilon 1e-05"),
    ("huggingface", {"image": (15, 18)}, "not square"),
    ("official", {}, "cannot hold MAE's decoder; save model.encoder alone, or use format='timm' or 'huggingface'"),
    ("torchvision", {}, "cannot hold MAE's decoder"),
]


@pytest.mark.parametrize(("format", "changes", "message"), REFUSED, ids=str)
def test_what_a_format_cannot_hold_is_refused(format: Any, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    suffix = {"timm": ".safetensors", "huggingface": "", "official": ".npz", "torchvision": ".pth"}[format]
    with pytest.raises(VitrailError, match=message) as caught:
        save(build_square(**changes), tmp_path / f"mine{suffix}", format=format)
    assert "format='vitrail', which can hold everything" in str(caught.value) or "use format='vitrail'" in str(caught.value)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("masking", OTHER_METHODS, ids=lambda masking: f"{masking.method} {masking.target}")
@pytest.mark.parametrize("format", ["timm", "huggingface", "official", "torchvision"])
def test_other_methods_cannot_be_saved_in_other_formats(masking: Masking, format: Any, tmp_path: Path) -> None:
    suffix = {"timm": ".pth", "huggingface": "", "official": ".npz", "torchvision": ".pth"}[format]
    with pytest.raises(VitrailError, match=f"cannot hold the prediction head of {masking.method}; save model.encoder alone"):
        save(build_masked(masking), tmp_path / f"mine{suffix}", format=format)


def test_a_grid_that_a_pth_cannot_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=r"a grid of 2x8 in a .pth, which would be read as 4x4; use .safetensors"):
        save(build_masked(image=(8, 16)), tmp_path / "mine.pth", format="timm")


# The command ---------------------------------------------------------------------------------------------------------


def run_convert(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert run(["weights", "convert", *map(str, arguments), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_converting_keeps_the_decoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build_square(position_resize="huggingface")
    model.encoder.preprocess = Preprocess((15, 15))
    save(model, tmp_path / "own")
    source = tmp_path / "own"
    for out, format in (("mae.safetensors", "timm"), ("hf", "huggingface"), ("again", "vitrail")):
        answer = run_convert(capsys, source, tmp_path / out, "--to", format)
        assert (answer["decoder"], answer["without"], answer["written"]) == (True, None, str(tmp_path / out))
        source = tmp_path / out
    assert_equal(model, load_masked(source))
    assert run(["weights", "convert", str(source), str(tmp_path / "mae.pth"), "--to", "timm"]) == 0
    assert "wrote timm weights and the decoder" in capsys.readouterr().out
    wrong = ["weights", "convert", str(tmp_path / "mae.pth"), str(tmp_path / "wrong"), "--decoder-heads", "7"]
    assert run(wrong) == 2
    assert "must be a multiple of 4 and of masking.decoder_heads, got 64 and 7" in capsys.readouterr().err
    answer = run_convert(capsys, tmp_path / "mae.pth", tmp_path / "third", "--decoder-heads", "4", "--heads", "3")
    assert answer["decoder"]
    assert load_masked(tmp_path / "third").masking.decoder_heads == 4


def test_converting_reports_why_the_decoder_is_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(build_square(), tmp_path / "own")
    answer = run_convert(capsys, tmp_path / "own", tmp_path / "larger", "--image-size", "30")
    assert (answer["decoder"], answer["without"]) == (False, "the model was changed by the conversion")
    assert load(tmp_path / "larger").config.image == (30, 30)
    save(build_masked(OTHER_METHODS[0]), tmp_path / "simmim")
    answer = run_convert(capsys, tmp_path / "simmim", tmp_path / "simmim.safetensors", "--to", "timm")
    assert "cannot hold the prediction head of simmim" in answer["without"]
    encoder = load(tmp_path / "simmim.safetensors")
    assert isinstance(encoder.config, ViTConfig)
    assert encoder.config.grid == (3, 6)
    (tmp_path / "own" / "decoder.safetensors").unlink()
    assert run(["weights", "convert", str(tmp_path / "own"), str(tmp_path / "alone")]) == 0
    assert "without the decoder: " in capsys.readouterr().out


def test_heads_of_a_missing_decoder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(small_vit(), tmp_path / "own")
    assert run(["weights", "convert", str(tmp_path / "own"), str(tmp_path / "out"), "--decoder-heads", "3"]) == 2
    assert "has none; leave it out" in capsys.readouterr().err
    assert "decoder" not in run_convert(capsys, tmp_path / "own", tmp_path / "out")["unused"]
