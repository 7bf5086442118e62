"""``vitrail data``: check, show, pack, shard and download datasets."""

import re
from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.options import Json, check_out, pair
from vitrail.cli.screen import add, console, print_json, progress, size, table
from vitrail.errors import VitrailError, printable

data = typer.Typer(name="data", help="Check, show, pack, shard and download datasets.", no_args_is_help=True)

Source = Annotated[
    str, typer.Argument(metavar="DATA", help="Dataset: a folder, .csv, .parquet, .tar, a pack, hf:owner/name, or a known name.")
]
Unlabelled = Annotated[
    bool,
    typer.Option(
        "--unlabelled",
        rich_help_panel="Data",
        help="Take every image below the folder, without labels, for vitrail pretrain.",
    ),
]
MOST_SHOWN = 1000  # images on a sheet
UNITS = {"": 1, **{f"{letter}i": 1024**power for power, letter in enumerate("kmgt", 1)}}
UNITS |= {letter: 1000**power for power, letter in enumerate("kmgt", 1)}
ROWS = 12  # of each kind of finding printed; the page and --json have more


@data.command(epilog="Example: vitrail data check photos --page check.html")
def check(
    source: Source,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", rich_help_panel="Output", help="Write an HTML page with a contact sheet."),
    ] = None,
    json: Json = False,
) -> None:
    """Check a dataset for unreadable images, duplicates, leakage and label conflicts; exit code 1 if there are any."""
    from vitrail.data.check import check as examine
    from vitrail.data.sources.open import pictures

    if page is not None:
        check_out(page, "--page", source, (".html",))
    with progress() as tell:
        found = examine(pictures(source, progress=tell), tell)
    if page is not None:
        from vitrail.report.data import data_page
        from vitrail.report.page import write_whole

        write_whole(page, data_page(found).encode())
    if json:
        print_json(_plain(found, page))
    else:
        _print(found, page)
    if not found.ok:
        raise typer.Exit(1)


@data.command(epilog="Example: vitrail data show photos --augment light1 --out batch.png")
def show(
    source: Source,
    out: Annotated[
        Path, typer.Option(metavar="FILE.png", rich_help_panel="Output", help="Image file to draw the batch into.")
    ] = Path("batch.png"),
    augment: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel="Augmentation",
            help="Augmentation policy: eval, none, light1 ... strong2, pad or textbook.",
        ),
    ] = "none",
    image: Annotated[
        str | None,
        typer.Option(metavar="H[xW]", rich_help_panel="Data", help="Height and width of the model's input in pixels."),
    ] = None,
    batch: Annotated[int, typer.Option(metavar="B", rich_help_panel="Data", help="Number of images in the batch.")] = 24,
    step: Annotated[int, typer.Option(metavar="N", rich_help_panel="Data", help="Index of the batch in training.")] = 0,
    seed: Annotated[
        int, typer.Option(rich_help_panel="Data", help="Random seed of the sample order and the augmentation.")
    ] = 0,
    split: Annotated[
        str,
        typer.Option(rich_help_panel="Data", help="Split to draw from: train, validation or test (the last two unaugmented)."),
    ] = "train",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            rich_help_panel="Augmentation",
            help="Override a field of the augmentation policy; repeatable.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Draw a training batch as the model sees it, with augmentation."""
    from vitrail.augment.policy import policy
    from vitrail.config import override
    from vitrail.data.check import usable
    from vitrail.data.sources.open import pictures
    from vitrail.report.batch import draw_batch
    from vitrail.report.page import write_whole
    from vitrail.report.pictures import as_file

    if split not in ("train", "validation", "test"):
        raise VitrailError(f"--split must be train, validation or test, got {split!r}")
    check_out(out, "--out", source, (".png", ".jpg"))
    if not 1 <= batch <= MOST_SHOWN:
        raise VitrailError(f"--batch must be from 1 to {MOST_SHOWN} to be drawn, got {batch}; try --batch 24")
    how = override(policy(augment), [item.removeprefix("augment.") for item in settings or []])
    with progress() as tell:
        opened = usable(pictures(source, progress=tell), tell).data  # the images that training will read
        drawn = draw_batch(opened, split, how, pair(image, "--image") if image else None, batch, step, seed)
    write_whole(out, as_file(drawn.sheet, out.suffix))
    if json:
        print_json({"written": str(out), "indices": drawn.indices, "labels": drawn.labels, "image": drawn.image})
    else:
        typer.echo(f"drew batch {step} of {source} ({split}, {len(drawn.indices)} images): {out}")


