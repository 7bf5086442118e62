"""The targets in the columns of a table: one label per image, several, or numbers. What is found is said in notes.

Several labels are a list, cells split at a separator, or a column of zeros and ones per class; numbers are columns that are
named, or a label column with decimals. n rows, m numbers.
"""

import ast
import itertools
import math
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from vitrail.data.sources.coded_column import CodedColumn, Numbering
from vitrail.data.sources.columns import NO_SEPARATOR, SEPARATORS, Columns
from vitrail.data.sources.dataset import Dataset, with_label_sets, with_numbers
from vitrail.data.sources.label_sets import LabelSets, is_multi_hot
from vitrail.data.sources.labels import natural_sorted, similar_names
from vitrail.data.sources.table_columns import LABEL_COLUMNS, find_column
from vitrail.errors import VitrailError

INDICATORS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
SIGNED_INDICATORS = {"-1": 0, "-1.0": 0, "1": 1, "1.0": 1}
MAX_WHOLE_NUMBER_CLASSES = 20  # more whole numbers than this may be meant as numbers
MAX_LISTED = 3
MAX_SAMPLED = 1000


@dataclass(frozen=True, eq=False)
class Targets:
    """The targets of a table's rows, of one kind; ``columns``: where they were found."""

    columns: Columns
    class_names: tuple[str, ...] = ()
    labels: ndarray | None = None
    label_sets: LabelSets | None = None
    numbers: Float[ndarray, "n m"] | None = None
    notes: tuple[str, ...] = ()

    @property
    def single_labels(self) -> ndarray:
        """Labels for a dataset, of every row -1 unless each has one label."""
        known = next(each for each in (self.labels, self.label_sets, self.numbers) if each is not None)
        return self.labels if self.labels is not None else np.full(len(known), -1, np.int64)

    def select(self, rows: ndarray) -> "Targets":
        """Return the targets of some of the rows."""
        return replace(
            self,
            labels=None if self.labels is None else self.labels[rows],
            label_sets=None if self.label_sets is None else self.label_sets[rows],
            numbers=None if self.numbers is None else self.numbers[rows],
        )

    def attach(self, dataset: Dataset) -> Dataset:
        """Return a dataset of the rows' images with these targets; single labels it already has."""
        if self.label_sets is not None:
            return with_label_sets(dataset, self.label_sets, self.class_names)
        return dataset if self.numbers is None else with_numbers(dataset, self.numbers, self.columns.targets)


