"""Tables of the rows of an evaluation: its targets, labels or classes of pixels."""

from collections.abc import Mapping
from typing import Any

from vitrail.cli.console import add_row, make_console, make_table
from vitrail.errors import printable

MAX_PRINTED_ROWS = 5  # classes and pairs that are printed


def print_rows(details: Mapping[str, Any]) -> None:
    """Print the rows that the details of an evaluation have."""
    if "targets" in details:
        _print_targets(details["targets"])
    elif "iou" in details:
        _print_pixel_classes(details)
    elif "classes" in details and all("ap50" in row for row in details["classes"]):
        _print_detected_classes(details)
    elif "classes" in details:
        _print_labels(details["classes"])


def format_value(value: float, is_fraction: bool, signed: bool = False) -> str:
    """Format a fraction as a percentage, or any other number."""
    sign = "+" if signed else ""
    return f"{100 * value:{sign}.2f}{'' if signed else '%'}" if is_fraction else f"{value:{sign}.4g}"


def _print_targets(targets: list[dict[str, Any]]) -> None:
    table = make_table("target", "#MAE", "#RMSE", "#R²")
    for row in targets if len(targets) > 1 else ():
        add_row(table, printable(row["name"]), *(f"{row[name]:.4g}" for name in ("mae", "rmse", "r2")))
    _print_filled(table)


def _print_labels(classes: list[dict[str, Any]]) -> None:
    """Print the labels of lowest average precision."""
    rows = [row for row in classes if row["support"]]
    lowest = sorted(rows, key=lambda row: row["ap"])[:MAX_PRINTED_ROWS]
    table = make_table(
        "class", "#images", "#AP", "#threshold", "#precision", "#recall", "#F1", title="Classes of lowest average precision"
    )
    for row in lowest if len(rows) > 1 else ():
        scores = (f"{row[name]:.1%}" for name in ("precision", "recall", "f1"))
        add_row(table, printable(row["name"]), f"{row['support']:,}", f"{row['ap']:.1%}", f"{row['threshold']:.3f}", *scores)
    _print_filled(table)


def _print_pixel_classes(details: Mapping[str, Any]) -> None:
    """Print the classes of pixels, or those of lowest IoU if there are many; what is confused; and the worst images."""
    rows = [row for row in details["classes"] if row["iou"] == row["iou"]]  # that occur or are predicted
    shown = rows if len(rows) <= 2 * MAX_PRINTED_ROWS else sorted(rows, key=lambda row: row["iou"])[:MAX_PRINTED_ROWS]
    total = sum(row["pixels"] for row in rows)
    title = "Classes" if len(shown) == len(rows) else "Classes of lowest IoU"
    extra = {"pq": "PQ"} if "pq" in (rows[0] if rows else {}) else {}
    columns = {"dice": "Dice", "boundary_iou": "boundary IoU", "precision": "precision", "recall": "recall", **extra}
    table = make_table("class", "#pixels", "#IoU", "#95 % CI", *(f"#{column}" for column in columns.values()), title=title)
    for row in shown:
        ends = " to ".join(f"{end:.1%}" for end in row["interval"])
        scores = (f"{row[name]:.1%}" for name in columns)
        add_row(table, printable(row["name"]), f"{row['pixels'] / max(total, 1):.1%}", f"{row['iou']:.1%}", ends, *scores)
    _print_filled(table)
    table = make_table("class", "predicted as", "#of its pixels", title="Most confused classes")
    for pair in details["confused"][:MAX_PRINTED_ROWS]:
        add_row(table, printable(pair["label"]), printable(pair["predicted"]), f"{pair['fraction']:.1%}")
    _print_filled(table)
    table = make_table("image", "#mean IoU", "#pixel accuracy", title="Images of lowest mean IoU")
    for image in details["worst"][:MAX_PRINTED_ROWS]:
        add_row(table, printable(image["file"]), f"{image['miou']:.1%}", f"{image['pixel_accuracy']:.1%}")
    _print_filled(table)


def _print_detected_classes(details: Mapping[str, Any]) -> None:
    """Print the classes of objects, or those of lowest AP if there are many; what is confused; and the worst images."""
    rows = [row for row in details["classes"] if row["objects"]]
    shown = rows if len(rows) <= 2 * MAX_PRINTED_ROWS else sorted(rows, key=lambda row: row["ap"])[:MAX_PRINTED_ROWS]
    title = "Classes" if len(shown) == len(rows) else "Classes of lowest AP"
    columns = ("#objects", "#AP", "#AP50", "#95 % CI", "#threshold", "#precision", "#recall", "#F1")
    table = make_table("class", *columns, title=title)
    for row in shown:
        ends = " to ".join(f"{end:.1%}" for end in row["interval"]["ap50"])
        threshold = "" if row["threshold"] is None else f"{row['threshold']:.3f}"
        scores = (f"{row[name]:.1%}" for name in ("precision", "recall", "f1"))
        add_row(
            table, printable(row["name"]), f"{row['objects']:,}", f"{row['ap']:.1%}", f"{row['ap50']:.1%}", ends, threshold,
            *scores,
        )  # fmt: skip
    _print_filled(table)
    table = make_table("object", "detected as", "#count", title="Most frequent errors")
    for pair in details["confused"][:MAX_PRINTED_ROWS]:
        add_row(table, printable(pair["label"]), printable(pair["predicted"]), f"{pair['count']:,}")
    _print_filled(table)
    table = make_table("image", "#AP50", "#objects", title="Images of lowest AP50")
    for image in details["worst"][:MAX_PRINTED_ROWS]:
        add_row(table, printable(image["file"]), f"{image['ap50']:.1%}", f"{image['objects']:,}")
    _print_filled(table)


def _print_filled(table: Any) -> None:
    if table.row_count:
        make_console().print(table)