@data.command(epilog="Example: vitrail data pack photos photos.pack --size 256")
def pack(
    source: Source,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Pack file to write.")],
    side: Annotated[
        str,
        typer.Option(
            "--size",
            metavar="S|HxW|full",
            rich_help_panel="Output",
            help="Maximum length of the shorter side, one size HxW by centre crop, or full for the original size.",
        ),
    ] = "256",
    keep: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="pixels|jpeg",
            rich_help_panel="Output",
            help="What to store: decoded pixels, or the original encoded files.",
        ),
    ] = "pixels",
    unlabelled: Unlabelled = False,
    json: Json = False,
) -> None:
    """Pack a dataset into one memory-mapped file that is read without decoding."""
    from vitrail.data.packing import write_pack
    from vitrail.data.sources.open import pictures

    check_out(out, "OUT", source)
    wanted = None if side == "full" else pair(side, "--size") if "x" in side.lower() else pair(side, "--size")[0]
    with progress() as tell:
        opened = pictures(source, labelled=not unlabelled, progress=tell)
        made = write_pack(
            out,
            {split: part for split, part in opened.splits.items() if len(part)},
            size=wanted,
            keep=keep,
            provenance={"source": opened.name, "size": side if keep == "pixels" else "full", "store": keep},
            progress=tell,
        )
    if json:
        print_json({**vars(made), "path": str(made.path)})
        return
    for sentence in made.skipped[:ROWS]:
        typer.echo(printable(f"skipped {sentence}"))
    parts = ", ".join(f"{count:,} {split}" for split, count in made.counts.items())
    left = f"; {len(made.skipped):,} skipped" if made.skipped else ""
    typer.echo(f"packed {parts}{left}: {made.path} ({size(made.bytes)}, sha256 {made.sha256[:16]})")


@data.command(epilog="Example: vitrail data shard photos shards --shard-size 1GB")
def shard(
    source: Source,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write the shards into.")],
    most: Annotated[
        str,
        typer.Option(
            "--shard-size", metavar="1GB", rich_help_panel="Output", help="Maximum size of a shard, such as 500MB or 64KiB."
        ),
    ] = "1GB",
    seed: Annotated[int, typer.Option(rich_help_panel="Output", help="Random seed of the sample order.")] = 0,
    unlabelled: Unlabelled = False,
    json: Json = False,
) -> None:
    """Write a dataset as shuffled tar shards, with its files unchanged."""
    from vitrail.data.attempt import free
    from vitrail.data.sharding import write_shards
    from vitrail.data.sources.open import pictures

    limit = _bytes(most, "--shard-size")
    if Path(source).is_dir() and out.resolve().is_relative_to(Path(source).resolve()):
        raise VitrailError(f"OUT must not be inside the dataset, got {out}; name a folder outside of it")
    free(out)  # before work that may take hours
    with progress() as tell:
        opened = pictures(source, labelled=not unlabelled, progress=tell)
        splits = {split: part for split, part in opened.splits.items() if len(part)}
        made = write_shards(out, splits, size=limit, seed=seed, labelled=not unlabelled, progress=tell)
    shards = {split: len(sizes) for split, sizes in made.shards.items()}
    if json:
        print_json({
            "path": str(out), "counts": made.counts, "shards": shards, "skipped": made.skipped, "bytes": made.bytes,
            "resumed": made.before, "size": limit, "seed": seed,
        })  # fmt: skip
        return
    for sentence in made.skipped[:ROWS]:
        typer.echo(printable(f"skipped {sentence}"))
    parts = ", ".join(f"{count:,} {split} in {shards[split]:,}" for split, count in made.counts.items())
    left = f"; {len(made.skipped):,} skipped" if made.skipped else ""
    before = f"; {made.before:,} kept from an interrupted attempt" if made.before else ""
    typer.echo(f"wrote {parts} shards{left}{before}: {out} ({size(made.bytes)})")


