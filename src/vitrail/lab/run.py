"""An experiment from beginning to end: its trainings, then its page, with the drawings and the numbers beside it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError
from vitrail.lab.budget import within
from vitrail.lab.experiment import Asked, Experiment, Told
from vitrail.lab.trial import Row, done
from vitrail.report.drawing import Drawing
from vitrail.report.figures import Put, figure
from vitrail.report.page import page, text, write_whole
from vitrail.train.loop import Machine

QUICK = 4  # steps of each training
NONE = "none"  # the data of an experiment that looks at none
MINUTES = 20.0


def carried_out(
    experiment: Experiment,
    asked: Asked,
    folder: Path,
    minutes: float = MINUTES,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> Told:
    """``folder`` is the experiment's own; what lies there already is taken as it is."""
    if asked.weights is not None and not experiment.takes_weights:
        raise VitrailError(f"{experiment.name} looks at no given checkpoint; leave --weights out")
    if experiment.data != NONE:
        pictures(asked.data, progress=progress)  # what is wrong with them is said before the work
    elif asked.data != NONE:
        raise VitrailError(f"{experiment.name} looks at no pictures; leave --data out")
    trials = list(experiment.trials(asked))
    if asked.quick:
        trials = [trial.short(QUICK) for trial in trials]
    elif trials:
        trials = within(folder, trials, minutes, machine, progress)
    rows: Sequence[Row] = done(folder, trials, experiment.measure, machine, progress) if trials else ()
    if experiment.work is not None:
        rows = experiment.work(asked, folder, progress)
    told = experiment.tell(asked, rows)
    asked = replace(asked, data=", ".join(dict.fromkeys(trial.recipe.data for trial in trials)) or asked.data)
    _write(folder, experiment, asked, told, minutes if trials and not asked.quick else None, rows)
    return told


def _write(folder: Path, experiment: Experiment, asked: Asked, told: Told, minutes: float | None, rows: Sequence[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)

    def put(name: str, content: bytes) -> None:
        write_whole(folder / name, content)

    made = page(f"Lab: {experiment.title}", _parts(experiment, asked, told, minutes, rows, put))
    put("index.html", made.encode())
    numbers = {"experiment": experiment.name, "data": asked.data, "quick": asked.quick, "answer": told.answer, **told.numbers}
    put("numbers.json", (json.dumps(numbers, indent=1, allow_nan=False) + "\n").encode())


def _parts(
    experiment: Experiment, asked: Asked, told: Told, minutes: float | None, rows: Sequence[Row], put: Put
) -> Iterator[str]:
    yield f"<h1>{text(experiment.title)}</h1>"
    yield f'<p class="soft"><code>vitrail lab {text(experiment.name)}</code>{_on(asked)}</p>'
    if asked.quick and rows:
        yield '<p class="bad">A quick look: a few steps, which prove that the experiment works. Its numbers mean nothing.</p>'
    yield f'<p class="answer"><span class="soft">{text(told.answer)}</span></p>'
    numbers = count(1)
    for part in told.parts:
        yield figure(part, f"figure-{next(numbers)}", put) if isinstance(part, Drawing) else part
    for title, words in (
        ("What the paper has", experiment.paper),
        ("What was scaled down", experiment.scaled),
        ("What this does not show", experiment.limits),
    ):
        yield f"<h2>{title}</h2><p>{text(words)}</p>"
    if rows:
        seconds = sum(row.seconds for row in rows)
        time = f"{seconds:,.0f} seconds" if seconds < 120 else f"{seconds / 60:,.0f} minutes"
        steps = sorted({row.steps for row in rows})
        lasting = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
        spent = f"{len(rows):,} trainings of {lasting} steps, {time} of one process"
        yield f'<p class="soft">{spent}{f", of {minutes:g} asked for" if minutes else ""}.</p>'


def _on(asked: Asked) -> str:
    return "" if asked.data == NONE else f" on {text(asked.data)}"
