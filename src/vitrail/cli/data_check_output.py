"""Print what ``vitrail data check`` has found, as text or JSON."""

from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.console import add_row, make_console, make_table
from vitrail.cli.options import column_options
from vitrail.errors import printable

if TYPE_CHECKING:
    from vitrail.data.box_summary import BoxFinding, BoxSummary
    from vitrail.data.dataset_check import DatasetReport
    from vitrail.data.mask_summary import MaskSummary
    from vitrail.data.target_summary import TargetSummary

MAX_PRINTED_ROWS = 12  # of each kind of finding printed; the page and --json have more
SPLITS = ("train", "validation", "test")


def report_json(report: "DatasetReport", page: Path | None) -> dict[str, object]:
    return {
        "ok": report.ok,
        "data": report.data.name,
        "fingerprint": report.data.fingerprint,
        "images": report.num_images,
        "splits": {split: len(source) for split, source in report.data.splits.items()},
        "bad": [vars(item) for item in report.bad],
        "leaks": [vars(item) for item in report.leaks],
        "conflicts": [vars(item) for item in report.conflicts],
        "duplicates": [vars(item) for item in report.duplicates],
        "classes": report.classes,
        "sizes": report.sizes,
        "formats": report.image_formats,
        "notes": report.notes,
        **_targets_json(report.targets),
        **_masks_json(report),
        **_boxes_json(report.boxes),
        "page": None if page is None else str(page),
    }


def _masks_json(report: "DatasetReport") -> dict[str, object]:
    """Return what is known of masks; classes that are absent are those without any pixel."""
    masks = report.masks
    fields = () if masks is None else ("pixels", "ignored", "uniform", "empty")
    absent = {} if masks is None else {"absent": masks.absent}
    return {
        **absent,
        "masks": None if masks is None else {name: getattr(masks, name) for name in fields},
        "left_out": [vars(file) for file in report.data.left_out],
    }


def _boxes_json(boxes: "BoxSummary | None") -> dict[str, object]:
    """Return what is known of boxes; classes that are absent are those without any box."""
    if boxes is None:
        return {"boxes": None}
    return {
        "absent": boxes.absent,
        "boxes": {
            "counts": boxes.boxes,
            "sizes": boxes.sizes,
            "per_image": {split: vars(each) for split, each in boxes.per_image.items()},
            "crowds": boxes.crowds,
            "tiny": {name: vars(each) for name, each in boxes.tiny.items()},
            **{name: [vars(each) for each in getattr(boxes, name)] for name in ("faults", "repeated", "overhanging")},
        },
    }


def _targets_json(targets: "TargetSummary") -> dict[str, object]:
    several = targets.several
    return {
        "absent": targets.absent,
        "similar": targets.similar,
        "labels_per_image": None if several is None else {"mean": several.mean, "max": several.most},
        "unlabelled": None if several is None else several.unlabelled,
        "pairs": None if several is None else [vars(pair) for pair in several.pairs],
        "numbers": {name: {split: vars(each) for split, each in splits.items()} for name, splits in targets.numbers.items()},
        "outliers": [vars(each) for each in targets.outliers],
        "num_outliers": targets.num_outliers,
    }


