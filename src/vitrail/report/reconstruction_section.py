"""Reconstructions of masked patches over the steps of a pre-training run.

The pages have no script: a row of radio buttons is the scrubber, which the arrow keys move.
"""

import shlex
from collections.abc import Iterator, Mapping

import numpy as np
from numpy import ndarray
from PIL import Image

from vitrail.data.decode import to_pil
from vitrail.models.masking_config import Masking
from vitrail.plot.markup import escape
from vitrail.recipes.task_config import MaskedImage
from vitrail.report.contact_sheet import contact_sheet, data_uri
from vitrail.report.task_section import RunReport, TaskSection

SIDE = 104
ROWS = ("original", "masked", "predicted")
STYLE = """
.scrub { margin: .4rem 0; } .scrub > figure { display: none; }
.scrub > input { appearance: none; width: calc(100% / var(--steps) - 3px); max-width: 3rem; height: .9rem; border-radius: 2px;
                 margin: 0 3px .6rem 0; background: var(--line); cursor: pointer; }
.scrub > input:checked { background: var(--mark); }
"""


class MaskedImageSection(TaskSection):
    """The loss over masked patches, and the reconstructions."""

    def headline(self, report: RunReport) -> tuple[str, str]:
        split = report.result["reported_on"]
        return report.format_metric("loss", report.result[split]["loss"]), f"loss on {split}, over masked patches"

    def body(self, report: RunReport) -> Iterator[str]:
        assert isinstance(report.recipe.task, MaskedImage)
        return reconstruction_section(report.run.load_reconstructions(), report.recipe.task.masking)

    def next_steps(self, report: RunReport) -> Iterator[str]:
        folder = escape(shlex.quote(str(report.run.folder)))
        yield "<p>Its encoder is an ordinary model: fine-tune it on classes, or evaluate its features with a probe.</p>"
        yield f"<pre>vitrail finetune {folder} DATA\nvitrail probe {folder} DATA</pre>"


def reconstruction_section(reconstructions: Mapping[int, Mapping[str, ndarray]], masking: Masking) -> Iterator[str]:
    """Yield the section with one sheet per step: original, masked and predicted images."""
    if not reconstructions:
        return
    yield "<h2>Reconstruction of masked patches</h2>"
    yield f"<p>{_description(masking)} Select a training step above the images, or use the arrow keys.</p>"
    rules = "".join(
        f".scrub > input:nth-of-type({number}):checked ~ figure:nth-of-type({number}) {{ display: block; }}\n"
        for number in range(1, len(reconstructions) + 1)
    )
    yield f"<style>{STYLE}{rules}</style>"
    last = max(reconstructions)
    buttons = "".join(
        f'<input type="radio" name="moment" aria-label="step {step:,}" title="step {step:,}"{" checked" * (step == last)}>'
        for step in reconstructions
    )
    figures = "".join(
        f'<figure><figcaption>Step {step:,}</figcaption><img alt="{escape(", ".join(ROWS))} images at step {step:,}" '
        f'src="{data_uri(reconstruction_sheet(arrays))}"></figure>'
        for step, arrays in reconstructions.items()
    )
    yield f'<div class="scrub" style="--steps:{len(reconstructions)}">{buttons}{figures}</div>'


def reconstruction_sheet(arrays: Mapping[str, ndarray]) -> Image.Image:
    """Draw one column per image with its original, its masked input and the prediction."""
    images = [to_pil(np.ascontiguousarray(one[..., : 3 if one.shape[2] >= 3 else 1])) for name in ROWS for one in arrays[name]]
    captions = [name if not number else "" for name in ROWS for number in range(len(arrays[name]))]
    return contact_sheet(images, captions, columns=len(arrays[ROWS[0]]), side=SIDE)


def _description(masking: Masking) -> str:
    corrupted = (
        "Corrupted patches, most of them masked, are grey" if masking.method == "masked-patch" else "Masked patches are grey"
    )
    targets = {
        "mean-colour": "the target of each is its mean colour, in 8 levels per channel.",
        "downsampled": "the target of each is 4 x 4 colours, in 8 levels per channel.",
        "pixels": "the target of each is all its pixels.",
    }[masking.target]
    normalised = " Mean and contrast of each are the true patch's, since the model predicts normalised pixels."
    return f"{corrupted}; {targets}{normalised if masking.norm_pix_target else ''}"
