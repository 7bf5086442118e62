"""Convert the authors' .npz files: released names, newer Flax's, and big_vision's with prefixes, scanned layers, MAP head.

Files are written with the released names, or big_vision's for what only it has (a class token without a position, a MAP head).
Keys are joined with "/" on every system.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from vitrail.data.preprocess import official as official_preprocess
from vitrail.errors import VitrailError
from vitrail.models.settings import ModelConfig, Stem, ViTConfig
from vitrail.weights.convert import detect
from vitrail.weights.convert.detect import Found, Wishes, refuse
from vitrail.weights.convert.link import Link, joined, moved, positions, read

PREFIXES = ("params/", "opt/target/", "params/img/", "target/", "img/")


class Spelling(NamedTuple):
    attention: str
    norm2: str
    mlp: str
    table: str


RELEASED = Spelling("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3", "Transformer/posembed_input/pos_embedding")
LINEN = Spelling("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0", "Transformer/posembed_input/pos_embedding")
BIG_VISION = LINEN._replace(table="pos_embedding")


def matches(names: Mapping[str, Tensor]) -> bool:
    return any(name.endswith("embedding/kernel") for name in names)


def find(file: Mapping[str, Tensor], side: Mapping[str, Any], wishes: Wishes) -> Found:
    inside, beside = _without_prefix(file)
    file = _unscanned(inside)
    assumed: list[str] = []
    spelling = _spelling(file)
    high, wide, channels, width = detect.shape(file, "embedding/kernel", 4)
    first = "Transformer/encoderblock_0"
    depth = detect.count((name.removeprefix("Transformer/encoderblock_") for name in file if "encoderblock_" in name), "", "/")
    mlp = detect.shape(file, f"{first}/{spelling.mlp}/Dense_0/kernel", 2)[1]
    heads = detect.shape(file, f"{first}/{spelling.attention}/query/kernel", 3)[1]
    stem = _stem(file)
    class_token = "cls" in file
    grid, covered = _grid(file, spelling, int(class_token), wishes, assumed)
    hidden = file["pre_logits/kernel"].shape[1] if "pre_logits/kernel" in file else None
    root = stem.stride if stem else 1
    if wishes.heads not in (None, heads):
        raise VitrailError(f"the file has {heads} heads, got heads={wishes.heads}")
    config = ViTConfig(
        width=width,
        depth=depth,
        mlp=mlp,
        heads=heads,
        patch=(high, wide),
        image=(grid[0] * high * root, grid[1] * wide * root),
        channels=file["conv_root/kernel"].shape[2] if stem else channels,
        classes=file["head/kernel"].shape[1] if "head/kernel" in file else 0,
        stem=stem,
        position="learned1d" if spelling.table in file else "sincos2d",
        position_covers="cls" if covered or not class_token else "none",
        resize="official",
        pool="map" if "MAPHead_0/probe" in file else "cls" if class_token else "gap",
        head="mlp" if hidden else "linear",
        head_width=hidden if hidden != width else None,
        gelu=detect.gelu("tanh", wishes, assumed),
    )
    state, left = read(links(config, spelling), file)
    if left:
        raise VitrailError(f"the file has {', '.join(left[:4])}, which Vitrail's Vision Transformers do not have")
    return Found("official", config, state, beside, assumed, official_preprocess(config.image, config.channels))


def links(c: ModelConfig, spelling: Spelling | None = None) -> list[Link]:
    assert isinstance(c, ViTConfig)
    theirs = spelling or (BIG_VISION if c.pool == "map" or (c.has_class_token and not c.covered) else RELEASED)
    made = [
        moved("embedding/kernel", "embed.project.weight", "p q c d -> d c p q"),
        _vector("embedding/bias", "embed.project.bias"),
    ]
    if c.position == "learned1d":
        made.append(positions(theirs.table, c))
    if c.stem:
        made += _stem_links(c.stem)
    if c.has_class_token:
        made.append(moved("cls", "cls", "1 1 d -> d"))
    for layer in range(c.depth):
        there, here = f"Transformer/encoderblock_{layer}", f"blocks.{layer}"
        made += _norm(f"{there}/LayerNorm_0", f"{here}.norm1") + _norm(f"{there}/{theirs.norm2}", f"{here}.norm2")
        made += _attention(f"{there}/{theirs.attention}", f"{here}.attention", c.heads)
        made += _mlp(f"{there}/{theirs.mlp}", f"{here}.mlp")
    made += _norm("Transformer/encoder_norm", "norm")
    if c.pool == "map":
        made += _map(c)
    if c.head == "mlp":
        made += _dense("pre_logits", "head.0")
    if c.classes:
        made += _dense("head", "head.2" if c.head == "mlp" else "head")
    return made


def check(config: ModelConfig) -> None:
    if not isinstance(config, ViTConfig):
        refuse("a ResNet", "official", "use format='timm'")
    if config.stem and (config.stem.standardise, config.stem.standardise_epsilon, config.stem.norm_epsilon) != (
        "std",
        1e-5,
        1e-6,
    ):
        refuse("a stem with other epsilons than the official one", "official", "use format='timm'")
    if config.gelu != "tanh":
        refuse("an exact GELU (it assumes the tanh form)", "official", "use format='timm' or 'huggingface'")
    if config.epsilon != 1e-6:
        refuse(f"layer norms with epsilon {config.epsilon} (it assumes 1e-6)", "official", "use format='huggingface'")
    if config.registers or config.layer_scale is not None or config.qk_norm or not config.qkv_bias:
        refuse("registers, layer scale, qk-norm or q, k, v without bias", "official", "use format='timm'")
    if config.norm == "post" or config.norm_at == "pooled":
        refuse("post-norm or a norm after pooling", "official", "use format='vitrail'")
    if config.has_class_token != (config.pool == "cls"):
        refuse("a class token with another pooling", "official", "use format='timm'")


def _grid(
    file: Mapping[str, Tensor], spelling: Spelling, class_token: int, wishes: Wishes, assumed: list[str]
) -> tuple[tuple[int, int], int]:
    """Infer the grid; big_vision's sin-cos models have no table, so it must be given."""
    if spelling.table in file:
        return detect.grid(detect.shape(file, spelling.table, 3)[1], [class_token, 0], wishes, assumed)
    if wishes.grid is None:
        raise VitrailError(
            "the file has no position table, so it must be big_vision's sin-cos; give its grid, for example grid=14x14"
        )
    assumed.append("sincos2d position embeddings (the file has no table)")
    return wishes.grid, 0


