"""Convert the authors' .npz files: released names, newer Flax's, and big_vision's with prefixes, scanned layers, MAP head.

Files are written with the released names, or big_vision's for what only it has (a class token without a position, a MAP head).
Keys are joined with "/" on every system.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from vitrail.data.preprocess import official_preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig, Pair, StemConfig, ViTConfig
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides, refuse_published_features, unsupported
from vitrail.weights.convert.tensor_map import TensorMap, concat, import_tensors, permute, position_table

PREFIXES = ("params/", "opt/target/", "params/img/", "target/", "img/")


class LayerNames(NamedTuple):
    attention: str
    norm2: str
    mlp: str
    position_table: str


RELEASED = LayerNames("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3", "Transformer/posembed_input/pos_embedding")
LINEN = LayerNames("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0", "Transformer/posembed_input/pos_embedding")
BIG_VISION = LINEN._replace(position_table="pos_embedding")


def matches(names: Mapping[str, Tensor]) -> bool:
    return any(name.endswith("embedding/kernel") for name in names)


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    image_tower, unused = _without_prefix(file)
    file = _split_scanned(image_tower)
    assumed: list[str] = []
    names = _layer_names(file)
    patch_height, patch_width, channels, width = inspect.require_shape(file, "embedding/kernel", 4)
    first = "Transformer/encoderblock_0"
    depth = inspect.count_layers(
        (name.removeprefix("Transformer/encoderblock_") for name in file if "encoderblock_" in name), "", "/"
    )
    mlp = inspect.require_shape(file, f"{first}/{names.mlp}/Dense_0/kernel", 2)[1]
    heads = inspect.require_shape(file, f"{first}/{names.attention}/query/kernel", 3)[1]
    stem = _stem(file)
    class_token = "cls" in file
    stem_stride = stem.stride if stem else 1
    stride = (patch_height * stem_stride, patch_width * stem_stride)
    grid, num_prefix = _grid(file, names, int(class_token), overrides, assumed, stride)
    hidden = file["pre_logits/kernel"].shape[1] if "pre_logits/kernel" in file else None
    if overrides.heads not in (None, heads):
        raise VitrailError(f"the file has {heads} heads, got heads={overrides.heads}")
    config = ViTConfig(
        width=width,
        depth=depth,
        mlp=mlp,
        heads=heads,
        patch=(patch_height, patch_width),
        image=(grid[0] * stride[0], grid[1] * stride[1]),
        channels=file["conv_root/kernel"].shape[2] if stem else channels,
        classes=file["head/kernel"].shape[1] if "head/kernel" in file else 0,
        stem=stem,
        position="learned1d" if names.position_table in file else "sincos2d",
        position_prefix="cls" if num_prefix or not class_token else "none",
        position_resize="official",
        pool="map" if "MAPHead_0/probe" in file else "cls" if class_token else "gap",
        head="mlp" if hidden else "linear",
        head_hidden=hidden if hidden != width else None,
        gelu=inspect.infer_gelu("tanh", overrides, assumed),
    )
    state, unknown = import_tensors(tensor_maps(config, names), file)
    if unknown:
        raise VitrailError(f"the file has {', '.join(unknown[:4])}, which Vitrail's Vision Transformers do not have")
    return ConvertedCheckpoint("official", config, state, unused, assumed, official_preprocess(config.image, config.channels))


def tensor_maps(c: ModelConfig, names: LayerNames | None = None) -> list[TensorMap]:
    assert isinstance(c, ViTConfig)
    layer_names = names or (BIG_VISION if c.pool == "map" or (c.has_class_token and not c.prefix_positions) else RELEASED)
    maps = [
        permute("embedding/kernel", "embed.project.weight", "p q c d -> d c p q"),
        _vector("embedding/bias", "embed.project.bias"),
    ]
    if c.position == "learned1d":
        maps.append(position_table(layer_names.position_table, c))
    if c.stem:
        maps += _stem_maps(c.stem)
    if c.has_class_token:
        maps.append(permute("cls", "cls", "1 1 d -> d"))
    for layer in range(c.depth):
        their_block, our_block = f"Transformer/encoderblock_{layer}", f"blocks.{layer}"
        maps += _norm(f"{their_block}/LayerNorm_0", f"{our_block}.norm1") + _norm(
            f"{their_block}/{layer_names.norm2}", f"{our_block}.norm2"
        )
        maps += _attention(f"{their_block}/{layer_names.attention}", f"{our_block}.attention", c.heads)
        maps += _mlp(f"{their_block}/{layer_names.mlp}", f"{our_block}.mlp")
    maps += _norm("Transformer/encoder_norm", "norm")
    if c.pool == "map":
        maps += _map_head(c)
    if c.head == "mlp":
        maps += _dense("pre_logits", "head.0")
    if c.classes:
        maps += _dense("head", "head.2" if c.head == "mlp" else "head")
    return maps


def check_supported(config: ModelConfig) -> None:
    if not isinstance(config, ViTConfig):
        unsupported("a ResNet", "official", "use format='timm'")
    refuse_published_features(config, "official", "use format='timm' and name a folder")
    if config.stem and (config.stem.standardise, config.stem.standardise_eps, config.stem.norm_eps) != (
        "std",
        1e-5,
        1e-6,
    ):
        unsupported("a stem with other epsilons than the official one", "official", "use format='timm'")
    if config.gelu != "tanh":
        unsupported("an exact GELU (it assumes the tanh form)", "official", "use format='timm' or 'huggingface'")
    if config.norm_eps != 1e-6:
        unsupported(f"layer norms with epsilon {config.norm_eps} (it assumes 1e-6)", "official", "use format='huggingface'")
    if config.registers or config.layer_scale is not None or config.qk_norm or not config.qkv_bias:
        unsupported("registers, layer scale, qk-norm or q, k, v without bias", "official", "use format='timm'")
    if config.norm != "pre" or config.final_norm != "tokens":
        unsupported("post-norm or a norm after pooling, at the end of a branch or none", "official", "use format='vitrail'")
    if config.embed_norm or not config.patch_bias:
        unsupported("a norm before the blocks or patches without a bias", "official", "use format='timm'")
    if config.mlp_kind != "gelu":
        unsupported("a gated MLP", "official", "use format='timm'")
    if config.has_class_token != (config.pool == "cls"):
        unsupported("a class token with another pooling", "official", "use format='timm'")


def _grid(
    file: Mapping[str, Tensor], names: LayerNames, class_token: int, overrides: Overrides, assumed: list[str], stride: Pair
) -> tuple[Pair, int]:
    """Infer the grid, and whether the table covers the class token: the released files' does, big_vision's does not.

    big_vision's sin-cos models have no table, so their grid must be given.
    """
    if names.position_table in file:
        rows = inspect.require_shape(file, names.position_table, 3)[1]
        options = {RELEASED: [class_token], LINEN: [class_token, 0], BIG_VISION: [0, class_token]}[names]
        return inspect.infer_grid(rows, dict.fromkeys(options), overrides, assumed, stride=stride)
    grid = overrides.grid or overrides.image_grid(stride)
    if grid is None:
        raise VitrailError(
            "the file has no position table, so it must be big_vision's sin-cos; give its grid, for example grid=14x14"
        )
    assumed.append("sincos2d position embeddings (the file has no table)")
    return grid, 0


def _without_prefix(file: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], list[str]]:
    """Return the image tower, and the names of the rest: optimiser states, a text tower, a temperature."""
    for prefix in sorted(PREFIXES, key=len, reverse=True):
        image_tower = {name.removeprefix(prefix): tensor for name, tensor in file.items() if name.startswith(prefix)}
        if "embedding/kernel" in image_tower:
            return image_tower, [name for name in file if not name.startswith(prefix)]
    return file, []


def _split_scanned(file: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Split big_vision's scanned layers, which have a leading depth axis."""
    prefix = "Transformer/encoderblock/"
    flat = {name: tensor for name, tensor in file.items() if not name.startswith(prefix)}
    for name, tensor in file.items():
        if name.startswith(prefix):
            if tensor.ndim == 0 or tensor.shape[0] > 1000:
                raise VitrailError(f"{name} must have a depth axis of at most 1,000, got {list(tensor.shape)}")
            for layer, part in enumerate(tensor):
                flat[f"Transformer/encoderblock_{layer}/{name.removeprefix(prefix)}"] = part
    return flat


