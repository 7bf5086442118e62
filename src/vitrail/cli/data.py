"""``vitrail data``: check, show, convert, pack, shard and download datasets."""

import re
from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.console import add_row, format_bytes, make_console, make_table, print_json, progress_bars
from vitrail.cli.data_convert import convert
from vitrail.cli.help import Command, Group
from vitrail.cli.options import (
    IgnoreOption,
    JsonOption,
    LabelsColumnOption,
    SeparatorOption,
    TargetOption,
    TargetsOption,
    check_output_file,
    parse_size,
    with_targets,
)
from vitrail.cli.panels import augmentation_option, data_option, output_option
from vitrail.data.preprocess import Fit
from vitrail.errors import VitrailError, printable

data = typer.Typer(
    name="data",
    help="Check, show, convert, pack, shard and download datasets.",
    epilog="Example: vitrail data check photos",
    no_args_is_help=True,
    cls=Group,
)

DatasetArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Dataset: a folder, .csv, .parquet, .tar, a pack, hf:owner/name, or a name such as fashion or cifar10.",
    ),
]
FitOption = Annotated[
    Fit, data_option(help="How an image becomes the model's input: its centre, the whole image padded, or stretched.")
]
UnlabelledOption = Annotated[
    bool, data_option("--unlabelled", help="Take every image below the folder, without labels, for vitrail pretrain.")
]
MAX_BATCH_IMAGES = 1000  # images on a sheet
BYTE_UNITS = {"": 1, **{f"{letter}i": 1024**power for power, letter in enumerate("kmgt", 1)}}
BYTE_UNITS |= {letter: 1000**power for power, letter in enumerate("kmgt", 1)}
MAX_PRINTED_ROWS = 12  # of each kind of finding printed; the page and --json have more


@data.command(cls=Command, epilog="Example: vitrail data check photos --page check.html")
def check(
    source: DatasetArgument,
    page: Annotated[Path | None, output_option(metavar="FILE.html", help="Write an HTML page with a contact sheet.")] = None,
    labels_column: LabelsColumnOption = None,
    separator: SeparatorOption = None,
    target: TargetOption = None,
    ignore: IgnoreOption = None,
    task: TargetsOption = None,
    json: JsonOption = False,
) -> None:
    """Check a dataset for unreadable images, duplicates, leakage and label conflicts; exit code 1 if there are any."""
    from vitrail.cli.data_check_output import print_report, report_json
    from vitrail.data.dataset_check import check_dataset
    from vitrail.data.sources.columns import choose_columns
    from vitrail.data.sources.open import open_dataset

    if page is not None:
        check_output_file(page, "--page", source, (".html",))
    columns = with_targets(choose_columns(labels_column, separator, target, ignore), task)
    with progress_bars() as on_progress:
        report = check_dataset(open_dataset(source, columns=columns, progress=on_progress), on_progress)
    if page is not None:
        from vitrail.io import atomic_write
        from vitrail.report.dataset_page import dataset_page

        atomic_write(page, dataset_page(report))
    if json:
        print_json(report_json(report, page))
    else:
        print_report(report, page)
    if not report.ok:
        raise typer.Exit(1)


