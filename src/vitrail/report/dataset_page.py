"""Page of ``vitrail data check``: the content of a dataset and its problems."""

from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from vitrail.augment.counter_rng import permutation
from vitrail.data.band_view import to_view
from vitrail.data.box_summary import INPUT_SIDE, PATCH, SIZE_LIMITS, BoxFinding, BoxSummary
from vitrail.data.dataset_check import DatasetReport, DuplicateGroup
from vitrail.data.mask_summary import MaskSummary
from vitrail.data.sources.dataset import Dataset, evenly_spaced, label_name
from vitrail.data.target_summary import TargetSummary
from vitrail.plot.markup import escape
from vitrail.report.box_view import boxed_sheet
from vitrail.report.contact_sheet import contact_sheet, data_uri
from vitrail.report.html import html_page, html_table
from vitrail.report.mask_view import mask_caption, masked_sheet, swatch

MAX_ROWS = 500
MAX_CLASSES = 200
MAX_SAMPLES = 60
MAX_BOXED, BOXED_COLUMNS, BOXED_SIDE = 20, 5, 200  # images with boxes, which are larger: pixels of their longer side
MAX_PAIRS = 30  # pairs of labels
MAX_NAMES = 30  # labels that are missing in a split


def dataset_page(report: DatasetReport) -> str:
    return html_page(f"Data check of {report.data.name}", _sections(report))


def sample_sheet(dataset: Dataset, max_images: int = MAX_SAMPLES) -> Image.Image | None:
    """Draw random images of every class, ordered by class."""
    images, captions = [], []
    for index in balanced_sample(_group_of_each(dataset), max_images).tolist():
        content = dataset.read(index)
        images.append(to_view(content, min_size=(128, 128)))
        captions.append(label_name(dataset, index))
    return contact_sheet(images, captions, columns=10) if images else None


def masked_sample_sheet(dataset: Dataset, max_images: int = MAX_SAMPLES) -> Image.Image | None:
    """Draw images from the first to the last with their masks over them, and a legend."""
    images, masks = [], []
    for index in evenly_spaced(len(dataset), max_images).tolist():
        images.append(to_view(dataset.read(index)))
        masks.append(dataset.mask(index))
    captions = [mask_caption(dataset.class_names, mask) for mask in masks]
    return masked_sheet(images, masks, captions, dataset.class_names, columns=10) if images else None


def boxed_sample_sheet(dataset: Dataset, max_images: int = MAX_BOXED) -> Image.Image | None:
    """Draw images from the first to the last with their boxes, and a legend."""
    indices = evenly_spaced(len(dataset), max_images).tolist()
    images = [to_view(dataset.read(index)) for index in indices]
    objects = list(map(dataset.objects, indices))
    return boxed_sheet(images, objects, dataset.class_names, BOXED_COLUMNS, BOXED_SIDE) if images else None


def _group_of_each(dataset: Dataset) -> np.ndarray:
    """Return the class of each image; of one with several, the rarest of them."""
    if (label_sets := dataset.label_sets) is None:
        return dataset.labels
    counts = label_sets.counts()
    return np.array([min(label_sets.classes_of(index), key=counts.__getitem__, default=-1) for index in range(len(dataset))])


def balanced_sample(labels: np.ndarray, count: int) -> np.ndarray:
    """Return random indices, one of each class, then a second of each ..., ordered by class."""
    order = permutation(0, 0, len(labels))
    selected = order[np.argsort(_occurrences(labels[order]), kind="stable")[:count]]
    return selected[np.argsort(labels[selected], kind="stable")]


def _occurrences(labels: np.ndarray) -> np.ndarray:
    """Return how many equal labels precede each label."""
    order = np.argsort(labels, kind="stable")
    occurrence = np.empty(len(labels), np.int64)
    occurrence[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return occurrence


def _sections(report: DatasetReport) -> Iterator[str]:
    data = report.data
    sizes = ", ".join(f"{len(source):,} {split}" for split, source in data.splits.items())
    yield f"<h1>{escape(data.name)}</h1>"
    fingerprint = f"fingerprint <code>{data.fingerprint[:16]}</code>"
    targets = f"numbers: {', '.join(data.target_names)}" if data.target_names else f"{len(data.class_names):,} classes"
    yield f'<p class="soft">{escape(targets)}; usable images: {sizes}; {fingerprint}</p>'
    yield from _summary(report)
    if report.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in report.notes) + "</ul>"
    first = next((part for part in data.splits.values() if len(part)), data.train)
    samples = _draw_samples(first)
    if samples is not None:
        yield f'<h2>Images</h2><img alt="Images with their targets" src="{data_uri(samples)}">'
    if report.masks is not None:
        yield from _class_pixels(report.masks)
    elif report.boxes is not None:
        yield from _boxes(report.boxes)
    elif data.class_names:
        yield from _class_balance(report)
    yield from _label_pairs(report.targets)
    yield from _numbers(report.targets)
    yield from _sizes_and_formats(report)
    if report.bad:
        rows = [(escape(item.location), escape(item.reason), item.split) for item in report.bad[:MAX_ROWS]]
        yield f"<h2>Unusable images ({len(report.bad):,})</h2>" + html_table(("file", "reason", "split"), rows)
    if left_out := report.data.left_out:
        rows = [(escape(file.location), escape(file.reason), file.split) for file in left_out[:MAX_ROWS]]
        yield f"<h2>Left out ({len(left_out):,})</h2>" + html_table(("file", "reason", "split"), rows)
    yield from _duplicates("The same image in two splits", report.leaks)
    yield from _duplicates(f"The same image with different {report.target_noun}", report.conflicts)
    yield from _duplicates("Duplicate images", report.duplicates)


