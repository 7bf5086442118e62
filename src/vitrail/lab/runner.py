"""Runs an experiment: its training jobs, then the page, the figures and the numbers."""

import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from pathlib import Path

from vitrail.data.dataset_check import drop_unusable
from vitrail.data.sources.dataset import Progress
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.io import atomic_write
from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult
from vitrail.lab.small_recipe import supports_subsets
from vitrail.lab.summaries import join_names
from vitrail.lab.time_budget import fit_to_budget
from vitrail.lab.trials import JobResult, TrainingJob, run_jobs
from vitrail.models.config import format_size
from vitrail.plot.canvas import Figure, WriteFile, write_figure
from vitrail.plot.markup import escape
from vitrail.report.html import html_page
from vitrail.training.trainer import Hardware

QUICK_STEPS = 4  # steps of each training run
NO_TRAINING_NOTE = "Nothing is trained here, so --quick gives the full result."
SIGNIFICANCE_NOTE = (
    "± is Student's 95 % interval over the seeds, all evaluated on the same test images: sampling other test images would add "
    "to it. A difference is significant if it exceeds the 95 % interval of the differences paired by seed."
)
QUICK_NOTE = "A quick test of a few steps: it shows that the experiment works, its numbers mean nothing."
NO_DATASET = "none"  # the data of an experiment without images
MAX_NARROW_WIDTH = 540  # pixels: figures up to this width are placed side by side
STYLE = """
.headline { font-size: 1.1rem; line-height: 1.5; font-weight: 400; margin-bottom: 0; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 0 2.5rem;
          margin-bottom: 1.6rem; }
.columns h2 { margin: 1.2rem 0 0; } .columns p { margin-top: .4rem; } figure + .wide, .figures + .wide { margin-top: 1.2rem; }
th, td { overflow-wrap: normal; } .figures { align-items: start; } h1 + p { overflow-wrap: anywhere; }
"""


def run_experiment(
    experiment: Experiment,
    options: ExperimentOptions,
    folder: Path,
    minutes: float | None = None,
    machine: Hardware | None = None,
    progress: Progress | None = None,
) -> ExperimentResult:
    """Run an experiment in its own folder; results that are already there are reused."""
    if options.weights is not None and not experiment.takes_weights:
        raise VitrailError(f"{experiment.name} takes no checkpoint; leave out --weights")
    fingerprint: str | None = None
    minutes = experiment.minutes if minutes is None else minutes
    if experiment.data != NO_DATASET:
        fingerprint = _check_dataset(experiment, options, progress)
    elif options.data != NO_DATASET:
        raise VitrailError(f"{experiment.name} takes no dataset; leave out --data")
    jobs = list(experiment.jobs(options))
    if options.quick:
        jobs = [job.with_steps(QUICK_STEPS) for job in jobs]
    elif jobs:
        jobs = fit_to_budget(folder, jobs, minutes, machine, progress, experiment.measured_images)
    rows: Sequence[JobResult] = run_jobs(folder, jobs, experiment.measure, machine, progress, fingerprint) if jobs else ()
    result = experiment.build_result(options, rows)
    command = escape(reproduction_command(experiment, options, minutes))
    head = f'<p class="soft"><code>{command}</code>{_dataset_note(experiment, options, jobs)}</p>'
    _write_page(folder, experiment, options, result, [head, *_time_notes(rows, None if options.quick else minutes)])
    return result


def _check_dataset(experiment: Experiment, options: ExperimentOptions, progress: Progress | None) -> str | None:
    """Check the dataset before the work; return the fingerprint of one whose content can change under its name."""
    splits = open_dataset(options.data, progress=progress)
    if experiment.trains and not len(splits.test):
        raise VitrailError(f"{options.data} has no test images; add a folder test to it, or try fashion")
    return None if supports_subsets(options.data) else drop_unusable(splits, progress).data.fingerprint


