"""Convert Hugging Face's ViT and the encoder of its ViTMAE: tensor names on disk and of transformers 5 in memory, config.json
and preprocessor_config.json."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.config import parse_value
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import Gelu, ModelConfig, ViTConfig
from vitrail.weights.convert import huggingface_eomt, huggingface_yolos, inspect, vitdet
from vitrail.weights.convert.huggingface_families import FAMILIES, MISSING_FEATURES
from vitrail.weights.convert.huggingface_towers import convert_tower
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides, require_plain_vit, unsupported
from vitrail.weights.convert.tensor_map import TensorMap, affine, concat, import_tensors, permute, position_table

GELU_NAMES: dict[str, Gelu] = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
RESAMPLE_FILTERS: dict[int, Any] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
MODEL_TYPES = ("vit", "vit_mae")
MULTI_LABEL = "multi_label_classification"  # their problem_type of a model that predicts several labels per image
MAY_BE_EMPTY = ("embeddings.register_tokens",)  # of a DINOv2 or DINOv3 without registers
# In transformers 5 a model in memory has other names than its file, and ViTMAE's decoder has yet others in the file.
NEW_TO_OLD_NAMES = [
    (r"^(vit\.)?layers\.(?=\d)", r"\1encoder.layer."),
    (r"^decoder\.decoder_encoder\.layer\.", "decoder.decoder_layers."),
    (r"(layers?\.\d+\.attention)\.(q|k|v)_proj\.", r"\1.attention.\2."),
    (r"(layers?\.\d+\.attention)\.o_proj\.", r"\1.output.dense."),
    (r"(layers?\.\d+)\.mlp\.fc1\.", r"\1.intermediate.dense."),
    (r"(layers?\.\d+)\.mlp\.fc2\.", r"\1.output.dense."),
]
PATCH_PROJECTION = re.compile(r"embeddings\.patch_embed(dings?)?(\.projection)?\.weight$")
QKV_NAMES = {"q": "query", "k": "key", "v": "value"}


def matches(names: Mapping[str, Tensor]) -> bool:
    return any(PATCH_PROJECTION.search(name) for name in names)


def names_family(sidecar: Mapping[str, Any]) -> bool:
    """Return whether config.json names a family that is known, whatever its tensors are named."""
    model_type = sidecar.get("model_type")
    return isinstance(model_type, str) and (
        model_type in FAMILIES or model_type in MISSING_FEATURES or model_type == vitdet.MODEL_TYPE
    )


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    if "auto_map" in sidecar:
        raise VitrailError("config.json would execute its own code (auto_map), which is never done")
    model_type = sidecar.get("model_type", "vit")
    is_yolos = huggingface_yolos.matches(file, sidecar)
    if is_yolos or model_type in huggingface_eomt.MODEL_TYPES:
        converter = huggingface_yolos if is_yolos else huggingface_eomt
        checkpoint = converter.convert_checkpoint(file, sidecar, overrides)
        assert isinstance(checkpoint.config, ViTConfig)
        fields, fit = converter.preprocessor_fields(sidecar, checkpoint.config, checkpoint.assumed)
        preprocess = _preprocess({**sidecar, "preprocessor": fields}, checkpoint.config, checkpoint.assumed)
        return replace(checkpoint, preprocess=preprocess.with_fit(fit))
    if model_type == vitdet.MODEL_TYPE:
        return vitdet.convert_checkpoint(file, sidecar, overrides)
    if isinstance(model_type, str) and model_type in FAMILIES:
        tower = convert_tower(file, sidecar, overrides)
        assert isinstance(tower.config, ViTConfig)
        preprocess = _tower_preprocess(sidecar, tower.config, FAMILIES[model_type].origin, tower.assumed)
        class_names = _class_names(sidecar, tower.config.classes)
        return replace(tower, preprocess=preprocess, class_names=class_names, metadata=_task(sidecar, tower.config))
    if isinstance(model_type, str) and model_type in MISSING_FEATURES:
        raise VitrailError(f"{model_type} has {MISSING_FEATURES[model_type]}, which Vitrail's Vision Transformers do not have")
    if model_type not in MODEL_TYPES:
        raise VitrailError(
            f"config.json describes a {str(model_type)[:60]!r}; of Hugging Face's, 'vit', 'vit_mae', 'clip', 'siglip', "
            "'dinov2', 'dinov3_vit', 'deit', 'beit' and others of their kind can be read"
        )
    if not any(name.endswith("embeddings.patch_embeddings.projection.weight") for name in file) or any(
        name.endswith(".layer_scale1.lambda1") for name in file
    ):
        raise VitrailError(
            "the file has the names of CLIP, SigLIP or DINOv2, but the config.json of its model is not next to it"
        )
    file = to_old_names(file)
    assumed: list[str] = []
    width, channels, patch_height, patch_width = inspect.require_shape(
        file, "vit.embeddings.patch_embeddings.projection.weight", 4
    )
    depth = inspect.count_layers(file, "vit.encoder.layer.")
    mlp = inspect.require_shape(file, "vit.encoder.layer.0.intermediate.dense.weight", 2)[0]
    rows = inspect.require_shape(file, "vit.embeddings.position_embeddings", 3)[1]
    size = _pair(sidecar["image_size"], "image_size") if "image_size" in sidecar else None
    recorded_grid = (size[0] // patch_height, size[1] // patch_width) if size else None
    grid, _ = inspect.infer_grid(rows, [1], overrides, assumed, recorded_grid, (patch_height, patch_width))
    pooler = "vit.pooler.dense.weight" in file and "classifier.weight" not in file
    if pooler and sidecar.get("pooler_act", "tanh") != "tanh":
        raise VitrailError(f"pooler_act in config.json must be 'tanh', got {sidecar['pooler_act']!r}")
    config = ViTConfig(
        width=width,
        depth=depth,
        mlp=mlp,
        heads=inspect.infer_heads(width, depth, mlp, overrides, assumed, _number(sidecar, "num_attention_heads", int)),
        patch=(patch_height, patch_width),
        image=(grid[0] * patch_height, grid[1] * patch_width),
        channels=channels,
        classes=file["classifier.weight"].shape[0] if "classifier.weight" in file else 0,
        head="mlp" if pooler else "linear",
        head_hidden=_hidden(file, width) if pooler else None,
        position_resize="huggingface",
        norm_eps=_epsilon(sidecar, assumed),
        gelu=_gelu(sidecar, overrides, assumed),
        qkv_bias="vit.encoder.layer.0.attention.attention.query.bias" in file,
    )
    state, unused = import_tensors(tensor_maps(config), file)
    unknown = [name for name in unused if not re.search(r"(^|\.)(pooler|decoder|mask_token)", name)]
    if unknown:
        raise VitrailError(f"the file has {', '.join(unknown[:4])}, which Vitrail's Vision Transformers do not have")
    return ConvertedCheckpoint(
        "huggingface",
        config,
        state,
        unused,
        assumed,
        _preprocess(sidecar, config, assumed),
        _class_names(sidecar, config.classes),
        _task(sidecar, config),
    )


def _task(sidecar: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Return the metadata of a model that predicts several labels per image; transformers too takes the sigmoid of each."""
    several = config.classes and sidecar.get("problem_type") == MULTI_LABEL
    return {"recipe": {"task": {"kind": "multi-label"}}} if several else {}


