"""Page of ``vitrail data check``: the content of a dataset and its problems."""

from collections.abc import Iterator

import numpy as np
from PIL import Image

from vitrail.augment.chance import permutation
from vitrail.data.check import Checked, Copies
from vitrail.data.decode import as_picture, decode
from vitrail.data.sources.source import Source, label_name
from vitrail.report.markup import text
from vitrail.report.page import page, table
from vitrail.report.pictures import data_address, sheet

MOST_ROWS = 500
MOST_CLASSES = 200
MOST_PICTURES = 60


def data_page(checked: Checked) -> str:
    return page(f"Data check of {checked.data.name}", _parts(checked))


def contact_sheet(source: Source, most: int = MOST_PICTURES) -> Image.Image | None:
    """Draw random images of every class, ordered by class."""
    pictures, captions = [], []
    for index in first_of_each(source.labels, most).tolist():
        content = source.content(index)
        pictures.append(decode(content, least=(128, 128)) if isinstance(content, bytes) else as_picture(content))
        captions.append(label_name(source, index))
    return sheet(pictures, captions, columns=10) if pictures else None


def first_of_each(labels: np.ndarray, most: int) -> np.ndarray:
    """Return random indices, one of each class, then a second of each ..., ordered by class."""
    order = permutation(0, 0, len(labels))
    chosen = order[np.argsort(_turn(labels[order]), kind="stable")[:most]]
    return chosen[np.argsort(labels[chosen], kind="stable")]


def _turn(labels: np.ndarray) -> np.ndarray:
    """Return how many equal labels precede each label."""
    order = np.argsort(labels, kind="stable")
    turn = np.empty(len(labels), np.int64)
    turn[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return turn


def _parts(checked: Checked) -> Iterator[str]:
    data = checked.data
    sizes = ", ".join(f"{len(source):,} {split}" for split, source in data.splits.items())
    yield f"<h1>{text(data.name)}</h1>"
    mark = f"fingerprint <code>{data.fingerprint[:16]}</code>"
    yield f'<p class="soft">{len(data.names):,} classes; usable images: {sizes}; {mark}</p>'
    yield from _verdict(checked)
    if checked.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{text(note)}</li>" for note in checked.notes) + "</ul>"
    shown = contact_sheet(next((part for part in data.splits.values() if len(part)), data.train))
    if shown is not None:
        yield f'<h2>Images</h2><img alt="Random images of each class" src="{data_address(shown)}">'
    yield from _balance(checked)
    yield from _make_up(checked)
    if checked.bad:
        rows = [(text(item.where), text(item.reason), item.split) for item in checked.bad[:MOST_ROWS]]
        yield f"<h2>Unusable images ({len(checked.bad):,})</h2>" + table(("file", "reason", "split"), rows)
    yield from _copies("The same image in two splits", checked.leaks)
    yield from _copies("The same image with two labels", checked.conflicts)
    yield from _copies("Duplicate images", checked.duplicates)


def _verdict(checked: Checked) -> Iterator[str]:
    if checked.ok:
        yield '<p class="good">Every image is usable; none is in two splits or has two labels.</p>'
        return
    faults = [
        f"{len(found):,} {what if len(found) > 1 else once}"
        for found, once, what in (
            (checked.bad, "image is unusable", "images are unusable"),
            (checked.leaks, "image is in two splits", "images are in two splits"),
            (checked.conflicts, "image has two labels", "images have two labels"),
        )
        if found
    ]
    yield f'<p class="bad">{text("; ".join(faults))}.</p>'


def _balance(checked: Checked) -> Iterator[str]:
    most = max((max(counts.values()) for counts in checked.classes.values()), default=0)
    rows = [
        (
            text(name),
            *(f"{counts[split]:,}" for split in counts),
            f'<span class="bar" style="width:{counts["train"] / max(most, 1) * 12:.2f}rem"></span>',
        )
        for name, counts in list(checked.classes.items())[:MOST_CLASSES]
    ]
    more = len(checked.classes) - len(rows)
    yield "<h2>Classes</h2>" + table(("class", "#train", "#validation", "#test", "train"), rows)
    if more > 0:
        yield f'<p class="soft">and {more:,} more classes</p>'


def _make_up(checked: Checked) -> Iterator[str]:
    if checked.sizes:
        rows = [(side, *(f"{value:,}" for value in values)) for side, values in checked.sizes.items()]
        yield "<h2>Sizes</h2>" + table(("side", "#minimum", "#median", "#maximum"), rows)
    if checked.kinds:
        yield "<h2>Formats</h2>" + table(
            ("format and mode", "#images"), [(text(k), f"{n:,}") for k, n in checked.kinds.items()]
        )


def _copies(title: str, groups: tuple[Copies, ...]) -> Iterator[str]:
    if groups:
        rows = [
            (
                "<br>".join(text(where) for where in group.where),
                "<br>".join(group.splits),
                "<br>".join(text(name) for name in group.classes),
            )
            for group in groups[:MOST_ROWS]
        ]
        yield f"<h2>{text(title)} ({len(groups):,})</h2>" + table(("files", "split", "class"), rows)