def _draw_samples(dataset: Dataset) -> Image.Image | None:
    if dataset.has_mask_targets:
        return masked_sample_sheet(dataset)
    return boxed_sample_sheet(dataset) if dataset.has_box_targets else sample_sheet(dataset)


def _summary(report: DatasetReport) -> Iterator[str]:
    if report.ok:
        yield '<p class="good">Every image is usable; none is in two splits or has conflicting labels.</p>'
        return
    problems = [
        f"{len(items):,} {plural if len(items) > 1 else singular}"
        for items, singular, plural in (
            (report.bad, "image is unusable", "images are unusable"),
            (report.leaks, "image is in two splits", "images are in two splits"),
            (report.conflicts, "image has conflicting labels", "images have conflicting labels"),
            (report.data.left_out, "file is left out", "files are left out"),
        )
        if items
    ]
    if report.boxes is not None and not report.boxes.ok:
        problems.append(f"{len(report.boxes.faults) + len(report.boxes.repeated):,} boxes look wrong")
    yield f'<p class="bad">{escape("; ".join(problems))}.</p>'


def _class_balance(report: DatasetReport) -> Iterator[str]:
    largest = max((max(counts.values()) for counts in report.classes.values()), default=0)
    rows = [
        (
            escape(name),
            *(f"{counts[split]:,}" for split in counts),
            _bar(counts["train"] / max(largest, 1)),
        )
        for name, counts in list(report.classes.items())[:MAX_CLASSES]
    ]
    more = len(report.classes) - len(rows)
    yield "<h2>Classes</h2>" + html_table(("class", "#train", "#validation", "#test", "train"), rows)
    if more > 0:
        yield f'<p class="soft">and {more:,} more classes</p>'
    for split, names in report.targets.absent.items():
        yield f"<p>No {split} image has the label {escape(_list(names))}.</p>"
    for group in report.targets.similar[:MAX_ROWS]:
        yield f'<p class="bad">{escape(" and ".join(map(repr, group)))} are different classes of almost the same name.</p>'


def _class_pixels(masks: MaskSummary) -> Iterator[str]:
    """Show the fraction of the pixels of each class, how many images have any, and masks that say little."""
    splits = [split for split in masks.ignored if any(by_split[split] for by_split in masks.images.values())]
    rows = [
        (
            f"{swatch(label)}{escape(name)}",
            *(cell for split in splits for cell in (f"{masks.fraction(name, split):.2%}", f"{masks.images[name][split]:,}")),
            _bar(max((masks.fraction(name, split) for split in splits), default=0.0)),
        )
        for label, name in enumerate(list(masks.pixels)[:MAX_CLASSES])
    ]
    yield "<h2>Classes of pixels</h2><p>Fraction of the pixels that count, and images that have any.</p>"
    yield html_table(("class", *(title for split in splits for title in (f"#{split}", "#images")), ""), rows)
    if len(masks.pixels) > MAX_CLASSES:
        yield f'<p class="soft">and {len(masks.pixels) - MAX_CLASSES:,} more classes</p>'
    counts = [
        (title, *(f"{by_split[split]:,}" for split in splits))
        for title, by_split in (
            ("ignored pixels", masks.ignored),
            ("masks of one class", masks.uniform),
            ("masks ignored as a whole", masks.empty),
        )
    ]
    yield html_table(("", *(f"#{split}" for split in splits)), counts)
    for split, names in masks.absent.items():
        yield f"<p>No mask of {split} has the class {escape(_list(names))}.</p>"