@data.command(cls=Command, epilog="Example: vitrail data show photos --augment light1 --out batch.png")
def show(
    source: DatasetArgument,
    out: Annotated[Path, output_option(metavar="FILE.png", help="Image file to draw the batch into.")] = Path("batch.png"),
    augment: Annotated[
        str, augmentation_option(metavar="NAME", help="Augmentation policy: eval, none, light1 ... strong2, pad or textbook.")
    ] = "none",
    image: Annotated[
        str | None, data_option("--image-size", metavar="H[xW]", help="Height and width of the model's input in pixels.")
    ] = None,
    batch: Annotated[int, data_option("--batch-size", metavar="B", help="Number of images in the batch.")] = 24,
    fit: FitOption = "crop",
    step: Annotated[int, data_option(metavar="N", help="Index of the batch in training.")] = 0,
    seed: Annotated[int, data_option(help="Random seed of the sample order and the augmentation.")] = 0,
    split: Annotated[
        str, data_option(help="Split to draw from: train, validation or test (the last two unaugmented).")
    ] = "train",
    bands: Annotated[
        str | None,
        output_option(
            metavar="NUMBERS",
            help="One or three bands to draw, numbered from 1 as by GDAL, such as 3,2,1 for red, green and blue; scaled "
            "between percentiles. Default: the colours, or the first three bands.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        augmentation_option("--set", metavar="FIELD=VALUE", help="Override a field of the augmentation policy; repeatable."),
    ] = None,
    labels_column: LabelsColumnOption = None,
    separator: SeparatorOption = None,
    target: TargetOption = None,
    ignore: IgnoreOption = None,
    task: TargetsOption = None,
    json: JsonOption = False,
) -> None:
    """Draw a training batch as the model sees it, augmented, and what cropping, padding or stretching costs."""
    from vitrail.augment.policy import get_policy
    from vitrail.config import override
    from vitrail.data.dataset_check import drop_unusable
    from vitrail.data.sources.columns import choose_columns
    from vitrail.data.sources.open import open_dataset
    from vitrail.io import atomic_write
    from vitrail.report.batch_sheet import draw_batch
    from vitrail.report.contact_sheet import encode_image
    from vitrail.report.fit_sheet import measure_fits

    if split not in ("train", "validation", "test"):
        raise VitrailError(f"--split must be train, validation or test, got {split!r}")
    check_output_file(out, "--out", source, (".png", ".jpg"))
    if not 1 <= batch <= MAX_BATCH_IMAGES:
        raise VitrailError(f"--batch-size must be from 1 to {MAX_BATCH_IMAGES} to be drawn, got {batch}; try --batch-size 24")
    augmentation = override(get_policy(augment), [item.removeprefix("augment.") for item in settings or []])
    columns = with_targets(choose_columns(labels_column, separator, target, ignore), task)
    with progress_bars() as on_progress:
        report = drop_unusable(
            open_dataset(source, columns=columns, progress=on_progress), on_progress
        )  # the images that training will read
        size = parse_size(image, "--image-size") if image else None
        batch_sheet = draw_batch(report.data, split, augmentation, size, batch, step, seed, fit, _parse_bands(bands))
    fits = measure_fits(report.image_sizes[split], batch_sheet.preprocess)
    atomic_write(out, encode_image(batch_sheet.sheet, out.suffix))
    if json:
        print_json({
            "written": str(out), "indices": batch_sheet.indices, "labels": batch_sheet.labels,
            "image": batch_sheet.preprocess.image_size, "fits": {name: vars(cost) for name, cost in fits.items()},
        })  # fmt: skip
        return
    typer.echo(f"drew batch {step} of {source} ({split}, {len(batch_sheet.indices)} images): {out}")
    height, width = batch_sheet.preprocess.image_size
    table = make_table(
        "--fit", "#image lost", "#input padded", "#aspect ratio x",
        title=f"{len(report.image_sizes[split]):,} {split} images as inputs of {height} x {width}, on average",
    )  # fmt: skip
    for name, cost in fits.items():
        add_row(table, name, f"{cost.lost:.1%}", f"{cost.padding:.1%}", f"{cost.distortion:.2f}")
    make_console().print(table)


data.command(cls=Command, epilog="Example: vitrail data convert coco yolo --to yolo")(convert)


@data.command(cls=Command, epilog="Example: vitrail data pack photos photos.pack --size 256")
def pack(
    source: DatasetArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Pack file to write.")],
    size_option: Annotated[
        str,
        output_option(
            "--size",
            metavar="S|HxW|full",
            help="Maximum length of the shorter side, one size HxW by centre crop, or full for the original size.",
        ),
    ] = "256",
    store: Annotated[
        str,
        output_option("--store", metavar="pixels|jpeg", help="What to store: decoded pixels, or the original encoded files."),
    ] = "pixels",
    unlabelled: UnlabelledOption = False,
    labels_column: LabelsColumnOption = None,
    separator: SeparatorOption = None,
    target: TargetOption = None,
    json: JsonOption = False,
) -> None:
    """Pack a dataset into one memory-mapped file that is read without decoding."""
    from vitrail.data.pack_writer import write_pack
    from vitrail.data.sources.columns import choose_columns
    from vitrail.data.sources.open import open_dataset

    check_output_file(out, "OUT", source)
    target_size = (
        None
        if size_option == "full"
        else parse_size(size_option, "--size")
        if "x" in size_option.lower()
        else parse_size(size_option, "--size")[0]
    )
    columns = choose_columns(labels_column, separator, target)
    with progress_bars() as on_progress:
        dataset = open_dataset(source, columns=columns, labelled=not unlabelled, progress=on_progress)
        report = write_pack(
            out,
            {split: part for split, part in dataset.splits.items() if len(part)},
            size=target_size,
            store=store,
            provenance={"source": dataset.name, "size": size_option if store == "pixels" else "full", "store": store},
            progress=on_progress,
        )
    if json:
        print_json({**vars(report), "path": str(report.path)})
        return
    for sentence in report.skipped[:MAX_PRINTED_ROWS]:
        typer.echo(printable(f"skipped {sentence}"))
    parts = ", ".join(f"{count:,} {split}" for split, count in report.counts.items())
    skipped = f"; {len(report.skipped):,} skipped" if report.skipped else ""
    typer.echo(f"packed {parts}{skipped}: {report.path} ({format_bytes(report.bytes)}, sha256 {report.sha256[:16]})")


@data.command(cls=Command, epilog="Example: vitrail data shard photos shards --shard-size 1GB")
def shard(
    source: DatasetArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write the shards into.")],
    shard_size: Annotated[
        str, output_option("--shard-size", metavar="1GB", help="Maximum size of a shard, such as 500MB or 64KiB.")
    ] = "1GB",
    seed: Annotated[int, output_option(help="Random seed of the sample order.")] = 0,
    unlabelled: UnlabelledOption = False,
    labels_column: LabelsColumnOption = None,
    separator: SeparatorOption = None,
    target: TargetOption = None,
    json: JsonOption = False,
) -> None:
    """Write a dataset as shuffled tar shards, with its files unchanged."""
    from vitrail.data.resumable_folder import require_new_folder
    from vitrail.data.shard_writer import write_shards
    from vitrail.data.sources.columns import choose_columns
    from vitrail.data.sources.open import open_dataset

    limit = _parse_bytes(shard_size, "--shard-size")
    if Path(source).is_dir() and out.resolve().is_relative_to(Path(source).resolve()):
        raise VitrailError(f"OUT must not be inside the dataset, got {out}; name a folder outside of it")
    require_new_folder(out)  # before work that may take hours
    columns = choose_columns(labels_column, separator, target)
    with progress_bars() as on_progress:
        dataset = open_dataset(source, columns=columns, labelled=not unlabelled, progress=on_progress)
        splits = {split: part for split, part in dataset.splits.items() if len(part)}
        report = write_shards(out, splits, shard_size=limit, seed=seed, labelled=not unlabelled, progress=on_progress)
    shards = {split: len(sizes) for split, sizes in report.shards.items()}
    if json:
        print_json({
            "path": str(out), "counts": report.counts, "shards": shards, "skipped": report.skipped, "bytes": report.bytes,
            "resumed": report.resumed_shards, "size": limit, "seed": seed,
        })  # fmt: skip
        return
    for sentence in report.skipped[:MAX_PRINTED_ROWS]:
        typer.echo(printable(f"skipped {sentence}"))
    parts = ", ".join(f"{count:,} {split} in {shards[split]:,}" for split, count in report.counts.items())
    skipped = f"; {len(report.skipped):,} skipped" if report.skipped else ""
    resumed = f"; {report.resumed_shards:,} kept from an interrupted attempt" if report.resumed_shards else ""
    typer.echo(f"wrote {parts} shards{skipped}{resumed}: {out} ({format_bytes(report.bytes)})")


def _parse_bands(text: str | None) -> tuple[int, ...]:
    """Parse the numbers of bands to draw; whether the images have them is known only later."""
    if text is None:
        return ()
    if not re.fullmatch(r"\d{1,5}(,\d{1,5}){0,2}", text.replace(" ", ""), re.ASCII):
        raise VitrailError(f"--bands must be one or three numbers such as 3,2,1, counted from 1, got {text[:40]!r}; try 3,2,1")
    return tuple(map(int, text.split(",")))


def _parse_bytes(text: str, option: str) -> int:
    """Parse a size in bytes: 1GB is 10**9, 1GiB is 2**30."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([kmgt]i?|)b?", text.strip().lower(), re.ASCII)
    number = int(float(match[1]) * BYTE_UNITS[match[2]]) if match else 0
    if number < 1:
        raise VitrailError(
            f"{option} must be a number of bytes such as 1GB, 500MB or 64KiB, got {text[:20]!r}; try {option} 1GB"
        )
    return number


@data.command(cls=Command, epilog="Example: vitrail data download cifar10")
def download(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Dataset to download: fashion-mnist, cifar10 or cifar100; without a name they are listed."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Download a public dataset and verify its checksum, or take it from its Debian package."""
    from vitrail.data import cache
    from vitrail.data.sources.known_datasets import download_dataset

    if name is None:
        _list_datasets(json)
        return
    with progress_bars() as on_progress:
        path = download_dataset(name, cache.cache_folder() / "datasets", progress=on_progress)
    if json:
        print_json({"name": name, "path": str(path)})
    else:
        typer.echo(f"{name} is available: {path}; use it as `vitrail data check {name}`")


def _list_datasets(json: bool) -> None:
    from vitrail.data.sources.known_datasets import BUILT_IN, KNOWN_DATASETS, pack_path

    if json:
        fields = ("summary", "bytes", "licence", "url")
        rows = [
            {"name": name, **{field: getattr(dataset, field) for field in fields}, "available": pack_path(name).is_file()}
            for name, dataset in KNOWN_DATASETS.items()
        ]
        print_json({"datasets": rows})
        return
    for name, dataset in KNOWN_DATASETS.items():
        typer.echo(f"{name}: {dataset.summary}" + ("; available" if pack_path(name).is_file() else ""))
        typer.echo(f"    {format_bytes(dataset.bytes)} from {dataset.url}; licence: {dataset.licence}")
    typer.echo(f"`vitrail data download NAME` downloads one; {' and '.join(BUILT_IN)} are always available")