def tensor_maps(c: ModelConfig) -> list[TensorMap]:
    assert isinstance(c, ViTConfig)
    maps = [permute("vit.embeddings.cls_token", "cls", "1 1 d -> d"), position_table("vit.embeddings.position_embeddings", c)]
    maps += affine("vit.embeddings.patch_embeddings.projection", "embed.project")
    for layer in range(c.depth):
        maps += block_maps(f"vit.encoder.layer.{layer}", f"blocks.{layer}", c.qkv_bias)
    maps += affine("vit.layernorm", "norm")
    if c.head == "mlp":
        maps += affine("vit.pooler.dense", "head.0")
    return maps + (affine("classifier", "head") if c.classes else [])


def block_maps(theirs: str, ours: str, bias: bool = True) -> list[TensorMap]:
    maps: list[TensorMap] = []
    for part in ("weight", "bias") if bias else ("weight",):
        qkv = [f"{theirs}.attention.attention.{name}.{part}" for name in QKV_NAMES.values()]
        maps.append(concat(qkv, f"{ours}.attention.qkv.{part}"))
    maps += affine(f"{theirs}.attention.output.dense", f"{ours}.attention.out")
    maps += affine(f"{theirs}.intermediate.dense", f"{ours}.mlp.up") + affine(f"{theirs}.output.dense", f"{ours}.mlp.down")
    return maps + affine(f"{theirs}.layernorm_before", f"{ours}.norm1") + affine(f"{theirs}.layernorm_after", f"{ours}.norm2")


def check_supported(config: ModelConfig) -> None:
    config = require_plain_vit(config, "huggingface")
    if config.layer_scale is not None or config.qk_norm:
        unsupported("layer scale or qk-norm", "huggingface", "use format='timm'")
    if config.head == "mlp":
        unsupported("the pre-logits layer", "huggingface", "use format='official' or 'torchvision'")


