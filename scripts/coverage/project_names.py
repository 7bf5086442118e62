"""From the tensors of a reference model to the names and wrappers in which other projects write them."""

import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from scripts.coverage.project_references import GRID, HEADS, WIDTH

State = dict[str, Tensor]
Names = Callable[[State], State]
Wrap = Callable[[State], Any]

DEIT3 = {r"\.ls([12])\.gamma$": r".gamma_\1"}
DINOV2_SWIGLU = {r"\.mlp\.fc1\.": ".mlp.w12.", r"\.mlp\.fc2\.": ".mlp.w3."}
DINOV2_CHUNKS = {r"^blocks\.(\d+)\.": r"blocks.\1.\1."}  # of one block each, which keeps its number
SWIGLU_PARTS = {r"\.mlp\.fc1_g\.": ".mlp.w1.", r"\.mlp\.fc1_x\.": ".mlp.w2.", r"\.mlp\.fc2\.": ".mlp.w3."}
DINOV3 = {r"\.gamma_([12])$": r".ls\1.gamma", r"^reg_token$": "storage_tokens"}
EVA02 = {**SWIGLU_PARTS, r"\.mlp\.norm\.": ".mlp.ffn_ln.", r"\.attn\.norm\.": ".attn.inner_attn_ln."}
OPENAI = {  # from transformers' names
    r"^vision_model\.": "",
    r"^embeddings\.class_embedding$": "class_embedding",
    r"^embeddings\.position_embedding\.weight$": "positional_embedding",
    r"^embeddings\.patch_embedding\.": "conv1.",
    r"^pre_layrnorm\.": "ln_pre.",
    r"^post_layernorm\.": "ln_post.",
    r"^encoder\.layers\.": "transformer.resblocks.",
    r"\.self_attn\.": ".attn.",
    r"\.layer_norm([12])\.": r".ln_\1.",
    r"\.mlp\.fc1\.": ".mlp.c_fc.",
    r"\.mlp\.fc2\.": ".mlp.c_proj.",
    r"^visual_projection\.weight$": "proj",
}
PERCEPTION_ENCODER = {  # from timm's names
    r"^patch_embed\.proj\.": "conv1.",
    r"^pos_embed$": "positional_embedding",
    r"^cls_token$": "class_embedding",
    r"^blocks\.": "transformer.resblocks.",
    r"^norm_pre\.": "ln_pre.",
    r"^norm\.": "ln_post.",
    r"\.norm([12])\.": r".ln_\1.",
    r"^attn_pool\.latent$": "attn_pool.probe",
    r"^attn_pool\.norm\.": "attn_pool.layernorm.",
    r"^attn_pool\.proj\.": "attn_pool.attn.out_proj.",
    r"\.attn\.qkv\.": ".attn.in_proj_",
    r"\.attn\.proj\.": ".attn.out_proj.",
    r"\.mlp\.fc1\.": ".mlp.c_fc.",
    r"\.mlp\.fc2\.": ".mlp.c_proj.",
}
AIMV2 = {
    r"^patch_embed\.": "preprocessor.patchifier.",
    r"^pos_embed$": "preprocessor.pos_embed",
    r"^blocks\.": "trunk.blocks.",
    r"^norm\.": "trunk.post_trunk_norm.",
    r"\.norm([12])\.": r".norm_\1.",
    r"\.mlp\.fc1_g\.": ".mlp.fc1.",
    r"\.mlp\.fc1_x\.": ".mlp.fc3.",
}
MMPRETRAIN = {
    r"^head\.": "head.layers.head.",
    r"^patch_embed\.proj\.": "backbone.patch_embed.projection.",
    r"^norm\.": "backbone.ln1.",
    r"^(cls_token|pos_embed)$": r"backbone.\1",
    r"^blocks\.": "backbone.layers.",
    r"\.norm([12])\.": r".ln\1.",
    r"\.mlp\.fc1\.": ".ffn.layers.0.0.",
    r"\.mlp\.fc2\.": ".ffn.layers.1.",
    r"\.ls1\.gamma$": ".attn.gamma1.weight",
    r"\.ls2\.gamma$": ".ffn.gamma2.weight",
}
MMSEG = {**MMPRETRAIN, r"\.attn\.qkv\.": ".attn.attn.in_proj_", r"\.attn\.proj\.": ".attn.attn.out_proj."}
SAM = {r"\.mlp\.fc1\.": ".mlp.lin1.", r"\.mlp\.fc2\.": ".mlp.lin2."}
VJEPA = {  # from transformers' names
    r"^embeddings\.patch_embeddings\.": "patch_embed.",
    r"^layer\.": "blocks.",
    r"\.attention\.": ".attn.",
    r"^layernorm\.": "norm.",
}


