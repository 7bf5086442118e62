"""A folder as timm pushes it to the hub: what config.json says and no tensor shows is read, or refused by its name."""

import inspect
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close

from tests.reference_libraries import reference_library
from tests.small_models import small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import resize_and_crop
from vitrail.errors import VitrailError
from vitrail.models.config import ViTConfig
from vitrail.weights.convert.timm_architectures import ARCHITECTURES, Architecture
from vitrail.weights.convert.timm_arguments import KNOWN_ARGUMENTS
from vitrail.weights.load import load
from vitrail.weights.save import save
from vitrail.weights.verify import verify

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Mapping deprecated model name"),
]
SMALL: dict[str, Any] = {"img_size": 24, "patch_size": 6, "num_classes": 5, "embed_dim": 24, "depth": 2, "num_heads": 3}


def build_timm(architecture: str, **options: Any) -> nn.Module:
    """Build timm's model with weights in which another number of heads, activation or epsilon shows."""
    timm = reference_library("timm")
    model: nn.Module = timm.create_model(architecture, **options).eval()
    for name, weight in model.named_parameters():
        noise = torch.randn_like(weight)
        if re.fullmatch(r"\w*(pos_embed|_token)|patch_embed.proj.bias", name):
            weight.data = 0.003 * noise
        else:
            is_matrix = weight.ndim in (2, 4)
            weight.data = noise * (2 * weight.shape[0] / weight.numel()) ** 0.5 if is_matrix else weight + 0.1 * noise
    return model


