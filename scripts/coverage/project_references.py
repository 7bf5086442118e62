"""Small reference models of timm, transformers, torchvision and vit-pytorch, whose weights become other projects' files.

Heads are 64 wide, as in nearly every published model, so that the width shows their number.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGE, PATCH, WIDTH, HEADS, CLASSES = 48, 8, 128, 2, 7
GRID = (IMAGE // PATCH, IMAGE // PATCH)
SIZE = {"img_size": IMAGE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": 2, "num_heads": HEADS, "mlp_ratio": 2.5}
Build = Callable[[], nn.Module]


def logits(model: nn.Module, images: Tensor) -> Tensor:
    output: Tensor = model(images)
    return output


def tokens(model: Any, images: Tensor) -> Tensor:
    """Return the normalised tokens of timm's model without a classifier."""
    output: Tensor = model.forward_features(images)
    return output


def vit(**changes: Any) -> Build:
    """Return a builder of timm's plain Vision Transformer."""
    options = {**SIZE, "num_classes": CLASSES, **changes}
    return lambda: import_module("timm.models.vision_transformer").VisionTransformer(**options)


def swiglu_vit(**changes: Any) -> Build:
    """Return a builder of timm's Vision Transformer with DINOv2's gated MLP."""
    return lambda: vit(mlp_layer=import_module("timm.layers").SwiGLUPacked, act_layer=nn.SiLU, **changes)()


def family(module: str, name: str, **changes: Any) -> Build:
    """Return a builder of another class of timm with the same sizes."""
    options = {**SIZE, "num_classes": CLASSES, **changes}
    return lambda: getattr(import_module(f"timm.models.{module}"), name)(**options)


def architecture(name: str, **changes: Any) -> Build:
    return lambda: import_module("timm").create_model(name, **changes)


eva = partial(family, "eva", "Eva")
beit = partial(family, "beit", "Beit", use_abs_pos_emb=False, init_values=0.1)
EVA02 = {"qkv_fused": False, "swiglu_mlp": True, "scale_mlp": True, "use_rot_pos_emb": True, "ref_feat_shape": (16, 16)}
DINOV3 = {
    "num_classes": 0,
    "use_abs_pos_emb": False,
    "use_rot_pos_emb": True,
    "rope_type": "dinov3",
    "rope_temperature": 100,
    "rope_rotate_half": True,
    "init_values": 0.1,
    "num_reg_tokens": 4,
    "use_fc_norm": False,
    "norm_layer": partial(nn.LayerNorm, eps=1e-5),
}
ROPE_VIT = {
    "attn_type": "rope",
    "init_values": 0.1,
    "global_pool": "token",
    "use_rot_pos_emb": True,
    "rope_grid_indexing": "xy",
}
PERCEPTION_ENCODER = {
    "num_classes": 24,
    "global_pool": "map",
    "attn_type": "rope",
    "use_pre_transformer_norm": True,
    "use_rot_pos_emb": True,
    "ref_feat_shape": GRID,
    "rope_grid_offset": 1.0,
    "rope_grid_indexing": "xy",
    "attn_pool_num_heads": 8,
    "norm_layer": partial(nn.LayerNorm, eps=1e-5),
}
# Without the last norm and the attention pooling.
PERCEPTION_ENCODER_SPATIAL = {
    **PERCEPTION_ENCODER,
    "num_classes": 0,
    "global_pool": "token",
    "attn_pool_num_heads": None,
    "use_post_transformer_norm": False,
    "use_fc_norm": False,
}


def aimv2() -> nn.Module:
    layers = import_module("timm.layers")
    norm = partial(layers.RmsNorm, eps=1e-5)
    return vit(
        num_classes=0,
        num_heads=1,  # 128 wide, as in every size of AIMv2
        class_token=False,
        fc_norm=False,
        global_pool="avg",
        qkv_bias=False,
        proj_bias=False,
        act_layer="silu",
        norm_layer=norm,
        embed_norm_layer=norm,
        mlp_layer=layers.SwiGLU,
    )()


class PreLogits(nn.Module):
    """A Vision Transformer with the pre-training head of the paper."""

    def __init__(self) -> None:
        super().__init__()
        self.body = vit(num_classes=0, act_layer="gelu_tanh")()
        self.pre_logits, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pre_logits(self.body(images)).tanh())