@dataclass(frozen=True)
class TargetColumns:
    """Columns of a table that may hold targets, with its name and the names of its rows for messages."""

    table: object
    header: Sequence[str]  # names of all columns
    columns: Mapping[str, CodedColumn]
    row_name: Callable[[int], str]
    num_rows: int
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # class names of a column of numbers

    def find(self, options: Columns, labelled: bool = True) -> Targets:
        """Return the targets that the options name or, where these leave it open, that the columns look like."""
        if options.targets:
            return self._numbers(options)
        name = find_column(self.table, list(self.columns), options.labels, LABEL_COLUMNS, "labels")
        if name is not None:
            return self._labels(name, options)
        indicators = self._indicator_columns()
        if len(indicators) > 1:
            return self._indicators(indicators, options)
        if not labelled:
            return Targets(options, labels=np.full(self.num_rows, -1, np.int64))
        raise VitrailError(
            f"{self.table} has no column for the labels, only {', '.join(self.header)}; name it by labels_column=NAME, a "
            f"number to predict by target=NAME, or rename one to any of {', '.join(LABEL_COLUMNS)}"
        )

    # Labels ----------------------------------------------------------------------------------------------------------

    def _labels(self, name: str, options: Columns) -> Targets:
        column = self.columns[name]
        found = replace(options, labels=name)
        if name in self.declared:
            return self._declared(name, column, found)
        if any(isinstance(value, tuple) for value in column.values):
            return self._label_lists(name, column, found)
        texts = [_cell_text(value) for value in column.values]
        if options.several is False:
            return self._single(name, column, texts, found)
        if options.splits_cells:
            return self._split_cells(name, column, texts, str(options.separator), found)
        if options.several is None and options.labels is None and _are_decimals(texts):
            return self._decimals(name, texts)
        if any(texts) and all(text.startswith("[") and text.endswith("]") for text in texts if text):
            values = [() if not text else self._parse_list(name, column, code, text) for code, text in enumerate(texts)]
            return self._label_lists(name, CodedColumn(values, column.codes), found)
        separator = _detect_separator(texts)
        if separator is None and not options.several:
            return self._single(name, column, texts, found)
        return self._split_cells(name, column, texts, separator, found)

    def _declared(self, name: str, column: CodedColumn, found: Columns) -> Targets:
        """Read numbers of classes that the file names; None and -1 stand for no label."""
        class_names = self.declared[name]
        several = any(isinstance(value, tuple) for value in column.values) or found.several is True
        lists = [value if isinstance(value, tuple) else () if value in (None, -1) else (value,) for value in column.values]
        for code, labels in enumerate(lists):
            invalid = [label for label in labels if type(label) is not int or not 0 <= label < len(class_names)]
            if invalid:
                row = self.row_name(column.row_of(code))
                raise VitrailError(
                    f"{self.table}, {row}: {name} must be from 0 to {len(class_names) - 1}, since {len(class_names)} "
                    f"classes are named, got {invalid[0]!r}"
                )
        if several:
            label_sets = LabelSets.from_lists(lists, len(class_names))[column.codes]
            return self._several(name, label_sets, class_names, "as lists", replace(found, several=True))
        single = np.array([labels[0] if labels else -1 for labels in lists], np.int64)[column.codes]
        return Targets(replace(found, several=False), class_names, single)

    def _single(self, name: str, column: CodedColumn, texts: list[str], found: Columns) -> Targets:
        if "" in texts:
            row = self.row_name(column.row_of(texts.index("")))
            remedy = "fill it in, remove the row, or name the separator if images have several labels or none: separator=;"
            if found.several is False and found.separator is None:  # where one label per image is needed
                remedy = "fill it in or remove the row"
            raise VitrailError(f"{self.table}, {row}: the label is empty; {remedy}")
        class_names = natural_sorted(set(texts))
        number = {text: label for label, text in enumerate(class_names)}
        labels = np.array([number[text] for text in texts], np.int64)[column.codes]
        notes = self._spelling_notes(class_names, lambda text: column.row_of(texts.index(text)))
        if found.separator is None and (example := next((text for text in texts if "," in text), None)):
            notes.append(f"labels with a comma, such as {example!r}, are read as one label each; separator=, splits them")
        if len(class_names) > MAX_WHOLE_NUMBER_CLASSES and all(re.fullmatch(r"-?\d+", text, re.ASCII) for text in texts):
            notes.append(
                f"the {len(class_names):,} whole numbers in {name} are taken as classes; target={name} predicts them as a "
                "number"
            )
        return Targets(replace(found, several=False), class_names, labels, notes=tuple(notes))

    def _split_cells(self, name: str, column: CodedColumn, texts: list[str], separator: str | None, found: Columns) -> Targets:
        lists = (_split(text, separator) for text in texts)
        how = "one in each cell"
        if separator is not None:
            occurs = any(separator in text for text in texts)
            how = f"separated by {separator!r}" if occurs else f"{how}, since none has the separator {separator!r}"
        targets = self._label_sets(name, lists, column, how, replace(found, separator=separator, several=True))
        if separator is None:
            return targets
        first, *others = targets.notes
        return replace(targets, notes=(f"{first}; separator={NO_SEPARATOR} reads a cell as one label", *others))

    def _label_lists(self, name: str, column: CodedColumn, found: Columns) -> Targets:
        for code, value in enumerate(column.values):
            if not (value is None or (isinstance(value, tuple) and all(type(each) in (str, int) for each in value))):
                kind = "other values in a list" if isinstance(value, tuple) else repr(value)
                raise VitrailError(
                    f"{self.table}, {self.row_name(column.row_of(code))}: {name} must be a list of names or whole numbers, as "
                    f"in other rows, got {kind}; write the labels as a list, [] for none"
                )
        found = replace(found, several=True)
        if is_multi_hot(column.values) and len(column.values[0]) > 2:  # two class numbers can be 0 and 1
            matrix = np.array(column.values, np.uint8)
            how = f"lists of {matrix.shape[1]} zeros and ones"
            return self._several(
                name, LabelSets.from_matrix(matrix)[column.codes], tuple(map(str, range(matrix.shape[1]))), how, found
            )
        lists = ([str(each).strip() for each in value or ()] for value in column.values)
        return self._label_sets(name, lists, column, "as lists", found)

    def _label_sets(self, name: str, lists: Iterable[Sequence[str]], column: CodedColumn, how: str, found: Columns) -> Targets:
        """``lists``: the labels of each distinct value of the column."""
        numbers, members, sizes = Numbering(), array("i"), array("i")
        for labels in lists:
            members.extend(map(numbers.__getitem__, labels))
            sizes.append(len(labels))

        def first_code(label: str) -> int:
            return int(np.searchsorted(np.cumsum(sizes), members.index(numbers[label]), side="right"))

        if "" in numbers:
            code = first_code("")
            row, got = self.row_name(column.row_of(code)), column.values[code]
            shown = repr(list(got) if isinstance(got, tuple) else got)[:60]
            raise VitrailError(f"{self.table}, {row}: {name} has an empty label, got {shown}; remove it")
        class_names = natural_sorted(numbers)
        numbering = np.empty(len(numbers), np.int64)
        numbering[[numbers[label] for label in class_names]] = np.arange(len(numbers))
        distinct = LabelSets.from_members(numbering[np.array(members, np.intc)], np.array(sizes, np.int64), len(class_names))
        return self._several(
            name, distinct[column.codes], class_names, how, found, lambda label: column.row_of(first_code(label))
        )

    def _several(
        self,
        name: str,
        label_sets: LabelSets,
        class_names: tuple[str, ...],
        how: str,
        found: Columns,
        row_of: Callable[[str], int] | None = None,
    ) -> Targets:
        """``row_of``: the first row with a label; None: labels are not spelled in rows."""
        sizes = label_sets.sizes()
        without = int((sizes == 0).sum())
        note = (
            f"{name} {'have' if name.startswith('the columns') else 'has'} several labels per image, {how}: "
            f"{len(class_names):,} labels, {sizes.mean():.1f} per image, "
            f"{without:,} image{'' if without == 1 else 's'} without any"
        )
        spelling = [] if row_of is None else self._spelling_notes(class_names, row_of)
        return Targets(found, class_names, label_sets=label_sets, notes=(note, *spelling))

    def _indicator_columns(self) -> list[str]:
        """Return the columns of zeros and ones, or of ones and minus ones."""
        texts = {name: [_cell_text(value).lower() for value in column.values] for name, column in self.columns.items()}
        names = [name for name in texts if any(texts[name]) and _indicators_of(texts[name]) is not None]
        if len(names) > 1:
            for name, values in texts.items():
                invalid = [code for code, text in enumerate(values) if text not in INDICATORS]
                if (
                    name not in names
                    and not {"0", "1"}.isdisjoint(values)
                    and all(values[code] in ("", "-1") for code in invalid)
                ):
                    row = self.row_name(self.columns[name].row_of(invalid[0]))
                    raise VitrailError(
                        f"{self.table}, {row}: {name} must be 0 or 1, as in the other columns of zeros and ones, got "
                        f"{values[invalid[0]] or 'nothing'}; correct it, or remove the column"
                    )
        return names

    def _indicators(self, names: list[str], options: Columns) -> Targets:
        """Read a column of zeros and ones per class; if every row has a single one, that is its label."""
        matrix = np.empty((self.num_rows, len(names)), np.uint8)
        for position, name in enumerate(names):
            texts = [_cell_text(value).lower() for value in self.columns[name].values]
            indicators = _indicators_of(texts) or INDICATORS
            matrix[:, position] = np.array([indicators[text] for text in texts], np.uint8)[self.columns[name].codes]
        class_names = tuple(names)
        others = [name for name in self.columns if name not in names]
        listed = ", ".join(f"{name}{self._why_no_indicator(name)}" for name in others)
        ignored = f"; {listed} {'is' if len(others) == 1 else 'are'} not used" if others else ""
        if options.several is not True and (matrix.sum(axis=1) == 1).all():
            note = f"each row has a one in a single column, which is its label: {len(names)} classes{ignored}"
            return Targets(replace(options, several=False), class_names, matrix.argmax(axis=1).astype(np.int64), notes=(note,))
        listed = f"the columns {', '.join(names[:MAX_LISTED])}{' ...' if len(names) > MAX_LISTED else ''}"
        how = f"a column of zeros and ones for each{ignored}"
        return self._several(listed, LabelSets.from_matrix(matrix), class_names, how, replace(options, several=True))

    def _why_no_indicator(self, name: str) -> str:
        """Return the first value that is neither 0 nor 1 in a column that has both; it may be a typing error."""
        values = [_cell_text(value).lower() for value in self.columns[name].values]
        if not {"0", "1"} <= set(values):
            return ""
        code = next(code for code, text in enumerate(values) if text not in INDICATORS)
        return f" (which has {values[code]!r} in {self.row_name(self.columns[name].row_of(code))})"

    def _parse_list(self, name: str, column: CodedColumn, code: int, text: str) -> tuple[Any, ...]:
        """Parse a cell such as ["hat", "shoe"], as JSON and Python write lists."""
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            value = None
        if not isinstance(value, list) or re.search(
            r"""[^\s,[]['"]\s+['"]""", text
        ):  # Python joins 'a' 'b', as numpy writes a list
            row = self.row_name(column.row_of(code))
            raise VitrailError(f'{self.table}, {row}: {name} must be a list, got {text[:60]!r}; try ["hat", "shoe"]')
        return tuple(value)

    def _spelling_notes(self, class_names: Sequence[str], row_of: Callable[[str], int]) -> list[str]:
        """Return notes on labels that are hardly different; ``row_of``: where each occurs first."""
        return [
            f"the labels {' and '.join(f'{label!r} ({self.row_name(row_of(label))})' for label in group[:MAX_LISTED])} are "
            "spelled differently and so are different classes; use one spelling if they mean the same"
            for group in similar_names(class_names)[:MAX_LISTED]
        ]

    # Numbers ---------------------------------------------------------------------------------------------------------

    def _numbers(self, options: Columns) -> Targets:
        names = [
            find_column(self.table, list(self.columns), target, (), "target") or target for target in options.targets
        ]  # spelled as in the table
        numbers = np.stack([self._parse_numbers(name) for name in names], axis=1)
        return Targets(replace(options, targets=tuple(names)), numbers=numbers)

    def _decimals(self, name: str, texts: list[str]) -> Targets:
        example = next(text for text in texts if not _as_number(text).is_integer())
        note = (
            f"{name} has numbers such as {example}, which are predicted as numbers; labels_column={name} reads them as classes"
        )
        return Targets(Columns(targets=(name,)), numbers=self._parse_numbers(name)[:, None], notes=(note,))

    def _parse_numbers(self, name: str) -> Float[ndarray, " n"]:
        column = self.columns[name]
        values = np.array([_as_number(value) for value in column.values], np.float64)
        invalid = np.flatnonzero(~np.isfinite(values))
        if len(invalid):
            code = int(invalid[0])
            got = _cell_text(column.values[code])
            raise VitrailError(
                f"{self.table}, {self.row_name(column.row_of(code))}: the target {name} must be a number, got "
                f"{repr(got[:60]) if got else 'nothing'}; correct it or remove the row"
            )
        return values[column.codes]


