"""``vitrail embed``: write the features of every image to a file or a folder of part files."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitrail.cli.console import print_json, progress_bars
from vitrail.cli.input_paths import ProgressCallback
from vitrail.cli.options import BatchOption, JsonOption, ModelArgument, check_output_file
from vitrail.cli.panels import data_option, output_option
from vitrail.cli.part_files import (
    PartProgress,
    RowsPerFileOption,
    finish_parts,
    main_rank_progress,
    open_part_files,
    writes_part_files,
)
from vitrail.cli.run_recipe import DeviceOption, WorkersOption
from vitrail.cli.writers import FEATURE_SUFFIXES, feature_writer
from vitrail.errors import VitrailError
from vitrail.io import atomic_path

if TYPE_CHECKING:
    from vitrail.data.sources.dataset import Dataset
    from vitrail.inference.part_files import PartFiles
    from vitrail.inference.predictor import Predictor

SPLIT_NAMES = ("train", "validation", "test")
SplitsOption = Annotated[
    list[str] | None, data_option(metavar="NAME", help="Split to take: train, validation or test; repeatable.")
]


def embed(
    model: ModelArgument,
    source: Annotated[
        str, typer.Argument(metavar="DATA", help="Dataset: a folder, a file, or a name such as fashion or cifar10.")
    ],
    out: Annotated[
        Path,
        output_option(metavar="FILE|DIR", help="Write the features to a .parquet or .npz file, or as part files to a folder."),
    ] = Path("features.npz"),
    split: SplitsOption = None,
    format: Annotated[Literal["npz", "parquet"] | None, output_option(help="File format of part files; default: npz.")] = None,
    rows_per_file: RowsPerFileOption = None,
    batch: BatchOption = 64,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Write the features of every image, with its file, label and split, to Parquet or NumPy files."""
    check_splits(split)
    folder = writes_part_files(out, FEATURE_SUFFIXES, "--out", rows_per_file)
    _check_output(model, source, out, folder, format)

    from vitrail.inference.load import load_predictor

    if folder:
        with main_rank_progress() as on_progress:
            sources = open_splits(source, split, on_progress)
        predictor = load_predictor(model, device=device)
        parts = _open_parts(predictor, sources, out, rows_per_file, f".{format or 'npz'}")
        _write_parts({"model": model, "data": source}, predictor, sources, parts, batch, workers, json)
        return

    from vitrail.inference.features import iter_features

    with progress_bars() as on_progress, atomic_path(out) as temporary:
        splits = open_splits(source, split, on_progress)
        predictor = load_predictor(model, device=device)
        counts, problems, width = dict.fromkeys(splits, 0), [], 0
        with feature_writer(temporary, out.suffix.lower(), _class_names(splits), lambda: _feature_width(predictor)) as write:
            for name, dataset in splits.items():
                bad: dict[int, str] = {}
                for rows in iter_features(predictor, dataset, batch, workers, _with_split(on_progress, name), bad):
                    write(name, dataset, rows)
                    counts[name] += len(rows.indices)
                    width = rows.values.shape[1]
                problems += list(bad.values())
            if not width:
                raise VitrailError(f"no image can be read, the first one {problems[0]}; name another dataset")
    if json:
        print_json(
            {"model": model, "data": source, "out": str(out), "images": counts, "width": width, "unreadable_images": problems}
        )
    else:
        amounts = ", ".join(f"{count:,} {'images' if name == 'all' else name}" for name, count in counts.items())
        unreadable = f"; {len(problems):,} unreadable" if problems else ""
        typer.echo(f"{amounts}, {width} features each{unreadable}: {out}")


def _check_output(model: str, source: str, out: Path, folder: bool, format: str | None) -> None:
    if folder:
        if Path(source).is_dir() and out.absolute().resolve().is_relative_to(Path(source).resolve()):
            raise VitrailError(f"--out must not be inside the dataset, got {out}; name a folder outside of it")
        return
    if out.suffix.lower() not in FEATURE_SUFFIXES:
        raise VitrailError(f"--out must end in .parquet or .npz, got {out}; try {out.stem or 'features'}.npz")
    if format is not None:
        raise VitrailError(f"--format is for a folder of part files, got {out}; leave it out, or try {out.stem or 'features'}")
    check_output_file(out, "--out", source)
    if out.exists() and Path(model).exists() and out.samefile(model):
        raise VitrailError(f"--out must not be the weights themselves, got {out}; name another file")


def _open_parts(
    predictor: "Predictor", sources: "dict[str, Dataset]", out: Path, rows_per_file: int | None, ending: str
) -> "PartFiles":
    """Open a folder of part files for the features of this model on this dataset."""
    from vitrail.data.sources.dataset import MAX_BAD_FRACTION, fingerprint

    names = repr([(name, dataset.describe(0)) for name, dataset in sources.items()])  # with their paths, which the rows hold
    data = hashlib.sha256((names + fingerprint(*sources.values())).encode("utf-8", "surrogateescape")).hexdigest()
    options = {"command": "embed", "weights": predictor.features_hash(), "data": data}
    return open_part_files(out, ending, sum(map(len, sources.values())), rows_per_file, options, MAX_BAD_FRACTION)


