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

from vitrail.data.preprocess import official
from vitrail.data.sources.open import pictures
from vitrail.data.view import Plain
from vitrail.errors import VitrailError
from vitrail.lab.experiment import Asked, Experiment, Told
from vitrail.lab.trial import Row
from vitrail.layers.patch import PatchEmbed
from vitrail.report.drawing import Drawing, Shown, Words
from vitrail.report.heat import patched
from vitrail.report.markup import text
from vitrail.report.page import table
from vitrail.report.pictures import restored
from vitrail.report.shades import colours, scaled

IMAGE, PATCH, WIDTH = 224, 16, 768  # of ViT-B/16
GRID = IMAGE // PATCH
CONVOLUTION, UNFOLD, EINOPS = "nn.Conv2d, stride 16", "unfold and multiply", "rearrange and multiply"
VITRAIL, WRONG = "vitrail's PatchEmbed", "rows of E in the wrong order"


def by_convolution(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    return F.conv2d(images, weight, bias, stride=weight.shape[2:]).flatten(2).mT


def by_unfolding(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    """Flatten channel by channel, the memory layout of torch's kernels."""
    flat = F.unfold(images, weight.shape[2:], stride=weight.shape[2:]).mT
    return flat @ weight.flatten(1).mT + bias


def by_rearranging(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    """Flatten pixel by pixel, as the paper's N x (P^2 C), with the rows of E in the same order."""
    p, q = weight.shape[2:]
    flat = rearrange(images, "b c (y p) (x q) -> b (y x) (p q c)", p=p, q=q)
    return flat @ rearrange(weight, "d c p q -> (p q c) d") + bias


def by_vitrail(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    embed = PatchEmbed(weight.shape[1], weight.shape[0], (weight.shape[2], weight.shape[3])).to(weight.dtype)
    embed.project.load_state_dict({"weight": weight, "bias": bias})
    with torch.no_grad():
        return embed(images)


def in_wrong_order(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    """Flatten pixel by pixel, but multiply by an E in channel order: a common bug when porting weights."""
    p, q = weight.shape[2:]
    flat = rearrange(images, "b c (y p) (x q) -> b (y x) (p q c)", p=p, q=q)
    return flat @ weight.flatten(1).mT + bias


ROUTES = {CONVOLUTION: by_convolution, UNFOLD: by_unfolding, EINOPS: by_rearranging, VITRAIL: by_vitrail, WRONG: in_wrong_order}


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    how = official((IMAGE, IMAGE))
    train = pictures(asked.data).train
    images = Plain(how)(train, np.zeros(1, np.int64), np.zeros(1, np.int64)).images if len(train) else torch.empty(0)
    if not images.shape[0]:
        raise VitrailError(f"the first image of {asked.data} cannot be read; try --data {EXPERIMENT.data}")
    torch.manual_seed(0)
    embed = PatchEmbed(3, WIDTH, (PATCH, PATCH))
    weight, bias = embed.project.weight.detach(), torch.randn(WIDTH)
    apart = {name: differences(images, weight, bias, dtype) for name, dtype in KINDS.items()}
    most = max(apart["float32"][name] for name in (UNFOLD, EINOPS, VITRAIL))
    exact = max(apart["float64"][name] for name in (UNFOLD, EINOPS, VITRAIL))
    answer = (
        f"All implementations give the same {GRID**2} x {WIDTH} numbers, up to {most:.0e} of the largest in single precision "
        f"and {exact:.0e} in double. With the rows of E in the wrong order, the difference is {apart['float64'][WRONG]:.0%}."
    )
    (picture,) = restored(images, how.mean, how.std)
    drawing = _drawn(picture, images[0], weight, bias)
    parts: list[str | Drawing] = ["<h2>Step by step</h2>", _steps(), "<h2>Differences</h2>", _apart(apart)]
    return Told(answer, [*parts, drawing], {"differences": apart, "shapes": {name: shape for name, _, shape in _shapes()}})


KINDS = {"float32": torch.float32, "float64": torch.float64}


def differences(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"], dtype: torch.dtype
) -> dict[str, float]:
    """Return the maximum difference from the convolution, relative to its largest output."""
    given = images.to(dtype), weight.to(dtype), bias.to(dtype)
    first = by_convolution(*given)
    return {name: float((route(*given) - first).abs().max() / first.abs().max()) for name, route in ROUTES.items()}


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
    return table(("step", "in the paper's notation", "#here"), [[text(cell) for cell in row] for row in _shapes()])


def _apart(apart: dict[str, dict[str, float]]) -> str:
    rows: list[list[str]] = []
    for name in ROUTES:
        far = [apart[kind][name] for kind in KINDS]
        rows.append([text(name), *("reference" if name == CONVOLUTION else _share(value) for value in far)])
    return table(("implementation", *(f"#{kind}, maximum difference" for kind in KINDS)), rows)


def _share(value: float) -> str:
    return "0" if value == 0 else f"{value:.0%}" if value > 0.01 else f"{value:.1e}"


def _drawn(picture: Image.Image, image: Tensor, weight: Tensor, bias: Tensor, place: tuple[int, int] = (6, 7)) -> Drawing:
    """Draw how one patch becomes one number of its embedding."""
    row, column = place
    cut = image[:, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]
    flat, kernel = rearrange(cut, "c p q -> (p q c)"), rearrange(weight[0], "c p q -> (p q c)")
    number = float(flat @ kernel + bias[0])
    same = float(by_convolution(image[None], weight, bias)[0, row * GRID + column, 0])
    box = column * PATCH, row * PATCH, (column + 1) * PATCH, (row + 1) * PATCH
    shapes: list[Any] = [*patched(picture, (GRID, GRID), marked=[place]).shapes]
    shapes += [Words((256, 12), f"one of {GRID**2} patches"), Shown((256, 20, 96, 96), picture.crop(box))]
    for top, words, values in ((140, f"flattened: {flat.numel()} numbers", flat), (184, "a column of E", kernel)):
        shapes += [Words((256, top), words), Shown((256, top + 6, 384, 14), _band(values))]
    shapes.append(Words((372, 62), f"dot product + bias: {number:.5f}", colour="ink"))
    shapes.append(Words((372, 80), f"convolution: {same:.5f}", colour="ink"))
    shapes.append(Words((372, 98), f"(channel 0 at row {row}, column {column})"))
    return Drawing("From a patch to a number of its embedding", (660, 226), tuple(shapes))


def _band(values: Tensor) -> Image.Image:
    return Image.fromarray(colours(scaled(values.numpy()[None].astype(np.float64))))


EXPERIMENT = Experiment(
    name="patches",
    title="Equation 1: patch embedding as a convolution",
    paper="An image of H x W x C is reshaped into N = HW / P² patches of P² C numbers, and a trainable E maps each to D "
    "dimensions (Dosovitskiy et al. 2021, section 3.1, equation 1). Implementations, including the authors', use a "
    "convolution.",
    scaled="Nothing: the shapes are those of ViT-B/16 at 224 pixels. E is random, as before training.",
    limits="The implementations agree up to rounding, since the order of summation differs; they need not agree bit for bit. "
    "It holds where the stride equals the kernel size: overlapping patches are still a convolution, but not a reshape.",
    tell=tell,
    data="panes:count=20,size=224",
)