def same(state: State) -> State:
    return state


def chain(*steps: Names) -> Names:
    def apply(state: State) -> State:
        for step in steps:
            state = step(state)
        return state

    return apply


def rename(rules: Mapping[str, str]) -> Names:
    """Return the renaming by regular expressions, each applied in turn."""

    def apply(state: State) -> State:
        renamed = {}
        for name, tensor in state.items():
            for pattern, replacement in rules.items():
                name = re.sub(pattern, replacement, name)
            renamed[name] = tensor
        return renamed

    return apply


def prefix(text: str) -> Names:
    return lambda state: {f"{text}{name}": tensor for name, tensor in state.items()}


def add(**shapes: tuple[int, ...]) -> Names:
    """Return the addition of other tensors of a file; two underscores stand for a dot."""
    return lambda state: {**state, **{name.replace("__", "."): torch.randn(shape) for name, shape in shapes.items()}}


def join_qkv(*parts: str) -> Names:
    """Return the joining of the projections to q, k and v; ``parts`` are their names, and the last is of the joint one."""
    *three, joint = parts

    def apply(state: State) -> State:
        joined = dict(state)
        for name in [name for name in state if three[0] in name]:
            names = [name.replace(three[0], part) for part in three]
            joined[name.replace(three[0], joint)] = torch.cat([joined.pop(part) for part in names])
        return joined

    return apply


def change(name: str, shape: Callable[[Tensor], Tensor]) -> Names:
    return lambda state: {**state, name: shape(state[name])}


def split_class_position(state: State) -> State:
    """Give the class token a position, as DINOv2's files do, with an equal sum."""
    row = 0.003 * torch.randn(1, 1, WIDTH)
    return {**state, "cls_token": state["cls_token"] - row, "pos_embed": torch.cat([row, state["pos_embed"]], dim=1)}


def dinov3_buffers(state: State) -> State:
    """Join the biases of q and v with the masked one of k, and add the buffers of DINOv3's files."""
    buffers = {"rope_embed.periods": 100 ** (torch.arange(16) / 16), "mask_token": torch.zeros(1, WIDTH)}
    for name in [name for name in state if name.endswith(".q_bias")]:
        q, v = state.pop(name), state.pop(name.replace("q_bias", "v_bias"))
        state[name.replace("q_bias", "qkv.bias")] = torch.cat([q, torch.zeros_like(q), v])
        buffers[name.replace("q_bias", "qkv.bias_mask")] = torch.cat([torch.ones(WIDTH), torch.zeros(WIDTH), torch.ones(WIDTH)])
    return {**state, **buffers}


def eva02_buffers(state: State) -> State:
    """Add the tables of the rotary positions, which EVA-02 stores in every block."""
    frequency = 10000 ** -(torch.arange(0, 32, 2) / 32)
    angles = (torch.arange(6)[:, None] / 6 * 16 * frequency).repeat_interleave(2, dim=1)
    grid = torch.cat([angles[:, None].expand(6, 6, 32), angles[None].expand(6, 6, 32)], dim=-1).reshape(36, 64)
    tables = {"rope.freqs_cos": grid.cos(), "rope.freqs_sin": grid.sin()}
    in_blocks = {f"blocks.{block}.attn.{name}": table for block in range(2) for name, table in tables.items()}
    return {**state, **tables, **in_blocks}


