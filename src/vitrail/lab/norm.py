"""``vitrail lab norm``: pre-norm (equations 2 and 3) against post-norm, with warm-up and without."""

from collections.abc import Sequence
from dataclasses import replace

from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult
from vitrail.lab.small_recipe import ADAMW, STEPS, coarse_patch, small_recipe, small_vit
from vitrail.lab.summaries import LearningRates, by_learning_rate, join_clauses, mean_score, paired_difference, score_cell
from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.plot.markup import escape
from vitrail.recipes.recipe import Schedule
from vitrail.report.html import html_table

NORMS = ("pre", "post")
WARMUPS = {"warm-up": STEPS // 10, "no warm-up": 0}
RATES = (1e-3, 3e-3, 1e-2)
DEPTH = 8  # pre-norm matters more in deeper models


def jobs(options: ExperimentOptions) -> list[TrainingJob]:
    return [
        TrainingJob(
            {"norm": norm, "warmup": warmup_name, "lr": lr, "seed": seed},
            small_recipe(
                options, small_vit(options, norm=norm, depth=2 if options.quick else DEPTH, patch=coarse_patch(options)), seed,
                replace(ADAMW, lr=lr), schedule=Schedule(warmup_steps=warmup),
            ),
        )
        for seed in options.seeds
        for lr in (RATES[1:2] if options.quick else RATES)
        for norm in NORMS
        for warmup_name, warmup in WARMUPS.items()
    ]  # fmt: skip


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    rates = by_learning_rate(rows, "norm", "warmup")
    tried = list(next(iter(rates.results.values())))
    cells = [
        [escape(name), *(score_cell(line[lr]) for lr in tried), rates.best_cell(name)] for name, line in rates.results.items()
    ]
    return ExperimentResult(
        _summary(rates),
        [rates.figure, html_table(("norm", *(f"#lr {lr:g}" for lr in tried), "#lr selected on validation"), cells)],
        {"arms": rates.numbers, "best": rates.best},
    )


def _summary(rates: LearningRates) -> str:
    clauses, lines = [], rates.results
    for warmup in WARMUPS:
        pre, post = (f"{norm}, {warmup}" for norm in NORMS)
        ours, theirs = rates.best[pre], rates.best[post]
        if ours is None or theirs is None:
            diverged = [norm for norm, lr in zip(NORMS, (ours, theirs), strict=True) if lr is None]
            who = "both" if len(diverged) == 2 else f"{diverged[0]}-norm"
            clauses.append(f"with {warmup}, {who} diverged at every learning rate")
            continue
        difference = paired_difference(lines[pre][ours], lines[post][theirs])
        numbers = f"pre {mean_score(lines[pre][ours]):.1%}, post {mean_score(lines[post][theirs]):.1%}"
        if difference is None or not difference.significant:
            clauses.append(f"with {warmup}, the difference at their best learning rates is not significant ({numbers})")
        else:
            winner = "pre" if difference.mean > 0 else "post"
            clauses.append(f"with {warmup}, {winner}-norm is significantly better at its best learning rate ({numbers})")
    partly_diverged = [name for name, line in lines.items() if any(row.failure for group in line.values() for row in group)]
    joined = join_clauses(clauses).replace("with no warm-up", "without warm-up")
    return f"{joined} Some runs of {len(partly_diverged)} arms diverged." if partly_diverged else joined


EXPERIMENT = Experiment(
    name="norm",
    title="Equations 2 and 3: pre-norm or post-norm",
    paper="Layer norm is applied before every block and residual connections after it, as in later Transformers (Wang et "
    "al. 2019; Baevski and Auli 2019), and pre-training warms up over 10,000 steps. The paper "
    "(Dosovitskiy et al. 2021, 3.1 and Table 3) ablates neither, so there is nothing to compare with.",
    scaled=f"A ViT with {DEPTH} layers, width 64 and sixteen patches, AdamW with gradient clipping at 1, three learning rates, "
    "three seeds.",
    limits=f"{DEPTH} layers are few: post-norm without warm-up is known to fail with more of them and with higher learning "
    "rates, and clipping keeps some runs from diverging. That it works here says nothing about 24 layers.",
    build_result=build_result,
    jobs=jobs,
)
