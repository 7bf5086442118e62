"""Quality of a model's features on a dataset or a suite of datasets: few-shot, nearest neighbours, linear probe.

A suite is a TOML file with a table ``[[data]]`` per dataset: ``source``, and optionally ``name``, ``group`` (such as the
natural, specialised and structured ones of VTAB, Zhai et al. 2019) and ``protocols``.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.source import Data, Progress
from vitrail.errors import VitrailError, suggestion
from vitrail.evaluate.caution import opened
from vitrail.evaluate.features import BATCH, Features, embed
from vitrail.evaluate.fewshot import FewShot, fewshot
from vitrail.evaluate.knn import knn
from vitrail.evaluate.linear import PENALTIES, Linear, linear
from vitrail.models.build import Model

PROTOCOLS = ("fewshot", "knn", "linear")


@dataclass(frozen=True)
class Probe:
    """Accuracies on the split ``eval_split``; None for a protocol that was not run."""

    data: str
    on: str
    classes: int
    pictures: dict[str, int]  # by split
    left_out: int  # images
    notes: tuple[str, ...]
    fewshot: tuple[FewShot, ...] | None = None
    knn: dict[int, float] | None = None
    linear: Linear | None = None


@dataclass(frozen=True)
class Entry:
    """A dataset of a suite."""

    name: str
    source: str
    group: str
    protocols: tuple[str, ...]


def probe(
    model: Model,
    source: str | Path | Data,
    protocols: Sequence[str] = PROTOCOLS,
    batch: int = BATCH,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Probe:
    """Compute features once, then run each protocol: fitted on train, evaluated on test or, without one, on validation."""
    wanted = checked(protocols)
    data = source if isinstance(source, Data) else opened(source, model, progress)
    on, notes = splits(data, wanted)
    needed = [split for split in ("train", "validation", "test") if split in ("train", on) or "linear" in wanted]
    found, left_out = {}, 0
    for split in needed:
        if len(data.splits[split]):
            everything = embed(model, data.splits[split], batch, workers, _named(progress, split))
            found[split], left_out = _labelled(everything, data, split), left_out + len(everything.problems)
    train, test, classes = found["train"], found[on], len(data.names)
    few = fewshot(train, test, classes) if "fewshot" in wanted else None
    near = knn(train, test, classes) if "knn" in wanted else None
    line = None
    if "linear" in wanted:
        told = None if progress is None else lambda done: progress("linear probe", done, len(PENALTIES))
        line = linear(train, found["validation"], test if on == "test" else None, classes, told=told)
    amounts = {split: len(part.labels) for split, part in found.items()}
    return Probe(data.name, on, classes, amounts, left_out, (*data.notes, *notes, *_short(few, classes)), few, near, line)


def read_suite(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a suite; a source relative to the file takes precedence over any other."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise VitrailError(f"the suite {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise VitrailError(f"the suite {path} is not valid TOML: {str(error).splitlines()[0]}") from None
    tables = content.get("data")
    if set(content) != {"data"} or not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise VitrailError(f'the suite {path} must hold [[data]] tables and nothing else, each with source = "..."')
    entries = tuple(_entry(path, number, table) for number, table in enumerate(tables, 1))
    names = [entry.name for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise VitrailError(f"two datasets of the suite {path} are named {twice!r}; give one of them another name = ...")
    return entries


def headline(found: Probe) -> dict[str, float]:
    """Return one number per column: every number of shots, 20 neighbours (or the nearest to it), the linear probe."""
    cells = {f"{few.shots}-shot": few.accuracy for few in found.fewshot or ()}
    if found.knn:
        cells["kNN"] = found.knn[min(found.knn, key=lambda count: abs(count - 20))]
    return cells if found.linear is None else {**cells, "linear": found.linear.accuracy}


def means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the means of the columns that every row has."""
    shared = [column for column in rows[0] if all(column in row for row in rows)] if rows else []
    return {column: float(np.mean([row[column] for row in rows])) for column in shared}


def checked(protocols: Sequence[str]) -> tuple[str, ...]:
    for name in protocols:
        if name not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise VitrailError(f"there is no protocol {name!r}{suggestion(name, PROTOCOLS)}; choose from {known}")
    return tuple(name for name in PROTOCOLS if name in protocols)


def _entry(path: Path, number: int, table: dict[str, Any]) -> Entry:
    fields = ("source", "name", "group", "protocols")
    wrong = next((field for field in table if field not in fields), None)
    if wrong is not None:
        raise VitrailError(f"dataset {number} of {path} has an unknown field {wrong!r}{suggestion(wrong, fields)}")
    protocols = table.get("protocols", list(PROTOCOLS))
    words = [table.get(field, "") for field in fields[:3]]
    if not all(isinstance(word, str) for word in words) or not words[0]:
        raise VitrailError(f'dataset {number} of {path} needs source = "..."; name and group are text too')
    if not isinstance(protocols, list) or not protocols or not all(isinstance(name, str) for name in protocols):
        raise VitrailError(f"protocols of dataset {number} of {path} must be a list such as {list(PROTOCOLS)}")
    source, name, group = words
    beside = path.parent / source
    return Entry(name or source, str(beside) if beside.exists() else source, group, checked(protocols))


def splits(data: Data, wanted: Sequence[str]) -> tuple[str, list[str]]:
    """Return the split to evaluate on, with notes about it; raise an error if there is none."""
    if not data.names or not any((part.labels >= 0).any() for part in data.splits.values()):
        raise VitrailError(
            f"{data.name} has no labels, which a probe needs; name a dataset with classes (embed and search need none)"
        )
    if len(data.names) < 2:
        raise VitrailError(f"{data.name} has a single class, {data.names[0]!r}; name a dataset with two or more")
    labelled = {split: bool((part.labels >= 0).any()) for split, part in data.splits.items()}
    if not labelled["train"]:
        raise VitrailError(f"{data.name} has no labelled training images; give it a folder train")
    on = "test" if labelled["test"] else "validation"
    if not labelled[on]:
        raise VitrailError(f"{data.name} has neither test nor validation images to evaluate on; give it a folder test")
    if "linear" in wanted and not labelled["validation"]:
        raise VitrailError(
            f"{data.name} has no validation split to select the linear probe's penalty on; give it one, or skip it with "
            "--protocol fewshot --protocol knn"
        )
    late = "there is no test split, so these are accuracies on validation, on which the linear probe's penalty was selected too"
    return on, [] if on == "test" else [late if "linear" in wanted else late.partition(", on")[0]]


def _labelled(everything: Features, data: Data, split: str) -> Features:
    has = everything.labels >= 0
    if not has.any():
        raise VitrailError(f"no labelled image of {data.name} ({split}) can be read; `vitrail data check` gives the reasons")
    return Features(everything.values[has], everything.labels[has], everything.indices[has])


def _short(few: tuple[FewShot, ...] | None, classes: int) -> list[str]:
    return [
        f"{one.short} of {classes} classes have fewer than {one.shots} training images and use all they have"
        for one in few or ()
        if one.short
    ]


def _named(progress: Progress | None, split: str) -> Progress | None:
    return None if progress is None else lambda what, done, total: progress(f"{what} of {split}", done, total)
