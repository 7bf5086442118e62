"""What a model thinks is behind patches that it does not see, over the steps of its training, to be leafed through.

The pages have no script: a row of radio buttons is the scrubber, which the arrow keys move.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy import ndarray
from PIL import Image

from vitrail.data.decode import as_picture
from vitrail.models.masking import Masking
from vitrail.report.page import text
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
    """One sheet a step: originals above, what was masked, what was predicted."""
    if not kept:
        return
    yield "<h2>What it thinks is behind the patches it does not see</h2>"
    yield f"<p>{_words(how)} Choose a moment of the training above the pictures, or leaf with the arrow keys.</p>"
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
        f'<figure><figcaption>Step {step:,}</figcaption><img alt="{text(", ".join(ROWS))} pictures at step {step:,}" '
        f'src="{data_address(drawn(arrays))}"></figure>'
        for step, arrays in kept.items()
    )
    yield f'<div class="scrub" style="--steps:{len(kept)}">{buttons}{figures}</div>'


def drawn(arrays: Mapping[str, ndarray]) -> Image.Image:
    """A column a picture, a row for what it is, what the model saw and what it said."""
    pictures = [as_picture(np.ascontiguousarray(one)) for name in ROWS for one in arrays[name]]
    captions = [name if not number else "" for name in ROWS for number in range(len(arrays[name]))]
    return sheet(pictures, captions, columns=len(arrays[ROWS[0]]), side=SIDE)


def _words(how: Masking) -> str:
    seen = "Corrupted patches, most of them masked, are grey" if how.method == "masked-patch" else "Hidden patches are grey"
    said = {
        "colour": "each is predicted as one of 8 levels a channel of its mean colour.",
        "shrunken": "each is predicted as 4 x 4 colours of 8 levels a channel.",
        "pixels": "each is predicted in full.",
    }[how.target]
    own = " Brightness and contrast of each are the true patch's, since the model predicts the pixels apart from them."
    return f"{seen}; {said}{own if how.normalise else ''}"