def beit_indices(*names: str) -> Names:
    """Return the addition of the indices into the tables of relative positions."""

    def apply(state: State) -> State:
        index = import_module("timm.models.beit").gen_relative_position_index(GRID)
        return {**state, **{name: index.clone() for name in names}}

    return apply


def rope_vit_frequencies(state: State) -> State:
    """Join the heads of the learned frequencies, and add the coordinates of the patches."""
    patches, frequencies = torch.arange(36), state.pop("rope.freqs").reshape(2, 2, -1)
    return {**state, "freqs": frequencies, "freqs_t_x": (patches % 6).float(), "freqs_t_y": (patches // 6).float()}


def perception_encoder_pool(state: State) -> State:
    """Join the projections of the attention pooling, and transpose the last projection, which has no bias."""
    for part in ("weight", "bias"):
        joint = torch.cat([state.pop(f"attn_pool.q.{part}"), state.pop(f"attn_pool.kv.{part}")])
        state[f"attn_pool.attn.in_proj_{part}"] = joint
    state.pop("head.bias")
    state["proj"] = state.pop("head.weight").T
    return state


def perception_encoder_tokens(state: State) -> State:
    """Rename timm's tensors to those of the Perception Encoder, with its axes."""
    state = rename(PERCEPTION_ENCODER)(state)
    token, table = state["class_embedding"][0, 0], state["positional_embedding"][0]
    return {**state, "class_embedding": token, "positional_embedding": table}


def openai_tower(state: State) -> State:
    """Rename transformers' CLIP tower to OpenAI's names."""
    state = {name: tensor for name, tensor in state.items() if not name.endswith("position_ids")}
    state = chain(rename(OPENAI), join_qkv(".q_proj.", ".k_proj.", ".v_proj.", ".in_proj_"))(state)
    return prefix("visual.")({**state, "proj": state["proj"].T.contiguous()})


TEXT_TOWER = add(
    positional_embedding=(11, 64),
    text_projection=(64, 24),
    logit_scale=(),
    token_embedding__weight=(50, 64),
    transformer__resblocks__0__ln_1__weight=(64,),
    transformer__resblocks__0__attn__in_proj_weight=(192, 64),
    ln_final__weight=(64,),
)
BERT_TOWER = add(
    text__transformer__embeddings__word_embeddings__weight=(50, 64),
    text__proj__0__weight=(24, 64),
    logit_scale=(),
)
EVA_TEXT_TOWER = add(text__token_embedding__weight=(50, 64), text__ln_final__weight=(64,), logit_scale=())
DECODER = add(
    mask_token=(1, 1, 64),
    decoder_embed__weight=(64, WIDTH),
    decoder_embed__bias=(64,),
    decoder_pos_embed=(1, 37, 64),
    decoder_blocks__0__norm1__weight=(64,),
    decoder_blocks__0__attn__qkv__weight=(192, 64),
    decoder_norm__weight=(64,),
    decoder_pred__weight=(192, 64),
)


def official(block: str, position: str, scan: bool = False) -> Names:
    """Return the renaming of timm's tensors to those of a Flax file; ``block`` names the parts of a layer."""
    attention, norm2, mlp = block.split()

    def apply(state: State) -> State:
        flax: State = {}
        for name, tensor in state.items():
            flax.update(_flax_tensors(name, tensor, attention, norm2, mlp, position))
        if scan:
            layers = sorted(name for name in flax if "/encoderblock_0/" in name)
            for name in layers:
                parts = [flax.pop(name), flax.pop(name.replace("_0/", "_1/", 1))]
                flax[name.replace("encoderblock_0", "encoderblock")] = torch.stack(parts)
        return flax

    return apply


RELEASED = "MultiHeadDotProductAttention_1 LayerNorm_2 MlpBlock_3"
LINEN = "MultiHeadDotProductAttention_0 LayerNorm_1 MlpBlock_0"


def _flax_tensors(name: str, tensor: Tensor, attention: str, norm2: str, mlp: str, position: str) -> State:
    """Return the tensors of a Flax file that one of timm's tensors becomes."""
    path = name.removeprefix("body.")
    replacements = {
        r"^patch_embed\.proj\.": "embedding.",
        r"^pos_embed$": position,
        r"^cls_token$": "cls",
        r"^blocks\.(\d+)\.": r"Transformer.encoderblock_\1.",
        r"^norm\.": "Transformer.encoder_norm.",
        r"^attn_pool\.latent$": "MAPHead_0.probe",
        r"^attn_pool\.norm\.": "MAPHead_0.LayerNorm_0.",
        r"^attn_pool\.mlp\.": "MAPHead_0.MlpBlock_0.",
        r"^attn_pool\.": "MAPHead_0.MultiHeadDotProductAttention_0.",
        r"\.attn\.": f".{attention}.",
        r"\.mlp\.": f".{mlp}.",
        r"\.fc1\.": ".Dense_0.",
        r"\.fc2\.": ".Dense_1.",
        r"\.norm1\.": ".LayerNorm_0.",
        r"\.norm2\.": f".{norm2}.",
        r"\.proj\.": ".out.",
        r"^patch_embed\.backbone\.stem\.conv\.": "conv_root.",
        r"^patch_embed\.backbone\.stem\.norm\.": "gn_root.",
    }
    stem = re.match(r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.(.*)", path)
    if stem:
        rest = re.sub(r"^downsample\.(conv|norm)\.", r"\1_proj.", stem[3])
        rest = re.sub(r"^norm(\d|_proj)", r"gn\1", rest)
        path = f"block{int(stem[1]) + 1}.unit{int(stem[2]) + 1}.{rest}"
    for pattern, replacement in replacements.items():
        path = re.sub(pattern, replacement, path)
    path, _, part = path.replace(".", "/").rpartition("/") if "." in path else (path, "", "")
    if re.search(r"(^|/)gn", path):
        return {f"{path}/{'scale' if part == 'weight' else 'bias'}": tensor[None, None, None]}
    if not part or part == "probe":
        return {f"{path}/{part}" if part else path: tensor}
    if part == "bias" or tensor.ndim == 1:
        part = "bias" if part == "bias" else "scale"
    joint = re.search(r"/(qkv|kv|q)$", path)
    if joint:
        names = {"qkv": ("query", "key", "value"), "kv": ("key", "value"), "q": ("query",)}[joint[1]]
        layout = "(h k) -> h k" if part == "bias" else "(h k) d -> d h k"
        pieces = zip(names, tensor.chunk(len(names)), strict=True)
        kind = "bias" if part == "bias" else "kernel"
        return {f"{path[: joint.start()]}/{key}/{kind}": rearrange(piece, layout, h=HEADS) for key, piece in pieces}
    if tensor.ndim == 1:
        return {f"{path}/{part}": tensor}
    if tensor.ndim == 4:
        return {f"{path}/kernel": rearrange(tensor, "d c p q -> p q c d")}
    heads = {"h": HEADS} if path.endswith("/out") else {}
    return {f"{path}/kernel": rearrange(tensor, "d (h k) -> h k d" if heads else "o i -> i o", **heads)}


def noise(state: State) -> State:
    """Return other weights, for the copies of a model in a file that are not the one to use."""
    return {name: torch.randn_like(tensor) if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def under(key: str, **others: Any) -> Wrap:
    """Return the wrapper of the weights under a key, next to other entries."""
    return lambda state: {key: state, **others}


OPTIMIZER = {"state": {0: {"step": torch.tensor(9.0), "exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
ARGUMENTS = Namespace(model="vit", batch_size=64, output_dir="runs", lr=5e-4)
