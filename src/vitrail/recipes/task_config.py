"""Settings of the tasks, one class each, selected by its ``kind``. Torch-free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import entry_points
from math import log2
from typing import Any, ClassVar, Literal

from vitrail.augment.policy import Policy
from vitrail.config import validate
from vitrail.errors import VitrailError, did_you_mean
from vitrail.models.config import ModelConfig, ViTConfig
from vitrail.models.cost import Cost, cost
from vitrail.models.cost.detection import dense_detector_cost, query_detector_cost
from vitrail.models.cost.eomt import eomt_cost
from vitrail.models.cost.masked import masked_cost
from vitrail.models.cost.segmentation import linear_segmenter_cost, mask_transformer_cost
from vitrail.models.masking_config import Masking, check_masking

LossName = Literal["softmax", "sigmoid"]
OF_THE_DATASET = ("classes", "targets")  # settings that ``for_classes`` and ``for_targets`` replace
RESERVED_COLUMNS = ("file", "error")  # of every prediction in a CSV file
ENTRY_POINTS = "vitrail.tasks"  # group of entry points by which an installed package offers its tasks


@dataclass(frozen=True)
class DecoderShape:
    """Depth, width and heads of a decoder's transformer blocks, whose MLP is four times as wide."""

    depth: int
    width: int
    heads: int


@dataclass(frozen=True)
class TaskConfig:
    """Settings of a task. A subclass names its ``kind`` in a ``Literal`` field, and so can be read from a recipe."""

    labelled: ClassVar[bool] = True  # whether the targets are class labels; images without one are left out
    has_targets: ClassVar[bool] = True  # whether a dataset has to have targets
    several_labels: ClassVar[bool | None] = None  # whether an image may have several; None: the task is not about labels
    mixes: ClassVar[bool] = True  # whether targets can be mixed, as Mixup and CutMix do
    is_invariant: ClassVar[bool] = True  # whether targets stay the same if an image is flipped, or a part of it is cropped
    is_dense: ClassVar[bool] = False  # whether outputs belong to places of the image, which therefore has to be seen whole
    has_masks: ClassVar[bool] = False  # whether the targets are masks
    has_boxes: ClassVar[bool] = False  # whether the targets are boxes
    train_recipe: ClassVar[str] = "small"  # recipe to train with unless another is named, from random weights
    finetune_recipe: ClassVar[str] = "finetune"  # and from pretrained ones
    finetune_side: ClassVar[int] = (
        0  # pixels: to fine-tune on, unless a size is named, if pretrained weights take smaller images
    )
    demos: ClassVar[Mapping[str, str]] = {}  # by dataset, recipes that train on it in minutes
    decoder_note: ClassVar[str] = "are added to the model by its task"  # about the parameters that the task adds

    def __post_init__(self) -> None:
        validate(self)

    @property
    def name(self) -> str:
        """The ``kind`` of the task."""
        return str(getattr(self, "kind", type(self).__name__))

    @property
    def is_default(self) -> bool:
        """Whether nothing is set but what follows from the dataset, so that a recipe may choose."""
        return all(getattr(self, field.name) == field.default for field in fields(self) if field.name not in OF_THE_DATASET)

    def num_outputs(self, class_names: Sequence[str]) -> int:
        """Return the number of outputs of the model, ``model.classes``, for a dataset with these classes."""
        return len(class_names)

    def describe_outputs(self, model: ModelConfig) -> str:
        """Return how many outputs the model has, and of what."""
        if self.labelled:
            return f"{model.classes} classes"
        return f"{model.classes} output{'' if model.classes == 1 else 's'}"

    def for_targets(self, names: tuple[str, ...]) -> "TaskConfig":
        """Return the settings for a dataset whose targets are numbers of these names, none if they are something else."""
        return self

    def for_classes(self, class_names: Sequence[str]) -> "TaskConfig":
        """Return the settings for a dataset with these classes."""
        return self

    def has_decoder_of(self, other: "TaskConfig") -> bool:
        """Whether what these settings add to the encoder has the shape of what others add."""
        return True

    def with_decoder_of(self, other: "TaskConfig") -> "TaskConfig":
        """Return the settings with a shape for what they add to the encoder that is that of others, if they can have it."""
        return self

    def check(self, model: ModelConfig, augment: Policy) -> None:
        """Reject a model or an augmentation policy that the task cannot be trained with."""
        if not self.mixes and (augment.mixup or augment.cutmix):
            raise VitrailError(f"{self.name} has no labels to mix; try augment.mixup=0 augment.cutmix=0")

    def decoder(self, model: ModelConfig) -> DecoderShape | None:
        """Return the shape of the transformer blocks that the task adds to the model, if any."""
        return None

    def cost(self, model: ModelConfig, batch_size: int = 1) -> Cost:
        """Return the cost of the model that is trained, with all that the task adds to it."""
        return cost(model, batch_size)

    @classmethod
    def select(cls, value: Any) -> type:
        """Return the settings class that a value belongs to, by its ``kind``; that of an installed package is imported."""
        if not isinstance(value, dict):
            return type(value) if isinstance(value, TaskConfig) else cls
        kind, known = value.get("kind"), _by_kind()
        if kind not in known:
            for entry_point in entry_points(group=ENTRY_POINTS):
                if entry_point.name == kind:
                    entry_point.load()
            known = _by_kind()
        if kind not in known:
            hint = did_you_mean(str(kind), known)
            raise VitrailError(
                f"no task is named {kind!r}{hint}; import the module that defines it before, or install its package"
            )
        return known[kind]