def _write_parts(
    answer: dict[str, Any],
    predictor: "Predictor",
    sources: "dict[str, Dataset]",
    parts: "PartFiles",
    batch: int,
    workers: int | None,
    json: bool,
) -> None:
    from vitrail.data.loader import build_pixel_loader
    from vitrail.inference.features import compute_features

    num_written = bad = 0
    with main_rank_progress() as on_progress:
        progress = PartProgress(parts, "features", on_progress)
        for part in parts.pending():
            with (
                parts.write_part(part) as draft,
                feature_writer(draft.path, parts.suffix, _class_names(sources), lambda: _feature_width(predictor)) as write,
            ):
                for name, dataset in _subset_splits(sources, parts.image_indices(part)):
                    # a bad image does not count against the fraction of the part, but of the whole dataset
                    loader = build_pixel_loader(dataset, predictor.preprocess, batch, max_bad_fraction=1.0)
                    for rows in compute_features(predictor, loader, workers):
                        write(name, dataset, rows)
                        progress.advance(len(rows.indices))
                    draft.problems += loader.read_errors.values()
                draft.num_bad = len(draft.problems)
            num_written, bad = num_written + 1, bad + draft.num_bad
            parts.check_bad_fraction(bad)
    done = finish_parts(parts, num_written)
    if done is not None and json:
        used = done.num_images - done.num_bad
        summary = {"out": str(parts.folder), "parts": parts.num_parts, "images": used, "unreadable_images": list(done.problems)}
        print_json({**answer, **summary})
    elif done is not None:
        unreadable = f", {done.num_bad:,} unreadable" if done.num_bad else ""
        counts = f"{done.num_images - done.num_bad:,} images{unreadable}"
        typer.echo(f"{counts}, in {parts.num_parts:,} {'part' if parts.num_parts == 1 else 'parts'}: {parts.folder}")


def _subset_splits(sources: "dict[str, Dataset]", numbers: range) -> "Iterator[tuple[str, Dataset]]":
    """Yield the images with these indices per split, where indices run through all splits in order."""
    import numpy as np

    from vitrail.data.sources.dataset import select_images

    start = 0
    for name, dataset in sources.items():
        indices = range(max(numbers.start - start, 0), min(numbers.stop - start, len(dataset)))
        if indices:
            yield name, select_images(dataset, np.array(indices, np.int64))
        start += len(dataset)


def _class_names(sources: "dict[str, Dataset]") -> tuple[str, ...]:
    return next(iter(sources.values())).class_names  # all splits have the same classes


def _feature_width(predictor: "Predictor") -> int:
    import numpy as np

    preprocess = predictor.preprocess
    return predictor.features(np.zeros((1, *preprocess.image_size, preprocess.channels), preprocess.pixel_type)).shape[1]


def check_splits(split: list[str] | None) -> None:
    for name in split or ():
        if name not in SPLIT_NAMES:
            raise VitrailError(f"--split must be train, validation or test, got {name!r}")


def open_splits(source: str, split: list[str] | None, on_progress: ProgressCallback) -> "dict[str, Dataset]":
    """Open the requested splits that have images; a folder of unlabelled images is one split, ``all``."""
    from vitrail.data.sources.open import open_dataset

    if split is None and (unlabelled := _open_unlabelled(Path(source), on_progress)) is not None:
        return {"all": unlabelled}
    data = open_dataset(source, progress=on_progress)
    splits = {name: data.splits[name] for name in SPLIT_NAMES if name in (split or SPLIT_NAMES) and len(data.splits[name])}
    if not splits:
        available = ", ".join(name for name, dataset in data.splits.items() if len(dataset)) or "nothing"
        raise VitrailError(f"{data.name} has no images in {' or '.join(split or SPLIT_NAMES)}; it has {available}")
    return splits


def _open_unlabelled(root: Path, on_progress: ProgressCallback) -> "Dataset | None":
    """Open a folder without subfolders, and so without classes; None if it has any."""
    if not root.is_dir() or any(entry.is_dir() and not entry.name.startswith(".") for entry in root.iterdir()):
        return None

    import numpy as np

    from vitrail.data.sources.dataset import ImageFileDataset
    from vitrail.data.sources.scan_folder import scan_folder

    paths = scan_folder(root, on_progress).paths
    return ImageFileDataset(root, paths, np.full(len(paths), -1, np.int64), ()) if paths else None


def _with_split(on_progress: ProgressCallback, split: str) -> ProgressCallback:
    return lambda task, done, total: on_progress(f"{task} of {split}", done, total)