def sidecar_files(
    c: ModelConfig, preprocess: Preprocess | None, class_names: tuple[str, ...] | None, several_labels: bool = False
) -> dict[str, dict[str, Any]]:
    """Return ``config.json`` and ``preprocessor_config.json``, which transformers builds model and image processor from."""
    assert isinstance(c, ViTConfig)
    if class_names and len(class_names) != c.classes:
        raise VitrailError(f"model.class_names must name all {c.classes} classes, got {len(class_names)} names")
    names = class_names or tuple(f"LABEL_{index}" for index in range(c.classes))
    config = {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        **config_fields(c),
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
        **({"problem_type": MULTI_LABEL} if several_labels else {}),
    }
    return {"config.json": config, **preprocessor_file(preprocess)}


def config_fields(c: ViTConfig) -> dict[str, Any]:
    """Return the fields of ``config.json`` that all their Vision Transformers share."""
    return {
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "intermediate_size": c.mlp,
        "hidden_act": "gelu" if c.gelu == "exact" else "gelu_pytorch_tanh",
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.attention_dropout,
        "layer_norm_eps": c.norm_eps,
        "image_size": c.image[0] if c.image[0] == c.image[1] else list(c.image),
        "patch_size": c.patch[0] if c.patch[0] == c.patch[1] else list(c.patch),
        "num_channels": c.channels,
        "qkv_bias": c.qkv_bias,
    }


def preprocessor_file(preprocess: Preprocess | None) -> dict[str, dict[str, Any]]:
    if preprocess is None:
        return {}
    resized, is_square = preprocess.resize_to, preprocess.image_size[0] == preprocess.image_size[1]
    if preprocess.trim != (0, 0):
        unsupported("images that are cut off at the last whole patch", "huggingface", "set model.preprocess with trim=(0, 0)")
    if replace(preprocess, crop_pct=preprocess.image_size[0] / resized[0]).resize_to != resized:
        unsupported(f"a resize to {resized} with unequal crop ratios", "huggingface", "set model.preprocess with crop_pct=1.0")
    if preprocess.fit == "pad":
        unsupported("images that are padded", "huggingface", "set model.preprocess with fit='crop' or fit='stretch'")
    if not is_square and preprocess.fit == "crop":
        unsupported(
            "a resize that keeps the aspect ratio for images that are not square",
            "huggingface",
            "set model.preprocess with fit='stretch'",
        )
    fields: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": resized[0], "width": resized[1]} if preprocess.fit == "stretch" else {"shortest_edge": resized[0]},
        "resample": next(number for number, name in RESAMPLE_FILTERS.items() if name == preprocess.interpolation),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean_of_255),
        "image_std": list(preprocess.std_of_255),
    }
    if resized != preprocess.image_size or preprocess.fit == "crop":
        fields |= {"do_center_crop": True, "crop_size": dict(zip(("height", "width"), preprocess.image_size, strict=True))}
    return {"preprocessor_config.json": fields}


