"""An experiment from beginning to end: its trainings, then its page, with the drawings and the numbers beside it."""

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
from vitrail.report.page import page, text, write_whole
from vitrail.train.loop import Machine

QUICK = 4  # steps of each training
WHOLE = "Nothing is trained here, so a quick look is all of it."
CLEARLY = (
    "± is Student's 95 % interval over the seeds, all of them told on the same test pictures: another draw of these would add "
    "to it. Clearly ahead is what leads by more than the interval of the difference, seed by seed."
)
QUICKLY = "A quick look: a few steps, which prove that the experiment works. Its numbers mean nothing."
NONE = "none"  # the data of an experiment that looks at none
NARROW = 540  # pixels: drawings up to it stand side by side
STYLE = """
.answer { font-size: 1.1rem; line-height: 1.5; font-weight: 400; margin-bottom: 0; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 0 2.5rem;
          margin-bottom: 1.6rem; }
.beside h2 { margin: 1.2rem 0 0; } .beside p { margin-top: .4rem; } figure + .wide, .figures + .wide { margin-top: 1.2rem; }
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
    """``folder`` is the experiment's own; what lies there already is taken as it is."""
    if asked.weights is not None and not experiment.takes_weights:
        raise VitrailError(f"{experiment.name} looks at no given checkpoint; leave --weights out")
    mark: str | None = None
    minutes = experiment.minutes if minutes is None else minutes
    if experiment.data != NONE:
        mark = _checked(experiment, asked, progress)
    elif asked.data != NONE:
        raise VitrailError(f"{experiment.name} looks at no pictures; leave --data out")
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
    """What is wrong with the pictures is said before the work. The fingerprint, of a set that can change under its name."""
    found = pictures(asked.data, progress=progress)
    if experiment.trains and not len(found.test):
        raise VitrailError(f"{asked.data} has no pictures to test on; make a folder test in it, or try fashion")
    return None if has_amounts(asked.data) else usable(found, progress).data.fingerprint


def command(experiment: Experiment, asked: Asked, minutes: float) -> str:
    """What makes this page again."""
    words = ["vitrail", "lab", experiment.name]
    if asked.quick:
        words.append("--quick")
    elif experiment.trains:
        words += ["--minutes", f"{minutes:g}"]
    if asked.data != experiment.data:
        words += ["--data", asked.data]
    if asked.weights is not None:
        words += ["--weights", Path(asked.weights).name]  # where it lies is nobody's business but its owner's
    return shlex.join(words)


def _on(experiment: Experiment, asked: Asked, trials: Sequence[Trial]) -> str:
    """The pictures, where the command does not say it, and how large the models see them."""
    sizes = " and ".join(dict.fromkeys(times(trial.recipe.model.image) for trial in trials))
    own = f" on {text(asked.data)}" if asked.data == experiment.data != NONE else ""
    return f"{own}{f', pictures seen in {sizes} pixels' if sizes else ''}"


def _spent(rows: Sequence[Row], minutes: float | None) -> Iterator[str]:
    if not rows:
        return
    seconds = sum(row.seconds for row in rows)
    time = f"{seconds:,.1f} seconds" if seconds < 120 else f"{seconds / 60:,.0f} minutes"
    steps = sorted({row.steps for row in rows})
    lasting = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    wanted = f"; {minutes:g} minutes were asked for" if minutes else ""
    yield f'<p class="soft">{len(rows):,} trainings of {lasting} steps, {time} of one process{wanted}.</p>'
    versions = sorted({f"Vitrail {row.made['vitrail']} on torch {row.made['torch']}" for row in rows if row.made})
    if len(versions) > 1:
        yield f'<p class="bad">They were made by {one_of(versions)}, which need not agree.</p>'
    if len({row.of.get("seed") for row in rows}) > 1:
        yield f'<p class="soft">{CLEARLY}</p>'


def _write(folder: Path, experiment: Experiment, asked: Asked, told: Told, around: Sequence[str]) -> None:
    """``around``: what stands below the title, and at the end."""
    folder.mkdir(parents=True, exist_ok=True)

    def put(name: str, content: bytes) -> None:
        write_whole(folder / name, content)

    put("index.html", page(f"Lab: {experiment.title}", _parts(experiment, asked, told, around, put), STYLE).encode())
    numbers = {"experiment": experiment.name, "data": asked.data, "quick": asked.quick, "answer": told.answer, **told.numbers}
    put("numbers.json", (json.dumps(numbers, indent=1, allow_nan=False) + "\n").encode())


def _parts(experiment: Experiment, asked: Asked, told: Told, around: Sequence[str], put: Put) -> Iterator[str]:
    head, *end = around
    yield f"<h1>{text(experiment.title)}</h1>"
    yield head
    if asked.quick:
        yield f'<p class="bad">{QUICKLY}</p>' if experiment.trains else f'<p class="soft">{WHOLE}</p>'
    ours = f'<section><h2>What came out here</h2><p class="answer">{text(told.answer)}</p></section>'
    yield f'<div class="beside">{ours}<section><h2>What the paper has</h2><p>{text(experiment.paper)}</p></section></div>'
    yield from _shown(told.parts, put)
    for title, words in (("What was scaled down", experiment.scaled), ("What this does not show", experiment.limits)):
        yield f"<h2>{title}</h2><p>{text(words)}</p>"
    yield from end


def _shown(parts: Sequence[str | Drawing], put: Put) -> Iterator[str]:
    """Drawings that follow one another and are narrow stand side by side, where there is room."""
    numbers = count(1)
    for narrow, group in groupby(parts, lambda part: isinstance(part, Drawing) and part.size[0] <= NARROW):
        made = [figure(part, f"figure-{next(numbers)}", put) if isinstance(part, Drawing) else part for part in group]
        yield f'<div class="figures">{"".join(made)}</div>' if narrow and len(made) > 1 else "\n".join(made)
