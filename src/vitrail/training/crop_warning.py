"""A warning if evaluation crops much of the images away, which nothing else shows."""

from collections.abc import Iterator

from vitrail.data.dataset_check import DatasetReport
from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import crop_window

MAX_LOST = 0.45  # fraction of an image that a crop may lose: 4:3 photographs lose 0.39 at the usual crop_pct of 0.9, 3:2 0.46


def crop_warning(report: DatasetReport, preprocess: Preprocess) -> Iterator[str]:
    """Yield a warning if the centre crop loses much of an image of the median height and width."""
    if preprocess.fit != "crop" or not report.sizes:
        return
    height, width = report.sizes["height"][1], report.sizes["width"][1]
    _, (left, top, right, bottom) = crop_window((width, height), preprocess)
    lost = 1 - (right - left) * (bottom - top) / (width * height)
    if lost > MAX_LOST:
        yield (
            f"the centre crop loses {lost:.0%} of an image of the median size, {height} pixels high and {width} wide; "
            f"--fit stretch or pad keeps all of it, and `vitrail data show {report.data.name}` draws the three"
        )