def _layer_names(file: Mapping[str, Tensor]) -> LayerNames:
    if "pos_embedding" in file:
        return BIG_VISION
    released = any(RELEASED.attention in name for name in file)
    return RELEASED if released else LINEN


def _vector(theirs: str, ours: str) -> TensorMap:
    return permute(theirs, ours, "d -> d")


def _dense(theirs: str, ours: str) -> list[TensorMap]:
    return [permute(f"{theirs}/kernel", f"{ours}.weight", "i o -> o i"), _vector(f"{theirs}/bias", f"{ours}.bias")]


def _norm(theirs: str, ours: str) -> list[TensorMap]:
    return [_vector(f"{theirs}/scale", f"{ours}.weight"), _vector(f"{theirs}/bias", f"{ours}.bias")]


def _group_norm(theirs: str, ours: str) -> list[TensorMap]:
    return [
        permute(f"{theirs}/{part}", f"{ours}.{our_part}", "1 1 1 c -> c")
        for part, our_part in (("scale", "weight"), ("bias", "bias"))
    ]


def _attention(theirs: str, ours: str, heads: int) -> list[TensorMap]:
    qkv = ("query", "key", "value")
    return [
        concat([f"{theirs}/{part}/kernel" for part in qkv], f"{ours}.qkv.weight", "d h k -> (h k) d", h=heads),
        concat([f"{theirs}/{part}/bias" for part in qkv], f"{ours}.qkv.bias", "h k -> (h k)", h=heads),
        permute(f"{theirs}/out/kernel", f"{ours}.out.weight", "h k d -> d (h k)", h=heads),
        _vector(f"{theirs}/out/bias", f"{ours}.out.bias"),
    ]


