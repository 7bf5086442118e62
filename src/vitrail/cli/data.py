"""``vitrail data``: check, show, pack, shard and get the pictures that everything else reads."""

import re
from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.options import Json, Settings, check_out, pair
from vitrail.cli.screen import add, console, print_json, progress, size, table
from vitrail.errors import VitrailError, printable

data = typer.Typer(name="data", help="Check, show, pack, shard and get pictures.", no_args_is_help=True)

Source = Annotated[
    str, typer.Argument(metavar="DATA", help="A folder, .csv, .parquet, .tar, a pack, hf:owner/name, or a set by its name.")
]
Unlabelled = Annotated[
    bool, typer.Option("--unlabelled", help="Every picture below a folder, in a class or not, for vitrail pretrain.")
]
MOST_SHOWN = 1000  # pictures on a sheet
UNITS = {"": 1, **{f"{letter}i": 1024**power for power, letter in enumerate("kmgt", 1)}}
UNITS |= {letter: 1000**power for power, letter in enumerate("kmgt", 1)}
ROWS = 12  # of each kind of finding on the screen; the page and --json have more


@data.command()
def check(
    source: Source,
    page: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with a contact sheet.")] = None,
    json: Json = False,
) -> None:
    """Read every picture: bad ones, copies, leaks, balance, sizes, kinds; changes nothing. Exit code 1 if one is wrong."""
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


@data.command()
def show(
    source: Source,
    out: Annotated[Path, typer.Option(metavar="FILE.png", help="Where to draw.")] = Path("batch.png"),
    augment: Annotated[str, typer.Option(metavar="NAME", help="plain, none, light1 ... strong2, pad, textbook.")] = "none",
    image: Annotated[str | None, typer.Option(metavar="H[xW]", help="Height and width the model sees.")] = None,
    batch: Annotated[int, typer.Option(metavar="B", help="Pictures in a batch.")] = 24,
    step: Annotated[int, typer.Option(metavar="N", help="Number of the batch.")] = 0,
    seed: Annotated[int, typer.Option(help="Of order and augmentation.")] = 0,
    split: Annotated[str, typer.Option(help="train, validation or test; the last two as in evaluation.")] = "train",
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Draw a batch as the model will see it, augmentation on."""
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
        opened = usable(pictures(source, progress=tell), tell).data  # what training will read
        drawn = draw_batch(opened, split, how, pair(image, "--image") if image else None, batch, step, seed)
    write_whole(out, as_file(drawn.sheet, out.suffix))
    if json:
        print_json({"written": str(out), "indices": drawn.indices, "labels": drawn.labels, "image": drawn.image})
    else:
        typer.echo(f"drew batch {step} of {source} ({split}, {len(drawn.indices)} pictures): {out}")


@data.command()
def pack(
    source: Source,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    side: Annotated[
        str, typer.Option("--size", metavar="S|HxW|full", help="Longest short side; or one size, the middle cut out; or as is.")
    ] = "256",
    keep: Annotated[
        str, typer.Option(metavar="pixels|jpeg", help="Decoded pixels, or the files' bytes as they are.")
    ] = "pixels",
    unlabelled: Unlabelled = False,
    json: Json = False,
) -> None:
    """Write a data set into one file that is mapped into memory and read without decoding."""
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
            provenance={"source": opened.name, "size": side if keep == "pixels" else "full", "keep": keep},
            progress=tell,
        )
    if json:
        print_json({**vars(made), "path": str(made.path)})
        return
    for sentence in made.skipped[:ROWS]:
        typer.echo(printable(f"left out {sentence}"))
    parts = ", ".join(f"{count:,} {split}" for split, count in made.counts.items())
    left = f"; {len(made.skipped):,} left out" if made.skipped else ""
    typer.echo(f"packed {parts}{left}: {made.path} ({size(made.bytes)}, sha256 {made.sha256[:16]})")


@data.command()
def shard(
    source: Source,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    most: Annotated[str, typer.Option("--size", metavar="1GB", help="Bytes of a shard: 500MB, 64KiB ...")] = "1GB",
    seed: Annotated[int, typer.Option(help="Of the pictures' order.")] = 0,
    unlabelled: Unlabelled = False,
    json: Json = False,
) -> None:
    """Write a data set into tar shards, its files as they are, in an order that mixes the classes."""
    from vitrail.data.attempt import free
    from vitrail.data.sharding import write_shards
    from vitrail.data.sources.open import pictures

    limit = _bytes(most, "--size")
    if Path(source).is_dir() and out.resolve().is_relative_to(Path(source).resolve()):
        raise VitrailError(f"OUT must not lie in the data itself, got {out}; name a folder beside it")
    free(out)  # before what may take hours
    with progress() as tell:
        opened = pictures(source, labelled=not unlabelled, progress=tell)
        splits = {split: part for split, part in opened.splits.items() if len(part)}
        made = write_shards(out, splits, size=limit, seed=seed, labelled=not unlabelled, progress=tell)
    shards = {split: len(sizes) for split, sizes in made.shards.items()}
    if json:
        print_json({
            "path": str(out), "counts": made.counts, "shards": shards, "skipped": made.skipped, "bytes": made.bytes,
            "before": made.before, "size": limit, "seed": seed,
        })  # fmt: skip
        return
    for sentence in made.skipped[:ROWS]:
        typer.echo(printable(f"left out {sentence}"))
    parts = ", ".join(f"{count:,} {split} in {shards[split]:,}" for split, count in made.counts.items())
    left = f"; {len(made.skipped):,} left out" if made.skipped else ""
    before = f"; {made.before:,} were there from an earlier attempt" if made.before else ""
    typer.echo(f"wrote {parts} shards{left}{before}: {out} ({size(made.bytes)})")


def _bytes(text: str, option: str) -> int:
    """1GB is 10 to the 9th, 1GiB 2 to the 30th."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([kmgt]i?|)b?", text.strip().lower(), re.ASCII)
    number = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if number < 1:
        raise VitrailError(
            f"{option} must be a number of bytes such as 1GB, 500MB or 64KiB, got {text[:20]!r}; try {option} 1GB"
        )
    return number


