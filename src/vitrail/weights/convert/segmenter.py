"""Convert Segmenter (Strudel et al. 2021): a ``checkpoint.pth`` of encoder and decoder, and the ``variant.yml`` next to it;
also mmsegmentation's with a mask transformer, which is only read.

The encoder has timm's names, norms with epsilon 1e-5 and a classifier that is not used; the decoder is a linear layer for each
patch or a mask transformer, as wide as the encoder, with 64 channels per head.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.config import to_dict
from vitrail.data.preprocess import Preprocess, imagenet_preprocess, vit_preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import Pair, ViTConfig
from vitrail.recipes.task_config import DecoderShape, Segmentation
from vitrail.weights.convert import inspect, mmpretrain, timm_vit
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides, unsupported
from vitrail.weights.convert.rename import convert_renamed, refuse_unknown, rename
from vitrail.weights.convert.tensor_map import TensorMap, affine, import_tensors, permute
from vitrail.weights.convert.timm_architectures import Architecture
from vitrail.weights.convert.timm_names import to_timm_names

NORM_EPS = 1e-5
HEAD_WIDTH = 64  # channels of a head of the mask transformer
CLASSIFIER = re.compile(r"encoder\.head(_dist)?\.")  # of the encoder's pre-training
NUM_CLASSIFIER_OUTPUTS = 1000
MASK_TRANSFORMER_LAYERS = {"proj_dec": "embed", "decoder_norm": "norm", "mask_norm": "mask_norm"}
VARIANT = "variant.yml"
MMSEGMENTATION = [  # its names of a mask transformer, after those of its layers
    (r"^decode_head\.layers\.", "decoder.blocks."),
    (r"^decode_head\.dec_proj\.", "decoder.proj_dec."),
    (r"^decode_head\.(patch|classes)_proj\.weight$", r"decoder.proj_\1"),
    (r"^decode_head\.", "decoder."),
    (r"^(decoder\.blocks\.\d+)\.ln([12])\.", r"\1.norm\2."),
]


def matches(names: Mapping[str, Tensor]) -> bool:
    has_decoder = "decoder.cls_emb" in names or "decoder.head.weight" in names
    return ("encoder.patch_embed.proj.weight" in names and has_decoder) or _is_mmsegmentation(names)


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    variant, assumed = parse_variant(sidecar.get(VARIANT, "")), list[str]()
    mmsegmentation = _is_mmsegmentation(file)
    file = _from_mmsegmentation(file) if mmsegmentation else file
    encoder = {
        name.removeprefix("encoder."): tensor
        for name, tensor in file.items()
        if name.startswith("encoder.") and not CLASSIFIER.match(name)
    }
    facts = Architecture(
        heads=overrides.heads or _recorded_number(variant, "net_kwargs.n_heads"),
        norm_eps=1e-6 if mmsegmentation else NORM_EPS,
        gelu=overrides.gelu or "exact",
        pool=overrides.pool or "cls",
        position_resize="huggingface" if mmsegmentation else "segmenter",  # bicubic or bilinear, without antialiasing
    )
    tensors = to_timm_names(encoder)
    config, state, unused = convert_renamed(tensors, facts, overrides, assumed, _recorded_size(variant))
    refuse_unknown(unused)
    task = _infer_task(file, config, assumed)
    decoder, others = import_tensors(decoder_maps(task, config), file)
    refuse_unknown(name for name in others if not name.startswith("encoder."))
    return ConvertedCheckpoint(
        "segmenter",
        config,
        state,
        [name for name in file if CLASSIFIER.match(name)],
        assumed,
        _preprocess(variant, config, assumed),
        _class_names(variant, task.classes, assumed),
        metadata={"recipe": {"task": to_dict(task)}},
        decoder=decoder,
    )


def decoder_maps(task: Segmentation, config: ViTConfig) -> list[TensorMap]:
    """Return the maps of a decoder's tensors to those of our head."""
    shape = task.decoder(config)
    if shape is None:
        return affine("decoder.head", "head.linear")
    maps = [permute("decoder.cls_emb", "head.cls", "1 k e -> k e")]
    for theirs, ours in MASK_TRANSFORMER_LAYERS.items():
        maps += affine(f"decoder.{theirs}", f"head.{ours}")
    for part in ("patch", "classes"):  # which multiply from the right
        ours = "patches" if part == "patch" else part
        maps.append(permute(f"decoder.proj_{part}", f"head.project_{ours}.weight", "i o -> o i"))
    for layer in range(shape.depth):
        maps += timm_vit.block_maps(f"decoder.blocks.{layer}", f"head.blocks.{layer}")
    return maps


