"""Model configs, complete and checked before anything is built. Torch-free.

Frozen, in the vocabulary of the papers; an invalid configuration is rejected with a value that would work.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal

from vitrail.config import added, validate
from vitrail.errors import VitrailError
from vitrail.models.config_checks import (
    at_least,
    at_most,
    check_groups,
    check_heads,
    check_pool,
    check_position,
    check_positive,
    check_rates,
    check_stages,
    check_windows,
    nearest_multiple,
)
from vitrail.models.config_checks import format_size as format_size

Pair = tuple[int, int]
Standardise = Literal["std", "variance"]
Position = Literal[
    "none",
    "learned1d",
    "learned2d",  # a column and a row table of half the width, concatenated (the paper)
    "learned2d-sum",  # a column and a row table of the full width, added
    "sincos1d",
    "sincos2d",  # big_vision's convention
    "sincos2d-mae",
    "sincos2d-moco",
    "relative",
    "rotary",
]
PositionAt = Literal["input", "every-layer", "every-layer-shared"]
PositionResize = Literal["official", "timm", "huggingface", "torchvision", "dino", "siglip2", "segmenter"]
Gelu = Literal["tanh", "exact", "quick"]  # quick: x * sigmoid(1.702 x), the approximation of OpenAI's CLIP
Pool = Literal["cls", "gap", "map", "cls+gap", "cls+register"]


@dataclass(frozen=True)
class StemConfig:
    """The partial ResNet before a hybrid's patches: a root of stride 4, then stages; all but the first halve the size."""

    stages: tuple[int, ...] = ()
    width: int = 64
    standardise: Standardise = "std"  # how kernels are divided: by std + epsilon (official) or sqrt(variance + epsilon) (timm)
    standardise_eps: float = 1e-5
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        validate(self)
        at_least(self, "stem.", stages=1)
        check_stages("stem.stages", self.stages)
        at_most(self, "stem.", width=2**12)
        check_groups("stem.width", self.width)
        check_positive("stem.", standardise_eps=self.standardise_eps, norm_eps=self.norm_eps)

    @property
    def stride(self) -> int:
        return 4 << max(0, len(self.stages) - 1)

    @property
    def channels(self) -> int:
        return 4 * self.width << len(self.stages) - 1 if self.stages else self.width


@dataclass(frozen=True)
class RotaryConfig:
    """Rotary positions: queries and keys are rotated by row and column before their product."""

    base: float = 100.0  # how much slower the slowest pair of channels turns than the fastest
    # of a patch: its centre or its index on the grid of position_grid, its index as it is, or its centre from -1 to 1
    coordinates: Literal["centre", "scaled", "index", "normalised"] = "centre"
    offset: float = 0.0  # added to the index
    mixed: bool = False  # learned frequencies along both axes for each layer and head

    def __post_init__(self) -> None:
        validate(self)
        if not 1 < self.base < float("inf"):
            raise VitrailError(f"rotary.base must be above 1, got {self.base}; try rotary.base=100")
        if abs(self.offset) > 2**12:
            raise VitrailError(f"rotary.offset must be at most 4,096, got {self.offset}; try rotary.offset=0")
        if self.mixed and self.offset:
            raise VitrailError(f"rotary.mixed=True has no offset, got rotary.offset={self.offset}; try rotary.offset=0")


@dataclass(frozen=True)
class RelativeBiasConfig:
    """A bias of the attention scores by the offset between two patches, for each head."""

    kind: Literal["table", "mlp"] = "table"  # a value for each offset, or an MLP of its logarithm
    shared: bool = False  # one for all layers
    hidden: int = 512  # width of the MLP
    resize: Literal["timm", "huggingface"] = "timm"  # the library whose rule resizes the table to another grid

    def __post_init__(self) -> None:
        validate(self)
        at_least(self, "relative_bias.", hidden=1)
        at_most(self, "relative_bias.", hidden=2**16)


