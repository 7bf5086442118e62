"""Reconstructions have a sheet per training step, and a scrubber that needs no script."""

import numpy as np

from vitrail.models.masking_config import Masking
from vitrail.report.reconstruction_section import reconstruction_section, reconstruction_sheet


def fake_reconstructions(steps: tuple[int, ...], channels: int = 1) -> dict[int, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {
        step: {name: rng.integers(0, 256, (4, 12, 20, channels), np.uint8) for name in ("original", "masked", "predicted")}
        for step in steps
    }


def test_there_is_a_button_and_a_sheet_for_each_step_and_the_last_is_visible() -> None:
    page = "".join(reconstruction_section(fake_reconstructions((10, 250, 3000)), Masking("simmim")))
    assert page.count('type="radio"') == page.count("<figure>") == page.count("data:image/webp") == 3
    assert page.count(" checked>") == 1
    assert page.index("step 3,000") < page.index(" checked>") < page.index("<figure>")
    assert page.count("nth-of-type") == 6
    assert "<script" not in page
    assert "".join(reconstruction_section({}, Masking("simmim"))) == ""


def test_a_sheet_has_a_column_per_image_and_three_rows() -> None:
    for channels in (1, 3):
        sheet = reconstruction_sheet(fake_reconstructions((1,), channels)[1])
        assert sheet.mode == "RGB"
        assert sheet.width > 4 * 100
        assert 2 * 100 < sheet.height < 4 * 130


def test_the_text_names_the_target() -> None:
    by_text = {
        "mean colour": Masking("masked-patch", target="mean-colour"),
        "4 x 4 colours": Masking("masked-patch", target="downsampled"),
        "all its pixels": Masking("simmim"),
        "the true patch's": Masking("mae", norm_pix_target=True),
    }
    for text, how in by_text.items():
        assert text in "".join(reconstruction_section(fake_reconstructions((1,)), how))