def _boxes(boxes: BoxSummary) -> Iterator[str]:
    """Show how many boxes there are of each class and size, and those that look wrong."""
    splits = list(boxes.per_image)
    largest = max((max(by_split.values()) for by_split in boxes.boxes.values()), default=0)
    rows = [
        (
            f"{swatch(label)}{escape(name)}",
            *(cell for split in splits for cell in (f"{boxes.boxes[name][split]:,}", f"{boxes.images[name][split]:,}")),
            *(f"{boxes.sizes[name][size]:,}" for size in SIZE_LIMITS),
            _bar(max(boxes.boxes[name].values()) / max(largest, 1)),
        )
        for label, name in enumerate(list(boxes.boxes)[:MAX_CLASSES])
    ]
    yield (
        "<h2>Boxes</h2><p>Boxes of each class, and images that have any. Small is an area of up to 32 x 32 pixels, medium one "
        "of up to 96 x 96, as in COCO.</p>"
    )
    titles = [title for split in splits for title in (f"#{split}", "#images")]
    yield html_table(("class", *titles, *(f"#{size}" for size in SIZE_LIMITS), ""), rows)
    if len(boxes.boxes) > MAX_CLASSES:
        yield f'<p class="soft">and {len(boxes.boxes) - MAX_CLASSES:,} more classes</p>'
    per_image = boxes.per_image.values()
    yield html_table(
        ("", *(f"#{split}" for split in splits)),
        [
            ("boxes per image, mean", *(f"{each.mean:.1f}" for each in per_image)),
            ("median", *(f"{each.median:g}" for each in per_image)),
            ("maximum", *(f"{each.most:,}" for each in per_image)),
            ("images without any box", *(f"{each.empty:,}" for each in per_image)),
            ("crowds", *(f"{boxes.crowds[split]:,}" for split in splits)),
        ],
    )
    for split, names in boxes.absent.items():
        yield f"<p>No image of {split} has a box of the class {escape(_list(names))}.</p>"
    if boxes.tiny:
        tiny = [
            (escape(name), f"{each.count:,}", f"{each.fraction:.0%}", f"{each.smallest:.1f} to {each.largest:.1f}",
             escape(each.first))
            for name, each in boxes.tiny.items()
        ]  # fmt: skip
        yield (
            f"<h2>Tiny boxes</h2><p>In an input of {INPUT_SIDE} x {INPUT_SIDE} pixels their shorter side is under a quarter of "
            f"a patch of {PATCH}; a larger input makes them larger.</p>"
        )
        yield html_table(("class", "#boxes", "#of the class", "#pixels of the input", "the first"), tiny)
    yield from _findings("Boxes that are left out", boxes.faults)
    yield from _findings("The same object twice", boxes.repeated)
    yield from _findings("Boxes that reach out of their image", boxes.overhanging)


def _findings(title: str, findings: Sequence[BoxFinding]) -> Iterator[str]:
    if findings:
        rows = [(escape(each.location), escape(each.label), escape(each.reason), each.split) for each in findings[:MAX_ROWS]]
        yield f"<h2>{title} ({len(findings):,})</h2>" + html_table(("object", "class", "reason", "split"), rows)


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _label_pairs(targets: TargetSummary) -> Iterator[str]:
    if (several := targets.several) is None:
        return
    without = ", ".join(f"{count:,} {split}" for split, count in several.unlabelled.items())
    yield (
        f"<h2>Several labels per image</h2><p>An image has {several.mean:.2f} labels on average and at most {several.most:,}. "
        f"Images without any label: {without}.</p>"
    )
    if several.pairs:
        rows = [
            (escape(pair.labels[0]), escape(pair.labels[1]), f"{pair.images:,}", f"{pair.jaccard:.2f}", _bar(pair.jaccard))
            for pair in several.pairs[:MAX_PAIRS]
        ]
        yield (
            "<h2>Labels that occur together</h2><p>Number of images with both; Jaccard: divided by the number with either.</p>"
        )
        yield html_table(("label", "and", "#images", "#Jaccard", ""), rows)


def _numbers(targets: TargetSummary) -> Iterator[str]:
    if not targets.numbers:
        return
    rows = [
        (escape(name), split, *map("{:.4g}".format, numbers.statistics), f"{numbers.missing:,}")
        for name, splits in targets.numbers.items()
        for split, numbers in splits.items()
    ]
    yield "<h2>Numbers</h2>"
    yield html_table(("target", "split", "#minimum", "#mean", "#maximum", "#standard deviation", "#missing"), rows)
    if targets.outliers:
        outliers = [(escape(each.target), f"{each.value:.6g}", each.split, escape(each.location)) for each in targets.outliers]
        yield (
            f"<h2>Outliers ({targets.num_outliers:,})</h2>"
            "<p>Numbers more than three interquartile ranges beyond the quartiles.</p>"
        )
        yield html_table(("target", "#number", "split", "image"), outliers)


def _bar(fraction: float) -> str:
    return f'<span class="bar" style="width:{fraction * 12:.2f}rem"></span>'


def _sizes_and_formats(report: DatasetReport) -> Iterator[str]:
    if report.sizes:
        rows = [(side, *(f"{value:,}" for value in values)) for side, values in report.sizes.items()]
        yield "<h2>Sizes</h2>" + html_table(("side", "#minimum", "#median", "#maximum"), rows)
    if report.image_formats:
        yield "<h2>Formats</h2>" + html_table(
            ("format and mode", "#images"), [(escape(k), f"{n:,}") for k, n in report.image_formats.items()]
        )


def _duplicates(title: str, groups: tuple[DuplicateGroup, ...]) -> Iterator[str]:
    if groups:
        rows = [
            (
                "<br>".join(escape(where) for where in group.locations),
                "<br>".join(group.splits),
                "<br>".join(escape(name) for name in group.classes),
            )
            for group in groups[:MAX_ROWS]
        ]
        yield f"<h2>{escape(title)} ({len(groups):,})</h2>" + html_table(("files", "split", "class"), rows)
