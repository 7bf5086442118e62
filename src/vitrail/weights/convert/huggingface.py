"""Convert Hugging Face's ViT and the encoder of its ViTMAE: tensor names on disk and of transformers 5 in memory, config.json
and preprocessor_config.json."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from vitrail.config import read as read_as
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.settings import ModelConfig, ViTConfig
from vitrail.weights.convert import detect
from vitrail.weights.convert.detect import Found, Wishes, refuse
from vitrail.weights.convert.link import Link, affine, joined, moved, positions, read

GELU: dict[str, Literal["tanh", "exact"]] = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
RESAMPLE: dict[int, Any] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
KINDS = ("vit", "vit_mae")
# In transformers 5 a model in memory has other names than its file, and ViTMAE's decoder has yet others in the file.
NEWER = [
    (r"^(vit\.)?layers\.(?=\d)", r"\1encoder.layer."),
    (r"^decoder\.decoder_encoder\.layer\.", "decoder.decoder_layers."),
    (r"(layers?\.\d+\.attention)\.(q|k|v)_proj\.", r"\1.attention.\2."),
    (r"(layers?\.\d+\.attention)\.o_proj\.", r"\1.output.dense."),
    (r"(layers?\.\d+)\.mlp\.fc1\.", r"\1.intermediate.dense."),
    (r"(layers?\.\d+)\.mlp\.fc2\.", r"\1.output.dense."),
]
LETTERS = {"q": "query", "k": "key", "v": "value"}


def matches(names: Mapping[str, Tensor]) -> bool:
    return any(name.endswith("embeddings.patch_embeddings.projection.weight") for name in names)


def find(file: Mapping[str, Tensor], side: Mapping[str, Any], wishes: Wishes) -> Found:
    if "auto_map" in side:
        raise VitrailError("config.json would execute its own code (auto_map), which is never done")
    if side.get("model_type", "vit") not in KINDS:
        these = " and ".join(map(repr, KINDS))
        raise VitrailError(f"config.json describes a {side['model_type']!r}; only Hugging Face's {these} can be read")
    file = older(file)
    assumed: list[str] = []
    width, channels, high, wide = detect.shape(file, "vit.embeddings.patch_embeddings.projection.weight", 4)
    depth = detect.count(file, "vit.encoder.layer.")
    mlp = detect.shape(file, "vit.encoder.layer.0.intermediate.dense.weight", 2)[0]
    rows = detect.shape(file, "vit.embeddings.position_embeddings", 3)[1]
    size = _pair(side["image_size"], "image_size") if "image_size" in side else None
    known = (size[0] // high, size[1] // wide) if size else None
    grid, _ = detect.grid(rows, [1], wishes, assumed, known)
    pooler = "vit.pooler.dense.weight" in file and "classifier.weight" not in file
    if pooler and side.get("pooler_act", "tanh") != "tanh":
        raise VitrailError(f"pooler_act in config.json must be 'tanh', got {side['pooler_act']!r}")
    config = ViTConfig(
        width=width,
        depth=depth,
        mlp=mlp,
        heads=detect.heads(width, depth, mlp, wishes, assumed, _number(side, "num_attention_heads", int)),
        patch=(high, wide),
        image=(grid[0] * high, grid[1] * wide),
        channels=channels,
        classes=file["classifier.weight"].shape[0] if "classifier.weight" in file else 0,
        head="mlp" if pooler else "linear",
        head_width=_hidden(file, width) if pooler else None,
        resize="huggingface",
        epsilon=_epsilon(side, assumed),
        gelu=_gelu(side, wishes, assumed),
        qkv_bias="vit.encoder.layer.0.attention.attention.query.bias" in file,
    )
    state, left = read(links(config), file)
    strange = [name for name in left if not re.search(r"(^|\.)(pooler|decoder|mask_token)", name)]
    if strange:
        raise VitrailError(f"the file has {', '.join(strange[:4])}, which Vitrail's Vision Transformers do not have")
    return Found("huggingface", config, state, left, assumed, _preprocess(side, config, assumed), _labels(side, config.classes))


def links(c: ModelConfig) -> list[Link]:
    assert isinstance(c, ViTConfig)
    made = [moved("vit.embeddings.cls_token", "cls", "1 1 d -> d"), positions("vit.embeddings.position_embeddings", c)]
    made += affine("vit.embeddings.patch_embeddings.projection", "embed.project")
    for layer in range(c.depth):
        made += block(f"vit.encoder.layer.{layer}", f"blocks.{layer}", c.qkv_bias)
    made += affine("vit.layernorm", "norm")
    if c.head == "mlp":
        made += affine("vit.pooler.dense", "head.0")
    return made + (affine("classifier", "head") if c.classes else [])


def block(theirs: str, ours: str, bias: bool = True) -> list[Link]:
    made: list[Link] = []
    for part in ("weight", "bias") if bias else ("weight",):
        qkv = [f"{theirs}.attention.attention.{name}.{part}" for name in LETTERS.values()]
        made.append(joined(qkv, f"{ours}.attention.qkv.{part}"))
    made += affine(f"{theirs}.attention.output.dense", f"{ours}.attention.out")
    made += affine(f"{theirs}.intermediate.dense", f"{ours}.mlp.up") + affine(f"{theirs}.output.dense", f"{ours}.mlp.down")
    return made + affine(f"{theirs}.layernorm_before", f"{ours}.norm1") + affine(f"{theirs}.layernorm_after", f"{ours}.norm2")


def check(config: ModelConfig) -> None:
    if not isinstance(config, ViTConfig) or config.stem:
        refuse("a ResNet or a hybrid", "huggingface", "use format='timm'")
    plain = config.pool == "cls" and not config.registers and config.norm == "pre" and config.norm_at == "tokens"
    if not plain or config.position_covers == "none":
        refuse("anything but a class token with a position and pre-norm", "huggingface", "use format='timm'")
    if config.layer_scale is not None or config.qk_norm:
        refuse("layer scale or qk-norm", "huggingface", "use format='timm'")
    if config.head == "mlp":
        refuse("the pre-logits layer", "huggingface", "use format='official' or 'torchvision'")
    if not config.classes:
        refuse("a model without a classifier", "huggingface", "use format='timm'")


def side_files(c: ModelConfig, preprocess: Preprocess | None, labels: tuple[str, ...] | None) -> dict[str, dict[str, Any]]:
    """Return ``config.json`` and ``preprocessor_config.json``, which transformers builds model and image processor from."""
    assert isinstance(c, ViTConfig)
    if labels and len(labels) != c.classes:
        raise VitrailError(f"model.labels must name all {c.classes} classes, got {len(labels)} names")
    names = labels or tuple(f"LABEL_{index}" for index in range(c.classes))
    config = {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        **settings(c),
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
    return {"config.json": config, **processor(preprocess)}


def settings(c: ViTConfig) -> dict[str, Any]:
    """Return the fields of ``config.json`` that all their Vision Transformers share."""
    return {
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "intermediate_size": c.mlp,
        "hidden_act": "gelu" if c.gelu == "exact" else "gelu_pytorch_tanh",
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.attention_dropout,
        "layer_norm_eps": c.epsilon,
        "image_size": c.image[0] if c.image[0] == c.image[1] else list(c.image),
        "patch_size": c.patch[0] if c.patch[0] == c.patch[1] else list(c.patch),
        "num_channels": c.channels,
        "qkv_bias": c.qkv_bias,
    }


def processor(preprocess: Preprocess | None) -> dict[str, dict[str, Any]]:
    if preprocess is None:
        return {}
    resized, square = preprocess.resized, preprocess.image[0] == preprocess.image[1]
    if replace(preprocess, crop=preprocess.image[0] / resized[0]).resized != resized:
        refuse(f"a resize to {resized} with unequal crop ratios", "huggingface", "set model.preprocess with crop=1.0")
    if not square and not preprocess.squash:
        refuse(
            "a resize that keeps the aspect ratio for images that are not square",
            "huggingface",
            "set model.preprocess with squash",
        )
    made: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": resized[0], "width": resized[1]} if preprocess.squash else {"shortest_edge": resized[0]},
        "resample": next(number for number, name in RESAMPLE.items() if name == preprocess.interpolation),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
    if resized != preprocess.image or not preprocess.squash:
        made |= {"do_center_crop": True, "crop_size": dict(zip(("height", "width"), preprocess.image, strict=True))}
    return {"preprocessor_config.json": made}


def older(file: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename to the tensor names that files have used since the first of these models."""
    return {_older(name): tensor for name, tensor in file.items()}