@data.command()
def get(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="fashion-mnist, cifar10 or cifar100; none: list them.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a public set available under its name, from Debian's package or by download with a checksum."""
    from vitrail.data import cache
    from vitrail.data.sources.get import get as fetch

    if name is None:
        _list_sets(json)
        return
    with progress() as tell:
        path = fetch(name, cache.folder() / "sets", progress=tell)
    if json:
        print_json({"name": name, "path": str(path)})
    else:
        typer.echo(f"{name} is here: {path}; use it as `vitrail data check {name}`")


def _list_sets(json: bool) -> None:
    from vitrail.data.sources.get import HERE, SETS, place_of

    if json:
        told = ("pictures", "bytes", "licence", "address")
        rows = [
            {"name": name, **{field: getattr(known, field) for field in told}, "here": place_of(name).is_file()}
            for name, known in SETS.items()
        ]
        print_json({"sets": rows})
        return
    for name, known in SETS.items():
        typer.echo(f"{name}: {known.pictures}" + ("; is here" if place_of(name).is_file() else ""))
        typer.echo(f"    {size(known.bytes)} from {known.address}; licence: {known.licence}")
    typer.echo(f"`vitrail data get NAME` fetches one; {' and '.join(HERE)} are always here")


def _plain(found: "Checked", page: Path | None) -> dict[str, object]:  # type: ignore[name-defined]  # noqa: F821
    return {
        "ok": found.ok,
        "data": found.data.name,
        "fingerprint": found.data.fingerprint,
        "pictures": found.pictures,
        "splits": {split: len(source) for split, source in found.data.splits.items()},
        "bad": [vars(item) for item in found.bad],
        "leaks": [vars(item) for item in found.leaks],
        "conflicts": [vars(item) for item in found.conflicts],
        "duplicates": [vars(item) for item in found.duplicates],
        "classes": found.classes,
        "sizes": found.sizes,
        "kinds": found.kinds,
        "notes": found.notes,
        "page": None if page is None else str(page),
    }


def _print(found: "Checked", page: Path | None) -> None:  # type: ignore[name-defined]  # noqa: F821
    screen = console()
    classes = table("class", "#train", "#validation", "#test", title=f"{found.data.name}: {found.pictures:,} pictures")
    for name, counts in list(found.classes.items())[: 3 * ROWS]:
        add(classes, printable(name), *(f"{counts[split]:,}" for split in ("train", "validation", "test")))
    if len(found.classes) > 3 * ROWS:
        add(classes, f"and {len(found.classes) - 3 * ROWS:,} more")
    add(classes, "all", *(f"{len(source):,}" for source in found.data.splits.values()))
    screen.print(classes)
    for side, (least, median, most) in found.sizes.items():
        screen.print(f"{side}: {least:,} to {most:,}, median {median:,}")
    if found.kinds:
        screen.print("kinds: " + ", ".join(f"{count:,} {kind}" for kind, count in found.kinds.items()))
    for note in found.notes:
        screen.print(printable(f"note: {note}"), soft_wrap=True)
    for title, groups in (
        ("in two splits", found.leaks),
        ("under two labels", found.conflicts),
        ("twice", found.duplicates),
    ):
        if groups:
            screen.print(f"\nthe same picture {title}: {len(groups):,}")
            for group in groups[:ROWS]:
                copies = " = ".join(group.where[:4]) + (" ..." if len(group.where) > 4 else "")
                screen.print(printable(f"  {copies}"), soft_wrap=True)
    if found.bad:
        screen.print(f"\npictures that cannot be used: {len(found.bad):,}")
        for item in found.bad[:ROWS]:
            screen.print(printable(f"  {item.where} {item.reason}"), soft_wrap=True)
    more = max(len(found.bad), len(found.leaks), len(found.conflicts), len(found.duplicates)) > ROWS
    if more:
        screen.print("--json lists them all")
    verdict = (
        "every picture can be used, none is in two splits or under two labels" if found.ok else "something is wrong: see above"
    )
    screen.print(f"\n{verdict}" + (f"; page: {page}" if page else "; --page FILE.html draws it"))
