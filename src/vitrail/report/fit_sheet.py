"""Images of other aspect ratios as a model's input, cropped, padded or stretched: drawn, and measured by their sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from jaxtyping import Int
from numpy import ndarray
from PIL import Image

from vitrail.data.band_view import pixels_to_view, to_view
from vitrail.data.preprocess import Fit, Preprocess
from vitrail.data.transforms import crop_window, to_pixels
from vitrail.report.contact_sheet import contact_sheet

SIDE = 160  # pixels of a drawn image
FITS: tuple[Fit, ...] = get_args(Fit)


@dataclass(frozen=True)
class FitCost:
    """Cost of a fit for images of some sizes, on average."""

    lost: float  # fraction of the image's area that the model does not get
    padding: float  # fraction of the input that is padding
    distortion: float  # factor by which the aspect ratio changes, 1 if it does not


def measure_fits(sizes: Int[ndarray, "n 2"], preprocess: Preprocess) -> dict[Fit, FitCost]:
    """Return what each fit costs images of these heights and widths."""
    distinct, counts = np.unique(sizes, axis=0, return_counts=True)
    means = {}
    for fit in FITS:
        fitted = preprocess.with_fit(fit)
        costs = [_cost((width, height), fitted) for height, width in distinct.tolist()]
        means[fit] = FitCost(*np.average([tuple(vars(cost).values()) for cost in costs], axis=0, weights=counts).tolist())
    return means


def _cost(size: tuple[int, int], preprocess: Preprocess) -> FitCost:
    width, height = size
    resized, (left, top, right, bottom) = crop_window(size, preprocess)
    used = (min(right, width) - max(left, 0)) * (min(bottom, height) - max(top, 0))
    across, down = resized[0] / width, resized[1] / height
    return FitCost(
        round(1 - used / (width * height), 9),  # without the noise of floating-point arithmetic
        round(1 - used / ((right - left) * (bottom - top)), 9),
        max(across, down) / min(across, down),
    )


def draw_fits(contents: Sequence[bytes | ndarray], preprocess: Preprocess, bands: Sequence[int] = ()) -> Image.Image:
    """Draw a row for every image, encoded or as pixels: the original, and the model's input by each fit."""
    cells, captions = [], []
    for content in contents:
        original = to_view(content, bands=bands)
        cells.append(original)
        captions.append(f"{original.width} x {original.height}")
        for fit, cost in measure_fits(np.array([[original.height, original.width]]), preprocess).items():
            pixels = to_pixels(content, preprocess.with_fit(fit))
            cells.append(pixels_to_view(pixels, bands))
            captions.append(f"{fit}: {describe_cost(fit, cost)}")
    return contact_sheet(cells, captions, columns=1 + len(FITS), side=SIDE)


def describe_cost(fit: Fit, cost: FitCost) -> str:
    """Describe in a few words what a fit costs."""
    if fit == "crop":
        return f"{cost.lost:.0%} lost"
    return f"{cost.padding:.0%} padding" if fit == "pad" else f"aspect ratio x {cost.distortion:.2f}"
