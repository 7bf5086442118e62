"""What a task adds to an encoder comes from a file or as tensors, and must be exactly what the task has."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from tests.small_models import small_config
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import build, decoder_state
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.registry import build_task
from vitrail.tasks.task import Task
from vitrail.weights.load import attach_decoder


def segmenter() -> tuple[Task, Any]:
    config = small_config(classes=0)
    task = build_task(Segmentation(classes=3), config, Preprocess(config.image, 1.0, "stretch"), ("sky", "tree", "road"))
    model = task.build_model(build(config))
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    return task, model


@pytest.mark.parametrize("as_file", [True, False])
def test_a_decoder_is_attached_from_a_file_or_as_tensors(as_file: bool, tmp_path: Path) -> None:
    task, model = segmenter()
    decoder: Any = decoder_state(model)
    if as_file:
        save_file(decoder, tmp_path / "decoder.safetensors")
        decoder = tmp_path / "decoder.safetensors"
    attached = attach_decoder(model.encoder, task, decoder)
    assert attached is not model
    images = torch.randn(2, 3, *model.config.image)
    assert_close(attached.eval()(images), model.eval()(images), rtol=0, atol=0)


def test_another_decoder_is_refused_by_its_first_tensor() -> None:
    task, model = segmenter()
    decoder = decoder_state(model)
    for changed, message in (
        ({"head.extra": torch.zeros(2)}, r"the decoder of this task: head.extra is unexpected"),
        ({"head.linear.bias": torch.zeros(2)}, r"head.linear.bias is \[2\] instead of \[\d+\]"),
        ({"head.linear.bias": torch.full_like(decoder["head.linear.bias"], torch.nan)}, r"head.linear.bias has .* not finite"),
    ):
        with pytest.raises(VitrailError, match=message):
            attach_decoder(model.encoder, task, decoder | changed)
    del decoder["head.linear.bias"]
    with pytest.raises(VitrailError, match=r"the file does not have the decoder of this task: head.linear.bias is missing"):
        attach_decoder(model.encoder, task, decoder)