def _older(name: str) -> str:
    for newer, older in NEWER:
        name = re.sub(newer, older, name)
    name = re.sub(r"attention\.attention\.([qkv])\.", lambda found: f"attention.attention.{LETTERS[found[1]]}.", name)
    bare = not name.startswith(("vit.", "classifier.", "decoder."))
    return f"vit.{name}" if bare else name


def _pair(value: Any, name: str) -> tuple[int, int]:
    pair: tuple[int, int] = read_as([value, value] if isinstance(value, int) else value, tuple[int, int], name)
    return pair


def _number(side: Mapping[str, Any], name: str, kind: type) -> Any:
    return read_as(side[name], kind, f"{name} in config.json") if name in side else None


def _hidden(file: Mapping[str, Tensor], width: int) -> int | None:
    hidden = file["vit.pooler.dense.weight"].shape[0]
    return None if hidden == width else hidden


def _epsilon(side: Mapping[str, Any], assumed: list[str]) -> float:
    said: float | None = _number(side, "layer_norm_eps", float)
    if said is None:
        assumed.append("layer norms with epsilon 1e-12 (transformers' default)")
    return said or 1e-12


def _gelu(side: Mapping[str, Any], wishes: Wishes, assumed: list[str]) -> Literal["tanh", "exact"]:
    act = side.get("hidden_act")
    if act is not None and wishes.gelu is None:
        if act not in GELU:
            raise VitrailError(f"hidden_act in config.json must be one of {', '.join(GELU)}, got {act!r}")
        return GELU[act]
    return detect.gelu("exact", wishes, assumed)