def encoder_maps(config: ViTConfig) -> list[TensorMap]:
    """Return the maps of the encoder's tensors to ours."""
    return [
        replace(tensor_map, theirs=tuple(f"encoder.{_distilled(name)}" for name in tensor_map.theirs))
        for tensor_map in timm_vit.vit_maps(config)
    ]


def parse_variant(text: str) -> dict[str, list[str]]:
    """Return the values of a block of YAML by the path of their keys, such as ``net_kwargs.image_size``; what has no such form
    is ignored. A value is a list of texts, which has one unless it is a list in the file."""
    values: dict[str, list[str]] = {}
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        if item := re.fullmatch(r" *- +(.+?) *", line):
            if path:
                values.setdefault(_join(path), []).append(item[1])
        elif entry := re.fullmatch(r"( *)(\w+):(?: +(.*?))? *", line):
            while path and path[-1][0] >= len(entry[1]):
                path.pop()
            path.append((len(entry[1]), entry[2]))
            values[_join(path)] = [] if not entry[3] or entry[3].startswith("!") else [entry[3]]
    return values


def variant_file(
    config: ViTConfig, task: Segmentation, preprocess: Preprocess | None, class_names: Sequence[str] | None
) -> str:
    """Return ``variant.yml``, from which the authors' code builds the model; the class names are an addition."""
    shape = task.decoder(config)
    decoder = ["    name: linear"] if shape is None else [
        "    drop_path_rate: 0.0", "    dropout: 0.0", f"    n_layers: {shape.depth}", "    name: mask_transformer",
    ]  # fmt: skip
    normalization = _normalization(preprocess or vit_preprocess(config.image, config.channels))
    names = [f"- {json.dumps(name)}" for name in class_names or ()]
    lines = [
        *(["class_names:", *names] if names else []),
        *("dataset_kwargs:", f"  normalization: {normalization}"),
        *("net_kwargs:", f"  backbone: vit_{config.width}_patch{config.patch[0]}", f"  d_model: {config.width}"),
        *("  decoder:", *decoder, f"  distilled: {str(config.registers > 0).lower()}", "  drop_path_rate: 0.0"),
        *("  dropout: 0.0", "  image_size: !!python/tuple", *(f"  - {side}" for side in config.image)),
        *(f"  n_cls: {task.classes}", f"  n_heads: {config.heads}", f"  n_layers: {config.depth}"),
        *(f"  normalization: {normalization}", f"  patch_size: {config.patch[0]}"),
    ]
    return "\n".join(lines) + "\n"