def to_old_names(file: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename to the tensor names that files have used since the first of these models."""
    return {_old_name(name): tensor for name, tensor in file.items()}


def _old_name(name: str) -> str:
    for new_pattern, old_pattern in NEW_TO_OLD_NAMES:
        name = re.sub(new_pattern, old_pattern, name)
    name = re.sub(r"attention\.attention\.([qkv])\.", lambda match: f"attention.attention.{QKV_NAMES[match[1]]}.", name)
    lacks_prefix = not name.startswith(("vit.", "classifier.", "decoder."))
    return f"vit.{name}" if lacks_prefix else name


def _pair(value: Any, name: str) -> tuple[int, int]:
    pair: tuple[int, int] = parse_value([value, value] if isinstance(value, int) else value, tuple[int, int], name)
    return pair


def _number(sidecar: Mapping[str, Any], name: str, value_type: type) -> Any:
    return parse_value(sidecar[name], value_type, f"{name} in config.json") if name in sidecar else None


def _hidden(file: Mapping[str, Tensor], width: int) -> int | None:
    hidden = file["vit.pooler.dense.weight"].shape[0]
    return None if hidden == width else hidden


def _epsilon(sidecar: Mapping[str, Any], assumed: list[str]) -> float:
    eps: float | None = _number(sidecar, "layer_norm_eps", float)
    if eps is None:
        assumed.append("layer norms with epsilon 1e-12 (transformers' default)")
    return eps or 1e-12


def _gelu(sidecar: Mapping[str, Any], overrides: Overrides, assumed: list[str]) -> Gelu:
    act = sidecar.get("hidden_act")
    if act is not None and overrides.gelu is None:
        if act not in GELU_NAMES:
            raise VitrailError(f"hidden_act in config.json must be one of {', '.join(GELU_NAMES)}, got {act!r}")
        return GELU_NAMES[act]
    return inspect.infer_gelu("exact", overrides, assumed)


def _class_names(sidecar: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    names = sidecar.get("id2label")
    if not isinstance(names, dict) or set(names) != {str(index) for index in range(classes)} or not classes:
        return None
    class_names = tuple(str(names[str(index)]) for index in range(classes))
    return None if class_names == tuple(f"LABEL_{index}" for index in range(classes)) else class_names


def _tower_preprocess(sidecar: Mapping[str, Any], config: ViTConfig, origin: str, assumed: list[str]) -> Preprocess:
    """Return the preprocessing of a tower, whose image processor may crop to another size than its position table's."""
    fields = sidecar.get("preprocessor")
    if not isinstance(fields, dict) or not fields:
        return inspect.assume_preprocess(origin, config, assumed)
    crop, size = fields.get("crop_size"), fields.get("size")
    crop_side = crop.get("height") if isinstance(crop, dict) else crop
    edge = size.get("shortest_edge") if isinstance(size, dict) else size
    if type(crop_side) is int and type(edge) is int and 0 < crop_side <= edge and crop_side != config.image[0]:
        assumed.append(
            f"images of {config.image[0]}, cropped in proportion (preprocessor_config.json crops to {crop_side}; "
            f"image={crop_side} resizes the positions to that)"
        )
        scaled = round(config.image[0] * edge / crop_side)
        fields = {
            **fields,
            "size": {"shortest_edge": scaled},
            "crop_size": {"height": config.image[0], "width": config.image[1]},
        }
    return _preprocess({**sidecar, "preprocessor": fields}, config, assumed)


def _preprocess(sidecar: Mapping[str, Any], config: ViTConfig, assumed: list[str]) -> Preprocess:
    """Return the preprocessing of transformers' image processor, with its defaults for missing fields."""
    fields = sidecar.get("preprocessor", {})
    if not isinstance(fields, dict):
        raise VitrailError("preprocessor_config.json must contain an object")
    if not fields:
        assumed.append("images resized without keeping the aspect ratio, mean and std 0.5 (model.preprocess overrides it)")
    size = fields.get("size", {})
    size = {"height": size, "width": size} if isinstance(size, int) else size
    crops = fields.get("do_center_crop", "crop_size" in fields)
    shortest_edge, height, width = (
        size.get(name) if isinstance(size, dict) else None for name in ("shortest_edge", "height", "width")
    )
    if fields.get("do_resize", True) is not True or fields.get("resample", 2) not in RESAMPLE_FILTERS:
        raise VitrailError("preprocessor_config.json must resize images by nearest, lanczos, bilinear or bicubic")
    edge = parse_value(
        next((side for side in (shortest_edge, height) if side is not None), config.image[0]),
        int,
        "size in preprocessor_config.json",
    )
    if edge < (config.image[0] if crops else 1):
        raise VitrailError(f"size in preprocessor_config.json must be at least the model's {config.image[0]}, got {edge}")
    crop = config.image[0] / edge if crops else 1.0
    scale = (
        255 * parse_value(fields.get("rescale_factor", 1 / 255), float, "rescale_factor")
        if fields.get("do_rescale", True)
        else 255.0
    )
    mean, std = (
        ((0.0,), (1.0,))
        if fields.get("do_normalize", True) is False
        else (_values(fields, "image_mean", 0.5), _values(fields, "image_std", 0.5))
    )
    per_channel = [(part * config.channels)[: config.channels] if len(part) == 1 else part for part in (mean, std)]
    preprocess = Preprocess(
        config.image,
        crop_pct=crop,
        fit="stretch" if shortest_edge is None else "crop",
        interpolation=RESAMPLE_FILTERS[fields.get("resample", 2)],
        mean=tuple(value / scale for value in per_channel[0]),
        std=tuple(value / scale for value in per_channel[1]),
    )
    if shortest_edge is None and height is not None and preprocess.resize_to != (height, width):
        raise VitrailError(
            f"preprocessor_config.json resizes to {height} x {width}, which does not fit images of {config.image}"
        )
    return preprocess


def _values(fields: Mapping[str, Any], name: str, default: float) -> tuple[float, ...]:
    value = fields.get(name, default)
    values: tuple[float, ...] = parse_value(value if isinstance(value, list) else [value], tuple[float, ...], name)
    return values
