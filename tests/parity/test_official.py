"""Equal logits to the official JAX model for its own weights and images, in all its naming schemes, in both directions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.reference_libraries import reference_library
from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.layers.tap import record_activations
from vitrail.models.config import StemConfig
from vitrail.models.vit import ViT
from vitrail.weights.load import load
from vitrail.weights.save import save

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
GOLDEN = Path(__file__).parents[1] / "data" / "golden"
GRIDS: dict[str, Any] = {"token": None, "gap_prelogits": (4, 6), "hybrid_stem": None, "hybrid_stages": None}


def load_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def load_golden(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    io = load_arrays(GOLDEN / f"{name}.io.npz")
    return torch.from_numpy(io["images_nhwc"]).permute(0, 3, 1, 2), torch.from_numpy(io["logits"])


@pytest.mark.parametrize("name", GRIDS)
def test_logits_equal_the_official_model(name: str) -> None:
    model = load(GOLDEN / f"{name}.weights.npz", grid=GRIDS[name])
    images, logits = load_golden(name)
    with torch.inference_mode():
        fused = model(images)
        with record_activations(model, "attention.weights"):
            explicit = model(images)
    assert_close(fused, logits, rtol=0, atol=1e-5)
    assert_close(explicit, logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", GRIDS)
def test_a_round_trip_leaves_every_tensor_equal_to_the_byte(name: str, tmp_path: Path) -> None:
    save(load(GOLDEN / f"{name}.weights.npz", grid=GRIDS[name]), tmp_path / "back.npz", format="official")
    before, after = load_arrays(GOLDEN / f"{name}.weights.npz"), load_arrays(tmp_path / "back.npz")
    assert sorted(before) == sorted(after)
    for key, array in before.items():
        assert (after[key].shape, after[key].dtype, after[key].tobytes()) == (array.shape, array.dtype, array.tobytes()), key


def to_linen_name(name: str) -> str:
    return name.replace("Attention_1", "Attention_0").replace("LayerNorm_2", "LayerNorm_1").replace("MlpBlock_3", "MlpBlock_0")


def to_scanned(file: dict[str, Any]) -> dict[str, Any]:
    layers = sorted({name.split("/")[1] for name in file if "encoderblock_" in name})
    first = [name.split("/", 2)[2] for name in file if f"{layers[0]}/" in name]
    rest = {name: array for name, array in file.items() if "encoderblock_" not in name}
    stacked = {
        f"Transformer/encoderblock/{leaf}": np.stack([file[f"Transformer/{layer}/{leaf}"] for layer in layers])
        for leaf in first
    }
    return rest | stacked


@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/", "params/img/"])
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", ["token", "gap_prelogits"])
def test_the_names_of_newer_flax_and_big_vision_are_read(name: str, scan: bool, prefix: str, tmp_path: Path) -> None:
    file = {to_linen_name(key): array for key, array in load_arrays(GOLDEN / f"{name}.weights.npz").items()}
    if name == "gap_prelogits":
        file["pos_embedding"] = file.pop("Transformer/posembed_input/pos_embedding")
    file = to_scanned(file) if scan else file
    others = {"opt/state/step": np.zeros(3, np.float32)} if prefix else {}
    renamed: dict[str, Any] = {prefix + key: array for key, array in file.items()} | others
    np.savez(tmp_path / "other.npz", **renamed)
    images, logits = load_golden(name)
    with torch.inference_mode():
        assert_close(load(tmp_path / "other.npz", grid=GRIDS[name])(images), logits, rtol=0, atol=1e-4)


TIMM_READS: dict[str, dict[str, Any]] = {
    "token": {},
    "map": {"pool": "map"},
    "a class token without a position": {"position_prefix": "none"},
}


@pytest.mark.parametrize("options", TIMM_READS.values(), ids=TIMM_READS.keys())
def test_timms_own_reader_of_official_files_agrees_on_what_we_write(options: dict[str, Any], tmp_path: Path) -> None:
    reference_library("timm")
    from timm.models.vision_transformer import VisionTransformer

    model = small_vit(image=(24, 24), patch=(6, 6), **options)
    save(model, tmp_path / "ours.npz", format="official")
    theirs = VisionTransformer(
        img_size=24,
        patch_size=6,
        num_classes=5,
        embed_dim=24,
        depth=4,
        num_heads=3,
        mlp_ratio=40 / 24,
        act_layer="gelu_tanh",
        class_token=model.config.has_class_token,
        no_embed_class=options.get("position_prefix") == "none",
        global_pool="map" if options.get("pool") == "map" else "token",
    )
    theirs.load_pretrained(str(tmp_path / "ours.npz"))
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(theirs.eval()(images), model(images), rtol=0, atol=1e-5)
        assert_close(load(tmp_path / "ours.npz")(images), model(images), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"pool": "gap", "head": "mlp", "head_hidden": 13}, {"position": "sincos2d"}, {"position": "learned2d"}]
)
def test_a_saved_file_loads_again(options: dict[str, Any], tmp_path: Path) -> None:
    model, images = small_vit(**options), torch.randn(2, 3, 12, 15)
    save(model, tmp_path / "ours.npz", format="official")
    assert_close(load(tmp_path / "ours.npz", grid=(2, 3))(images), model(images), rtol=0, atol=1e-6)


def test_a_file_without_a_table_is_big_visions_sincos(tmp_path: Path) -> None:
    model = small_vit(position="sincos2d", pool="gap")
    save(model, tmp_path / "ours.npz", format="official")
    file = load_arrays(tmp_path / "ours.npz")
    del file["Transformer/posembed_input/pos_embedding"]
    np.savez(tmp_path / "bare.npz", **{f"params/{name}": array for name, array in file.items()})  # type: ignore[arg-type]
    with pytest.raises(VitrailError, match="give its grid, for example grid=14x14"):
        load(tmp_path / "bare.npz")
    images = torch.randn(2, 3, 12, 15)
    assert_close(load(tmp_path / "bare.npz", grid=(2, 3))(images), model(images), rtol=0, atol=1e-6)


def test_a_text_tower_is_reported_as_unused(tmp_path: Path) -> None:
    file = {f"params/img/{name}": array for name, array in load_arrays(GOLDEN / "token.weights.npz").items()}
    others = {"params/t": np.ones(1, np.float32), "params/txt/head/kernel": np.ones((2, 2), np.float32)}
    np.savez(tmp_path / "lit.npz", **file, **others)  # type: ignore[arg-type]
    assert load(tmp_path / "lit.npz").load_report.unused == ("params/t", "params/txt/head/kernel")


def test_a_hybrid_survives_a_round_trip(tmp_path: Path) -> None:
    model = small_vit(stem=StemConfig(stages=(2, 1), width=32), patch=(1, 1), image=(16, 24))
    save(model, tmp_path / "ours.npz", format="official")
    back = load(tmp_path / "ours.npz", grid=(2, 3))
    assert isinstance(back, ViT)
    assert back.config.stem == model.config.stem
    images = torch.randn(2, 3, 16, 24)
    assert_close(back(images), model(images), rtol=0, atol=0)


def test_a_rectangular_grid_beside_a_class_token_is_the_image_sizes(tmp_path: Path) -> None:
    """A table of 25 rows is 6 x 4 and a class token, never 5 x 5: a file with LayerNorm_2 is official, and covers the token."""
    model = small_vit(image=(48, 64), patch=(8, 16), gelu="tanh")
    save(model, tmp_path / "x.npz", format="official")
    rewrite_npz(tmp_path / "x.npz", tmp_path / "bare.npz")
    images = torch.randn(2, 3, 48, 64)
    with torch.inference_mode():
        loaded = load(tmp_path / "bare.npz", image=(48, 64))
        assert_close(loaded(images), model(images), rtol=0, atol=1e-5)
    assert not loaded.load_report.resized
    with pytest.raises(VitrailError, match="25 rows, which is not a square grid"):
        load(tmp_path / "bare.npz")


@pytest.mark.parametrize("image", [(16, 64), (64, 16), (32, 32)])
def test_the_given_image_size_decides_wherever_it_fits(image: tuple[int, int], tmp_path: Path) -> None:
    """A table of 16 rows may be 4 x 4, 2 x 8 or 8 x 2, and is never resized when it fits as it is."""
    model = small_vit(image=image, patch=(8, 8), gelu="tanh")
    save(model, tmp_path / "x.npz", format="official")
    rewrite_npz(tmp_path / "x.npz", tmp_path / "bare.npz")
    loaded = load(tmp_path / "bare.npz", image=image)
    images = torch.randn(2, 3, *image)
    with torch.inference_mode():
        assert_close(loaded(images), model(images), rtol=0, atol=1e-5)
    assert not loaded.load_report.resized


def rewrite_npz(path: Path, to: Path) -> None:
    """Write the same arrays without Vitrail's metadata, as the authors' files are."""
    with np.load(path) as arrays:
        np.savez(to, **dict(arrays))