def reproduction_command(experiment: Experiment, options: ExperimentOptions, minutes: float) -> str:
    """Return the command that reproduces the page."""
    arguments = ["vitrail", "lab", experiment.name]
    if options.quick:
        arguments.append("--quick")
    elif experiment.trains:
        arguments += ["--minutes", f"{minutes:g}"]
    if options.data != experiment.data:
        arguments += ["--data", options.data]
    if options.weights is not None:
        arguments += ["--weights", Path(options.weights).name]  # a local path stays private
    return shlex.join(arguments)


def _dataset_note(experiment: Experiment, options: ExperimentOptions, jobs: Sequence[TrainingJob]) -> str:
    """Describe the dataset, where the command does not name it, and the input sizes."""
    sizes = " and ".join(dict.fromkeys(format_size(job.recipe.model.image) for job in jobs))
    dataset = f" on {escape(options.data)}" if options.data == experiment.data != NO_DATASET else ""
    return f"{dataset}{f', input size {sizes} pixels' if sizes else ''}"


def _time_notes(rows: Sequence[JobResult], minutes: float | None) -> Iterator[str]:
    if not rows:
        return
    seconds = sum(row.seconds for row in rows)
    time = f"{seconds:,.1f} seconds" if seconds < 120 else f"{seconds / 60:,.0f} minutes"
    steps = sorted({row.steps for row in rows})
    steps_text = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    budget = f"; time budget {minutes:g} minutes" if minutes else ""
    yield f'<p class="soft">{len(rows):,} training runs of {steps_text} steps, {time} of one process{budget}.</p>'
    versions = sorted(
        {f"Vitrail {row.provenance['vitrail']} on torch {row.provenance['torch']}" for row in rows if row.provenance}
    )
    if len(versions) > 1:
        yield f'<p class="bad">The results come from {join_names(versions)}, which need not agree.</p>'
    if len({row.condition.get("seed") for row in rows}) > 1:
        yield f'<p class="soft">{SIGNIFICANCE_NOTE}</p>'


def _write_page(
    folder: Path, experiment: Experiment, options: ExperimentOptions, result: ExperimentResult, notes: Sequence[str]
) -> None:
    """Write page and numbers. ``notes``: the line below the title, then those at the end."""
    folder.mkdir(parents=True, exist_ok=True)

    def write_file(name: str, content: bytes) -> None:
        atomic_write(folder / name, content)

    write_file(
        "index.html",
        html_page(f"Lab: {experiment.title}", _sections(experiment, options, result, notes, write_file), STYLE).encode(),
    )
    numbers = {
        "experiment": experiment.name,
        "data": options.data,
        "quick": options.quick,
        "summary": result.summary,
        **result.numbers,
    }
    write_file("numbers.json", (json.dumps(numbers, indent=1, allow_nan=False) + "\n").encode())


def _sections(
    experiment: Experiment, options: ExperimentOptions, result: ExperimentResult, notes: Sequence[str], write_file: WriteFile
) -> Iterator[str]:
    head, *end = notes
    yield f"<h1>{escape(experiment.title)}</h1>"
    yield head
    if options.quick:
        yield f'<p class="bad">{QUICK_NOTE}</p>' if experiment.trains else f'<p class="soft">{NO_TRAINING_NOTE}</p>'
    summary = f'<section><h2>Result</h2><p class="headline">{escape(result.summary)}</p></section>'
    yield f'<div class="columns">{summary}<section><h2>In the paper</h2><p>{escape(experiment.paper)}</p></section></div>'
    yield from _render_parts(result.parts, write_file)
    for title, body in (("Scaled down", experiment.scaled), ("Limitations", experiment.limits)):
        yield f"<h2>{title}</h2><p>{escape(body)}</p>"
    yield from end


def _render_parts(parts: Sequence[str | Figure], write_file: WriteFile) -> Iterator[str]:
    """Yield the parts as HTML; consecutive narrow figures are placed side by side."""
    numbers = count(1)
    for narrow, group in groupby(parts, lambda part: isinstance(part, Figure) and part.size[0] <= MAX_NARROW_WIDTH):
        rendered = [
            write_figure(part, f"figure-{next(numbers)}", write_file) if isinstance(part, Figure) else part for part in group
        ]
        yield f'<div class="figures">{"".join(rendered)}</div>' if narrow and len(rendered) > 1 else "\n".join(rendered)
