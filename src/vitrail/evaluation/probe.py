"""Quality of a model's features on a dataset or a suite of datasets: few-shot, nearest neighbours, linear probe.

A suite is a TOML file with a table ``[[data]]`` per dataset: ``source``, and optionally ``name``, ``group`` (such as the
natural, specialised and structured ones of VTAB, Zhai et al. 2019) and ``protocols``.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.dataset import Dataset, DatasetSplits, Progress
from vitrail.data.sources.numbers import check_numbers
from vitrail.errors import VitrailError, did_you_mean, first_line
from vitrail.evaluation.fewshot import FewShotResult, fewshot_probe
from vitrail.evaluation.knn import knn_label_probe, knn_probe
from vitrail.evaluation.leakage import open_like_training
from vitrail.evaluation.linear_probe import PENALTIES, LabelProbeResult, LinearProbeResult, linear_label_probe, linear_probe
from vitrail.evaluation.mask_probe import MaskProbeResult, mask_probe
from vitrail.evaluation.ridge_probe import RidgeProbeResult, ridge_probe
from vitrail.inference.features import DEFAULT_BATCH_SIZE, Features, embed
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import Predictor

RIDGE_COLUMN = "ridge R²"  # of numbers, which have no accuracy
PROTOCOLS = ("fewshot", "knn", "linear")


@dataclass(frozen=True)
class ProbeResult:
    """Scores on the split ``eval_split``: accuracies; of several labels per image, mean average precisions; of numbers, R²; of
    masks, mean IoU. As ``metric`` says. None for a protocol that was not run."""

    dataset: str
    eval_split: str
    classes: int
    num_images: dict[str, int]  # by split
    unreadable_images: int
    notes: tuple[str, ...]
    fewshot: tuple[FewShotResult, ...] | None = None
    knn: dict[int, float] | None = None
    linear: LinearProbeResult | LabelProbeResult | RidgeProbeResult | MaskProbeResult | None = None
    metric: Literal["accuracy", "map", "r2", "miou"] = "accuracy"


@dataclass(frozen=True)
class SuiteEntry:
    """A dataset of a suite."""

    name: str
    source: str
    group: str
    protocols: tuple[str, ...]


def probe(
    model: Any,
    source: Any,
    protocols: Sequence[str] = PROTOCOLS,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
    progress: Progress | None = None,
) -> ProbeResult:
    """Compute features once, then run each protocol: fitted on train, evaluated on test or, without one, on validation."""
    selected = check_protocols(protocols)
    predictor = load_predictor(model)
    data = open_like_training(source, predictor, progress)
    eval_split, notes = select_eval_split(data, selected)
    if data.train.has_mask_targets:
        return _probe_masks(predictor, data, selected, eval_split, notes, batch_size, workers, progress)
    needed_splits = [
        split for split in ("train", "validation", "test") if split in ("train", eval_split) or "linear" in selected
    ]
    features, unreadable = {}, 0
    for split in needed_splits:
        if len(data.splits[split]):
            embedded = embed(predictor, data.splits[split], batch_size, workers, _with_split_name(progress, split))
            features[split], unreadable = _labelled_features(embedded, data, split), unreadable + len(embedded.read_errors)
    if data.target_names:
        return _probe_numbers(data, features, selected, eval_split, unreadable, notes)
    if data.train.label_sets is not None:
        return _probe_labels(data, features, selected, eval_split, unreadable, notes, progress)
    train, test, classes = features["train"], features[eval_split], len(data.class_names)
    fewshot_results = fewshot_probe(train, test, classes) if "fewshot" in selected else None
    knn_accuracies = knn_probe(train, test, classes) if "knn" in selected else None
    linear_result = None
    if "linear" in selected:
        on_progress = None if progress is None else lambda done: progress("linear probe", done, len(PENALTIES))
        linear_result = linear_probe(
            train, features["validation"], test if eval_split == "test" else None, classes, on_progress=on_progress
        )
    num_images = {split: len(part.labels) for split, part in features.items()}
    return ProbeResult(
        data.name,
        eval_split,
        classes,
        num_images,
        unreadable,
        (*data.notes, *notes, *_short_class_notes(fewshot_results, classes)),
        fewshot_results,
        knn_accuracies,
        linear_result,
    )


def _probe_labels(
    data: DatasetSplits,
    features: dict[str, Features],
    protocols: Sequence[str],
    eval_split: str,
    unreadable: int,
    notes: list[str],
    progress: Progress | None,
) -> ProbeResult:
    """Probe several labels per image."""
    splits = ("train", "validation" if "validation" in features else eval_split, eval_split)
    values = [features[split].values for split in splits]
    targets = [_label_rows(data.splits[split], features[split].indices) for split in splits]
    linear_result = None
    if "linear" in protocols:
        on_progress = None if progress is None else lambda done: progress("linear probe", done, len(PENALTIES))
        linear_result, _ = linear_label_probe(values, targets, eval_split == "test", on_progress=on_progress)
    if "fewshot" in protocols:
        notes = [*notes, "few-shot accuracy needs one label per image, so it is left out"]
    return ProbeResult(
        data.name,
        eval_split,
        len(data.class_names),
        {split: len(part.indices) for split, part in features.items()},
        unreadable,
        (*data.notes, *notes),
        knn=knn_label_probe(values[0], values[2], targets[0], targets[2]) if "knn" in protocols else None,
        linear=linear_result,
        metric="map",
    )


def _label_rows(dataset: Dataset, indices: ndarray) -> Float[Tensor, "n k"]:
    label_sets = dataset.label_sets
    assert label_sets is not None
    return torch.from_numpy(label_sets.rows(indices)).float()


def _probe_numbers(
    data: DatasetSplits,
    features: dict[str, Features],
    protocols: Sequence[str],
    eval_split: str,
    unreadable: int,
    notes: list[str],
) -> ProbeResult:
    """Probe numbers by ridge regression; the other protocols are about classes."""
    splits = ("train", "validation", eval_split)
    targets = [
        torch.from_numpy(np.asarray(data.splits[split].targets, np.float64)[features[split].indices]) for split in splits
    ]
    values = [features[split].values for split in splits]
    result = ridge_probe(values, targets, data.target_names, eval_split == "test")
    others = [name for name in protocols if name != "linear"]
    skipped = [f"{' and '.join(others)} need classes, so they are left out"] if others else []
    num_images = {split: len(part.indices) for split, part in features.items()}
    remarks = (*data.notes, *notes, *skipped)
    return ProbeResult(data.name, eval_split, 0, num_images, unreadable, remarks, linear=result, metric="r2")


def _probe_masks(
    predictor: Predictor,
    data: DatasetSplits,
    protocols: Sequence[str],
    eval_split: str,
    notes: list[str],
    batch_size: int,
    workers: int | None,
    progress: Progress | None,
) -> ProbeResult:
    """Probe masks by the tokens of patches; the other protocols are about one feature per image."""
    num_images, unreadable, left_out, result = mask_probe(predictor, data, eval_split, batch_size, workers, progress)
    others = [name for name in protocols if name != "linear"]
    skipped = [f"{' and '.join(others)} need one class per image, so they are left out"] if others else []
    if left_out:
        skipped.append(f"the tokens of {left_out:,} images did not fit into memory, so they were left out")
    remarks, classes = (*data.notes, *notes, *skipped), len(data.class_names)
    return ProbeResult(data.name, eval_split, classes, num_images, unreadable, remarks, linear=result, metric="miou")


def load_suite(path: Path) -> tuple[SuiteEntry, ...]:
    """Return the entries of a suite; a source relative to the file takes precedence over any other."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise VitrailError(f"the suite {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise VitrailError(f"the suite {path} is not valid TOML: {first_line(error)}") from None
    tables = content.get("data")
    if set(content) != {"data"} or not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise VitrailError(f'the suite {path} must hold [[data]] tables and nothing else, each with source = "..."')
    entries = tuple(_parse_entry(path, number, table) for number, table in enumerate(tables, 1))
    names = [entry.name for entry in entries]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise VitrailError(f"two datasets of the suite {path} are named {duplicate!r}; give one of them another name = ...")
    return entries


def headline_metrics(result: ProbeResult) -> dict[str, float]:
    """Return one number per column: every number of shots, 20 neighbours (or the nearest to it), the linear probe."""
    cells = {f"{few.shots}-shot": few.accuracy for few in result.fewshot or ()}
    if result.knn:
        cells["kNN"] = result.knn[min(result.knn, key=lambda count: abs(count - 20))]
    if result.linear is None:
        return cells
    column = RIDGE_COLUMN if result.metric == "r2" else "linear"
    return {**cells, column: getattr(result.linear, result.metric)}


def mean_metrics(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the means of the columns that every row has."""
    columns = [column for column in rows[0] if all(column in row for row in rows)] if rows else []
    return {column: float(np.mean([row[column] for row in rows])) for column in columns}


def check_protocols(protocols: Sequence[str]) -> tuple[str, ...]:
    for name in protocols:
        if name not in PROTOCOLS:
            raise VitrailError(
                f"there is no protocol {name!r}; there are {', '.join(PROTOCOLS)}{did_you_mean(name, PROTOCOLS)}"
            )
    return tuple(name for name in PROTOCOLS if name in protocols)


def _parse_entry(path: Path, number: int, table: dict[str, Any]) -> SuiteEntry:
    fields = ("source", "name", "group", "protocols")
    unknown = next((field for field in table if field not in fields), None)
    if unknown is not None:
        raise VitrailError(f"dataset {number} of {path} has an unknown field {unknown!r}{did_you_mean(unknown, fields)}")
    protocols = table.get("protocols", list(PROTOCOLS))
    texts = [table.get(field, "") for field in fields[:3]]
    if not all(isinstance(text, str) for text in texts) or not texts[0]:
        raise VitrailError(f'dataset {number} of {path} needs source = "..."; name and group are text too')
    if not isinstance(protocols, list) or not protocols or not all(isinstance(name, str) for name in protocols):
        raise VitrailError(f"protocols of dataset {number} of {path} must be a list such as {list(PROTOCOLS)}")
    source, name, group = texts
    relative = path.parent / source
    return SuiteEntry(name or source, str(relative) if relative.exists() else source, group, check_protocols(protocols))


def select_eval_split(data: DatasetSplits, protocols: Sequence[str]) -> tuple[str, list[str]]:
    """Return the split to evaluate on, with notes about it; raise an error if there is none."""
    if data.target_names:
        if "linear" not in protocols:
            raise VitrailError(f"{data.name} has numbers as targets, which only a linear probe predicts; try --protocol linear")
        for part in data.splits.values():
            check_numbers(part)
    elif data.train.has_mask_targets:
        if "linear" not in protocols:
            raise VitrailError(f"{data.name} has masks as targets, which only a linear probe predicts; try --protocol linear")
    elif not data.class_names or not any(part.has_label.any() for part in data.splits.values()):
        raise VitrailError(
            f"{data.name} has no labels, which a probe needs; name a dataset with classes (embed and search need none)"
        )
    elif len(data.class_names) < 2:
        raise VitrailError(f"{data.name} has a single class, {data.class_names[0]!r}; name a dataset with two or more")
    labelled = {split: bool(_has_target(part).any()) for split, part in data.splits.items()}
    if not labelled["train"]:
        raise VitrailError(f"{data.name} has no labelled training images; give it a folder train")
    eval_split = "test" if labelled["test"] else "validation"
    if not labelled[eval_split]:
        raise VitrailError(f"{data.name} has neither test nor validation images to evaluate on; give it a folder test")
    if "linear" in protocols and not labelled["validation"]:
        raise VitrailError(
            f"{data.name} has no validation split to select the linear probe's penalty on; give it one, or skip it with "
            "--protocol fewshot --protocol knn"
        )
    note = "there is no test split, so these are scores on validation, on which the linear probe's penalty was selected too"
    return eval_split, [] if eval_split == "test" else [note if "linear" in protocols else note.partition(", on")[0]]


def _has_target(dataset: Dataset) -> Bool[ndarray, " n"]:
    """Return whether each image has a label; numbers were checked before, and masks are with their images."""
    return np.ones(len(dataset), bool) if dataset.target_names or dataset.has_mask_targets else dataset.has_label


def _labelled_features(features: Features, data: DatasetSplits, split: str) -> Features:
    labelled = _has_target(data.splits[split])[features.indices]
    if not labelled.any():
        raise VitrailError(f"no labelled image of {data.name} ({split}) can be read; `vitrail data check` gives the reasons")
    return Features(features.values[labelled], features.labels[labelled], features.indices[labelled])


def _short_class_notes(results: tuple[FewShotResult, ...] | None, classes: int) -> list[str]:
    return [
        f"{one.short_classes} of {classes} classes have fewer than {one.shots} training images and use all they have"
        for one in results or ()
        if one.short_classes
    ]


def _with_split_name(progress: Progress | None, split: str) -> Progress | None:
    return None if progress is None else lambda description, done, total: progress(f"{description} of {split}", done, total)