def _mlp(theirs: str, ours: str) -> list[TensorMap]:
    return _dense(f"{theirs}/Dense_0", f"{ours}.up") + _dense(f"{theirs}/Dense_1", f"{ours}.down")


def _map_head(c: ViTConfig) -> list[TensorMap]:
    prefix = "MAPHead_0"
    attention = f"{prefix}/MultiHeadDotProductAttention_0"
    return [
        permute(f"{prefix}/probe", "pool.probe", "1 1 d -> d"),
        permute(f"{attention}/query/kernel", "pool.q.weight", "d h k -> (h k) d", h=c.heads),
        permute(f"{attention}/query/bias", "pool.q.bias", "h k -> (h k)", h=c.heads),
        concat([f"{attention}/{part}/kernel" for part in ("key", "value")], "pool.kv.weight", "d h k -> (h k) d", h=c.heads),
        concat([f"{attention}/{part}/bias" for part in ("key", "value")], "pool.kv.bias", "h k -> (h k)", h=c.heads),
        permute(f"{attention}/out/kernel", "pool.out.weight", "h k d -> d (h k)", h=c.heads),
        _vector(f"{attention}/out/bias", "pool.out.bias"),
        *_norm(f"{prefix}/LayerNorm_0", "pool.norm"),
        *_mlp(f"{prefix}/MlpBlock_0", "pool.mlp"),
    ]


def _stem(file: Mapping[str, Tensor]) -> StemConfig | None:
    if "conv_root/kernel" not in file:
        return None
    units = [name.split("/")[:2] for name in file if name.startswith("block") and "/unit" in name]
    stages = sorted({block for block, _ in units})
    return StemConfig(
        tuple(len({unit for b, unit in units if b == block}) for block in stages),
        inspect.require_shape(file, "conv_root/kernel", 4)[3],
    )


def _stem_maps(stem: StemConfig) -> list[TensorMap]:
    kernel = "p q c d -> d c p q"
    maps = [permute("conv_root/kernel", "stem.conv.weight", kernel), *_group_norm("gn_root", "stem.norm")]
    for stage, depth in enumerate(stem.stages):
        for unit in range(depth):
            theirs, ours = f"block{stage + 1}/unit{unit + 1}", f"stem.stages.{stage}.{unit}"
            for part in (1, 2, 3):
                maps.append(permute(f"{theirs}/conv{part}/kernel", f"{ours}.conv{part}.weight", kernel))
                maps += _group_norm(f"{theirs}/gn{part}", f"{ours}.norm{part}")
            if unit == 0:
                maps.append(permute(f"{theirs}/conv_proj/kernel", f"{ours}.shortcut.0.weight", kernel))
                maps += _group_norm(f"{theirs}/gn_proj", f"{ours}.shortcut.1")
    return maps
