"""Columns of a table that hold the targets, and how labels are separated in them. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitrail.config import added, validate
from vitrail.errors import VitrailError

SEPARATORS = ";|,"  # those that are found, tried in this order
NONE_IGNORED = "none"  # written if no value in masks is ignored
NO_SEPARATOR = "none"  # written for one label per image, whatever characters it has


@dataclass(frozen=True)
class Columns:
    """Columns of the targets in a table, Parquet file or Hugging Face dataset; what is left open is found by names and values.

    ``labels``: the column of labels. ``separator``: the text between several labels of one image, or ``none`` if a cell is one
    label. ``several``: whether an image may have several labels, or none. ``targets``: columns of numbers to predict.
    ``masks``: whether the masks of images are the targets; left open, they are if the images have no labels. ``ignore``: values
    in masks, or names of classes, whose pixels count for no class, or ``none``; left open, 255 and classes such as void.
    ``boxes``: whether the boxes of images are the targets; left open, they are if the images have neither labels nor masks.
    """

    labels: str | None = None
    separator: str | None = None
    several: bool | None = None
    targets: tuple[str, ...] = ()
    masks: bool | None = added(None)
    ignore: tuple[str, ...] = added(())
    boxes: bool | None = added(None)

    def __post_init__(self) -> None:
        validate(self)
        if self.separator == "":
            raise VitrailError(f"separator must not be empty; try separator=; or, for one label per image, {NO_SEPARATOR}")
        if self.targets and (self.labels or self.separator):
            raise VitrailError("target predicts numbers, labels_column and separator are for classes; leave one of them out")
        if self.boxes and self.masks:
            raise VitrailError("either masks or boxes are the targets, got both; leave one of them out")
        if len(set(self.targets)) < len(self.targets):
            raise VitrailError(f"a target is named twice in {', '.join(self.targets)}; name each once")
        if self.separator == NO_SEPARATOR:
            if self.several:
                raise VitrailError(f"several labels per image need a separator, got {NO_SEPARATOR}; try separator=;")
            object.__setattr__(self, "several", False)

    @property
    def for_other_data(self) -> "Columns":
        """The columns without the name of that of the labels, which another dataset for the same model may call otherwise."""
        return replace(self, labels=None)

    @property
    def allow_boxes(self) -> bool:
        """Whether the boxes of images may be the targets: if they are chosen, or nothing else is."""
        has_others = self.masks is not None or bool(self.targets or self.several or self.splits_cells)
        return not has_others if self.boxes is None else self.boxes

    @property
    def splits_cells(self) -> bool:
        """Whether a separator is named at which cells are split."""
        return self.separator not in (None, NO_SEPARATOR)


ANY_COLUMNS = Columns()  # all is found


def choose_columns(
    labels_column: str | None = None,
    separator: str | None = None,
    target: str | Sequence[str] | None = None,
    ignore: str | int | Sequence[str | int] | None = None,
) -> Columns:
    """Return the columns that options name; a separator means several labels per image, and values to ignore mean masks."""
    targets = () if target is None else (target,) if isinstance(target, str) else tuple(target)
    several = None if separator in (None, NO_SEPARATOR) else True
    ignored = () if ignore is None else (ignore,) if isinstance(ignore, str | int) else tuple(ignore)
    names = tuple(part.strip() for item in ignored for part in str(item).split(",") if part.strip())
    return Columns(labels_column, separator, several, targets, True if names else None, names)