def classifier_shapes(config: ViTConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the classifiers that the authors' encoder has and does not use."""
    outputs, heads = NUM_CLASSIFIER_OUTPUTS, ("head", "head_dist") if config.registers else ("head",)
    shapes: dict[str, tuple[int, ...]] = {}
    for head in heads:
        shapes |= {f"encoder.{head}.weight": (outputs, config.width), f"encoder.{head}.bias": (outputs,)}
    return shapes


def check_supported(config: ViTConfig, task: Segmentation) -> None:
    """Refuse a model that the authors' code cannot build."""
    instead = "use format='vitrail'"
    if config.norm_eps != NORM_EPS:
        unsupported(f"layer norms with epsilon {config.norm_eps} (it assumes 1e-5)", "segmenter", instead)
    inspect.refuse_published_features(config, "segmenter", instead)
    features = {
        "a hybrid": config.stem is not None,
        "patches that are not square": config.patch[0] != config.patch[1],
        "anything but pre-norm and a last norm of all tokens": config.norm != "pre" or config.final_norm != "tokens",
        "CLIP's norm before the blocks or patches without a bias": config.embed_norm or not config.patch_bias,
        f"a GELU in its {config.gelu} form": config.gelu != "exact",
        "an MLP that is not four times as wide": config.mlp_kind != "gelu" or config.mlp != 4 * config.width,
        "layer scale, qk-norm or q, k, v without bias": config.layer_scale is not None or config.qk_norm or not config.qkv_bias,
        "anything but a class token and one more, each with a position": not config.has_class_token
        or config.registers > 1
        or config.prefix_positions != config.prefix_tokens,
        "attention pooling or the pre-logits layer": config.pool == "map" or config.head == "mlp",
        f"the head {task.head}": task.head == "eomt",
        "a linear head of several layers or to the pixels of each patch": task.head == "linear"
        and (task.subpatch or task.layers not in ((), (config.depth,))),
        "a mask transformer with another width than the encoder's, or heads that are not 64 channels wide": task.decoder(config)
        not in (None, DecoderShape(task.decoder_depth, config.width, max(config.width // HEAD_WIDTH, 1))),
    }
    present = next((feature for feature, is_present in features.items() if is_present), None)
    if present is not None:
        unsupported(present, "segmenter", instead)


def _is_mmsegmentation(names: Mapping[str, Tensor]) -> bool:
    return "backbone.patch_embed.projection.weight" in names and "decode_head.cls_emb" in names


def _from_mmsegmentation(file: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of mmsegmentation's Segmenter in the names of the authors."""
    backbone = {name.removeprefix("backbone."): tensor for name, tensor in file.items() if name.startswith("backbone.")}
    head = {name: tensor for name, tensor in file.items() if not name.startswith("backbone.")}
    renamed = {f"encoder.{name}": tensor for name, tensor in rename(backbone, mmpretrain.RENAMES).items()}
    renamed |= rename(head, [*MMSEGMENTATION, *mmpretrain.RENAMES])
    for part in ("decoder.proj_patch", "decoder.proj_classes"):  # weights of linear layers
        if part in renamed:
            renamed[part] = renamed[part].mT
    return renamed


def _infer_task(file: Mapping[str, Tensor], config: ViTConfig, assumed: list[str]) -> Segmentation:
    if "decoder.cls_emb" not in file:
        return Segmentation(classes=inspect.require_shape(file, "decoder.head.weight", 2)[0], subpatch=False)
    _, classes, width = inspect.require_shape(file, "decoder.cls_emb", 3)
    heads = max(width // HEAD_WIDTH, 1)
    if width % heads:
        raise VitrailError(f"the mask transformer must be a multiple of {HEAD_WIDTH} wide, got {width}")
    assumed.append(f"{heads} heads in the mask transformer ({HEAD_WIDTH} channels per head, as the authors')")
    return Segmentation(
        head="segmenter",
        classes=classes,
        decoder_depth=inspect.count_layers(file, "decoder.blocks."),
        decoder_width=None if width == config.width else width,
        decoder_heads=None if heads == config.heads else heads,
    )


def _preprocess(variant: Mapping[str, list[str]], config: ViTConfig, assumed: list[str]) -> Preprocess:
    recorded = variant.get("net_kwargs.normalization", variant.get("dataset_kwargs.normalization"))
    name = recorded[0] if recorded else "deit" if config.registers else "vit"
    if name not in ("vit", "deit"):
        raise VitrailError(f"normalization in {VARIANT} must be vit or deit, got {name[:40]!r}")
    if not recorded:
        kind = "the distillation token of DeiT" if config.registers else "no distillation token"
        assumed.append(f"the normalisation {name} (by {kind}, without a {VARIANT}; model.preprocess overrides)")
    preprocess = (vit_preprocess if name == "vit" else imagenet_preprocess)(config.image)
    assumed.append("whole images, stretched to the input (the authors resize the short side and slide a window)")
    return replace(preprocess.with_fit("stretch"), interpolation="bilinear").with_channels(config.channels)


def _class_names(variant: Mapping[str, list[str]], classes: int, assumed: list[str]) -> tuple[str, ...]:
    recorded = variant.get("class_names", [])
    if len(recorded) == classes:
        try:
            return tuple(str(json.loads(name)) for name in recorded)
        except ValueError:
            raise VitrailError(f"class_names in {VARIANT} must be in double quotes, got {', '.join(recorded)[:60]}") from None
    assumed.append("the indices of the classes as their names (none are recorded)")
    return tuple(str(index) for index in range(classes))


def _normalization(preprocess: Preprocess) -> str:
    size, values = preprocess.image_size, (preprocess.mean, preprocess.std)
    known = {"vit": vit_preprocess(size), "deit": imagenet_preprocess(size)}
    names = [name for name, each in known.items() if (each.mean, each.std) == values]
    if not names:
        unsupported(f"the mean {values[0]} and the standard deviation {values[1]}", "segmenter", "use format='vitrail'")
    return names[0]


def _recorded_number(variant: Mapping[str, list[str]], path: str) -> int | None:
    texts = variant.get(path)
    if not texts:
        return None
    if not re.fullmatch(r"[1-9]\d{0,4}", texts[0]):
        raise VitrailError(f"{path} in {VARIANT} must be a whole number from 1, got {texts[0][:40]!r}")
    return int(texts[0])


def _recorded_size(variant: Mapping[str, list[str]]) -> Pair | None:
    sides = variant.get("net_kwargs.image_size", [])
    if len(sides) == 2 and all(re.fullmatch(r"[1-9]\d{0,4}", side) for side in sides):
        return int(sides[0]), int(sides[1])
    return None


def _distilled(name: str) -> str:
    return "dist_token" if name == "reg_token" else name


def _join(path: Sequence[tuple[int, str]]) -> str:
    return ".".join(name for _, name in path)
