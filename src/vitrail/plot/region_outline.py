"""The outline of a region of an image, drawn around it, so that a single pixel can be found and none of it is covered.

height and width the sides of the model's input.
"""

import numpy as np
from jaxtyping import Bool
from numpy import ndarray
from PIL import Image, ImageChops, ImageFilter

from vitrail.plot.canvas import ImageShape

SCALE = 2  # pixels of the outline for one of the figure
RINGS = ((0, (255, 255, 255)), (3, (0, 0, 0)))  # from how far around the region, in pixels of the outline, and the colour
RING_WIDTH = 3  # pixels of the outline


def region_outline(region: Bool[ndarray, "height width"], width: int, height: int) -> ImageShape:
    """Return a white line with a black edge around a region, which is seen on every image, for a figure of this size."""
    size = SCALE * width, SCALE * height
    inside = Image.fromarray(region.astype(np.uint8) * 255).resize(size, Image.Resampling.NEAREST)
    outline = Image.new("RGBA", size)
    for distance, colour in RINGS:
        ring = ImageChops.subtract(_grow(inside, distance + RING_WIDTH), _grow(inside, distance))
        outline.paste((*colour, 255), mask=ring)
    return ImageShape((0.0, 0.0, float(width), float(height)), outline)


def _grow(mask: Image.Image, distance: int) -> Image.Image:
    return mask.filter(ImageFilter.MaxFilter(2 * distance + 1)) if distance else mask
