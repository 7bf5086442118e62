"""Count how many published kinds of checkpoint Vitrail loads exactly, refuses, or loads with wrong numbers.

    python -m scripts.coverage_of_checkpoints [--families deit eva transformers projects] [--only PATTERN]
        [--forms folder bare] [--jobs 2] [--json FILE] [--page docs/coverage.md]

A family is a module of timm, ``transformers`` (classes of Hugging Face) or ``projects`` (files in the names of other projects).
Every reference model is built by its library with random weights and two layers, saved as the library or the project saves it,
loaded by Vitrail, and compared on one image. A refusal is a VitrailError; any other exception counts as wrong. timm's published
weights are counted with the outcome of their architecture. About ten minutes with two jobs.
"""

import argparse
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from scripts.coverage import project_files, timm_models, transformers_models
from scripts.coverage.compare import Outcome, count
from scripts.coverage.page import coverage_page, published_outcomes

FAMILIES = (*timm_models.FAMILIES, "transformers", "projects")


def list_cases(families: Sequence[str], pattern: str) -> Iterator[tuple[str, str]]:
    """Yield family and name of every case."""
    for family in families:
        match family:
            case "transformers":
                names = transformers_models.list_names(pattern)
            case "projects":
                names = project_files.list_names(pattern)
            case _:
                names = timm_models.list_names(family, pattern)
        yield from ((family, name) for name in names)


def run_case(case: tuple[str, str], forms: Sequence[str]) -> list[Outcome]:
    """Return the outcomes of one case; only timm's models have several forms."""
    family, name = case
    match family:
        case "transformers":
            return [transformers_models.run_model(name)]
        case "projects":
            return [project_files.run_file(name)]
        case _:
            return list(timm_models.run_model(family, name, forms))


def set_up_process() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)


def run_cases(cases: Sequence[tuple[str, str]], forms: Sequence[str], jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes in the order of the cases, from several processes."""
    run = partial(run_case, forms=forms)
    if jobs == 1:
        set_up_process()
        for case in cases:
            yield from run(case)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=set_up_process) as pool:
        for outcomes in pool.map(run, cases):
            yield from outcomes


def merge(found: list[Outcome], file: Path) -> list[Outcome]:
    """Return the outcomes of a JSON file with those that were repeated in their places, and new ones at the end."""
    earlier = [Outcome(**fields) for fields in json.loads(file.read_text())] if file.is_file() else []
    repeated = {(outcome.family, outcome.name, outcome.form): outcome for outcome in found}
    built = {(outcome.family, outcome.name) for outcome in found}  # also those that were not built before
    kept = [outcome for outcome in earlier if outcome.form != "none" or (outcome.family, outcome.name) not in built]
    replaced = [repeated.pop((outcome.family, outcome.name, outcome.form), outcome) for outcome in kept]
    return [*replaced, *repeated.values()]


def print_counts(found: Sequence[Outcome]) -> None:
    parts = {
        "timm, folders": [outcome for outcome in found if outcome.family in timm_models.FAMILIES and outcome.form != "bare"],
        "timm, bare files": [outcome for outcome in found if outcome.form == "bare"],
        "timm, published weights": published_outcomes(found),
        "transformers": [outcome for outcome in found if outcome.family == "transformers"],
        "projects": [outcome for outcome in found if outcome.family == "projects"],
    }
    for title, outcomes in parts.items():
        if outcomes:
            print(f"{title}: {', '.join(f'{number} {result}' for result, number in count(outcomes).items())}")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression of names")
    parser.add_argument("--forms", nargs="+", default=timm_models.FORMS, choices=timm_models.FORMS, help="of timm's models")
    parser.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes, each with one thread")
    parser.add_argument("--json", type=Path, help="also write every outcome to this file; it keeps those of other families")
    parser.add_argument("--page", type=Path, help="also write the tables of all outcomes in the JSON file, as Markdown")
    options = parser.parse_args()
    found = []
    for outcome in run_cases(list(list_cases(options.families, options.only)), options.forms, options.jobs):
        found.append(outcome)
        columns = f"{outcome.result:9} {outcome.form:6} {outcome.name:45} {outcome.seconds:5} {outcome.detail[:200]}"
        print(columns, flush=True)  # noqa: T201
    print_counts(found)
    if options.json:
        found = merge(found, options.json)
        options.json.write_text(json.dumps([asdict(outcome) for outcome in found], indent=1) + "\n")
    if options.page:
        options.page.write_text(coverage_page(found))


if __name__ == "__main__":
    main()
