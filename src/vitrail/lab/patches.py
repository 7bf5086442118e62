"""``vitrail lab patches``: a convolution whose stride is its kernel is to flatten every patch and multiply by E (equation 1).

The same numbers by four routes on one picture, in single and in double precision, with the shapes of the paper's section 3.1.
b pictures, c channels, n patches in y rows and x columns, p and q the sides of a patch, d width.
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
from vitrail.report.page import table, text
from vitrail.report.pictures import restored
from vitrail.report.shades import colours, scaled

IMAGE, PATCH, WIDTH = 224, 16, 768  # of ViT-B/16
GRID = IMAGE // PATCH
CONVOLUTION, UNFOLD, EINOPS = "nn.Conv2d, stride 16", "unfold and multiply", "rearrange and multiply"
VITRAIL, WRONG = "vitrail's PatchEmbed", "rows of E in another order"


def by_convolution(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    return F.conv2d(images, weight, bias, stride=weight.shape[2:]).flatten(2).mT


def by_unfolding(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    """Channel by channel, as torch's kernels lie in memory."""
    flat = F.unfold(images, weight.shape[2:], stride=weight.shape[2:]).mT
    return flat @ weight.flatten(1).mT + bias


def by_rearranging(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b n d"]:
    """Pixel by pixel, as the paper writes N x (P^2 C); E's rows go along."""
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
    """Flattened pixel by pixel, but multiplied by an E whose rows go channel by channel: what a careless port does."""
    p, q = weight.shape[2:]
    flat = rearrange(images, "b c (y p) (x q) -> b (y x) (p q c)", p=p, q=q)
    return flat @ weight.flatten(1).mT + bias


ROUTES = {CONVOLUTION: by_convolution, UNFOLD: by_unfolding, EINOPS: by_rearranging, VITRAIL: by_vitrail, WRONG: in_wrong_order}


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    how = official((IMAGE, IMAGE))
    train = pictures(asked.data).train
    images = Plain(how)(train, np.zeros(1, np.int64), np.zeros(1, np.int64)).images if len(train) else torch.empty(0)
    if not images.shape[0]:
        raise VitrailError(f"the first picture of {asked.data} cannot be read; try --data {EXPERIMENT.data}")
    torch.manual_seed(0)
    embed = PatchEmbed(3, WIDTH, (PATCH, PATCH))
    weight, bias = embed.project.weight.detach(), torch.randn(WIDTH)
    apart = {name: differences(images, weight, bias, dtype) for name, dtype in KINDS.items()}
    most = max(apart["float32"][name] for name in (UNFOLD, EINOPS, VITRAIL))
    exact = max(apart["float64"][name] for name in (UNFOLD, EINOPS, VITRAIL))
    answer = (
        f"All routes give the same {GRID**2} x {WIDTH} numbers: to {most:.0e} of the largest in single precision and "
        f"{exact:.0e} in double. Flattened in one order and multiplied in another, they are "
        f"{apart['float64'][WRONG]:.0%} of it apart."
    )
    (picture,) = restored(images, how.mean, how.std)
    drawing = _drawn(picture, images[0], weight, bias)
    parts: list[str | Drawing] = ["<h2>Step by step</h2>", _steps(), "<h2>How far apart</h2>", _apart(apart)]
    return Told(answer, [*parts, drawing], {"differences": apart, "shapes": {name: shape for name, _, shape in _shapes()}})


KINDS = {"float32": torch.float32, "float64": torch.float64}


def differences(
    images: Float[Tensor, "b c height width"], weight: Float[Tensor, "d c p q"], bias: Float[Tensor, " d"], dtype: torch.dtype
) -> dict[str, float]:
    """The largest to the convolution's numbers, as a share of the largest of these."""
    given = images.to(dtype), weight.to(dtype), bias.to(dtype)
    first = by_convolution(*given)
    return {name: float((route(*given) - first).abs().max() / first.abs().max()) for name, route in ROUTES.items()}


def _shapes() -> Iterator[tuple[str, str, str]]:
    """What is there after each step, in words, in the paper's letters, in numbers."""
    n, flat = GRID**2, PATCH**2 * 3
    yield "a picture", "x, H x W x C", f"{IMAGE} x {IMAGE} x 3"
    yield "cut into patches", "N = HW / P² of P x P x C", f"{n} of {PATCH} x {PATCH} x 3"
    yield "each flattened", "xₚ, N x (P² C)", f"{n} x {flat}"
    yield "the embedding", "E, (P² C) x D", f"{flat} x {WIDTH}"
    yield "multiplied", "xₚ E, N x D", f"{n} x {WIDTH}"
    yield "as a convolution", "D kernels of C x P x P, stride P", f"{WIDTH} x {GRID} x {GRID}, read row by row: {n} x {WIDTH}"


def _steps() -> str:
    return table(("step", "in the paper's letters", "#here"), [[text(cell) for cell in row] for row in _shapes()])


def _apart(apart: dict[str, dict[str, float]]) -> str:
    rows: list[list[str]] = []
    for name in ROUTES:
        far = [apart[kind][name] for kind in KINDS]
        rows.append([text(name), *("the measure" if name == CONVOLUTION else _share(value) for value in far)])
    return table(("route", *(f"#{kind}, largest difference" for kind in KINDS)), rows)


def _share(value: float) -> str:
    return "0" if value == 0 else f"{value:.0%}" if value > 0.01 else f"{value:.1e}"


def _drawn(picture: Image.Image, image: Tensor, weight: Tensor, bias: Tensor, place: tuple[int, int] = (6, 7)) -> Drawing:
    """One patch on its way to one number."""
    row, column = place
    cut = image[:, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]
    flat, kernel = rearrange(cut, "c p q -> (p q c)"), rearrange(weight[0], "c p q -> (p q c)")
    number = float(flat @ kernel + bias[0])
    same = float(by_convolution(image[None], weight, bias)[0, row * GRID + column, 0])
    box = column * PATCH, row * PATCH, (column + 1) * PATCH, (row + 1) * PATCH
    shapes: list[Any] = [*patched(picture, (GRID, GRID), marked=[place]).shapes]
    shapes += [Words((256, 12), f"one of {GRID**2} patches"), Shown((256, 20, 96, 96), picture.crop(box))]
    for top, words, values in ((140, f"flattened: {flat.numel()} numbers", flat), (184, "a column of E, as long", kernel)):
        shapes += [Words((256, top), words), Shown((256, top + 6, 384, 14), _band(values))]
    shapes.append(Words((372, 62), f"product and bias: {number:.5f}", colour="ink"))
    shapes.append(Words((372, 80), f"the convolution: {same:.5f}", colour="ink"))
    shapes.append(Words((372, 98), f"(its channel 0 in row {row}, column {column})"))
    return Drawing("From a patch to a number", (660, 226), tuple(shapes))


def _band(values: Tensor) -> Image.Image:
    return Image.fromarray(colours(scaled(values.numpy()[None].astype(np.float64))))


EXPERIMENT = Experiment(
    name="patches",
    title="Equation 1: a convolution is flatten and multiply",
    paper="A picture of H x W x C is reshaped into N = HW / P² patches of P² C numbers, and a trainable E maps each to D "
    "dimensions (Dosovitskiy et al. 2021, section 3.1, equation 1). Implementations, the authors' too, write it as a "
    "convolution.",
    scaled="Nothing: the shapes are those of ViT-B/16 at 224 pixels. E is random, as before training.",
    limits="The routes agree to the rounding of sums, whose order differs; they need not agree to the bit. It holds where the "
    "stride is the kernel: patches that overlap are a convolution still, but no reshaping.",
    tell=tell,
    data="panes:count=20,size=224",
)
