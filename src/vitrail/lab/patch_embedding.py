"""``vitrail lab patches``: a convolution with stride equal to its kernel is flattening each patch and multiplying by E (eq. 1).

The same numbers by four implementations on one image, in single and double precision, with the shapes of section 3.1.
b images, c channels, n patches in y rows and x columns, p and q the sides of a patch, d width.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.batch_transforms import EvalTransform
from vitrail.data.preprocess import official_preprocess
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult
from vitrail.lab.trials import JobResult
from vitrail.layers.patch_embed import PatchEmbed
from vitrail.plot.canvas import Figure, ImageShape, Text
from vitrail.plot.colormap import apply_colormap, min_max
from vitrail.plot.heatmap import patch_grid
from vitrail.plot.markup import escape
from vitrail.report.contact_sheet import denormalise
from vitrail.report.html import html_table

IMAGE, PATCH, WIDTH = 224, 16, 768  # of ViT-B/16
GRID = IMAGE // PATCH
CONV2D, UNFOLD, EINOPS = "nn.Conv2d, stride 16", "unfold and multiply", "rearrange and multiply"
VITRAIL, WRONG_ORDER = "vitrail's PatchEmbed", "rows of E in the wrong order"


def embed_by_convolution(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    return F.conv2d(images, weight, bias, stride=weight.shape[2:]).flatten(2).mT


def embed_by_unfold(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    """Flatten channel by channel, the memory layout of torch's kernels."""
    flat = F.unfold(images, weight.shape[2:], stride=weight.shape[2:]).mT
    return flat @ weight.flatten(1).mT + bias