def named_task(name: str) -> TaskConfig:
    """Return the settings of a task by what it does, such as ``segment``, or by its ``kind``."""
    known: dict[str, type[TaskConfig]] = {
        "classify": Classification,
        "regress": Regression,
        "segment": Segmentation,
        "detect": Detection,
    }
    kinds = {kind: each for kind, each in _by_kind().items() if isinstance(kind, str) and kind != "masked-image"}
    if name not in known | kinds:
        raise VitrailError(f"task must be {', '.join((*known, 'multi-label'))}, got {name!r}{did_you_mean(name, known)}")
    return (known | kinds)[name]()


def _by_kind(cls: type | None = None) -> dict[Any, type]:
    """Return the settings classes by their ``kind``, also those that are derived from another task's."""
    subclasses: list[type] = (cls or TaskConfig).__subclasses__()
    derived = {kind: each for subclass in subclasses for kind, each in _by_kind(subclass).items()}
    return {**derived, **{getattr(subclass, "kind", None): subclass for subclass in subclasses}}


@dataclass(frozen=True)
class Classification(TaskConfig):
    """Single-label classification. ``sigmoid`` is one binary classifier per class (Beyer et al. 2020)."""

    kind: Literal["classification"] = "classification"
    loss: LossName = "softmax"
    label_smoothing: float = 0.0
    balanced_loss: bool = False  # weight classes inversely to their frequency
    several_labels: ClassVar[bool | None] = False
    demos: ClassVar[Mapping[str, str]] = {"fashion": "demo"}

    def __post_init__(self) -> None:
        validate(self)
        if not 0 <= self.label_smoothing < 1:
            raise VitrailError(
                f"task.label_smoothing must be from 0 to below 1, got {self.label_smoothing}; try task.label_smoothing=0.1"
            )


