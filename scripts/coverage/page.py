"""The page of the documentation that lists what Vitrail reads, refuses and reads wrong."""

import re
from collections.abc import Iterable, Sequence
from importlib import import_module

from scripts.coverage.compare import TOLERANCE, Outcome, count
from scripts.coverage.timm_models import FAMILIES, published_weights


def coverage_page(found: Sequence[Outcome]) -> str:
    """Return the page: a section for each part of the outcomes, then the refusals and the wrong ones."""
    weights = published_outcomes(found)  # also makes timm importable
    lines = [
        "# Coverage of published checkpoints",
        "",
        "Each reference model is built by its own library with random weights and two layers, written as the library or the",
        "project writes it, read by Vitrail, and compared on one image. *Exact*: no output differs by more than "
        f"{TOLERANCE:g} of the",
        "largest (or of 1, if that is larger). *Refused*: an error names the missing feature. *Wrong*: anything else.",
        "",
        "`python -m scripts.coverage_of_checkpoints --jobs 2 --json coverage.json --page docs/coverage.md` makes this page;",
        "`--families deit transformers` repeats only those.",
    ]
    lines += _timm_section(found) + _published_section(weights)
    lines += list_section(found, "transformers") + list_section(found, "projects")
    lines += _refused_section(found) + _wrong_section(found)
    return "\n".join(lines) + "\n"


def published_outcomes(found: Iterable[Outcome]) -> list[Outcome]:
    """Return an outcome for each of timm's published weights: that of its architecture's folder."""
    folders = [outcome for outcome in found if outcome.family in FAMILIES and outcome.form != "bare"]
    tags = published_weights() if folders else {}
    return [
        Outcome(outcome.family, f"{outcome.name}.{tag}", outcome.form, outcome.result, outcome.detail)
        for outcome in folders
        for tag in tags.get(outcome.name, [])
    ]


def missing_feature(outcome: Outcome) -> str:
    """Return the feature that a refusal names."""
    named = re.search(r" has (.+?), which Vitrail's Vision Transformers do not have", outcome.detail)
    if named:
        return named[1]
    first = outcome.detail.partition(";")[0].replace(outcome.name, "NAME").replace("PATH", "the file")
    return first[:120].replace("|", "/")


def _counts(outcomes: Iterable[Outcome]) -> list[int]:
    counts = count(outcomes)
    return [counts[result] for result in ("exact", "refused", "wrong")]


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [f"| {' | '.join(map(str, row))} |" for row in (header, ["---"] * len(header), *rows)]


def _timm_section(found: Sequence[Outcome]) -> list[str]:
    families = [family for family in FAMILIES if any(outcome.family == family for outcome in found)]
    if not families:
        return []
    rows: list[list[object]] = []
    for title, members in [*((family, [family]) for family in families), ("all", families)]:
        forms = [[o for o in found if o.family in members and o.form == form] for form in ("folder", "bare")]
        rows.append([title, *_counts(forms[0]), *_counts(forms[1])])
    not_built = [outcome.name for outcome in found if outcome.family in FAMILIES and outcome.result == "not built"]
    return [
        "",
        f"## Architectures of timm {import_module('timm').__version__}",
        "",
        "A *folder* has timm's `config.json`; a *bare* file is the weights alone, with the number of heads and the GELU given.",
        "",
        *_table(["family", "exact", "refused", "wrong", "bare: exact", "refused", "wrong"], rows),
        *(["", f"timm itself does not build {', '.join(f'`{name}`' for name in not_built)}."] if not_built else []),
    ]


def _published_section(weights: Sequence[Outcome]) -> list[str]:
    if not weights:
        return []
    families = [family for family in FAMILIES if any(outcome.family == family for outcome in weights)]
    rows = [[family, *_counts(outcome for outcome in weights if outcome.family == family)] for family in families]
    return [
        "",
        "## Published weights of timm",
        "",
        "Every tag, such as `vit_base_patch16_224.augreg_in21k`, with the outcome of its architecture; not downloaded.",
        "",
        *_table(["family", "exact", "refused", "wrong"], [*rows, ["all", *_counts(weights)]]),
    ]


LISTS = {  # title and first sentence of the sections that name every case
    "transformers": ("Classes of Hugging Face transformers", "A folder of `save_pretrained`."),
    "projects": (
        "Files of other projects",
        "In their tensor names and wrappers; the number of heads is given where neither the file nor its width shows it.",
    ),
}


def list_section(found: Sequence[Outcome], family: str) -> list[str]:
    """Return the lines of a section that names every case of a family."""
    (title, note), outcomes = LISTS[family], [outcome for outcome in found if outcome.family == family]
    if not outcomes:
        return []
    exact, refused, wrong = _counts(outcomes)
    lines = ["", f"## {title}", "", f"{note} {exact} exact, {refused} refused, {wrong} wrong.", ""]
    lines.append(f"Exact: {'; '.join(outcome.name for outcome in outcomes if outcome.result == 'exact') or 'none'}.")
    refusals = [(outcome.name, missing_feature(outcome)) for outcome in outcomes if outcome.result == "refused"]
    if refusals:
        lines += ["", *_table(["refused", "because"], refusals)]
    not_built = [outcome for outcome in outcomes if outcome.result == "not built"]
    return lines + [f"\nNot built: {outcome.name}: {outcome.detail[:120]}" for outcome in not_built]


def _refused_section(found: Sequence[Outcome]) -> list[str]:
    features: dict[str, list[str]] = {}
    for outcome in found:
        if outcome.family in FAMILIES and outcome.form == "folder" and outcome.result == "refused":
            features.setdefault(missing_feature(outcome), []).append(outcome.name)
    if not features:
        return []
    rows = [
        (feature, len(names), ", ".join(f"`{name}`" for name in names[:3]))
        for feature, names in sorted(features.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    return ["", "## Refused architectures of timm, by the missing feature", "", *_table(["feature", "count", "examples"], rows)]


def _wrong_section(found: Sequence[Outcome]) -> list[str]:
    wrong = [f"- {outcome.name} ({outcome.form}): {outcome.detail[:120]}" for outcome in found if outcome.result == "wrong"]
    return ["", "## Wrong", "", *(wrong or ["None."])]