def write_folder(model: nn.Module, folder: Path, architecture: str, **model_args: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    config = {"architecture": architecture, "num_classes": 5, "model_args": model_args}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def small_images(side: int = 24) -> Tensor:
    return 0.01 * torch.randn(2, 3, side, side)


READ: dict[str, tuple[str, dict[str, Any]]] = {
    "16 heads": ("vit_base_patch16_gap_224", {**SMALL, "embed_dim": 48, "num_heads": 16}),
    "norms at the end of the branches": ("vit_base_patch16_rpn_224", SMALL),
    "CLIP: norm before the blocks, no patch bias, epsilon 1e-5": ("vit_base_patch16_clip_224", SMALL),
    "QuickGELU by name": ("vit_base_patch32_clip_quickgelu_224", SMALL),
    "QuickGELU by argument": ("vit_base_patch16_224", {**SMALL, "act_layer": "quick_gelu"}),
    "tanh GELU by argument": ("vit_base_patch16_224", {**SMALL, "act_layer": "gelu_tanh"}),
    "average by argument": ("vit_base_patch16_224", {**SMALL, "global_pool": "avg", "class_token": False}),
    "no last norm": ("vit_intern300m_patch14_448", SMALL),
    "q and v biases alone": ("eva_giant_patch14_224", {**SMALL, "mlp_ratio": 4}),
    "gated MLP by name": ("vit_giant_patch14_dinov2", {**SMALL, "mlp_ratio": 3}),
    "gated MLP by name, with registers": ("vit_giant_patch14_reg4_dinov2", {**SMALL, "mlp_ratio": 3}),
    "arguments of training": ("vit_small_patch16_224", {**SMALL, "drop_path_rate": 0.1, "dynamic_img_size": True}),
    "epsilon 1e-5 with a class token's average": ("vit_base_patch16_clip_224", {**SMALL, "global_pool": "avg"}),
}


@pytest.mark.parametrize("case", READ)
def test_what_no_tensor_shows_is_read(case: str, tmp_path: Path) -> None:
    architecture, options = READ[case]
    theirs = build_timm(architecture, **options)
    ours = load(write_folder(theirs, tmp_path, architecture, **options))
    images = small_images()
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
    assert verify(tmp_path).ok


def test_the_table_of_architectures_is_timms() -> None:
    """Width, heads, activation, epsilon, pooling, rotary positions and the place of norms, by building every architecture."""
    timm = reference_library("timm")
    gelus = {"GELU": "exact", "GELUTanh": "tanh", "QuickGELU": "quick"}
    pools = {"token": "cls", "avg": "gap", "map": "map"}
    for name, facts in ARCHITECTURES.items():
        if name in ("vit_base_patch16_224_sam", "vit_base_patch32_224_sam"):  # names that timm itself cannot build any more
            continue
        with torch.device("meta"):
            model = timm.create_model(name, depth=1)
        block: Any = model.blocks[0]
        eps = block.norm1.eps
        pool = "cls+register" if hasattr(model, "head_dist") else pools[model.global_pool]
        assert (facts.width, facts.heads, facts.norm_eps, facts.pool) == (model.embed_dim, block.attn.num_heads, eps, pool), (
            name
        )
        activation = type(block.mlp.act).__name__
        assert (
            activation == "SiLU" if hasattr(block.mlp, "fc1_g") or facts.gated else facts.gelu == gelus.get(activation, "exact")
        )
        ends = type(block).__name__ in ("ResPostBlock", "ResPostRelPosBlock", "EvaBlockPostNorm")
        assert (facts.norm == "branch") == ends, name
        assert _rotary_of(facts) == _rotary_of_timm(model), name
        pooling = getattr(model, "attn_pool", None)
        if pooling is not None:
            reads_prefix = getattr(model, "pool_include_prefix", type(model).__name__ == "Eva")
            assert (facts.pool_heads or facts.heads, facts.pool_prefix) == (pooling.num_heads, reads_prefix), name


def _rotary_of(facts: Architecture) -> tuple[Any, ...] | None:
    """Return base, coordinates, offset, reference grid and the order of the channels of our rotary positions."""
    if facts.rotary is None:
        return None
    rotary = facts.rotary
    return rotary.mixed, rotary.base, rotary.coordinates, rotary.offset, facts.rotary_grid, facts.rotary_channels


def _rotary_of_timm(model: Any) -> tuple[Any, ...] | None:
    rope = getattr(model, "rope", None)
    if rope is None:
        return None
    kind, order = type(rope).__name__, {"ij": "rows-first", "xy": "columns-first"}[rope.grid_indexing]
    if kind == "RotaryEmbeddingDinoV3":
        assert (rope.rotate_half, model.blocks[0].attn.rotate_half, rope.normalize_coords) == (True, True, "separate")
        return False, rope.temperature, "normalised", rope.grid_offset, None, "halves"
    if kind == "RotaryEmbeddingMixed":
        return True, rope.temperature, "index", 0.0, None, order
    grid = None if rope.ref_feat_shape is None else tuple(rope.ref_feat_shape)
    return False, rope.temperature, "scaled" if grid else "index", rope.grid_offset, grid, order


REFUSED: dict[str, tuple[str, str]] = {
    "parallel": ("vit_small_patch16_18x2_224", "parallel blocks"),
    "differential": ("vit_dwee_patch16_reg1_gap_256", "differential attention"),
    "grouped": ("vit_base_patch16_sapiens2", "grouped-query attention"),
    "factorised": ("naflexvit_base_patch16_parfac_gap", "a factorised position table"),
    "batch norm": ("vit_base_resnet50d_224", "batch norm"),
    "unknown": ("vit_base_patch16_of_tomorrow", "must be one that Vitrail knows"),
    "another family": ("swin_tiny_patch4_window7_224", "this family"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_architecture_is_refused_by_the_feature_that_is_missing(case: str, tmp_path: Path) -> None:
    architecture, feature = REFUSED[case]
    plain = build_timm("vit_base_patch16_224", **SMALL)  # the tensors alone could be read
    with pytest.raises(VitrailError, match=feature):
        load(write_folder(plain, tmp_path, architecture, **SMALL))


@pytest.mark.parametrize(
    ("architecture", "feature"),
    [
        ("vit_small_patch16_rope_ape_224", "rotary positions"),
        ("vit_base_patch16_rpn_224", "its norms precede or end the branches"),
        ("vit_small_patch16_18x2_224", "parallel blocks"),
        ("vit_relpos_small_patch16_224", "relative position bias"),
        ("eva02_tiny_patch14_224", "gated MLP"),
        ("vit_small_patch16_dinov3", "its positions are rotary, and no tensor shows of which kind"),
        ("vit_pe_core_tiny_patch16_384", "rotary positions"),
        ("test_vit3", "reads the registers"),
        ("test_vit4", "RMSNorm"),
        ("vit_small_resnet26d_224", "batch norm"),
    ],
)
def test_a_bare_file_is_refused_by_the_feature_that_is_missing(architecture: str, feature: str, tmp_path: Path) -> None:
    theirs = build_timm(architecture, depth=1)
    save_file(theirs.state_dict(), tmp_path / "bare.safetensors")
    with pytest.raises(VitrailError, match=feature):
        load(tmp_path / "bare.safetensors")
    with pytest.raises(VitrailError, match=feature):
        verify(tmp_path / "bare.safetensors")


@pytest.mark.parametrize(
    "architecture",
    [
        "deit_tiny_distilled_patch16_224",
        "vit_small_patch16_rope_mixed_224",
        "vit_small_patch16_rope_mixed_ape_224",
        "beit_base_patch16_224",
    ],
)
def test_a_bare_file_whose_tensors_show_all_is_read(architecture: str, tmp_path: Path) -> None:
    theirs = build_timm(architecture, **SMALL)
    save_file(theirs.state_dict(), tmp_path / "bare.safetensors")
    images = small_images()
    with torch.inference_mode():
        ours = load(tmp_path / "bare.safetensors", heads=3, image=24)
        assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"act_layer": "relu"}, "the activation relu"),
        ({"act_layer": "silu"}, "the activation silu"),
        ({"norm_layer": "rmsnorm"}, "another norm than layer norm"),
        ({"global_pool": "avgmax"}, "the pooling avgmax"),
        ({"global_pool": ""}, "global_pool in config.json"),
        ({"scale_mlp_norm": True}, "scale_mlp_norm=True, but the weights have scale_mlp_norm=False"),
        ({"num_kv_heads": 1}, "grouped-query attention"),
        ({"rope_type": "mrope", "use_rot_pos_emb": True}, "use_rot_pos_emb=True"),
        ({"pool_include_prefix": True}, "an average over the prefix tokens"),
        ({"dynamic_img_pad": True}, "padded to whole patches"),
        ({"block_fn": "ParallelThingsBlock"}, "another kind of block"),
        ({"use_rot_pos_emb": True}, "use_rot_pos_emb=True"),
        ({"num_heads": 2.5}, "num_heads in config.json must be a whole number"),
        ({"num_heads": True}, "num_heads in config.json must be a whole number"),
        ({"depth": 12}, "depth=12, but the weights have depth=2"),
        ({"class_token": False}, "class_token=False, but the weights have class_token=True"),
        ({"embed_dim": 768}, "768 wide, but the weights are 24 wide"),
        ({"mlp_ratio": 3}, "mlp_ratio=3"),
    ],
    ids=str,
)
def test_every_argument_is_read_or_refused(args: dict[str, Any], message: str, tmp_path: Path) -> None:
    theirs = build_timm("vit_base_patch16_224", **SMALL)
    with pytest.raises(VitrailError, match=message):
        load(write_folder(theirs, tmp_path, "vit_base_patch16_224", **{**SMALL, **args}))