@dataclass(frozen=True)
class MultiLabel(TaskConfig):
    """Several labels per image, or none: a binary classifier per class. ``focal`` is Lin et al. 2017, ``asymmetric`` Ridnik et
    al. 2021."""

    kind: Literal["multi-label"] = "multi-label"
    loss: Literal["sigmoid", "asymmetric", "focal"] = "sigmoid"
    label_smoothing: float = 0.0
    balanced_loss: bool = False  # sigmoid only: weight the positives of a class by its negatives per positive
    max_positive_weight: float = 20.0  # limit of those weights
    focal_gamma: float = 2.0
    focal_alpha: float | None = None  # weight of positives, from 0 to 1; None: as of negatives
    gamma_positive: float = 0.0  # asymmetric only, as the next two
    gamma_negative: float = 4.0
    margin: float = 0.05  # negatives with a probability below it do not count
    several_labels: ClassVar[bool | None] = True

    def __post_init__(self) -> None:
        validate(self)
        for name, upper in (("label_smoothing", 1.0), ("margin", 1.0)):
            value = getattr(self, name)
            if not 0 <= value < upper:
                raise VitrailError(f"task.{name} must be from 0 to below 1, got {value}; try task.{name}=0.05")
        for name in ("focal_gamma", "gamma_positive", "gamma_negative"):
            if getattr(self, name) < 0:
                raise VitrailError(f"task.{name} must be at least 0, got {getattr(self, name)}; try task.{name}=2")
        if self.focal_alpha is not None and not 0 < self.focal_alpha < 1:
            raise VitrailError(f"task.focal_alpha must be between 0 and 1, got {self.focal_alpha}; try task.focal_alpha=0.25")
        if self.max_positive_weight < 1:
            raise VitrailError(
                f"task.max_positive_weight must be at least 1, got {self.max_positive_weight}; try task.max_positive_weight=20"
            )
        if self.balanced_loss and self.loss != "sigmoid":
            raise VitrailError(f"task.balanced_loss weights the sigmoid loss, got task.loss={self.loss}; leave one of them out")


@dataclass(frozen=True)
class Regression(TaskConfig):
    """One number per image, or several, in any units: ``targets`` are their names; empty: the dataset's."""

    kind: Literal["regression"] = "regression"
    targets: tuple[str, ...] = ()
    loss: Literal["l2", "l1", "huber"] = "l2"
    huber_delta: float = 1.0  # huber only: errors beyond it count linearly, in standard deviations of the training targets
    labelled: ClassVar[bool] = False
    mixes: ClassVar[bool] = False  # the number of a blend of two images is hardly ever the blend of their numbers
    is_invariant: ClassVar[bool] = False

    def __post_init__(self) -> None:
        validate(self)
        if self.huber_delta <= 0:
            raise VitrailError(f"task.huber_delta must be above 0, got {self.huber_delta}; try task.huber_delta=1")
        if len(set(self.targets)) < len(self.targets):
            raise VitrailError(f"a target is named twice in {', '.join(self.targets)}; name each once")
        for name in RESERVED_COLUMNS:
            if name in self.targets:
                raise VitrailError(f"a target must not be named {name!r}, which is a column of every prediction; rename it")

    def num_outputs(self, class_names: Sequence[str]) -> int:
        return len(self.targets)

    def for_targets(self, names: tuple[str, ...]) -> "Regression":
        if self.targets and names and self.targets != names:
            raise VitrailError(
                f"the task predicts {', '.join(self.targets)}, and the targets of the dataset are {', '.join(names)}; leave "
                "targets out of the task"
            )
        return replace(self, targets=names or self.targets)


