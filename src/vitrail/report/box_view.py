"""Boxes of a dataset as people look at them: drawn on thumbnails of their images, with a legend of the colours."""

from collections import Counter
from collections.abc import Sequence

from PIL import Image

from vitrail.data.sources.objects import Objects
from vitrail.plot.box_image import draw_boxes
from vitrail.report.contact_sheet import PAPER, contact_sheet, fit_scale, stack_sheets
from vitrail.report.mask_view import IGNORED_NAME, draw_legend

SIDE = 224  # pixels of a thumbnail
MAX_CAPTIONED = 3  # classes of a caption


def boxed_sheet(
    images: Sequence[Image.Image],
    objects: Sequence[Objects],
    names: Sequence[str],
    columns: int | None = None,
    side: int = SIDE,
) -> Image.Image:
    """Draw images with their boxes and how many of each class they have, and a legend of the classes that occur."""
    views = [_box_view(image, of_image, side) for image, of_image in zip(images, objects, strict=True)]
    captions = [box_caption(names, of_image) for of_image in objects]
    sheet = contact_sheet(views, captions, columns=columns, side=side)
    labels = sorted({label for of_image in objects for label in of_image.labels.tolist()})
    return stack_sheets(sheet, draw_legend(names, labels, False, sheet.width)) if labels else sheet


def _box_view(image: Image.Image, objects: Objects, side: int) -> Image.Image:
    """Draw the boxes on a thumbnail in the middle of a square, so that a sheet does not resize what is drawn."""
    scale = fit_scale(image.size, side)
    drawn = draw_boxes(image, objects.boxes, objects.labels, dashed=objects.crowd, scale=scale)
    square = Image.new("RGB", (side, side), PAPER)
    square.paste(drawn, ((side - drawn.width) // 2, (side - drawn.height) // 2))
    return square


def box_caption(names: Sequence[str], objects: Objects) -> str:
    """Return how many boxes of each class there are, the most frequent classes first."""
    kinds = [IGNORED_NAME if crowd else names[label] for label, crowd in zip(objects.labels, objects.crowd, strict=True)]
    counts = Counter(kinds).most_common()
    more = [f"{sum(count for _, count in counts[MAX_CAPTIONED:])} more"] if len(counts) > MAX_CAPTIONED else []
    return ", ".join([f"{count} {name}" for name, count in counts[:MAX_CAPTIONED]] + more) or "no box"
