"""Convert Hugging Face's YOLOS (``YolosForObjectDetection``): the encoder as those of the other families, and the detection
tokens with what predicts boxes from them. They have positions as the patches do; the first are a part of our queries."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.config import to_dict
from vitrail.data.preprocess import Fit, Preprocess, imagenet_preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import decoder_state
from vitrail.models.config import ViTConfig
from vitrail.recipes.task_config import Detection
from vitrail.tasks.detection_queries import QueryDetector
from vitrail.weights.convert.huggingface_families import GELUS
from vitrail.weights.convert.huggingface_towers import convert_tower
from vitrail.weights.convert.inspect import (
    ConvertedCheckpoint,
    Overrides,
    refuse_published_features,
    require_shape,
    unsupported,
)
from vitrail.weights.convert.tensor_map import TensorMap, affine, concat, export_tensors, import_tensors

MODEL_TYPE = "yolos"
TOKENS, POSITIONS = "vit.embeddings.detection_tokens", "vit.embeddings.position_embeddings"
MIDDLE = "vit.encoder.mid_position_embeddings"  # since transformers 5, of a module in between
HEADS = ("class_labels_classifier.", "bbox_predictor.")
HINT = "use format='vitrail'"


def matches(file: Mapping[str, Tensor], sidecar: Mapping[str, Any]) -> bool:
    """Return whether a file has the heads; of a file without them, the encoder is read."""
    return sidecar.get("model_type") == MODEL_TYPE and all(any(name.startswith(head) for name in file) for head in HEADS)


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    file = {name.replace(".interpolation.", "."): tensor for name, tensor in file.items()}
    _, queries, width = require_shape(file, TOKENS, 3)
    _, rows, _ = require_shape(file, POSITIONS, 3)
    outcomes, _ = require_shape(file, f"{HEADS[0]}layers.2.weight", 2)
    if rows <= queries:
        raise VitrailError(f"{POSITIONS} has {rows} rows, too few for {queries} detection tokens and the patches")
    own = {name: tensor for name, tensor in file.items() if not name.startswith((*HEADS, TOKENS, MIDDLE))}
    own[POSITIONS] = file[POSITIONS][:, :-queries]
    tower = convert_tower(own, {**sidecar, "model_type": "deit"}, overrides)
    assert isinstance(tower.config, ViTConfig)
    if tower.config.prefix_positions != 1:
        raise VitrailError(
            f"image_size in config.json does not fit the positions, which are those of {rows - queries - 1} patches"
        )
    decoder, _ = import_tensors(head_maps(), {name: file[name] for name in file if name.startswith(HEADS)})
    decoder["head.queries"] = file[TOKENS][0] + file[POSITIONS][0, -queries:]
    config, state = tower.config, dict(tower.state)
    if MIDDLE in file:
        config = replace(config, position_at="every-layer")
        tables = file[MIDDLE].reshape(config.depth - 1, -1, width)
        decoder["head.positions"] = tables[:, -queries:]
        for layer, table in enumerate(tables, 1):
            state[f"positions.{layer}.prefix"] = table[:1]
            state[f"positions.{layer}.table.weight"] = table[1:-queries].reshape(*config.grid, width)
    task = Detection(
        head="queries", classes=outcomes - 1, queries=queries, query_blocks=config.depth, query_positions=MIDDLE in file
    )
    return replace(
        tower,
        config=config,
        state=state,
        decoder=decoder,
        metadata={"recipe": {"task": to_dict(task)}},
        class_names=_class_names(sidecar, outcomes - 1),
    )


def head_maps() -> list[TensorMap]:
    maps: list[TensorMap] = []
    for theirs, ours in zip(HEADS, ("head.classes", "head.boxes"), strict=True):
        for layer in range(3):
            maps += affine(f"{theirs}layers.{layer}", f"{ours}.{2 * layer}")
    return maps


def preprocessor_fields(sidecar: Mapping[str, Any], config: ViTConfig, assumed: list[str]) -> tuple[dict[str, Any], Fit]:
    """Return their image processor's settings as those of one that resizes images to the input, and how they are fitted."""
    recorded = sidecar.get("preprocessor")
    fields = recorded if isinstance(recorded, dict) else {}
    stretches = "height" in (fields.get("size") or {})
    if not stretches:
        assumed.append("images padded to the input with the mean colour (transformers has an input of the image's shape)")
    standard = imagenet_preprocess(config.image)
    defaults = {"resample": 2, "image_mean": list(standard.mean), "image_std": list(standard.std)}
    size = {"height": config.image[0], "width": config.image[1]}
    return {**defaults, **fields, "size": size, "do_center_crop": False}, "stretch" if stretches else "pad"


def _class_names(sidecar: Mapping[str, Any], classes: int) -> tuple[str, ...]:
    names = sidecar.get("id2label")
    known = names if isinstance(names, dict) else {}
    return tuple(str(known.get(str(index), index)) for index in range(classes))