@dataclass(frozen=True)
class Segmentation(TaskConfig):
    """A class for every pixel. ``linear`` predicts the pixels of a patch from its token, by one linear layer; ``eomt`` has
    queries in the last blocks, each of which predicts a mask and its class (Kerssies et al. 2025); ``segmenter`` compares each
    patch with a token for each class, after a few blocks of both (Strudel et al. 2021)."""

    kind: Literal["segmentation"] = "segmentation"
    head: Literal["linear", "eomt", "segmenter"] = "linear"
    classes: int = 0  # of the dataset
    # linear only: blocks whose tokens it sees, from 1; empty: the last; quarters: the last of each quarter of the blocks
    layers: tuple[int, ...] | Literal["quarters"] = ()
    subpatch: bool = True  # linear only: logits of every pixel; false: of every patch, without a norm, and interpolated
    decoder_depth: int = 2  # segmenter only: number of its blocks
    decoder_width: int | None = None  # segmenter only, as the next; None: the encoder's
    decoder_heads: int | None = None
    loss: Literal["cross-entropy", "focal"] = "cross-entropy"  # not eomt, as the next five
    label_smoothing: float = 0.0
    balanced_loss: bool = False  # weight classes inversely to the square root of their pixels
    focal_gamma: float = 2.0
    dice_weight: float = 0.0  # weight of the Dice loss, which is added
    queries: int | None = None  # eomt only, as the next three; None: by the number of classes, at most 100
    query_blocks: int | None = None  # last blocks that have the queries; None: by the depth, at most 4
    upscale_blocks: int | None = None  # each doubles the resolution of the masks; None: to about four pixels
    mask_annealing: bool = True  # attention of queries is masked by their own prediction, less and less over the training
    labelled: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    is_dense: ClassVar[bool] = True
    has_masks: ClassVar[bool] = True
    train_recipe: ClassVar[str] = "segment-small"
    finetune_recipe: ClassVar[str] = "segment"
    demos: ClassVar[Mapping[str, str]] = {"panes": "segment-demo"}
    decoder_note: ClassVar[str] = "predict the class of each pixel"

    def __post_init__(self) -> None:
        validate(self)
        if not 0 <= self.label_smoothing < 1:
            raise VitrailError(
                f"task.label_smoothing must be from 0 to below 1, got {self.label_smoothing}; try task.label_smoothing=0.1"
            )
        for name in ("focal_gamma", "dice_weight"):
            if getattr(self, name) < 0:
                raise VitrailError(f"task.{name} must be at least 0, got {getattr(self, name)}; try task.{name}=1")
        for name in ("queries", "query_blocks", "decoder_depth", "decoder_width", "decoder_heads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitrailError(f"task.{name} must be at least 1, got {value}; try task.{name}=4")
        if self.upscale_blocks is not None and not 0 <= self.upscale_blocks <= 4:
            raise VitrailError(f"task.upscale_blocks must be from 0 to 4, got {self.upscale_blocks}; try task.upscale_blocks=2")
        _check_layers(self.layers)

    def num_outputs(self, class_names: Sequence[str]) -> int:
        return 0  # the encoder has no head

    def describe_outputs(self, model: ModelConfig) -> str:
        return f"{self.classes} classes of pixels"

    def for_classes(self, class_names: Sequence[str]) -> "Segmentation":
        return replace(self, classes=len(class_names))

    def has_decoder_of(self, other: TaskConfig) -> bool:
        return isinstance(other, Segmentation) and self.decoder_shape == other.decoder_shape

    def with_decoder_of(self, other: TaskConfig) -> "Segmentation":
        return replace(self, **other.decoder_shape) if isinstance(other, Segmentation) else self

    def head_layers(self, depth: int) -> tuple[int, ...]:
        """Return the blocks whose tokens the linear head of a model of this depth sees; none: the last one."""
        return _head_layers(self.layers, depth)

    @property
    def decoder_shape(self) -> dict[str, Any]:
        """The settings that decide which weights the head has."""
        names = {
            "linear": ("layers", "subpatch"),
            "eomt": ("query_blocks", "upscale_blocks"),
            "segmenter": ("decoder_depth", "decoder_width", "decoder_heads"),
        }[self.head]
        shape = {name: getattr(self, name) for name in ("head", "classes", *names)}
        return shape | ({"queries": self.num_queries} if self.head == "eomt" else {})

    @property
    def num_queries(self) -> int:
        """The number of queries, by default with some to spare for images that have all classes."""
        return min(2 * self.classes + 10, 100) if self.queries is None else self.queries

    def num_query_blocks(self, depth: int) -> int:
        """Return the number of blocks with queries of a model of this depth, by default as Kerssies et al. have it."""
        return _num_query_blocks(self.query_blocks, depth)

    def decoder(self, model: ModelConfig) -> DecoderShape | None:
        if self.head != "segmenter":
            return None
        assert isinstance(model, ViTConfig)  # others are refused by ``check``
        return DecoderShape(self.decoder_depth, self.decoder_width or model.width, self.decoder_heads or model.heads)

    def check(self, model: ModelConfig, augment: Policy) -> None:
        super().check(model, augment)
        if not isinstance(model, ViTConfig):
            raise VitrailError("segmentation needs the patches of a ViT, and the model is a ResNet; try model=S/16")
        _check_depth(self.head_layers(model.depth), model.depth)
        if self.head == "eomt":
            _check_queries(self.query_blocks, model)
        decoder = self.decoder(model)
        if decoder is not None and decoder.width % decoder.heads:
            width = max(decoder.width // decoder.heads, 1) * decoder.heads
            raise VitrailError(
                f"task.decoder_width must be a multiple of its {decoder.heads} heads, got {decoder.width}; try "
                f"task.decoder_width={width}, or other task.decoder_heads"
            )

    def cost(self, model: ModelConfig, batch_size: int = 1) -> Cost:
        assert isinstance(model, ViTConfig)  # others are refused by ``check``
        if self.head == "eomt":
            query_blocks = self.num_query_blocks(model.depth)
            return eomt_cost(model, self.classes, self.num_queries, query_blocks, self.upscale_blocks, batch_size)
        decoder = self.decoder(model)
        if decoder is not None:
            return mask_transformer_cost(model, self.classes, decoder.depth, decoder.width, decoder.heads, batch_size)
        return linear_segmenter_cost(model, self.classes, self.head_layers(model.depth), batch_size, subpatch=self.subpatch)


@dataclass(frozen=True)
class Detection(TaskConfig):
    """Boxes with classes. ``dense`` predicts a heat map of the objects' centres, and a box at each of its cells (CenterNet,
    Zhou et al. 2019), at a higher resolution than that of the patches (ViTDet's simple feature pyramid, Li et al. 2022);
    ``queries`` has queries in the last blocks, each of which predicts one box or none (YOLOS; Fang et al. 2021)."""

    kind: Literal["detection"] = "detection"
    head: Literal["dense", "queries"] = "dense"
    classes: int = 0  # of the dataset
    # dense only, as the next two: blocks whose tokens it sees, from 1; empty: the last; quarters: the last of each quarter
    layers: tuple[int, ...] | Literal["quarters"] = ()
    upscale_blocks: int | None = None  # each doubles the resolution of the map; None: to cells of about four pixels
    map_width: int = 64  # channels of the map
    balanced_loss: bool = False  # weight classes inversely to the square root of their number of objects
    box_weight: float = 2.0  # of the loss of the boxes, which is added to that of the classes
    max_detections: int = 100  # of an image
    queries: int = 100  # queries only, as the next two
    query_blocks: int | None = None  # last blocks that have the queries; None: by the depth, at most 4
    query_positions: bool = False  # learned positions that are added to the queries before each of their blocks but the first
    labelled: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    is_dense: ClassVar[bool] = True
    has_boxes: ClassVar[bool] = True
    finetune_side: ClassVar[int] = 256  # small objects need more patches
    train_recipe: ClassVar[str] = "detect-small"
    finetune_recipe: ClassVar[str] = "detect"
    demos: ClassVar[Mapping[str, str]] = {"panes": "detect-demo"}
    decoder_note: ClassVar[str] = "find objects"

    def __post_init__(self) -> None:
        validate(self)
        _check_layers(self.layers)
        for name in ("map_width", "max_detections", "queries", "query_blocks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitrailError(f"task.{name} must be at least 1, got {value}; try task.{name}=64")
        if self.upscale_blocks is not None and not 0 <= self.upscale_blocks <= 4:
            raise VitrailError(f"task.upscale_blocks must be from 0 to 4, got {self.upscale_blocks}; try task.upscale_blocks=2")
        if self.box_weight <= 0:
            raise VitrailError(f"task.box_weight must be above 0, got {self.box_weight}; try task.box_weight=2")

    def num_outputs(self, class_names: Sequence[str]) -> int:
        return 0  # the encoder has no head

    def describe_outputs(self, model: ModelConfig) -> str:
        return f"{self.classes} class{'' if self.classes == 1 else 'es'} of objects"

    def for_classes(self, class_names: Sequence[str]) -> "Detection":
        return replace(self, classes=len(class_names))

    def has_decoder_of(self, other: TaskConfig) -> bool:
        return isinstance(other, Detection) and self.decoder_shape == other.decoder_shape

    def with_decoder_of(self, other: TaskConfig) -> "Detection":
        return replace(self, **other.decoder_shape) if isinstance(other, Detection) else self

    def head_layers(self, depth: int) -> tuple[int, ...]:
        """Return the blocks whose tokens the head of a model of this depth sees; none: the last one."""
        return _head_layers(self.layers, depth)

    def num_upscale_blocks(self, patch: tuple[int, int]) -> int:
        """Return how many times the resolution of the patches is doubled: by default to cells of about four pixels."""
        return max(round(log2(max(patch) / 4)), 0) if self.upscale_blocks is None else self.upscale_blocks

    @property
    def decoder_shape(self) -> dict[str, Any]:
        """The settings that decide which weights the head has."""
        names = {
            "dense": ("layers", "upscale_blocks", "map_width"),
            "queries": ("queries", "query_blocks", "query_positions"),
        }[self.head]
        return {name: getattr(self, name) for name in ("head", "classes", *names)}

    def num_query_blocks(self, depth: int) -> int:
        """Return the number of blocks with queries of a model of this depth."""
        return _num_query_blocks(self.query_blocks, depth)

    def check(self, model: ModelConfig, augment: Policy) -> None:
        super().check(model, augment)
        if not isinstance(model, ViTConfig):
            raise VitrailError("detection needs the patches of a ViT, and the model is a ResNet; try model=S/16")
        _check_depth(self.head_layers(model.depth), model.depth)
        if self.head == "queries":
            _check_queries(self.query_blocks, model)

    def cost(self, model: ModelConfig, batch_size: int = 1) -> Cost:
        assert isinstance(model, ViTConfig)  # others are refused by ``check``
        if self.head == "queries":
            query_blocks = self.num_query_blocks(model.depth)
            return query_detector_cost(model, self.classes, self.queries, query_blocks, self.query_positions, batch_size)
        upscale_blocks = self.num_upscale_blocks(model.patch_stride)
        return dense_detector_cost(
            model, self.classes, self.head_layers(model.depth), upscale_blocks, self.map_width, batch_size
        )


def _num_query_blocks(query_blocks: int | None, depth: int) -> int:
    return min(4, max(depth // 4, 2), depth) if query_blocks is None else query_blocks


def _check_queries(query_blocks: int | None, model: ViTConfig) -> None:
    if model.position == "relative":
        raise VitrailError("queries have no relative positions to the patches; try model.position=learned1d")
    if query_blocks is not None and query_blocks > model.depth:
        raise VitrailError(
            f"task.query_blocks must be at most {model.depth}, the model's blocks, got {query_blocks}; try "
            f"task.query_blocks={max(model.depth // 3, 1)}"
        )


def _head_layers(layers: tuple[int, ...] | str, depth: int) -> tuple[int, ...]:
    """Return the blocks that a setting stands for in a model of this depth."""
    return layers if isinstance(layers, tuple) else tuple(sorted({-(-depth * quarter // 4) for quarter in range(1, 5)}))


def _check_layers(layers: tuple[int, ...] | str) -> None:
    if isinstance(layers, tuple) and layers and (min(layers) < 1 or list(layers) != sorted(set(layers))):
        raise VitrailError(f"task.layers must be numbers of blocks from 1, in rising order, got {layers}; try task.layers=8,12")


def _check_depth(layers: tuple[int, ...], depth: int) -> None:
    if (last := max(layers, default=0)) > depth:
        raise VitrailError(
            f"task.layers must be at most {depth}, the model's blocks, got {last}; try task.layers="
            f"{f'{depth // 2},' if depth > 1 else ''}{depth}"
        )


@dataclass(frozen=True)
class MaskedImage(TaskConfig):
    """Self-supervised pre-training: predict masked patches."""

    masking: Masking
    kind: Literal["masked-image"] = "masked-image"
    labelled: ClassVar[bool] = False
    has_targets: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    decoder_note: ClassVar[str] = "predict the masked patches; they are dropped after pre-training"

    def check(self, model: ModelConfig, augment: Policy) -> None:
        check_masking(self.masking, model)
        super().check(model, augment)

    def decoder(self, model: ModelConfig) -> DecoderShape | None:
        masking = self.masking
        return (
            DecoderShape(masking.decoder_depth, masking.decoder_width, masking.decoder_heads)
            if masking.method == "mae"
            else None
        )

    def cost(self, model: ModelConfig, batch_size: int = 1) -> Cost:
        return masked_cost(model, self.masking, batch_size)
