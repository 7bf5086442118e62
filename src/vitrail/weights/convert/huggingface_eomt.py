"""Convert Hugging Face's EoMT (``EomtForUniversalSegmentation``, and its encoder of DINOv3): the encoder as those of the other
families, and the queries with what predicts masks from them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.config import to_dict
from vitrail.data.preprocess import Fit, imagenet_preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import decoder_state
from vitrail.models.config import ViTConfig
from vitrail.models.cost.eomt import num_upscale_blocks
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.query_loss import NO_OBJECT_WEIGHT
from vitrail.tasks.segmentation_eomt import EoMT
from vitrail.weights.convert.huggingface_towers import convert_tower
from vitrail.weights.convert.inspect import (
    ConvertedCheckpoint,
    Overrides,
    count_layers,
    refuse_published_features,
    require_shape,
    unsupported,
)
from vitrail.weights.convert.tensor_map import TensorMap, affine, concat, copy, export_tensors, import_tensors, permute

MODEL_TYPES = ("eomt", "eomt_dinov3")
DECODER = ("query.", "upscale_block.", "mask_head.", "class_predictor.", "criterion.", "attn_mask_probs")
NOT_READ = ("criterion.", "attn_mask_probs")  # of the training
HINT = "use format='vitrail'"


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    if sidecar.get("hidden_act", "gelu") != "gelu":
        raise VitrailError(f"hidden_act in config.json must be 'gelu', got {str(sidecar['hidden_act'])[:40]!r}")
    tower = convert_tower({name: tensor for name, tensor in file.items() if not name.startswith(DECODER)}, sidecar, overrides)
    assert isinstance(tower.config, ViTConfig)
    queries, _ = require_shape(file, "query.weight", 2)
    outcomes, _ = require_shape(file, "class_predictor.weight", 2)
    scales = count_layers(file, "upscale_block.block.")
    blocks = sidecar.get("num_blocks", 4)
    if type(blocks) is not int or not 1 <= blocks <= tower.config.depth:
        raise VitrailError(f"num_blocks in config.json must be from 1 to {tower.config.depth}, got {str(blocks)[:40]}")
    decoder, unused = import_tensors(decoder_maps(scales), {name: file[name] for name in file if name.startswith(DECODER)})
    upscale = None if scales == num_upscale_blocks(tower.config.patch_stride) else scales
    task = Segmentation(head="eomt", classes=outcomes - 1, queries=queries, query_blocks=blocks, upscale_blocks=upscale)
    assumed = list(tower.assumed)
    if "attn_mask_probs" in file and file["attn_mask_probs"].any():
        assumed.append("queries that attend to all patches (its training has not annealed the masks of their attention)")
    return replace(
        tower,
        decoder=decoder,
        metadata={"recipe": {"task": to_dict(task)}},
        class_names=_class_names(sidecar, outcomes - 1),
        unused=[*tower.unused, *(name for name in unused if not name.startswith(NOT_READ))],
        assumed=assumed,
    )


def _class_names(sidecar: Mapping[str, Any], classes: int) -> tuple[str, ...]:
    names = sidecar.get("id2label")
    known = names if isinstance(names, dict) else {}
    return tuple(str(known.get(str(index), index)) for index in range(classes))


def decoder_maps(upscale_blocks: int) -> list[TensorMap]:
    maps = [copy("query.weight", "head.queries"), *affine("class_predictor", "head.classes")]
    for layer in range(3):
        maps += affine(f"mask_head.fc{layer + 1}", f"head.masks.{2 * layer}")
    for block in range(upscale_blocks):
        theirs, ours = f"upscale_block.block.{block}", f"head.upscale.{block}"
        maps += affine(f"{theirs}.conv1", f"{ours}.up") + affine(f"{theirs}.conv2", f"{ours}.depthwise", bias=False)
        maps += affine(f"{theirs}.layernorm2d", f"{ours}.norm")
    return maps


def export_model(model: EoMT, config: ViTConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model in their names; ``state``: its encoder, with a learned position table."""
    check_supported(config)
    state = _without_prefix_positions(config, dict(state))
    for layer in range(config.depth):
        for name in ("scale1", "scale2"):
            state.setdefault(f"blocks.{layer}.{name}.scale", torch.ones(config.width))
    decoder = {name: weight.detach() for name, weight in decoder_state(model).items()}
    tensors = export_tensors([*_encoder_maps(config), *decoder_maps(len(model.head.upscale))], state | decoder)
    tensors["embeddings.register_tokens"] = state.get("registers", torch.zeros(0, config.width))[None].contiguous()
    tensors["attn_mask_probs"] = torch.zeros(model.query_blocks)
    tensors["criterion.empty_weight"] = torch.tensor([1.0] * (model.head.classes.out_features - 1) + [NO_OBJECT_WEIGHT])
    return tensors


