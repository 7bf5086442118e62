"""Runs an experiment: its training jobs, then the page, the figures and the numbers."""

import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from pathlib import Path

from vitrail.data.check import usable
from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError
from vitrail.lab.base import has_amounts
from vitrail.lab.budget import within
from vitrail.lab.experiment import Asked, Experiment, Told
from vitrail.lab.show import one_of
from vitrail.lab.trial import Row, Trial, done
from vitrail.models.settings import times
from vitrail.report.drawing import Drawing
from vitrail.report.figures import Put, figure
from vitrail.report.markup import text
from vitrail.report.page import page, write_whole
from vitrail.train.loop import Machine

QUICK = 4  # steps of each training run
WHOLE = "Nothing is trained here, so --quick gives the full result."
CLEARLY = (
    "± is Student's 95 % interval over the seeds, all evaluated on the same test images: sampling other test images would add "
    "to it. A difference is significant if it exceeds the 95 % interval of the differences paired by seed."
)
QUICKLY = "A quick test of a few steps: it shows that the experiment works, its numbers mean nothing."
NONE = "none"  # the data of an experiment without images
NARROW = 540  # pixels: figures up to this width are placed side by side
STYLE = """
.headline { font-size: 1.1rem; line-height: 1.5; font-weight: 400; margin-bottom: 0; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 0 2.5rem;
          margin-bottom: 1.6rem; }
.columns h2 { margin: 1.2rem 0 0; } .columns p { margin-top: .4rem; } figure + .wide, .figures + .wide { margin-top: 1.2rem; }
th, td { overflow-wrap: normal; } .figures { align-items: start; } h1 + p { overflow-wrap: anywhere; }
"""


def carried_out(
    experiment: Experiment,
    asked: Asked,
    folder: Path,
    minutes: float | None = None,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> Told:
    """Run an experiment in its own folder; results that are already there are reused."""
    if asked.weights is not None and not experiment.takes_weights:
        raise VitrailError(f"{experiment.name} takes no checkpoint; leave out --weights")
    mark: str | None = None
    minutes = experiment.minutes if minutes is None else minutes
    if experiment.data != NONE:
        mark = _checked(experiment, asked, progress)
    elif asked.data != NONE:
        raise VitrailError(f"{experiment.name} takes no dataset; leave out --data")
    trials = list(experiment.trials(asked))
    if asked.quick:
        trials = [trial.short(QUICK) for trial in trials]
    elif trials:
        trials = within(folder, trials, minutes, machine, progress, experiment.looks)
    rows: Sequence[Row] = done(folder, trials, experiment.measure, machine, progress, mark) if trials else ()
    told = experiment.tell(asked, rows)
    head = f'<p class="soft"><code>{text(command(experiment, asked, minutes))}</code>{_on(experiment, asked, trials)}</p>'
    _write(folder, experiment, asked, told, [head, *_spent(rows, None if asked.quick else minutes)])
    return told


def _checked(experiment: Experiment, asked: Asked, progress: Progress | None) -> str | None:
    """Check the dataset before the work; return the fingerprint of one whose content can change under its name."""
    found = pictures(asked.data, progress=progress)
    if experiment.trains and not len(found.test):
        raise VitrailError(f"{asked.data} has no test images; add a folder test to it, or try fashion")
    return None if has_amounts(asked.data) else usable(found, progress).data.fingerprint


def command(experiment: Experiment, asked: Asked, minutes: float) -> str:
    """Return the command that reproduces the page."""
    words = ["vitrail", "lab", experiment.name]
    if asked.quick:
        words.append("--quick")
    elif experiment.trains:
        words += ["--minutes", f"{minutes:g}"]
    if asked.data != experiment.data:
        words += ["--data", asked.data]
    if asked.weights is not None:
        words += ["--weights", Path(asked.weights).name]  # a local path stays private
    return shlex.join(words)


def _on(experiment: Experiment, asked: Asked, trials: Sequence[Trial]) -> str:
    """Describe the dataset, where the command does not name it, and the input sizes."""
    sizes = " and ".join(dict.fromkeys(times(trial.recipe.model.image) for trial in trials))
    own = f" on {text(asked.data)}" if asked.data == experiment.data != NONE else ""
    return f"{own}{f', input size {sizes} pixels' if sizes else ''}"


def _spent(rows: Sequence[Row], minutes: float | None) -> Iterator[str]:
    if not rows:
        return
    seconds = sum(row.seconds for row in rows)
    time = f"{seconds:,.1f} seconds" if seconds < 120 else f"{seconds / 60:,.0f} minutes"
    steps = sorted({row.steps for row in rows})
    lasting = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    wanted = f"; time budget {minutes:g} minutes" if minutes else ""
    yield f'<p class="soft">{len(rows):,} training runs of {lasting} steps, {time} of one process{wanted}.</p>'
    versions = sorted({f"Vitrail {row.made['vitrail']} on torch {row.made['torch']}" for row in rows if row.made})
    if len(versions) > 1:
        yield f'<p class="bad">The results come from {one_of(versions)}, which need not agree.</p>'
    if len({row.of.get("seed") for row in rows}) > 1:
        yield f'<p class="soft">{CLEARLY}</p>'


def _write(folder: Path, experiment: Experiment, asked: Asked, told: Told, around: Sequence[str]) -> None:
    """Write page and numbers. ``notes``: the line below the title, then those at the end."""
    folder.mkdir(parents=True, exist_ok=True)

    def put(name: str, content: bytes) -> None:
        write_whole(folder / name, content)

    put("index.html", page(f"Lab: {experiment.title}", _parts(experiment, asked, told, around, put), STYLE).encode())
    numbers = {"experiment": experiment.name, "data": asked.data, "quick": asked.quick, "summary": told.answer, **told.numbers}
    put("numbers.json", (json.dumps(numbers, indent=1, allow_nan=False) + "\n").encode())


def _parts(experiment: Experiment, asked: Asked, told: Told, around: Sequence[str], put: Put) -> Iterator[str]:
    head, *end = around
    yield f"<h1>{text(experiment.title)}</h1>"
    yield head
    if asked.quick:
        yield f'<p class="bad">{QUICKLY}</p>' if experiment.trains else f'<p class="soft">{WHOLE}</p>'
    ours = f'<section><h2>Result</h2><p class="headline">{text(told.answer)}</p></section>'
    yield f'<div class="columns">{ours}<section><h2>In the paper</h2><p>{text(experiment.paper)}</p></section></div>'
    yield from _shown(told.parts, put)
    for title, words in (("Scaled down", experiment.scaled), ("Limitations", experiment.limits)):
        yield f"<h2>{title}</h2><p>{text(words)}</p>"
    yield from end


def _shown(parts: Sequence[str | Drawing], put: Put) -> Iterator[str]:
    """Yield the parts as HTML; consecutive narrow figures are placed side by side."""
    numbers = count(1)
    for narrow, group in groupby(parts, lambda part: isinstance(part, Drawing) and part.size[0] <= NARROW):
        made = [figure(part, f"figure-{next(numbers)}", put) if isinstance(part, Drawing) else part for part in group]
        yield f'<div class="figures">{"".join(made)}</div>' if narrow and len(made) > 1 else "\n".join(made)
