"""Fingerprints of datasets, without reading the images."""

import hashlib
from pathlib import Path

import numpy as np
from numpy import ndarray

from vitrail.data.pack_reader import PackedDataset
from vitrail.data.sources.dataset import ArrayDataset, Dataset, ImageFileDataset, Subset
from vitrail.data.sources.huggingface import HubDataset
from vitrail.data.sources.parquet import ParquetDataset
from vitrail.data.sources.tar_shards import TarDataset

MAX_SAMPLED_ROWS = 1000  # rows of an array in memory


def dataset_key(dataset: Dataset) -> bytes:
    """Return bytes that identify the images: file names, shard checksums, table stamps, array samples, or a formula."""
    match dataset:
        case Subset():
            return dataset_key(dataset.dataset) + dataset.indices.astype(np.int64).tobytes()
        case ImageFileDataset():
            return "\0".join(str(Path(path)) for path in dataset.paths).encode(errors="surrogateescape")
        case ArrayDataset():
            return _hash_sample(dataset.images)
        case PackedDataset():
            return _hash_sample(dataset.buffer) + dataset.starts.tobytes()
        case TarDataset():
            return dataset.checksums.tobytes()
        case ParquetDataset():
            return repr((str(dataset.path), dataset.stamp)).encode()
        case HubDataset():
            return str(dataset.rows._fingerprint).encode()
    return repr((dataset, len(dataset))).encode()


def fingerprint(*splits: Dataset) -> str:
    """Hash the class names, labels and images of the splits."""
    digest = hashlib.sha256()
    for dataset in splits:
        digest.update(repr((dataset.class_names, len(dataset))).encode() + dataset.labels.tobytes() + dataset_key(dataset))
    return digest.hexdigest()


def _hash_sample(values: ndarray) -> bytes:
    return hashlib.sha256(repr(values.shape).encode() + values[:: max(len(values) // MAX_SAMPLED_ROWS, 1)].tobytes()).digest()