def _without_prefix_positions(config: ViTConfig, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with the positions of the prefix tokens added to the tokens themselves."""
    rows = state.pop("positions.0.prefix", None)
    if rows is None:
        return state
    state["cls"] = state["cls"] + rows[0]
    if len(rows) > 1:
        state["registers"] = state["registers"] + rows[1:]
    return state


def _encoder_maps(config: ViTConfig) -> list[TensorMap]:
    maps = [permute("embeddings.cls_token", "cls", "1 1 d -> d")]
    maps += affine("embeddings.patch_embeddings.projection", "embed.project")
    rows, columns = config.grid
    maps.append(
        permute("embeddings.position_embeddings.weight", "positions.0.table.weight", "(y x) d -> y x d", y=rows, x=columns)
    )
    for layer in range(config.depth):
        theirs, ours = f"layers.{layer}", f"blocks.{layer}"
        maps += affine(f"{theirs}.norm1", f"{ours}.norm1") + affine(f"{theirs}.norm2", f"{ours}.norm2")
        for part in ("weight", "bias"):
            qkv = [f"{theirs}.attention.{name}_proj.{part}" for name in "qkv"]
            maps.append(concat(qkv, f"{ours}.attention.qkv.{part}"))
        maps += affine(f"{theirs}.attention.out_proj", f"{ours}.attention.out")
        maps += [copy(f"{theirs}.layer_scale{index}.lambda1", f"{ours}.scale{index}.scale") for index in (1, 2)]
        if config.mlp_kind == "swiglu":
            for part in ("weight", "bias"):
                maps.append(concat([f"{theirs}.mlp.{name}_proj.{part}" for name in ("gate", "up")], f"{ours}.mlp.up.{part}"))
            maps += affine(f"{theirs}.mlp.down_proj", f"{ours}.mlp.down")
        else:
            maps += affine(f"{theirs}.mlp.fc1", f"{ours}.mlp.up") + affine(f"{theirs}.mlp.fc2", f"{ours}.mlp.down")
    return maps + affine("layernorm", "norm")


def check_supported(config: ViTConfig) -> None:
    """Refuse what their encoder, which is DINOv2's, does not have."""
    if not config.has_class_token or config.stem:
        unsupported("an EoMT without a class token or with a stem", "huggingface", HINT)
    if config.norm != "pre" or config.final_norm != "tokens" or config.embed_norm or not config.patch_bias:
        unsupported("an EoMT with norms in other places, or patches without a bias", "huggingface", HINT)
    refuse_published_features(config, "huggingface", HINT)
    if config.qk_norm or not config.qkv_bias or config.gelu != "exact":
        unsupported("an EoMT with qk-norm, without biases or with another GELU", "huggingface", HINT)
    if config.image[0] != config.image[1] or config.patch[0] != config.patch[1]:
        unsupported("an EoMT for images or patches that are not square", "huggingface", HINT)
    if config.mlp != _hidden(config):
        unsupported(f"an EoMT whose MLP has {config.mlp} hidden channels", "huggingface", HINT)


def _hidden(config: ViTConfig) -> int:
    """Return the width of the MLP that the ratio in their config.json stands for."""
    hidden = _mlp_ratio(config) * config.width
    return (hidden * 2 // 3 + 7) // 8 * 8 if config.mlp_kind == "swiglu" else hidden


def _mlp_ratio(config: ViTConfig) -> int:
    return max(round(config.mlp * (1.5 if config.mlp_kind == "swiglu" else 1) / config.width), 1)


def config_file(model: EoMT, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return ``config.json``, which transformers builds the model from."""
    config, classes = model.config, model.head.classes.out_features - 1
    names = class_names or tuple(f"LABEL_{index}" for index in range(classes))
    if len(names) != classes:
        raise VitrailError(f"model.class_names must name all {classes} classes, got {len(names)} names")
    return {
        "architectures": ["EomtForUniversalSegmentation"],
        "model_type": "eomt",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "mlp_ratio": _mlp_ratio(config),
        "use_swiglu_ffn": config.mlp_kind == "swiglu",
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_dropout": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
        "image_size": config.image[0],
        "patch_size": config.patch[0],
        "num_channels": config.channels,
        "num_register_tokens": config.registers,
        "num_queries": len(model.head.queries),
        "num_blocks": model.query_blocks,
        "num_upscale_blocks": len(model.head.upscale),
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def preprocessor_fields(sidecar: Mapping[str, Any], config: ViTConfig, assumed: list[str]) -> tuple[dict[str, Any], Fit]:
    """Return their image processor's settings as those of one that resizes images to the input, and how they are fitted."""
    recorded = sidecar.get("preprocessor")
    fields = recorded if isinstance(recorded, dict) else {}
    if not fields:
        assumed.append("images stretched to the input, ImageNet's mean and std (model.preprocess overrides it)")
    elif fields.get("do_pad") is True:
        assumed.append("images padded on all sides with the mean colour (transformers pads below and on the right)")
    elif "shortest_edge" in (fields.get("size") or {}):
        assumed.append("whole images stretched to the input (transformers predicts overlapping squares of a larger one)")
    standard = imagenet_preprocess(config.image)
    defaults = {"resample": 2, "image_mean": list(standard.mean), "image_std": list(standard.std)}
    size = {"height": config.image[0], "width": config.image[1]}
    return {**defaults, **fields, "size": size, "do_center_crop": False}, "pad" if fields.get("do_pad") is True else "stretch"
