"""Concatenation of datasets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data.sources.box_faults import BoxFault
from vitrail.data.sources.dataset import Dataset, DatasetView
from vitrail.data.sources.label_sets import LabelSets, concat_label_sets


@dataclass(frozen=True, eq=False)
class ConcatDataset(DatasetView):
    """Datasets of the same classes, one after the other."""

    datasets: Sequence[Dataset]

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.datasets[0].class_names

    @cached_property
    def labels(self) -> ndarray:
        return np.concatenate([part.labels for part in self.datasets])

    @cached_property
    def _ends(self) -> ndarray:
        return np.cumsum([len(part) for part in self.datasets])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def name(self) -> str:
        return " and ".join(dict.fromkeys(part.name for part in self.datasets))

    def locate(self, index: int) -> tuple[Dataset, int]:
        number = int(np.searchsorted(self._ends, index, side="right"))
        part = self.datasets[number]
        return part, index - int(self._ends[number]) + len(part)

    def files(self) -> tuple[Path, Sequence[str]] | None:
        of_parts = [files for part in self.datasets if (files := part.files()) is not None]
        roots = {root for root, _ in of_parts}
        if len(of_parts) < len(self.datasets) or len(roots) > 1:
            return None
        return roots.pop(), [path for _, paths in of_parts for path in paths]

    @cached_property
    def targets(self) -> Sequence[Any] | ndarray | LabelSets:
        if self.label_sets is not None:
            return self.label_sets
        if self.class_names:
            return self.labels
        if self.target_names:
            return np.concatenate([np.asarray(part.targets) for part in self.datasets])
        return [part.target(index) for part in self.datasets for index in range(len(part))]

    @cached_property
    def label_sets(self) -> LabelSets | None:
        parts = [part.label_sets for part in self.datasets]
        known = [label_sets for label_sets in parts if label_sets is not None]
        return concat_label_sets(known) if len(known) == len(parts) else None

    @property
    def target_names(self) -> tuple[str, ...]:
        return self.datasets[0].target_names

    def numbers(self, name: str) -> ndarray | None:
        columns = [column for part in self.datasets if (column := part.numbers(name)) is not None]
        return np.concatenate(columns) if len(columns) == len(self.datasets) else None

    @property
    def number_names(self) -> tuple[str, ...]:
        return self.datasets[0].number_names

    @property
    def mask_names(self) -> tuple[str, ...]:
        return self.datasets[0].mask_names

    @property
    def has_mask_targets(self) -> bool:
        return all(part.has_mask_targets for part in self.datasets)

    @property
    def has_exact_masks(self) -> bool:
        return all(part.has_exact_masks for part in self.datasets)

    @property
    def box_names(self) -> tuple[str, ...]:
        return self.datasets[0].box_names

    @property
    def has_box_targets(self) -> bool:
        return all(part.has_box_targets for part in self.datasets)

    @property
    def has_exact_boxes(self) -> bool:
        return all(part.has_exact_boxes for part in self.datasets)

    def box_faults(self) -> Sequence[BoxFault]:
        starts = self._ends - [len(part) for part in self.datasets]
        return [
            replace(fault, image=start + fault.image)
            for part, start in zip(self.datasets, starts.tolist(), strict=True)
            for fault in part.box_faults()
        ]

    def sizes(self, indices: ndarray) -> ndarray | None:
        sizes = np.empty((len(indices), 2), np.int64)
        for part, rows, inside in self._group(indices):
            if (of_part := part.sizes(inside)) is None:
                return None
            sizes[rows] = of_part
        return sizes

    @cached_property
    def array_shape(self) -> tuple[int, int, int] | None:
        shapes = {part.array_shape for part in self.datasets if len(part)}
        return shapes.pop() if len(shapes) == 1 else None

    def stack(self, indices: ndarray) -> ndarray:
        if self.array_shape is None:
            return super().stack(indices)
        stacks = [(rows, part.stack(inside)) for part, rows, inside in self._group(indices)]
        dtype = np.result_type(*(stack.dtype for _, stack in stacks)) if stacks else np.uint8
        pixels = np.empty((len(indices), *self.array_shape), dtype)
        for rows, stack in stacks:
            pixels[rows] = stack
        return pixels

    def groups(self) -> ndarray | None:
        """Number the groups of all parts; a part without any is one."""
        groups, start = [np.zeros(0, np.int64)], 0
        of_parts = [part.groups() for part in self.datasets]
        if all(of_part is None for of_part in of_parts):
            return None
        for part, of_part in zip(self.datasets, of_parts, strict=True):
            groups.append(start + (np.zeros(len(part), np.int64) if of_part is None else of_part))
            start = int(groups[-1].max(initial=start)) + 1
        return np.concatenate(groups)

    @property
    def is_deterministic(self) -> bool:
        return all(part.is_deterministic for part in self.datasets)

    def content_key(self) -> bytes:
        return b"".join(repr(len(part)).encode() + part.content_key() for part in self.datasets)

    def cache_key(self) -> bytes | None:
        keys = [part.cache_key() for part in self.datasets]
        known = [repr(len(key)).encode() + key for key in keys if key is not None]
        return b"".join(known) if len(known) == len(keys) else None

    def flatten(self) -> tuple[Sequence[Dataset], ndarray]:
        """Count a dataset that several parts share once."""
        starts: dict[int, int] = {}
        stored: list[Dataset] = []
        indices = [np.zeros(0, np.int64)]
        for part in self.datasets:
            datasets, positions = part.flatten()
            for dataset in datasets:
                if id(dataset) not in starts:
                    starts[id(dataset)] = sum(len(each) for each in stored)
                    stored.append(dataset)
            ends = np.cumsum([len(dataset) for dataset in datasets])
            shifts = np.array([starts[id(dataset)] - end + len(dataset) for dataset, end in zip(datasets, ends, strict=True)])
            indices.append(positions + shifts[np.searchsorted(ends, positions, side="right")])
        return stored, np.concatenate(indices)

    def _group(self, indices: ndarray) -> list[tuple[Dataset, ndarray, ndarray]]:
        """Return for each part that has some of the images: their rows among the indices, and their indices in the part."""
        numbers = np.searchsorted(self._ends, indices, side="right")
        return [
            (self.datasets[number], rows, indices[rows] - self._ends[number] + len(self.datasets[number]))
            for number in np.unique(numbers).tolist()
            for rows in [np.flatnonzero(numbers == number)]
        ]