def _labels(side: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    names = side.get("id2label")
    if not isinstance(names, dict) or set(names) != {str(index) for index in range(classes)} or not classes:
        return None
    ordered = tuple(str(names[str(index)]) for index in range(classes))
    return None if ordered == tuple(f"LABEL_{index}" for index in range(classes)) else ordered


def _preprocess(side: Mapping[str, Any], config: ViTConfig, assumed: list[str]) -> Preprocess:
    """Return the preprocessing of transformers' image processor, with its defaults for missing fields."""
    given = side.get("preprocessor", {})
    if not isinstance(given, dict):
        raise VitrailError("preprocessor_config.json must contain an object")
    if not given:
        assumed.append("images resized without keeping the aspect ratio, mean and std 0.5 (model.preprocess overrides it)")
    size = given.get("size", {})
    size = {"height": size, "width": size} if isinstance(size, int) else size
    crops = given.get("do_center_crop", "crop_size" in given)
    short, high, wide = (size.get(name) if isinstance(size, dict) else None for name in ("shortest_edge", "height", "width"))
    if given.get("do_resize", True) is not True or given.get("resample", 2) not in RESAMPLE:
        raise VitrailError("preprocessor_config.json must resize images by nearest, lanczos, bilinear or bicubic")
    edge = read_as(
        next((side for side in (short, high) if side is not None), config.image[0]), int, "size in preprocessor_config.json"
    )
    if edge < (config.image[0] if crops else 1):
        raise VitrailError(f"size in preprocessor_config.json must be at least the model's {config.image[0]}, got {edge}")
    crop = config.image[0] / edge if crops else 1.0
    scale = (
        255 * read_as(given.get("rescale_factor", 1 / 255), float, "rescale_factor") if given.get("do_rescale", True) else 255.0
    )
    mean, std = (
        ((0.0,), (1.0,))
        if given.get("do_normalize", True) is False
        else (_values(given, "image_mean", 0.5), _values(given, "image_std", 0.5))
    )
    each = [(part * config.channels)[: config.channels] if len(part) == 1 else part for part in (mean, std)]
    made = Preprocess(
        config.image,
        crop=crop,
        squash=short is None,
        interpolation=RESAMPLE[given.get("resample", 2)],
        mean=tuple(value / scale for value in each[0]),
        std=tuple(value / scale for value in each[1]),
    )
    if short is None and high is not None and made.resized != (high, wide):
        raise VitrailError(f"preprocessor_config.json resizes to {high} x {wide}, which does not fit images of {config.image}")
    return made


def _values(given: Mapping[str, Any], name: str, default: float) -> tuple[float, ...]:
    value = given.get(name, default)
    values: tuple[float, ...] = read_as(value if isinstance(value, list) else [value], tuple[float, ...], name)
    return values