def _bytes(text: str, option: str) -> int:
    """Parse a size in bytes: 1GB is 10**9, 1GiB is 2**30."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([kmgt]i?|)b?", text.strip().lower(), re.ASCII)
    number = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if number < 1:
        raise VitrailError(
            f"{option} must be a number of bytes such as 1GB, 500MB or 64KiB, got {text[:20]!r}; try {option} 1GB"
        )
    return number


@data.command(epilog="Example: vitrail data download cifar10")
def download(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Dataset to download: fashion-mnist, cifar10 or cifar100; without a name they are listed."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Download a public dataset and verify its checksum, or take it from its Debian package."""
    from vitrail.data import cache
    from vitrail.data.sources.get import get as fetch

    if name is None:
        _list_sets(json)
        return
    with progress() as tell:
        path = fetch(name, cache.folder() / "datasets", progress=tell)
    if json:
        print_json({"name": name, "path": str(path)})
    else:
        typer.echo(f"{name} is available: {path}; use it as `vitrail data check {name}`")


def _list_sets(json: bool) -> None:
    from vitrail.data.sources.get import HERE, SETS, place_of

    if json:
        told = ("pictures", "bytes", "licence", "address")
        rows = [
            {"name": name, **{field: getattr(known, field) for field in told}, "available": place_of(name).is_file()}
            for name, known in SETS.items()
        ]
        print_json({"datasets": rows})
        return
    for name, known in SETS.items():
        typer.echo(f"{name}: {known.pictures}" + ("; available" if place_of(name).is_file() else ""))
        typer.echo(f"    {size(known.bytes)} from {known.address}; licence: {known.licence}")
    typer.echo(f"`vitrail data download NAME` downloads one; {' and '.join(HERE)} are always available")


def _plain(found: "Checked", page: Path | None) -> dict[str, object]:  # type: ignore[name-defined]  # noqa: F821
    return {
        "ok": found.ok,
        "data": found.data.name,
        "fingerprint": found.data.fingerprint,
        "images": found.pictures,
        "splits": {split: len(source) for split, source in found.data.splits.items()},
        "bad": [vars(item) for item in found.bad],
        "leaks": [vars(item) for item in found.leaks],
        "conflicts": [vars(item) for item in found.conflicts],
        "duplicates": [vars(item) for item in found.duplicates],
        "classes": found.classes,
        "sizes": found.sizes,
        "formats": found.kinds,
        "notes": found.notes,
        "page": None if page is None else str(page),
    }


def _print(found: "Checked", page: Path | None) -> None:  # type: ignore[name-defined]  # noqa: F821
    screen = console()
    classes = table("class", "#train", "#validation", "#test", title=f"{found.data.name}: {found.pictures:,} images")
    for name, counts in list(found.classes.items())[: 3 * ROWS]:
        add(classes, printable(name), *(f"{counts[split]:,}" for split in ("train", "validation", "test")))
    if len(found.classes) > 3 * ROWS:
        add(classes, f"and {len(found.classes) - 3 * ROWS:,} more")
    add(classes, "all", *(f"{len(source):,}" for source in found.data.splits.values()))
    screen.print(classes)
    for side, (least, median, most) in found.sizes.items():
        screen.print(f"{side}: {least:,} to {most:,}, median {median:,}")
    if found.kinds:
        screen.print("formats: " + ", ".join(f"{count:,} {kind}" for kind, count in found.kinds.items()))
    for note in found.notes:
        screen.print(printable(f"note: {note}"), soft_wrap=True)
    for title, groups in (
        ("in two splits (leakage)", found.leaks),
        ("under two labels (label conflict)", found.conflicts),
        ("more than once (duplicate)", found.duplicates),
    ):
        if groups:
            screen.print(f"\nthe same image {title}: {len(groups):,}")
            for group in groups[:ROWS]:
                copies = " = ".join(group.where[:4]) + (" ..." if len(group.where) > 4 else "")
                screen.print(printable(f"  {copies}"), soft_wrap=True)
    if found.bad:
        screen.print(f"\nunreadable images: {len(found.bad):,}")
        for item in found.bad[:ROWS]:
            screen.print(printable(f"  {item.where} {item.reason}"), soft_wrap=True)
    more = max(len(found.bad), len(found.leaks), len(found.conflicts), len(found.duplicates)) > ROWS
    if more:
        screen.print("--json lists them all")
    verdict = "all images are readable, none is in two splits or under two labels" if found.ok else "problems found: see above"
    screen.print(f"\n{verdict}" + (f"; page: {page}" if page else "; --page FILE.html draws it"))
