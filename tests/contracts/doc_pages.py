"""Run a page of the docs: its snippets and commands one after the other, in one process and one folder.

Pages show what people would type. Three things make that quick enough for a test: training commands are cut to a few steps
of a small model, fewer ``panes`` are drawn, and the checkpoints that pages name, also on the hub, are stand-ins: small, but
with the layout of the published files and for images of their size.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from torch import nn

import vitrail
from vitrail.cli.main import run
from vitrail.data.sources.dataset import Dataset

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FEW_STEPS = ["--set", "steps=2", "--set", "schedule.warmup_steps=0"]
SMALL_MODEL = ["--set", "model.depth=2", "--set", "model.width=48", "--set", "model.mlp=96"]
SHORTENED = {"train": [*FEW_STEPS, *SMALL_MODEL], "pretrain": [*FEW_STEPS, *SMALL_MODEL], "finetune": FEW_STEPS}
HUB_MODEL = "google/vit-base-patch16-224"
REPLACED = {"panes": "panes:train_size=200", f"hf:{HUB_MODEL}": Path(HUB_MODEL).name}  # fewer images; no download
FASHION_CLASSES = {"bag": 8, "boot": 9, "shirt": 6, "trousers": 1}  # class indices in fashion


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``line`` is the number of its first line."""

    page: Path
    line: int
    language: str
    text: str


def code_blocks(page: Path) -> list[Block]:
    text = page.read_text()
    fences = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(page, text[: found.start(2)].count("\n") + 1, found[1], found[2]) for found in fences]


def commands(block: Block) -> list[str]:
    """Return the commands of an ``sh`` block, without comments; blocks that show output are ``text``."""
    lines = block.text.splitlines() if block.language == "sh" else []
    return [line for line in (line.split(" #")[0].strip() for line in lines) if line]


def run_page(page: Path) -> None:
    """Run a page in the current folder; a traceback names the page's own line."""
    names: dict[str, Any] = {"__name__": "__main__"}
    if page.parent == ROOT:  # the README's commands use the files of the how-to guides
        prepare_folder(Path())
    for block in code_blocks(page):
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
        for line in commands(block):
            if line.startswith("vitrail "):
                assert run(shorten(shlex.split(line)[1:])) == 0, line


def shorten(words: list[str]) -> list[str]:
    """Shorten a command that takes minutes to seconds."""
    words = [REPLACED.get(word, word) for word in words]
    if words[0] not in SHORTENED or "--print-recipe" in words:
        return words
    if "--resume" in words:  # two steps more than the run has
        return [re.sub(r"^steps=\d+$", "steps=4", word) for word in words]
    for option in {"--minutes", "--epochs"} & {*words}:
        index = words.index(option)
        words = words[:index] + words[index + 2 :]
    return [*words, *SHORTENED[words[0]]]


def prepare_folder(folder: Path) -> None:
    """Create what the pages assume: labelled ``photos``, tables of them, images with masks and boxes, two runs, checkpoints."""
    source = vitrail.open_dataset("fashion").train
    for name, label in FASHION_CLASSES.items():
        (folder / "photos" / name).mkdir(parents=True)
        for number, index in enumerate((source.labels == label).nonzero()[0][:24]):
            pixels = np.asarray(source.read(int(index)))
            Image.fromarray(pixels[..., 0]).convert("RGB").resize((64, 64)).save(folder / "photos" / name / f"{number:03}.jpg")
    _write_tags(folder)
    _write_prices(folder)
    _write_masks(folder / "garments", source)
    assert run(["data", "convert", "panes:train_size=20,size=48x64", str(folder / "cells"), "--to", "coco"]) == 0
    for name in ("mine", "other"):
        words = ["train", str(folder / "photos"), "--out", str(folder / "runs" / name), "--set", f"seed={len(name)}"]
        assert run(shorten(words)) == 0
    save_stand_in(folder / "vit_small_patch16_224.safetensors", "timm", "exact")
    save_stand_in(folder / "ViT-B_16.npz", "official", "tanh")
    save_stand_in(folder / Path(HUB_MODEL).name, "huggingface", "exact")
    save_stand_in(folder / "dinov2-s14", "huggingface", "exact")  # a folder goes before a published model of the same name


def _write_tags(folder: Path) -> None:
    """Write a table in which each photo has its class, every second one a further label, and every ninth none."""
    rows = ["file,labels,split"]
    for number, path in enumerate(sorted((folder / "photos").rglob("*.jpg"))):
        labels = (
            ""
            if number % 9 == 8
            else f"{path.parent.name};{'left' if number % 3 else 'right'}"
            if number % 2
            else path.parent.name
        )
        rows.append(f"{path.relative_to(folder)},{labels},{('validation', 'test', 'train', 'train')[number % 4]}")
    (folder / "tags.csv").write_text("\n".join(rows))


def _write_prices(folder: Path) -> None:
    """Write a table with two numbers per photo."""
    rows = ["file,price,weight,split"]
    for number, path in enumerate(sorted((folder / "photos").rglob("*.jpg"))):
        split = ("validation", "test", "train", "train")[number % 4]
        rows.append(f"{path.relative_to(folder)},{20 + number % 7 + number / 10:.2f},{number % 5 / 4},{split}")
    (folder / "prices.csv").write_text("\n".join(rows))


def _write_masks(folder: Path, source: Dataset) -> None:
    """Write images with a mask each, whose background is black."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for index in range(20):
        pixels = np.asarray(source.read(index))[..., 0]
        Image.fromarray(pixels).convert("RGB").save(folder / "images" / f"{index:03}.png")
        Image.fromarray((pixels > 20).astype(np.uint8)).save(folder / "masks" / f"{index:03}.png")
    (folder / "classes.txt").write_text("background\ngarment\n")


def save_stand_in(file: Path, origin: Literal["timm", "official", "huggingface"], gelu: str) -> None:
    model = vitrail.build("mu/16", gelu=gelu, position_resize=origin)
    nn.init.normal_(model.get_parameter("head.weight"))  # new heads are zero, and any two models would predict the same
    vitrail.save(model, file, format=origin)