def test_every_argument_of_timms_model_is_known(tmp_path: Path) -> None:
    """An argument that a later timm adds is refused until it is read; today all of them are one or the other."""
    reference_library("timm")
    classes = {
        "vision_transformer": "VisionTransformer",
        "eva": "Eva",
        "beit": "Beit",
        "vision_transformer_relpos": "VisionTransformerRelPos",
    }
    theirs = build_timm("vit_base_patch16_224", **SMALL)
    for module, name in classes.items():
        arguments = set(inspect.signature(getattr(import_module(f"timm.models.{module}"), name)).parameters)
        assert arguments <= KNOWN_ARGUMENTS, arguments - KNOWN_ARGUMENTS
    with pytest.raises(VitrailError, match="which Vitrail does not know"):
        load(write_folder(theirs, tmp_path, "vit_base_patch16_224", **SMALL, of_tomorrow=1))


def test_an_image_size_that_the_patches_do_not_divide_is_kept(tmp_path: Path) -> None:
    """As in so400m_patch14_siglip_384: images of 27 pixels and patches of 6 leave three rows and columns out, as in timm."""
    options = {**SMALL, "img_size": 27}
    theirs = build_timm("vit_so400m_patch14_siglip_384", **options)
    write_folder(theirs, tmp_path, "vit_so400m_patch14_siglip_384", **options)
    config = json.loads((tmp_path / "config.json").read_text())
    data = {"input_size": [3, 27, 27], "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "crop_pct": 0.9}
    (tmp_path / "config.json").write_text(json.dumps({**config, "pretrained_cfg": data}))
    ours = load(tmp_path)
    assert isinstance(ours.config, ViTConfig)
    assert ours.preprocess is not None
    assert (ours.config.image, ours.preprocess.crop_size, ours.preprocess.resize_to) == ((24, 24), (27, 27), (30, 30))
    assert any("images of 27x27 without their last 3x3 rows and columns" in line for line in ours.load_report.assumed)
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (41, 53, 3), np.uint8))
    transform = import_module("timm.data").create_transform(
        input_size=(3, 27, 27), crop_pct=0.9, interpolation="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3
    )
    pixels = torch.from_numpy(resize_and_crop(photo, ours.preprocess)).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.inference_mode():
        assert_close(ours(pixels), theirs(transform(photo)[None]), rtol=0, atol=1e-5)
    again = load(save(ours, tmp_path / "ours"))
    assert again.preprocess == ours.preprocess
    larger = load(tmp_path, image=36)
    assert larger.preprocess is not None
    assert larger.preprocess.crop_size == (36, 36)