def embed_by_rearrange(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    """Flatten pixel by pixel, as the paper's N x (P^2 C), with the rows of E in the same order."""
    p, q = weight.shape[2:]
    flat = rearrange(images, "b c (y p) (x q) -> b (y x) (p q c)", p=p, q=q)
    return flat @ rearrange(weight, "d c p q -> (p q c) d") + bias


def embed_by_vitrail(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    embed = PatchEmbed(weight.shape[1], weight.shape[0], (weight.shape[2], weight.shape[3])).to(weight.dtype)
    embed.project.load_state_dict({"weight": weight, "bias": bias})
    with torch.no_grad():
        return embed(images)


def embed_in_wrong_order(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    """Flatten pixel by pixel, but multiply by an E in channel order: a common bug when porting weights."""
    p, q = weight.shape[2:]
    flat = rearrange(images, "b c (y p) (x q) -> b (y x) (p q c)", p=p, q=q)
    return flat @ weight.flatten(1).mT + bias


IMPLEMENTATIONS = {
    CONV2D: embed_by_convolution,
    UNFOLD: embed_by_unfold,
    EINOPS: embed_by_rearrange,
    VITRAIL: embed_by_vitrail,
    WRONG_ORDER: embed_in_wrong_order,
}


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    preprocess = official_preprocess((IMAGE, IMAGE))
    train_split = open_dataset(options.data).train
    images = (
        EvalTransform(preprocess)(train_split, np.zeros(1, np.int64), np.zeros(1, np.int64)).images
        if len(train_split)
        else torch.empty(0)
    )
    if not images.shape[0]:
        raise VitrailError(f"the first image of {options.data} cannot be read; try --data {EXPERIMENT.data}")
    torch.manual_seed(0)
    embed = PatchEmbed(3, WIDTH, (PATCH, PATCH))
    weight, bias = embed.project.weight.detach(), torch.randn(WIDTH)
    differences_by_dtype = {name: relative_differences(images, weight, bias, dtype) for name, dtype in DTYPES.items()}
    single = max(differences_by_dtype["float32"][name] for name in (UNFOLD, EINOPS, VITRAIL))
    double = max(differences_by_dtype["float64"][name] for name in (UNFOLD, EINOPS, VITRAIL))
    summary = (
        f"All implementations give the same {GRID**2} x {WIDTH} numbers, up to {single:.0e} of the largest in single precision "
        f"and {double:.0e} in double. With the rows of E in the wrong order, the difference is "
        f"{differences_by_dtype['float64'][WRONG_ORDER]:.0%}."
    )
    (image,) = denormalise(images, preprocess)
    figure = _patch_figure(image, images[0], weight, bias)
    parts: list[str | Figure] = [
        "<h2>Step by step</h2>",
        _steps(),
        "<h2>Differences</h2>",
        _differences_table(differences_by_dtype),
    ]
    return ExperimentResult(
        summary,
        [*parts, figure],
        {"differences": differences_by_dtype, "shapes": {name: shape for name, _, shape in _shapes()}},
    )


DTYPES = {"float32": torch.float32, "float64": torch.float64}


def relative_differences(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"], dtype: torch.dtype
) -> dict[str, float]:
    """Return the maximum difference from the convolution, relative to its largest output."""
    inputs = images.to(dtype), weight.to(dtype), bias.to(dtype)
    reference = embed_by_convolution(*inputs)
    return {
        name: float((implementation(*inputs) - reference).abs().max() / reference.abs().max())
        for name, implementation in IMPLEMENTATIONS.items()
    }


def _shapes() -> Iterator[tuple[str, str, str]]:
    """Yield each step, its shape in the paper's notation, and in numbers."""
    n, flat = GRID**2, PATCH**2 * 3
    yield "image", "x, H x W x C", f"{IMAGE} x {IMAGE} x 3"
    yield "split into patches", "N = HW / P² of P x P x C", f"{n} of {PATCH} x {PATCH} x 3"
    yield "flattened patches", "xₚ, N x (P² C)", f"{n} x {flat}"
    yield "embedding matrix", "E, (P² C) x D", f"{flat} x {WIDTH}"
    yield "patch embeddings", "xₚ E, N x D", f"{n} x {WIDTH}"
    yield "as a convolution", "D kernels of C x P x P, stride P", f"{WIDTH} x {GRID} x {GRID}, flattened to {n} x {WIDTH}"


def _steps() -> str:
    return html_table(("step", "in the paper's notation", "#here"), [[escape(cell) for cell in row] for row in _shapes()])


def _differences_table(differences_by_dtype: dict[str, dict[str, float]]) -> str:
    rows: list[list[str]] = []
    for name in IMPLEMENTATIONS:
        values = [differences_by_dtype[dtype][name] for dtype in DTYPES]
        rows.append([escape(name), *("reference" if name == CONV2D else _format_relative(value) for value in values)])
    return html_table(("implementation", *(f"#{dtype}, maximum difference" for dtype in DTYPES)), rows)


def _format_relative(value: float) -> str:
    return "0" if value == 0 else f"{value:.0%}" if value > 0.01 else f"{value:.1e}"


def _patch_figure(
    original: Image.Image, image: Tensor, weight: Tensor, bias: Tensor, patch_index: tuple[int, int] = (6, 7)
) -> Figure:
    """Draw how one patch becomes one number of its embedding."""
    row, column = patch_index
    cut = image[:, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]
    flat, kernel = rearrange(cut, "c p q -> (p q c)"), rearrange(weight[0], "c p q -> (p q c)")
    number = float(flat @ kernel + bias[0])
    by_conv = float(embed_by_convolution(image[None], weight, bias)[0, row * GRID + column, 0])
    box = column * PATCH, row * PATCH, (column + 1) * PATCH, (row + 1) * PATCH
    shapes: list[Any] = [*patch_grid(original, (GRID, GRID), marked=[patch_index]).shapes]
    shapes += [Text((256, 12), f"one of {GRID**2} patches"), ImageShape((256, 20, 96, 96), original.crop(box))]
    for top, label, values in ((140, f"flattened: {flat.numel()} numbers", flat), (184, "a column of E", kernel)):
        shapes += [Text((256, top), label), ImageShape((256, top + 6, 384, 14), _colour_strip(values))]
    shapes.append(Text((372, 62), f"dot product + bias: {number:.5f}", colour="ink"))
    shapes.append(Text((372, 80), f"convolution: {by_conv:.5f}", colour="ink"))
    shapes.append(Text((372, 98), f"(channel 0 at row {row}, column {column})"))
    return Figure("From a patch to a number of its embedding", (660, 226), tuple(shapes))


def _colour_strip(values: Tensor) -> Image.Image:
    return Image.fromarray(apply_colormap(min_max(values.numpy()[None].astype(np.float64))))


EXPERIMENT = Experiment(
    name="patches",
    title="Equation 1: patch embedding as a convolution",
    paper="An image of H x W x C is reshaped into N = HW / P² patches of P² C numbers, and a trainable E maps each to D "
    "dimensions (Dosovitskiy et al. 2021, section 3.1, equation 1). Implementations, including the authors', use a "
    "convolution.",
    scaled="Nothing: the shapes are those of ViT-B/16 at 224 pixels. E is random, as before training.",
    limits="The implementations agree up to rounding, since the order of summation differs; they need not agree bit for bit. "
    "It holds where the stride equals the kernel size: overlapping patches are still a convolution, but not a reshape.",
    build_result=build_result,
    data="panes:train_size=20,size=224",
)