@dataclass(frozen=True)
class ViTConfig:
    """A Vision Transformer, or a hybrid when it has a stem."""

    width: int
    depth: int
    mlp: int
    heads: int
    patch: Pair  # in pixels of the image, or of the stem's output
    image: Pair = (224, 224)  # height, width
    channels: int = 3
    classes: int = 1000  # 0: no classifier, the model returns its representation
    stem: StemConfig | None = None
    position: Position = "learned1d"
    position_at: PositionAt = "input"
    # prefix tokens with a learned row of their own: none (big_vision), cls (official), all (timm with registers)
    position_prefix: Literal["none", "cls", "all"] = "cls"
    position_resize: PositionResize = "timm"  # the library whose rule resizes the position table to another grid
    position_grid: Pair | None = None  # grid of a sin-cos table or rotary; None: the model's own
    flexible: bool = False  # accept images of any size that the patches divide
    pool: Pool = "cls"  # cls+gap and cls+register (the first one): both, concatenated
    class_token: bool | None = None  # None: only if the pool reads it
    registers: int = 0
    head: Literal["linear", "mlp"] = "linear"  # mlp: the pre-training head, one hidden layer with tanh
    head_hidden: int | None = None  # width of the hidden layer; None: the model's width
    # layer norms: before a branch, after the addition, or at the end of a branch before the addition
    norm: Literal["pre", "post", "branch"] = "pre"
    # the last norm: on every token, on the pooled vector (timm's fc_norm), or none
    final_norm: Literal["tokens", "pooled", "none"] = "tokens"
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
    qkv_bias: bool = True
    qk_norm: bool = False
    layer_scale: float | None = None  # initial scale of each branch; None: no scale
    dropout: float = 0.0
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0  # rate of the last block; earlier ones rise to it linearly
    family: Literal["vit"] = "vit"
    patch_bias: bool = added(True)  # whether the patch embedding has a bias
    embed_norm: bool = added(False)  # layer norm of the embedded tokens before the first block (CLIP)
    # what the blocks' MLP computes: one GELU, or silu(gate) * value with two projections of width mlp
    mlp_kind: Literal["gelu", "swiglu"] = added("gelu")
    # inside attention, beside the position table; position="rotary": the default rotary positions without a table
    rotary: RotaryConfig | None = added(None)  # noqa: RUF009
    relative_bias: RelativeBiasConfig | None = added(None)  # noqa: RUF009
    norm_kind: Literal["layer", "rms"] = added("layer")  # layer norm or RMSNorm
    patch_norm: Literal["none", "output", "both"] = added("none")  # norm of the embedded patches; both: of their pixels as well
    attention_norm: bool = added(False)  # norm of the heads' concatenated output
    mlp_norm: bool = added(False)  # norm of the MLP's hidden layer
    key_bias: bool = added(True)  # whether the keys have a bias, if queries and values do
    out_bias: bool = added(True)  # whether the projection of the heads and the MLP have biases
    pool_heads: int | None = added(None)  # of attention pooling; None: those of the blocks
    pool_mlp: int | None = added(None)  # hidden width of attention pooling; None: that of the blocks
    pool_prefix: bool = added(False)  # whether attention pooling reads the prefix tokens too
    # patches along a side of the windows that the patches of all but the global blocks attend in; None: in the whole grid
    window: int | None = added(None)
    global_blocks: tuple[int, ...] | None = added(None)
    # to the score is added the product of the query with an embedding of the offset along each axis (MViTv2, ViTDet)
    relative_axes: bool = added(False)
    table_grid: Pair | None = added(None)  # noqa: RUF009 - grid of a learned position table; None: the model's own

    def __post_init__(self) -> None:
        validate(self)
        at_least(
            self,
            width=1,
            depth=1,
            mlp=1,
            heads=1,
            patch=1,
            channels=1,
            classes=0,
            registers=0,
            head_hidden=1,
            position_grid=1,
            pool_heads=1,
            pool_mlp=1,
            window=1,
            table_grid=1,
        )
        at_most(self, width=2**16, depth=2**12, mlp=2**18, patch=2**12, image=2**17, channels=2**12, classes=2**24)
        at_most(self, registers=2**12, head_hidden=2**18, position_grid=2**12, pool_mlp=2**18, window=2**12, table_grid=2**12)
        check_rates(self)
        check_heads(self)
        check_image_size(self, self.image)
        check_position(self)
        if self.norm == "post" and self.final_norm != "tokens":
            raise VitrailError(
                f"norm='post' has no last norm to move, got final_norm={self.final_norm!r}; try final_norm='tokens'"
            )
        check_pool(self)
        check_windows(self)
        if not self.key_bias and not self.qkv_bias:
            raise VitrailError("key_bias=False leaves the biases of queries and values, got qkv_bias=False; try key_bias=True")

    @property
    def patch_stride(self) -> Pair:
        """Pixels from one patch to the next, down and right."""
        stem_stride = self.stem.stride if self.stem else 1
        return self.patch[0] * stem_stride, self.patch[1] * stem_stride

    @property
    def grid(self) -> Pair:
        return self.image[0] // self.patch_stride[0], self.image[1] // self.patch_stride[1]

    @property
    def patches(self) -> int:
        return prod(self.grid)

    @property
    def has_class_token(self) -> bool:
        return self.pool.startswith("cls") if self.class_token is None else self.class_token

    @property
    def mlp_outputs(self) -> int:
        """Number of outputs of the first layer of a block's MLP: with SwiGLU a gate and a value."""
        return 2 * self.mlp if self.mlp_kind == "swiglu" else self.mlp

    @property
    def feature_width(self) -> int:
        """Width of the representation that the head reads."""
        return 2 * self.width if "+" in self.pool else self.width

    @property
    def rotation(self) -> RotaryConfig | None:
        """The rotary positions, if the model has them."""
        return RotaryConfig() if self.position == "rotary" else self.rotary

    @property
    def uses_position_grid(self) -> bool:
        """Whether coordinates or a computed table refer to a grid that stays when the image size changes."""
        rescales = self.rotation is not None and self.rotation.coordinates in ("centre", "scaled")
        return rescales or self.position.startswith("sincos")

    @property
    def prefix_tokens(self) -> int:
        """Number of tokens before the patches: the class token, then the registers."""
        return self.has_class_token + self.registers

    @property
    def tokens(self) -> int:
        return self.prefix_tokens + self.patches

    @property
    def prefix_positions(self) -> int:
        """Number of prefix tokens with a row of their own in a learned position table."""
        return {"none": 0, "cls": int(self.has_class_token), "all": self.prefix_tokens}[self.position_prefix]

    @property
    def needs_whole_grid(self) -> bool:
        """Whether attention depends on the places of the patches on the grid, so that none can be missing or merged."""
        return self.window is not None or self.relative_axes

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Side of the windows of each block, None of a global one."""
        if self.window is None:
            return (None,) * self.depth
        quarters = {-(-self.depth * quarter // 4) for quarter in (1, 2, 3, 4)}
        global_blocks = quarters if self.global_blocks is None else self.global_blocks
        return tuple(None if block in global_blocks else self.window for block in range(1, self.depth + 1))

    @property
    def layers_with_position(self) -> tuple[int | None, ...]:
        """Index of the position table added to the input of each layer, or None."""
        if self.position in ("none", "relative", "rotary"):
            return (None,) * self.depth
        if self.position_at == "input":
            return (0, *(None,) * (self.depth - 1))
        shared = self.position_at == "every-layer-shared" or self.position.startswith("sincos")  # fixed tables are equal
        return (0,) * self.depth if shared else tuple(range(self.depth))


@dataclass(frozen=True)
class ResNetConfig:
    """A BiT ResNet (Kolesnikov et al. 2020): pre-activation, standardised convolutions, group norm."""

    stages: tuple[int, ...]
    width: int = 64  # of the root: 64 times the factor in the name
    image: Pair = (224, 224)
    channels: int = 3
    classes: int = 1000
    standardise: Standardise = "variance"
    standardise_eps: float = 1e-8
    norm_eps: float = 1e-5
    family: Literal["resnet"] = "resnet"

    def __post_init__(self) -> None:
        validate(self)
        at_least(self, stages=1, image=1, channels=1, classes=0)
        if not self.stages:
            raise VitrailError("stages must name at least one stage, got none; try stages=3,4,6,3")
        check_stages("stages", self.stages)
        at_most(self, width=2**12, image=2**17, channels=2**12, classes=2**24)
        check_groups("width", self.width)
        check_positive(standardise_eps=self.standardise_eps, norm_eps=self.norm_eps)


ModelConfig = ViTConfig | ResNetConfig


def check_image_size(config: ViTConfig, image: Pair) -> None:
    """Reject an image size that the patches do not divide, naming the nearest valid one."""
    if any(side < 1 or side % step for side, step in zip(image, config.patch_stride, strict=True)):
        nearest = tuple(nearest_multiple(side, step) for side, step in zip(image, config.patch_stride, strict=True))
        raise VitrailError(
            f"image must be a multiple of {'the stride' if config.stem else 'patch'} {format_size(config.patch_stride)}, "
            f"got image={format_size(image)}; try image={format_size(nearest)}"
        )


def check_images(shape: tuple[int, ...], channels: int) -> None:
    """Reject a shape that is not a batch of images with this number of channels."""
    if len(shape) != 4:
        hint = "; try images[None]" if len(shape) == 3 else ""
        raise VitrailError(f"images must be (batch, channels, height, width), got {shape}{hint}")
    if shape[1] != channels:
        raise VitrailError(f"images must have {channels} channels, got {shape[1]}")