@pytest.mark.parametrize(
    ("architecture", "mean", "crop_pct"),
    [
        ("vit_base_patch16_clip_224", 0.48145466, 1.0),
        ("vit_small_patch16_224_dino", 0.485, 0.875),
        ("deit_small_patch16_224", 0.485, 0.875),
        ("deit3_small_patch16_224", 0.485, 1.0),
        ("vit_small_patch14_dinov2", 0.485, 0.875),
        ("vit_base_patch16_siglip_gap_224", 0.5, 1.0),
        ("vit_base_patch16_224", 0.5, 0.9),
        ("vit_small_patch16_dinov3", 0.485, 1.0),
        ("vit_pe_core_base_patch16_224", 0.5, 1.0),
        ("eva02_base_patch14_224", 0.48145466, 1.0),
    ],
)
def test_a_known_architecture_without_preprocessing_has_its_origins(
    architecture: str, mean: float, crop_pct: float, tmp_path: Path
) -> None:
    theirs = build_timm(architecture, **SMALL)
    ours = load(write_folder(theirs, tmp_path, architecture, **SMALL))
    assert ours.preprocess is not None
    assert (ours.preprocess.mean[0], ours.preprocess.crop_pct) == (mean, crop_pct)
    assert any(line.startswith("images resized to") for line in ours.load_report.assumed)


WRITTEN: dict[str, dict[str, Any]] = {
    "tanh GELU": {},
    "QuickGELU": {"gelu": "quick"},
    "exact GELU, registers, layer scale": {"gelu": "exact", "registers": 2, "position_prefix": "none", "layer_scale": 0.1},
    "average": {"pool": "gap", "final_norm": "pooled"},
    "attention pooling": {"pool": "map"},
    "norm before the blocks": {"embed_norm": True, "patch_bias": False},
    "gated MLP": {"mlp_kind": "swiglu"},
    "no classifier": {"classes": 0},
}


@pytest.mark.parametrize("case", WRITTEN)
def test_a_written_folder_is_built_by_timm(case: str, tmp_path: Path) -> None:
    """With nothing but the folder; our own reader agrees, also by config.json alone."""
    model = small_vit(**WRITTEN[case])
    model.preprocess = Preprocess((12, 15), crop_pct=0.75, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), interpolation="bilinear")
    model.class_names = ("a", "b", "c", "d", "e") if model.config.classes else None
    folder = save(model, tmp_path / "written", format="timm")
    timm = reference_library("timm")
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, 3, 12, 15)
    with torch.inference_mode():
        assert_close(theirs(images), model(images), rtol=0, atol=1e-5)
    assert tuple(theirs.pretrained_cfg["mean"]) == (0.1, 0.2, 0.3)
    again = load(folder)
    assert (again.config, again.preprocess, again.class_names) == (model.config, model.preprocess, model.class_names)
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")  # without our own metadata
    plain = load(folder)
    assert (plain.preprocess, plain.class_names) == (model.preprocess, model.class_names)
    with torch.inference_mode():
        assert_close(plain(images), model(images), rtol=0, atol=1e-5)


def test_a_file_of_timms_does_not_hold_a_tanh_gelu_and_says_what_does(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=r"a GELU in its tanh form in a file .* name a folder"):
        save(small_vit(), tmp_path / "x.safetensors", format="timm")
