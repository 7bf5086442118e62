"""Reconstructions of masked patches over the steps of a pre-training run.

The pages have no script: a row of radio buttons is the scrubber, which the arrow keys move.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy import ndarray
from PIL import Image

from vitrail.data.decode import as_picture
from vitrail.models.masking import Masking
from vitrail.report.markup import text
from vitrail.report.pictures import data_address, sheet

SIDE = 104
ROWS = ("original", "masked", "predicted")
STYLE = """
.scrub { margin: .4rem 0; } .scrub > figure { display: none; }
.scrub > input { appearance: none; width: calc(100% / var(--steps) - 3px); max-width: 3rem; height: .9rem; border-radius: 2px;
                 margin: 0 3px .6rem 0; background: var(--line); cursor: pointer; }
.scrub > input:checked { background: var(--mark); }
"""


def reconstructed(kept: Mapping[int, Mapping[str, ndarray]], how: Masking) -> Iterator[str]:
    """Yield the section with one sheet per step: original, masked and predicted images."""
    if not kept:
        return
    yield "<h2>Reconstruction of masked patches</h2>"
    yield f"<p>{_words(how)} Select a training step above the images, or use the arrow keys.</p>"
    shown = "".join(
        f".scrub > input:nth-of-type({place}):checked ~ figure:nth-of-type({place}) {{ display: block; }}\n"
        for place in range(1, len(kept) + 1)
    )
    yield f"<style>{STYLE}{shown}</style>"
    last = max(kept)
    buttons = "".join(
        f'<input type="radio" name="moment" aria-label="step {step:,}" title="step {step:,}"{" checked" * (step == last)}>'
        for step in kept
    )
    figures = "".join(
        f'<figure><figcaption>Step {step:,}</figcaption><img alt="{text(", ".join(ROWS))} images at step {step:,}" '
        f'src="{data_address(drawn(arrays))}"></figure>'
        for step, arrays in kept.items()
    )
    yield f'<div class="scrub" style="--steps:{len(kept)}">{buttons}{figures}</div>'


def drawn(arrays: Mapping[str, ndarray]) -> Image.Image:
    """Draw one column per image with its original, its masked input and the prediction."""
    pictures = [as_picture(np.ascontiguousarray(one)) for name in ROWS for one in arrays[name]]
    captions = [name if not number else "" for name in ROWS for number in range(len(arrays[name]))]
    return sheet(pictures, captions, columns=len(arrays[ROWS[0]]), side=SIDE)


def _words(how: Masking) -> str:
    seen = "Corrupted patches, most of them masked, are grey" if how.method == "masked-patch" else "Masked patches are grey"
    said = {
        "mean-colour": "the target of each is its mean colour, in 8 levels per channel.",
        "downsampled": "the target of each is 4 x 4 colours, in 8 levels per channel.",
        "pixels": "the target of each is all its pixels.",
    }[how.target]
    own = " Mean and contrast of each are the true patch's, since the model predicts normalised pixels."
    return f"{seen}; {said}{own if how.normalise else ''}"