def print_report(report: "DatasetReport", page: Path | None) -> None:
    screen = make_console()
    classes = make_table(
        "images with class" if report.masks or report.boxes else "class" if report.classes else "",
        "#train",
        "#validation",
        "#test",
        title=f"{report.data.name}: {report.num_images:,} images",
    )
    for name, counts in list(report.classes.items())[: 3 * MAX_PRINTED_ROWS]:
        add_row(classes, printable(name), *(f"{counts[split]:,}" for split in ("train", "validation", "test")))
    if len(report.classes) > 3 * MAX_PRINTED_ROWS:
        add_row(classes, f"and {len(report.classes) - 3 * MAX_PRINTED_ROWS:,} more")
    add_row(classes, "all", *(f"{len(source):,}" for source in report.data.splits.values()))
    if report.targets.several is not None:
        add_row(
            classes,
            "without any label",
            *(f"{report.targets.several.unlabelled.get(split, 0):,}" for split in report.data.splits),
        )
    screen.print(classes)
    _print_targets(report.targets)
    if report.masks is not None:
        _print_masks(report.masks)
    if report.boxes is not None:
        _print_boxes(report.boxes)
    for side, (least, median, most) in report.sizes.items():
        screen.print(f"{side}: {least:,} to {most:,}, median {median:,}")
    if report.image_formats:
        screen.print("formats: " + ", ".join(f"{count:,} {kind}" for kind, count in report.image_formats.items()))
    for note in report.notes:
        screen.print(printable(f"note: {column_options(note)}"), soft_wrap=True)
    for title, groups in (
        ("in two splits (leakage)", report.leaks),
        (f"with different {report.target_noun} (label conflict)", report.conflicts),
        ("more than once (duplicate)", report.duplicates),
    ):
        if groups:
            screen.print(f"\nthe same image {title}: {len(groups):,}")
            for group in groups[:MAX_PRINTED_ROWS]:
                copies = " = ".join(group.locations[:4]) + (" ..." if len(group.locations) > 4 else "")
                screen.print(printable(f"  {copies}"), soft_wrap=True)
    if report.bad:
        screen.print(f"\n{'unreadable' if report.target_noun == 'labels' else 'unusable'} images: {len(report.bad):,}")
        for item in report.bad[:MAX_PRINTED_ROWS]:
            screen.print(printable(f"  {item.location} {column_options(item.reason)}"), soft_wrap=True)
    left_out = report.data.left_out
    if left_out:
        screen.print(f"\nleft out: {len(left_out):,}")
        for file in left_out[:MAX_PRINTED_ROWS]:
            screen.print(printable(f"  {file.location} {file.reason}"), soft_wrap=True)
    boxes = report.boxes
    of_boxes = () if boxes is None else (boxes.faults, boxes.repeated, boxes.overhanging)
    if max(map(len, (report.bad, left_out, report.leaks, report.conflicts, report.duplicates, *of_boxes))) > MAX_PRINTED_ROWS:
        screen.print("--json lists them all")
    good = f"all images are readable, none is in two splits or has conflicting {report.target_noun}"
    verdict = good if report.ok else "problems found: see above"
    screen.print(f"\n{verdict}" + (f"; page: {page}" if page else "; --page FILE.html draws it"))


def _print_masks(masks: "MaskSummary") -> None:
    """Print which fraction of the pixels of each split every class has, and how many masks say little."""
    screen = make_console()
    table = make_table("pixels of class", "#train", "#validation", "#test")
    for name in list(masks.pixels)[: 3 * MAX_PRINTED_ROWS]:
        add_row(table, printable(name), *(f"{masks.fraction(name, split):.2%}" for split in SPLITS))
    if len(masks.pixels) > 3 * MAX_PRINTED_ROWS:
        add_row(table, f"and {len(masks.pixels) - 3 * MAX_PRINTED_ROWS:,} more")
    add_row(table, "ignored pixels", *(f"{masks.ignored[split]:,}" for split in SPLITS))
    add_row(table, "masks of one class", *(f"{masks.uniform[split]:,}" for split in SPLITS))
    add_row(table, "masks ignored as a whole", *(f"{masks.empty[split]:,}" for split in SPLITS))
    screen.print(table)
    for split, names in masks.absent.items():
        more = f" and {len(names) - MAX_PRINTED_ROWS:,} more" if len(names) > MAX_PRINTED_ROWS else ""
        screen.print(
            printable(f"no mask of {split} has the class {', '.join(map(repr, names[:MAX_PRINTED_ROWS]))}{more}"),
            soft_wrap=True,
        )


