"""The files of other projects that are compared: a reference model, its tensors' names, and what is saved around them."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scripts.coverage import project_names as names
from scripts.coverage import project_references as models
from scripts.coverage.project_names import (
    ARGUMENTS,
    OPTIMIZER,
    Names,
    State,
    Wrap,
    add,
    chain,
    join_qkv,
    noise,
    official,
    prefix,
    rename,
    same,
    under,
)
from scripts.coverage.project_references import WIDTH, Build, beit, eva, logits, swiglu_vit, tokens, vit


@dataclass(frozen=True)
class Case:
    """A file of a project: the model that is written, and how."""

    build: Build
    names: Names = same
    wrap: Wrap = same
    output: Callable[[Any, Tensor], Tensor] = logits
    file: str = "weights.pth"
    options: dict[str, Any] = field(default_factory=dict)  # of load: what a user has to give, because no file shows it
    prepare: Callable[[Any], Any] = lambda model: None  # of the model with its random weights
    sidecars: dict[str, dict[str, Any]] = field(default_factory=dict)  # other files, next to which a folder is loaded
    image: int | None = None  # side of the images, if another than usual
    traced: bool = False  # saved as a TorchScript program


def dino_checkpoint(state: State) -> dict[str, Any]:
    """Return DINO's training checkpoint: student and teacher with their heads."""
    head = add(head__mlp__0__weight=(32, WIDTH), head__mlp__0__bias=(32,), head__last_layer__weight_g=(9, 1))
    teacher = head(prefix("backbone.")(state))
    others = {"optimizer": OPTIMIZER, "epoch": 100, "args": ARGUMENTS, "dino_loss": {"center": torch.zeros(1, 9)}}
    return {"student": prefix("module.")(noise(teacher)), "teacher": teacher, **others}


def moco_encoders(state: State) -> State:
    """Return MoCo-v3's two encoders with their projections, and the predictor."""
    head = add(head__0__weight=(40, WIDTH), head__1__running_mean=(40,))
    encoders = {
        **prefix("module.base_encoder.")(head(state)),
        **prefix("module.momentum_encoder.")(head(noise(state))),
    }
    return add(module__predictor__0__weight=(40, 24))(encoders)


def jepa_checkpoint(state: State) -> dict[str, Any]:
    """Return a checkpoint of I-JEPA or V-JEPA, whose target encoder is evaluated."""
    predictor = add(module__predictor_embed__weight=(48, WIDTH), module__mask_token=(1, 1, 48))({})
    return {"encoder": noise(state), "predictor": predictor, "opt": OPTIMIZER, "target_encoder": state, "epoch": 300}


def lightly_modules(state: State) -> dict[str, Any]:
    """Return a Lightning checkpoint of lightly's DINO example."""
    students = prefix("student_backbone.vit.")(noise(state))
    heads = add(student_head__layers__0__weight=(32, WIDTH), teacher_head__layers__0__weight=(32, WIDTH))({})
    return lightning({**students, **prefix("teacher_backbone.vit.")(state), **heads})


def lightning(state: State) -> dict[str, Any]:
    progress = {"epoch": 9, "global_step": 900, "pytorch-lightning_version": "2.5.0", "loops": {}, "lr_schedulers": []}
    return {**progress, "state_dict": state, "optimizer_states": [OPTIMIZER], "hyper_parameters": {"lr": 1e-3}}


def deepspeed(state: State) -> dict[str, Any]:
    shapes = [OrderedDict((name, tensor.shape) for name, tensor in state.items())]
    return {"module": state, "param_shapes": shapes, "optimizer": None, "ds_config": {"zero": 2}, "dp_world_size": 2}


def open_clip_config(**vision: Any) -> dict[str, dict[str, Any]]:
    normalisation = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    text = {"context_length": 11, "vocab_size": 50, "width": 64, "heads": 1, "layers": 1}
    model = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}
    return {"open_clip_config.json": {"model_cfg": model, "preprocess_cfg": normalisation}}


OPENAI_NUMBERS = {name: torch.tensor(48) for name in ("input_resolution", "context_length", "vocab_size")}
CLIP = chain(names.openai_tower, names.TEXT_TOWER)
FEATURES = vit(num_classes=0)
DINOV2 = add(mask_token=(1, WIDTH))
MMLAB = under("state_dict", meta={"epoch": 300, "CLASSES": None})
BEIT_INDICES = names.beit_indices(*(f"blocks.{block}.attn.relative_position_index" for block in range(2)))
MAP = {"class_token": False, "global_pool": "map", "act_layer": "gelu_tanh"}
TRUNK = {"depth": 2, "num_classes": 0}