def _without_prefix(file: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], list[str]]:
    """Return the image tower, and the names of the rest: optimiser states, a text tower, a temperature."""
    for prefix in sorted(PREFIXES, key=len, reverse=True):
        inside = {name.removeprefix(prefix): tensor for name, tensor in file.items() if name.startswith(prefix)}
        if "embedding/kernel" in inside:
            return inside, [name for name in file if not name.startswith(prefix)]
    return file, []


def _unscanned(file: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Split big_vision's scanned layers, which have a leading depth axis."""
    mark = "Transformer/encoderblock/"
    flat = {name: tensor for name, tensor in file.items() if not name.startswith(mark)}
    for name, tensor in file.items():
        if name.startswith(mark):
            if tensor.ndim == 0 or tensor.shape[0] > 1000:
                raise VitrailError(f"{name} must have a depth axis of at most 1,000, got {list(tensor.shape)}")
            for layer, part in enumerate(tensor):
                flat[f"Transformer/encoderblock_{layer}/{name.removeprefix(mark)}"] = part
    return flat


def _spelling(file: Mapping[str, Tensor]) -> Spelling:
    if "pos_embedding" in file:
        return BIG_VISION
    released = any(RELEASED.attention in name for name in file)
    return RELEASED if released else LINEN


def _vector(theirs: str, ours: str) -> Link:
    return moved(theirs, ours, "d -> d")


def _dense(theirs: str, ours: str) -> list[Link]:
    return [moved(f"{theirs}/kernel", f"{ours}.weight", "i o -> o i"), _vector(f"{theirs}/bias", f"{ours}.bias")]


def _norm(theirs: str, ours: str) -> list[Link]:
    return [_vector(f"{theirs}/scale", f"{ours}.weight"), _vector(f"{theirs}/bias", f"{ours}.bias")]


def _group_norm(theirs: str, ours: str) -> list[Link]:
    return [
        moved(f"{theirs}/{part}", f"{ours}.{mine}", "1 1 1 c -> c") for part, mine in (("scale", "weight"), ("bias", "bias"))
    ]


def _attention(theirs: str, ours: str, heads: int) -> list[Link]:
    qkv = ("query", "key", "value")
    return [
        joined([f"{theirs}/{part}/kernel" for part in qkv], f"{ours}.qkv.weight", "d h k -> (h k) d", h=heads),
        joined([f"{theirs}/{part}/bias" for part in qkv], f"{ours}.qkv.bias", "h k -> (h k)", h=heads),
        moved(f"{theirs}/out/kernel", f"{ours}.out.weight", "h k d -> d (h k)", h=heads),
        _vector(f"{theirs}/out/bias", f"{ours}.out.bias"),
    ]


def _mlp(theirs: str, ours: str) -> list[Link]:
    return _dense(f"{theirs}/Dense_0", f"{ours}.up") + _dense(f"{theirs}/Dense_1", f"{ours}.down")


def _map(c: ViTConfig) -> list[Link]:
    there = "MAPHead_0"
    attention = f"{there}/MultiHeadDotProductAttention_0"
    return [
        moved(f"{there}/probe", "pool.probe", "1 1 d -> d"),
        moved(f"{attention}/query/kernel", "pool.q.weight", "d h k -> (h k) d", h=c.heads),
        moved(f"{attention}/query/bias", "pool.q.bias", "h k -> (h k)", h=c.heads),
        joined([f"{attention}/{part}/kernel" for part in ("key", "value")], "pool.kv.weight", "d h k -> (h k) d", h=c.heads),
        joined([f"{attention}/{part}/bias" for part in ("key", "value")], "pool.kv.bias", "h k -> (h k)", h=c.heads),
        moved(f"{attention}/out/kernel", "pool.out.weight", "h k d -> d (h k)", h=c.heads),
        _vector(f"{attention}/out/bias", "pool.out.bias"),
        *_norm(f"{there}/LayerNorm_0", "pool.norm"),
        *_mlp(f"{there}/MlpBlock_0", "pool.mlp"),
    ]


def _stem(file: Mapping[str, Tensor]) -> Stem | None:
    if "conv_root/kernel" not in file:
        return None
    units = [name.split("/")[:2] for name in file if name.startswith("block") and "/unit" in name]
    stages = sorted({block for block, _ in units})
    return Stem(
        tuple(len({unit for b, unit in units if b == block}) for block in stages), detect.shape(file, "conv_root/kernel", 4)[3]
    )


def _stem_links(stem: Stem) -> list[Link]:
    kernel = "p q c d -> d c p q"
    made = [moved("conv_root/kernel", "stem.conv.weight", kernel), *_group_norm("gn_root", "stem.norm")]
    for stage, depth in enumerate(stem.stages):
        for unit in range(depth):
            theirs, ours = f"block{stage + 1}/unit{unit + 1}", f"stem.stages.{stage}.{unit}"
            for part in (1, 2, 3):
                made.append(moved(f"{theirs}/conv{part}/kernel", f"{ours}.conv{part}.weight", kernel))
                made += _group_norm(f"{theirs}/gn{part}", f"{ours}.norm{part}")
            if unit == 0:
                made.append(moved(f"{theirs}/conv_proj/kernel", f"{ours}.shortcut.0.weight", kernel))
                made += _group_norm(f"{theirs}/gn_proj", f"{ours}.shortcut.1")
    return made
