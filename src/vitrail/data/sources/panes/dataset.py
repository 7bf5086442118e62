"""``panes``: Vitrail's own synthetic dataset: stained-glass windows of any size and number.

A window of leaded glass, in it one figure of five panes, around it smaller objects of fewer panes, in front shards. The
arrangement of the figure's five panes is the label; colour, light, glass, position, size and slant are independent of it. A
figure and its mirror image are of one class, so images may be flipped left to right; not upside down.

Label, mask, boxes and the figure's angle, size and position are known exactly, and everything is a pure function of (seed,
index). How hard the dataset is: ``scripts/panes_hardness.py``. h high, w wide, k objects, n images.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy import ndarray

from vitrail.augment.counter_rng import random_bits, uniforms
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.objects import Objects, build_objects
from vitrail.data.sources.panes.draw import apply_light, paint, to_uint8
from vitrail.data.sources.panes.layout import (
    CELLS,
    FIGURE_LAYER,
    FIGURES,
    MAX_LAYERS,
    NUM_PARAMETERS,
    NUM_UNIFORMS,
    build_figure,
    build_layers,
)
from vitrail.errors import VitrailError

PANES_CLASSES = tuple(FIGURES)
PANES_MASK_CLASSES = ("background", "figure")  # of pixels: the figure that decides the label, and all else
PANES_BOX_CLASSES = ("figure",)  # as the masks: the smaller objects around it can hardly be told from the window
PANES_SPLITS = ("train", "validation", "test")
FIGURE_NUMBERS = ("angle", "size", "x", "y")  # see figure_numbers
FIGURE_PANES = 3  # down and across
MIN_SIDE = 16  # pixels: a pane of a figure still has three

LABEL_STREAM, SPLIT_STREAM, SCENE_STREAM = 0x70616E65, 0x70616E66, 0x70616E67  # in place of an epoch, apart from augmentation
GRAIN_SIZE = 20  # grid points down and across of the glass's unevenness


@dataclass(frozen=True)
class Scene:
    """An image with its ground truth."""

    pixels: UInt8[ndarray, "h w 3"]
    label: int
    mask: UInt8[ndarray, "h w"]  # 1 where the figure that decides the label is visible
    instances: Int[ndarray, "h w"]  # 0 background, j + 1 the j-th object
    boxes: Int[ndarray, "k 4"]  # left, top, right, bottom of the visible part of each object; right and bottom exclusive
    kinds: Int[ndarray, " k"]  # index into layout.OBJECT_KINDS, where the classes come first


@dataclass(frozen=True)
class PanesDataset(Dataset):
    """A dataset of images that are drawn when they are read."""

    seed: int
    num_images: int
    size: tuple[int, int] = (64, 64)
    origin: str = "panes"

    def __post_init__(self) -> None:
        _check_size(self.size)
        if self.num_images < 0:
            raise VitrailError(f"count must not be negative, got {self.num_images}; try count=10000")

    @property
    def class_names(self) -> tuple[str, ...]:
        return PANES_CLASSES

    @cached_property
    def labels(self) -> ndarray:
        return _draw_labels(self.seed, np.arange(self.num_images))

    def __len__(self) -> int:
        return self.num_images

    def describe(self, index: int) -> str:
        return f"image {index} of {self.origin}"

    def read(self, index: int) -> ndarray:
        return self.scene(index).pixels

    def sizes(self, indices: ndarray) -> ndarray:
        return np.broadcast_to(np.array(self.size), (len(indices), 2))

    def object_mask(self, index: int) -> ndarray:
        return self.scene(index).mask

    @property
    def mask_names(self) -> tuple[str, ...]:
        return PANES_MASK_CLASSES

    @property
    def has_exact_masks(self) -> bool:
        return True

    def mask(self, index: int) -> ndarray:
        return self.scene(index).mask.astype(np.int16)

    def instances(self, index: int) -> ndarray:
        return self.scene(index).mask.astype(np.int32)  # one figure per image

    @property
    def box_names(self) -> tuple[str, ...]:
        return PANES_BOX_CLASSES

    @property
    def has_exact_boxes(self) -> bool:
        return True

    def objects(self, index: int) -> Objects:
        scene = self.scene(index)
        of_figure = scene.kinds < len(FIGURES)
        return build_objects(scene.boxes[of_figure], [0], areas=np.array([scene.mask.sum()], np.float64))

    @property
    def number_names(self) -> tuple[str, ...]:
        return FIGURE_NUMBERS

    def numbers(self, name: str) -> ndarray | None:
        return self._figure_numbers[:, FIGURE_NUMBERS.index(name)] if name in FIGURE_NUMBERS else None

    @cached_property
    def _figure_numbers(self) -> Float[ndarray, "n 4"]:
        return figure_numbers(self.seed, np.arange(self.num_images), self.size)

    def content_key(self) -> bytes:
        return repr((self, len(self))).encode()

    def cache_key(self) -> bytes:
        return self.content_key()

    def scene(self, index: int) -> Scene:
        """Return an image with its mask and boxes."""
        if not 0 <= index < self.num_images:
            raise IndexError(f"{self.origin} has {self.num_images} images, got {index}")
        return draw_scene(self.seed, int(index), self.size)


def build_panes(split: str, num_images: int, size: tuple[int, int] = (64, 64), seed: int = 0) -> PanesDataset:
    """Build a split: each is a random stream of its own, of any length."""
    if split not in PANES_SPLITS:
        raise VitrailError(f"panes has the splits {', '.join(PANES_SPLITS)}, got {split!r}; try 'train'")
    return PanesDataset(
        int(random_bits(seed, SPLIT_STREAM, PANES_SPLITS.index(split), 0)[0]), num_images, size, f"panes {split}"
    )


def draw_scene(seed: int, index: int, size: tuple[int, int] = (64, 64)) -> Scene:
    """Draw the image of this index: the same scene at every size of the same aspect ratio."""
    _check_size(size)
    label = int(_draw_labels(seed, np.array([index]))[0])
    layout_values, grain, light = np.split(
        uniforms(seed, SCENE_STREAM, index, NUM_UNIFORMS + GRAIN_SIZE**2 + 5), (NUM_UNIFORMS, NUM_UNIFORMS + GRAIN_SIZE**2)
    )
    canvas, top_layer = np.zeros((*size, 3), np.float32), np.zeros(size, np.int64)
    kinds = []
    for number, (kind, lattice) in enumerate(build_layers(layout_values, label, (size[1] / min(size), size[0] / min(size)))):
        window, inside = paint(canvas, lattice)
        top_layer[window][inside] = number
        kinds.append(kind)
    apply_light(canvas, grain.reshape(GRAIN_SIZE, GRAIN_SIZE).astype(np.float32), light)
    return _annotate(to_uint8(canvas), label, top_layer, kinds)


def figure_numbers(seed: int, indices: Int[ndarray, " n"], size: tuple[int, int] = (64, 64)) -> Float[ndarray, "n 4"]:
    """Return FIGURE_NUMBERS of the images: the figure's slant in degrees, clockwise; the length of its three panes in short
    sides of the image; its centre as fractions of the image's width and height."""
    extent = size[1] / min(size), size[0] / min(size)
    parameters = uniforms(seed, SCENE_STREAM, indices, NUM_PARAMETERS, FIGURE_LAYER * (NUM_UNIFORMS // MAX_LAYERS))
    glass = np.zeros((CELLS, CELLS, 2, 3))
    rows = []
    for values, label in zip(parameters.tolist(), _draw_labels(seed, indices).tolist(), strict=True):
        figure = build_figure(values, label, glass, extent)
        x, y = figure.centre
        angle = math.degrees(2 * math.atan(figure.half_angle_tan))
        rows.append((angle, FIGURE_PANES * figure.side, x / extent[0], y / extent[1]))
    return np.round(np.array(rows).reshape(-1, 4), 6)  # an arc tangent may differ in its last bits between machines


def _draw_labels(seed: int, indices: ndarray) -> ndarray:
    return (random_bits(seed, LABEL_STREAM, indices, 0)[:, 0] % np.uint64(len(PANES_CLASSES))).astype(np.int64)


def _annotate(pixels: ndarray, label: int, top_layer: ndarray, kinds: list[int]) -> Scene:
    """Compute masks and boxes of the visible parts; a fully occluded object is left out."""
    instances = np.zeros_like(top_layer)
    boxes, visible_kinds = [], []
    for number, kind in enumerate(kinds):
        visible = top_layer == number
        if kind < 0 or not visible.any():
            continue
        visible_kinds.append(kind)
        instances[visible] = len(visible_kinds)
        rows, columns = np.flatnonzero(visible.any(1)), np.flatnonzero(visible.any(0))
        boxes.append((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
    mask = (top_layer == kinds.index(label)).astype(np.uint8)
    return Scene(pixels, label, mask, instances, np.array(boxes, np.int64), np.array(visible_kinds, np.int64))


def _check_size(size: tuple[int, int]) -> None:
    if min(size) < MIN_SIDE:
        raise VitrailError(f"size must be at least {MIN_SIDE} pixels per side, got {size[0]} x {size[1]}; try (64, 64)")