CASES: dict[str, Case] = {
    "DeiT, .pth with model": Case(vit(), wrap=under("model")),
    "DeiT, training checkpoint with model_ema": Case(
        vit(),
        wrap=lambda state: {"model": state, "optimizer": OPTIMIZER, "epoch": 9, "model_ema": noise(state), "args": ARGUMENTS},
    ),
    "DeiT, distilled": Case(models.family("deit", "VisionTransformerDistilled"), wrap=under("model")),
    "DeiT III, .pth with model": Case(  # under its published name, because RoPE-ViT's axial files have the same tensors
        vit(no_embed_class=True, init_values=0.1), rename(names.DEIT3), under("model"), file="deit_3_small_224_1k.pth"
    ),
    "DINO, backbone": Case(FEATURES, output=tokens),
    "DINO, training checkpoint": Case(FEATURES, wrap=dino_checkpoint, output=tokens),
    "DINOv2, backbone": Case(vit(num_classes=0, init_values=0.1), DINOV2, output=tokens),
    "DINOv2, registers": Case(
        vit(num_classes=0, init_values=0.1, no_embed_class=True, reg_tokens=4),
        chain(names.split_class_position, rename({"reg_token": "register_tokens"}), DINOV2),
        output=tokens,
    ),
    "DINOv2 giant, SwiGLU w12": Case(
        swiglu_vit(num_classes=0, init_values=0.1), chain(rename(names.DINOV2_SWIGLU), DINOV2), output=tokens
    ),
    "DINOv2, teacher of a training": Case(
        vit(num_classes=0, init_values=0.1),
        chain(rename(names.DINOV2_CHUNKS), DINOV2, prefix("backbone."), add(dino_head__mlp__0__weight=(32, WIDTH))),
        under("teacher"),
        tokens,
    ),
    "DINOv2, linear classifier of torch.hub": Case(models.LinearClassifier),
    "DINOv3, backbone": Case(  # image: there is no position table
        eva(**models.DINOV3), chain(rename(names.DINOV3), names.dinov3_buffers), output=tokens, options={"image": 48}
    ),
    "DINOv3, SwiGLU": Case(  # image: there is no position table
        eva(**models.DINOV3, swiglu_mlp=True),
        chain(rename({**names.DINOV3, **names.SWIGLU_PARTS}), names.dinov3_buffers),
        output=tokens,
        options={"image": 48},
    ),
    "MAE, pre-trained with decoder": Case(FEATURES, names.DECODER, under("model"), tokens),
    "MAE, fine-tuned": Case(vit(global_pool="avg", fc_norm=True), wrap=under("model")),
    "MoCo-v3, pre-training checkpoint": Case(
        FEATURES,
        moco_encoders,
        under("state_dict", epoch=300, arch="vit_base", optimizer=OPTIMIZER),
        tokens,
        prepare=models.set_moco_positions,
    ),
    "MoCo-v3, linear classifier": Case(
        vit(),
        prefix("module."),
        under("state_dict", epoch=90, arch="vit_base", best_acc1=torch.tensor(76.7), optimizer=OPTIMIZER),
        prepare=models.set_moco_positions,
    ),
    "MSN, target encoder": Case(
        FEATURES,
        chain(add(fc__fc1__weight=(32, WIDTH), fc__bn1__weight=(32,), fc__fc2__weight=(24, 32)), prefix("module.")),
        lambda state: {"target_encoder": state, "encoder": noise(state), "prototypes": torch.randn(9, 24), "epoch": 800},
        tokens,
    ),
    "I-JEPA, training checkpoint": Case(
        vit(num_classes=0, class_token=False, global_pool="avg", fc_norm=False), prefix("module."), jepa_checkpoint, tokens
    ),
    "BEiT, fine-tuned": Case(beit(use_rel_pos_bias=True), BEIT_INDICES, under("model")),
    "BEiT, pre-trained": Case(
        beit(use_shared_rel_pos_bias=True, num_classes=0, global_pool="token"),
        chain(
            names.beit_indices("rel_pos_bias.relative_position_index"),
            add(mask_token=(1, 1, WIDTH), lm_head__weight=(90, WIDTH), lm_head__bias=(90,)),
        ),
        under("model"),
        tokens,
    ),
    "EVA-01, fine-tuned": Case(eva(), wrap=under("module")),
    "EVA-02, fine-tuned": Case(eva(**models.EVA02), chain(rename(names.EVA02), names.eva02_buffers), under("module")),
    "OpenAI CLIP, state dict": Case(
        models.clip("quick_gelu"),
        chain(CLIP, lambda state: {**{name: tensor.half() for name, tensor in state.items()}, **OPENAI_NUMBERS}),
        output=models.clip_embedding,
        file="ViT-B-32.pt",
        prepare=models.round_to_half,
    ),
    "OpenAI CLIP, TorchScript": Case(vit(), file="ViT-B-32.pt", traced=True),
    "open_clip, weights alone": Case(  # gelu: the file does not show it
        models.clip("gelu"), CLIP, output=models.clip_embedding, file="open_clip_pytorch_model.bin", options={"gelu": "exact"}
    ),
    "open_clip, folder with open_clip_config.json": Case(
        models.clip("gelu"),
        CLIP,
        output=models.clip_embedding,
        file="open_clip_model.safetensors",
        sidecars=open_clip_config(image_size=48, layers=2, width=WIDTH, patch_size=8, mlp_ratio=2.5),
    ),
    "open_clip, training checkpoint": Case(  # gelu: the file does not show it
        models.clip("quick_gelu"),
        chain(CLIP, prefix("module.")),
        under("state_dict", epoch=32, name="run", optimizer=OPTIMIZER),
        models.clip_embedding,
        "epoch_32.pt",
        {"gelu": "quick"},
    ),
    "open_clip, timm tower with projection (BiomedCLIP)": Case(
        lambda: models.Projected(models.architecture("vit_tiny_patch16_224", **TRUNK), 192),
        chain(prefix("visual."), names.BERT_TOWER),
        file="open_clip_pytorch_model.bin",
        sidecars=open_clip_config(timm_model_name="vit_tiny_patch16_224", timm_pool="", timm_proj="linear", image_size=224),
        image=224,
    ),
    "open_clip, timm tower of SigLIP": Case(
        models.architecture("vit_base_patch16_siglip_224", **TRUNK),
        chain(prefix("visual.trunk."), names.BERT_TOWER, add(logit_bias=())),
        file="open_clip_model.safetensors",
        sidecars=open_clip_config(
            timm_model_name="vit_base_patch16_siglip_224", timm_pool="map", timm_proj="none", image_size=224
        ),
        image=224,
    ),
    "EVA-02-CLIP": Case(
        eva(**models.EVA02, scale_attn_inner=True, global_pool="token", num_classes=24),
        chain(rename(names.EVA02), names.eva02_buffers, prefix("visual."), names.EVA_TEXT_TOWER),
        file="EVA02_CLIP_B_psz16_s8B.pt",
    ),
    "Official ViT, augreg": Case(
        vit(act_layer="gelu_tanh"), official(names.RELEASED, "Transformer/posembed_input/pos_embedding"), file="augreg.npz"
    ),
    "Official ViT, pre_logits": Case(
        models.PreLogits, official(names.RELEASED, "Transformer/posembed_input/pos_embedding"), file="imagenet21k.npz"
    ),
    "Official hybrid": Case(
        models.official_hybrid, official(names.RELEASED, "Transformer/posembed_input/pos_embedding"), file="R_B_16.npz"
    ),
    "big_vision, attention pooling": Case(vit(**MAP), official(names.LINEN, "pos_embedding"), file="map.npz"),
    "big_vision, sin-cos positions and mean": Case(  # grid: there is no position table
        vit(class_token=False, global_pool="avg", fc_norm=False, act_layer="gelu_tanh"),
        chain(lambda state: {name: tensor for name, tensor in state.items() if name != "pos_embed"}, official(names.LINEN, "")),
        lambda state: {f"params/{name}": tensor for name, tensor in state.items()},
        file="vit_s16.npz",
        options={"grid": models.GRID},
        prepare=models.set_sincos_positions,
    ),
    "SigLIP, big_vision with scanned layers": Case(
        vit(**MAP, num_classes=0),
        chain(official(names.LINEN, "pos_embedding", scan=True), prefix("params/img/")),
        lambda state: {
            **state,
            "params/txt/head/bias": torch.randn(24),
            "params/t": torch.randn(1),
            "params/b": torch.randn(1),
        },
        file="siglip.npz",
    ),
    "torchvision, .pth": Case(models.torchvision_vit),
    "mmpretrain ViT": Case(vit(), rename(names.MMPRETRAIN), MMLAB),
    "mmpretrain DeiT III": Case(vit(no_embed_class=True, init_values=0.1), rename(names.MMPRETRAIN), MMLAB),
    "mmsegmentation ViT": Case(
        vit(num_classes=0, final_norm=False),
        chain(rename(names.MMSEG), add(decode_head__conv_seg__weight=(7, 32, 1, 1), decode_head__conv_seg__bias=(7,))),
        MMLAB,
        tokens,
    ),
    "vit-pytorch ViT": Case(models.vit_pytorch("vit", "ViT")),
    # image: there is no position table
    "vit-pytorch SimpleViT": Case(models.vit_pytorch("simple_vit", "SimpleViT"), options={"image": 48}),
    "vit-pytorch SimpleViT, registers": Case(
        models.vit_pytorch("simple_vit_with_register_tokens", "SimpleViT"), options={"image": 48}
    ),
    "PyTorch Lightning, .ckpt": Case(vit(), prefix("model."), lightning, file="last.ckpt"),
    "lightly DINO, .ckpt": Case(FEATURES, wrap=lightly_modules, output=tokens, file="last.ckpt"),
    "timm train.py, .pth.tar with EMA": Case(
        vit(),
        wrap=lambda state: {
            "epoch": 9,
            "arch": "vit",
            "state_dict": noise(state),
            "optimizer": OPTIMIZER,
            "version": 2,
            "args": ARGUMENTS,
            "state_dict_ema": state,
        },
        file="model_best.pth.tar",
    ),
    "torch.compile, _orig_mod": Case(vit(), prefix("_orig_mod.")),
    "DeepSpeed, model states": Case(vit(), wrap=deepspeed, file="mp_rank_00_model_states.pt"),
    "UNI, pytorch_model.bin": Case(vit(num_classes=0, init_values=0.1), output=tokens, file="pytorch_model.bin"),
    "UNI 2 and H-optimus, SwiGLU and registers": Case(
        swiglu_vit(num_classes=0, init_values=0.1, no_embed_class=True, reg_tokens=4), output=tokens, file="pytorch_model.bin"
    ),
    "Depth Anything V2": Case(
        vit(num_classes=0, init_values=0.1),
        chain(DINOV2, prefix("pretrained."), add(depth_head__projects__0__weight=(16, WIDTH, 1, 1))),
        output=tokens,
    ),
    "RoPE-ViT, mixed": Case(  # image: there is no position table
        eva(**models.ROPE_VIT, use_abs_pos_emb=False, rope_temperature=10.0, rope_type="mixed"),
        names.rope_vit_frequencies,
        under("model"),
        options={"image": 48},
    ),
    "RoPE-ViT, axial with position table": Case(
        eva(**models.ROPE_VIT, no_embed_class=True, rope_temperature=100.0), wrap=under("model")
    ),
    "AIMv2": Case(models.aimv2, rename(names.AIMV2), output=tokens, file="model.safetensors"),
    "Perception Encoder": Case(
        eva(**models.PERCEPTION_ENCODER),
        chain(names.perception_encoder_tokens, names.perception_encoder_pool, prefix("visual."), names.TEXT_TOWER),
        file="PE-Core-B16-224.pt",
        prepare=models.zero_head_bias,
    ),
    "Perception Encoder, spatial": Case(
        eva(**models.PERCEPTION_ENCODER_SPATIAL),
        chain(names.perception_encoder_tokens, prefix("visual.")),
        output=tokens,
        file="PE-Spatial-B16-512.pt",
    ),
    "SAM": Case(
        models.family(
            "vision_transformer_sam",
            "VisionTransformerSAM",
            use_rel_pos=True,
            window_size=3,
            global_attn_indexes=(1,),
            neck_chans=32,
        ),
        chain(rename(names.SAM), prefix("image_encoder."), add(mask_decoder__iou_token__weight=(1, 32))),
    ),
    "V-JEPA 2": Case(
        models.vjepa,
        chain(rename(names.VJEPA), join_qkv(".query.", ".key.", ".value.", ".qkv."), prefix("module.backbone.")),
        jepa_checkpoint,
        models.vjepa_tokens,
    ),
    "Swin, .pth with model": Case(models.swin, wrap=under("model")),
    "Whole model, torch.save(model)": Case(vit(), wrap=lambda state: vit()(), file="model.pt"),
}