def export_model(model: QueryDetector) -> dict[str, Tensor]:
    """Return the tensors of a model in their names."""
    config = model.config
    check_supported(model)
    state = {name: weight.detach() for name, weight in model.encoder.state_dict().items()}
    head = {name: weight.detach() for name, weight in decoder_state(model).items()}
    queries = len(head["head.queries"])
    tables = [torch.cat([*_patch_positions(model, layer), torch.zeros(queries, config.width)]) for layer in range(config.depth)]
    for table, positions in zip(tables[1:], head.get("head.positions", ()), strict=False):
        table[-queries:] = positions
    tensors = export_tensors([*_encoder_maps(config), *head_maps()], state | head)
    tensors |= {
        "vit.embeddings.cls_token": state["cls"][None, None].contiguous(),
        TOKENS: head["head.queries"][None].contiguous(),
        POSITIONS: tables[0][None].contiguous(),
    }
    if has_middle_positions(model):
        tensors[re.sub(r"encoder\.", "encoder.interpolation.", MIDDLE)] = torch.stack(tables[1:])[:, None].contiguous()
    return tensors


def has_middle_positions(model: QueryDetector) -> bool:
    """Return whether positions are added before other blocks than the first."""
    return model.config.position_at != "input" or model.head.positions is not None


@torch.no_grad()
def _patch_positions(model: QueryDetector, layer: int) -> tuple[Tensor, Tensor]:
    """Return the positions that a layer adds to the class token and to the patches."""
    config = model.config
    index = config.layers_with_position[layer]
    if index is None:
        return torch.zeros(1, config.width), torch.zeros(config.patches, config.width)
    embedding: Any = model.encoder.positions[index]
    row = torch.zeros(1, config.width) if embedding.prefix is None else embedding.prefix.detach()
    return row, embedding.table_at(config.grid).flatten(0, 1)


def _encoder_maps(config: ViTConfig) -> list[TensorMap]:
    maps = affine("vit.embeddings.patch_embeddings.projection", "embed.project")
    for layer in range(config.depth):
        theirs, ours = f"vit.encoder.layer.{layer}", f"blocks.{layer}"
        for part in ("weight", "bias") if config.qkv_bias else ("weight",):
            qkv = [f"{theirs}.attention.attention.{name}.{part}" for name in ("query", "key", "value")]
            maps.append(concat(qkv, f"{ours}.attention.qkv.{part}"))
        maps += affine(f"{theirs}.attention.output.dense", f"{ours}.attention.out")
        maps += affine(f"{theirs}.intermediate.dense", f"{ours}.mlp.up") + affine(f"{theirs}.output.dense", f"{ours}.mlp.down")
        maps += affine(f"{theirs}.layernorm_before", f"{ours}.norm1") + affine(f"{theirs}.layernorm_after", f"{ours}.norm2")
    return maps + affine("vit.layernorm", "norm")


def check_supported(model: QueryDetector) -> None:
    """Refuse what YOLOS does not have."""
    config = model.config
    if model.query_blocks != config.depth:
        unsupported("queries in the last blocks only", "huggingface", f"train with task.query_blocks={config.depth}, or {HINT}")
    if not config.has_class_token or config.registers or config.stem:
        unsupported("a YOLOS without a class token, with registers or with a stem", "huggingface", HINT)
    if config.norm != "pre" or config.final_norm != "tokens" or config.embed_norm or not config.patch_bias:
        unsupported("a YOLOS with norms in other places, or patches without a bias", "huggingface", HINT)
    refuse_published_features(config, "huggingface", HINT)
    if config.position in ("relative", "rotary"):
        unsupported(f"position embeddings of type {config.position}", "huggingface", HINT)
    if config.qk_norm or config.layer_scale is not None or config.mlp_kind != "gelu" or config.gelu == "quick":
        unsupported("a YOLOS with qk-norm, layer scale, a gated MLP or QuickGELU", "huggingface", HINT)
    if config.patch[0] != config.patch[1]:
        unsupported("a YOLOS for patches that are not square", "huggingface", HINT)


def config_file(model: QueryDetector, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return ``config.json``, which transformers builds the model from."""
    config, classes = model.config, model.head.classes.outputs - 1
    names = class_names or tuple(f"LABEL_{index}" for index in range(classes))
    if len(names) != classes:
        raise VitrailError(f"model.class_names must name all {classes} classes, got {len(names)} names")
    return {
        "architectures": ["YolosForObjectDetection"],
        "model_type": MODEL_TYPE,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp,
        "hidden_act": next(str(act) for act, gelu in GELUS.items() if gelu == config.gelu),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
        "image_size": list(config.image),
        "patch_size": config.patch[0],
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
        "num_detection_tokens": len(model.head.queries),
        "use_mid_position_embeddings": has_middle_positions(model),
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def preprocessor_file(preprocess: Preprocess | None) -> dict[str, dict[str, Any]]:
    """Return ``preprocessor_config.json``; images that are padded keep their aspect ratio there too."""
    if preprocess is None:
        return {}
    if preprocess.fit == "crop" or preprocess.raw:
        unsupported("images that are cropped, or bands", "huggingface", "set model.preprocess with fit='stretch' or fit='pad'")
    height, width = preprocess.image_size
    edges = {"shortest_edge": min(height, width), "longest_edge": max(height, width)}
    filters = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
    return {
        "preprocessor_config.json": {
            "image_processor_type": "YolosImageProcessor",
            "format": "coco_detection",
            "do_resize": True,
            "size": {"height": height, "width": width} if preprocess.fit == "stretch" else edges,
            "resample": filters[preprocess.interpolation],
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(preprocess.mean_of_255),
            "image_std": list(preprocess.std_of_255),
            "do_pad": True,
        }
    }