class LinearClassifier(nn.Module):
    """DINOv2 with the linear classifier of its torch.hub entries."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.linear_head = vit(num_classes=0, init_values=0.1)(), nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        backbone: Any = self.backbone
        x = backbone.forward_features(images)
        return self.linear_head(torch.cat([x[:, 0], x[:, 1:].mean(dim=1)], dim=-1))


class Projected(nn.Module):
    """An image tower of open_clip: a model of timm, and a projection without a bias."""

    def __init__(self, trunk: Build, width: int) -> None:
        super().__init__()
        self.trunk, self.head = trunk(), nn.Sequential()
        self.head.add_module("proj", nn.Linear(width, 24, bias=False))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.trunk(images))


def official_hybrid() -> nn.Module:
    """Return timm's hybrid with the epsilons of the official code, which divides kernels by their deviation plus 1e-5."""
    layers, resnet = import_module("timm.layers"), import_module("timm.models.resnetv2")

    class OfficialConv(layers.StdConv2dSame):  # type: ignore[misc, name-defined]
        def forward(self, x: Tensor) -> Tensor:
            axes = (1, 2, 3)
            kernel = self.weight - self.weight.mean(axes, keepdim=True)
            kernel = kernel / (self.weight.std(axes, keepdim=True, correction=0) + 1e-5)
            return F.conv2d(layers.pad_same(x, self.kernel_size, self.stride), kernel, stride=self.stride)

    backbone = resnet.ResNetV2(
        layers=(1, 2),
        channels=(128, 256),
        stem_chs=32,
        num_classes=0,
        global_pool="",
        preact=False,
        stem_type="same",
        conv_layer=OfficialConv,
        norm_layer=partial(layers.GroupNormAct, num_groups=32, eps=1e-6),
    )
    return vit(embed_layer=partial(layers.HybridEmbed, backbone=backbone), patch_size=1, act_layer="gelu_tanh")()


def clip(activation: str) -> Build:
    """Return a builder of transformers' CLIP tower, which computes what OpenAI's code does."""

    def build() -> nn.Module:
        transformers = import_module("transformers")
        config = transformers.CLIPVisionConfig(
            hidden_size=WIDTH,
            intermediate_size=320,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            image_size=IMAGE,
            patch_size=PATCH,
            projection_dim=24,
            hidden_act=activation,
        )
        model: nn.Module = transformers.CLIPVisionModelWithProjection(config)
        return model

    return build


def clip_embedding(model: nn.Module, images: Tensor) -> Tensor:
    embedding: Tensor = model(images).image_embeds
    return embedding


def vjepa() -> nn.Module:
    transformers = import_module("transformers")
    config = transformers.VJEPA2Config(
        patch_size=PATCH,
        crop_size=IMAGE,
        frames_per_clip=2,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=2,
        mlp_ratio=2.5,
        pred_hidden_size=48,
        pred_num_attention_heads=2,
        pred_num_hidden_layers=1,
    )
    model: nn.Module = transformers.VJEPA2Model(config).encoder
    return model


def vjepa_tokens(model: nn.Module, images: Tensor) -> Tensor:
    """Return the tokens of a video of two equal frames, which is how V-JEPA sees an image."""
    output: Tensor = model(images[:, None].repeat(1, 2, 1, 1, 1)).last_hidden_state
    return output


def torchvision_vit() -> nn.Module:
    model: nn.Module = import_module("torchvision.models.vision_transformer").VisionTransformer(
        image_size=IMAGE,
        patch_size=PATCH,
        num_layers=2,
        num_heads=HEADS,
        hidden_dim=WIDTH,
        mlp_dim=320,
        num_classes=CLASSES,
    )
    return model


def vit_pytorch(module: str, name: str) -> Build:
    """Return a builder of a class of vit-pytorch."""
    options = {"image_size": IMAGE, "patch_size": PATCH, "num_classes": CLASSES, "dim": WIDTH, "depth": 2, "heads": HEADS}
    return lambda: getattr(import_module(f"vit_pytorch.{module}"), name)(**options, mlp_dim=320)


def swin() -> nn.Module:
    sizes = {"embed_dim": 32, "depths": (1, 1), "num_heads": (1, 2), "window_size": 3, "patch_size": 4}
    model: nn.Module = import_module("timm.models.swin_transformer").SwinTransformer(
        img_size=IMAGE, num_classes=CLASSES, **sizes
    )
    return model


def set_moco_positions(model: Any) -> None:
    """Set the fixed position table of MoCo-v3, with a row of zeros for the class token."""
    omega = 10000 ** -(torch.arange(WIDTH // 4) / (WIDTH // 4))
    first, second = torch.meshgrid(torch.arange(GRID[0]), torch.arange(GRID[1]), indexing="ij")
    angles = [axis.flatten()[:, None] * omega for axis in (first, second)]
    table = torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)
    model.pos_embed.data = F.pad(table, (0, 0, 1, 0))[None]


def set_sincos_positions(model: Any) -> None:
    """Set the fixed position table of big_vision, which its files do not contain."""
    table = import_module("vit_pytorch.simple_vit").posemb_sincos_2d(*GRID, WIDTH)
    model.pos_embed.data = table[None]


def zero_head_bias(model: Any) -> None:
    nn.init.zeros_(model.head.bias)


def round_to_half(model: nn.Module) -> None:
    model.half().float()