def missing_positives(targets: Targets, in_train: Bool[ndarray, " n"], describe: Callable[[int], str]) -> list[str]:
    """Return a note on the labels that occur, but not in train."""
    if targets.label_sets is None or not in_train.any():
        return []
    counts = targets.label_sets.counts()
    missing = np.flatnonzero((counts > 0) & (targets.label_sets[np.flatnonzero(in_train)].counts() == 0)).tolist()
    listed = [
        f"{targets.class_names[label]!r} ({describe(int(targets.label_sets.images_of(label)[0]))})"
        for label in missing[:MAX_LISTED]
    ]
    more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
    return [f"no training image has the label {', '.join(listed)}{more}, so it cannot be learned"] if missing else []


def _indicators_of(texts: Sequence[str]) -> dict[str, int] | None:
    """Return what the values of a column of zeros and ones stand for; None if it is none."""
    return next((known for known in (INDICATORS, SIGNED_INDICATORS) if known.keys() >= set(texts)), None)


def _cell_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):  # a column with missing values has integers as floats
        return "" if math.isnan(value) else str(int(value)) if value.is_integer() else str(value)
    return "" if value is None else str(value).strip()


def _as_number(value: Any) -> float:
    """Return a number, NaN if it is none."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return math.nan
    return float(value) if isinstance(value, int | float) else math.nan


def _are_decimals(texts: list[str]) -> bool:
    """Whether most values are numbers, and some are not whole. A missing one, or text, is then an error and not a class."""
    some = list(itertools.islice(filter(None, texts), MAX_SAMPLED))
    if 2 * sum(math.isfinite(_as_number(text)) for text in some) <= len(some):
        return False  # before a million texts are tried
    finite = [number for text in texts if math.isfinite(number := _as_number(text))]
    return 2 * len(finite) > sum(map(bool, texts)) and not all(number.is_integer() for number in finite)


def _detect_separator(texts: list[str]) -> str | None:
    """Return the separator of several labels. Semicolons and bars hardly occur in names; commas do, so that with them most
    labels have to occur in more than one cell."""
    for separator in SEPARATORS:
        if not any(separator in text for text in texts):
            continue
        if separator != ",":
            return separator
        cells: dict[str, int] = {}
        for text in texts:
            for label in set(_split(text, separator)):
                cells[label] = cells.get(label, 0) + 1
        if 2 * sum(count > 1 for count in cells.values()) >= len(cells):
            return separator
    return None


def _split(text: str, separator: str | None) -> list[str]:
    """Split a cell into labels; an empty one after a last separator is left out."""
    parts = [part.strip() for part in text.split(separator)] if separator is not None else [text]
    return parts if parts[-1] else parts[:-1]