def _print_boxes(boxes: "BoxSummary") -> None:
    """Print how many boxes each class has in each split and of each size, and those that look wrong."""
    from vitrail.data.box_summary import INPUT_SIDE, PATCH, SIZE_LIMITS

    screen = make_console()
    table = make_table("boxes of class", "#train", "#validation", "#test", *(f"#{size}" for size in SIZE_LIMITS))
    for name in list(boxes.boxes)[: 3 * MAX_PRINTED_ROWS]:
        counts = [boxes.boxes[name][split] for split in SPLITS] + list(boxes.sizes[name].values())
        add_row(table, printable(name), *(f"{count:,}" for count in counts))
    if len(boxes.boxes) > 3 * MAX_PRINTED_ROWS:
        add_row(table, f"and {len(boxes.boxes) - 3 * MAX_PRINTED_ROWS:,} more")
    screen.print(table)
    for split, each in boxes.per_image.items():
        crowds = f"; {boxes.crowds[split]:,} crowds" if boxes.crowds[split] else ""
        empty = f"; {each.empty:,} images without any" if each.empty else ""
        screen.print(f"{split}: {each.mean:.1f} boxes per image on average, at most {each.most:,}{empty}{crowds}")
    for split, names in boxes.absent.items():
        more = f" and {len(names) - MAX_PRINTED_ROWS:,} more" if len(names) > MAX_PRINTED_ROWS else ""
        names_text = ", ".join(map(repr, names[:MAX_PRINTED_ROWS]))
        screen.print(printable(f"no image of {split} has a box of {names_text}{more}"), soft_wrap=True)
    for name, tiny in list(boxes.tiny.items())[:MAX_PRINTED_ROWS]:
        screen.print(
            printable(
                f"tiny: {tiny.count:,} boxes of {name} ({tiny.fraction:.0%}) are {tiny.smallest:.1f} to {tiny.largest:.1f} "
                f"pixels wide or high in an input of {INPUT_SIDE} x {INPUT_SIDE}, less than a quarter of a patch of {PATCH}; "
                f"--image-size {2 * INPUT_SIDE} doubles them; the first is in {tiny.first}"
            ),
            soft_wrap=True,
        )
    _print_findings("boxes left out", boxes.faults)
    _print_findings("the same object twice", boxes.repeated)
    _print_findings("boxes that reach out of their image", boxes.overhanging)


def _print_findings(title: str, findings: "tuple[BoxFinding, ...]") -> None:
    screen = make_console()
    if findings:
        screen.print(f"\n{title}: {len(findings):,}")
        for each in findings[:MAX_PRINTED_ROWS]:
            screen.print(printable(f"  {each.location} {each.reason}"), soft_wrap=True)


def _print_targets(targets: "TargetSummary") -> None:
    screen = make_console()
    if (several := targets.several) is not None:
        screen.print(f"labels per image: {several.mean:.2f} on average, at most {several.most:,}")
        pairs = make_table("label", "and", "#images", "#Jaccard", title="labels that occur together most")
        for pair in several.pairs[:MAX_PRINTED_ROWS]:
            add_row(pairs, printable(pair.labels[0]), printable(pair.labels[1]), f"{pair.images:,}", f"{pair.jaccard:.2f}")
        if several.pairs:
            screen.print(pairs)
    if targets.numbers:
        table = make_table("target", "split", "#minimum", "#mean", "#maximum", "#standard deviation", "#missing")
        for name, splits in targets.numbers.items():
            for split, each in splits.items():
                add_row(table, printable(name), split, *map("{:.4g}".format, each.statistics), f"{each.missing:,}")
        screen.print(table)
    for split, names in targets.absent.items():
        more = f" and {len(names) - MAX_PRINTED_ROWS:,} more" if len(names) > MAX_PRINTED_ROWS else ""
        screen.print(printable(f"no {split} image has the label {', '.join(names[:MAX_PRINTED_ROWS])}{more}"), soft_wrap=True)
    for group in targets.similar[:MAX_PRINTED_ROWS]:
        screen.print(printable(f"almost the same name: {' and '.join(map(repr, group))}"), soft_wrap=True)
    if targets.outliers:
        screen.print(f"outliers, more than three interquartile ranges beyond the quartiles: {targets.num_outliers:,}")
        for outlier in targets.outliers[:MAX_PRINTED_ROWS]:
            screen.print(printable(f"  {outlier.target} {outlier.value:.6g}: {outlier.location}"), soft_wrap=True)
