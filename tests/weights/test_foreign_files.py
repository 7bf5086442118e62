"""Files as training scripts write them: what surrounds the weights is left aside, and nothing in them is executed."""

import datetime
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.layers.position import sincos2d
from vitrail.models.config import ViTConfig
from vitrail.weights.load import load
from vitrail.weights.read_file import read_file
from vitrail.weights.save import save

IMAGES = torch.randn(2, 3, 12, 10, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def state(tmp_path: Path) -> dict[str, Tensor]:
    """Return the state dict of a small model in timm's names."""
    save(small_vit(gelu="exact", image=(12, 10)), tmp_path / "model.pth", format="timm")
    return dict(torch.load(tmp_path / "model.pth", weights_only=True))


def assert_loads(content: Any, state: dict[str, Tensor], tmp_path: Path, unused: tuple[str, ...] = ()) -> None:
    torch.save(state, tmp_path / "plain.pth")
    torch.save(content, tmp_path / "wrapped.pth")
    ours = load(tmp_path / "wrapped.pth", heads=3)
    assert_close(ours(IMAGES), load(tmp_path / "plain.pth", heads=3)(IMAGES), rtol=0, atol=0)
    assert ours.load_report.unused == unused


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


WRAPPED: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "MoCo-v3's linear script": lambda s: {"state_dict": prefixed(s, "module."), "best_acc1": torch.tensor(71.3), "epoch": 1},
    "EMA weights": lambda s: {"state_dict_ema": s, "arch": "vit"},
    "AveragedModel": lambda s: {"n_averaged": torch.tensor(7), **prefixed(s, "module.")},
    "I-JEPA": lambda s: {"target_encoder": prefixed(s, "module."), "encoder": {}, "predictor": {}},
    "an encoder": lambda s: {"encoder": s},
    "a backbone": lambda s: {"backbone": s, "optimizer": {}},
    "a prefix of its own": lambda s: prefixed(s, "some.module.of.mine."),
    "a model beside its head": lambda s: {
        **{f"net.body.{name}": tensor for name, tensor in s.items() if not name.startswith("head.")},
        **{f"net.{name}": tensor for name, tensor in s.items() if name.startswith("head.")},
    },
}


@pytest.mark.parametrize("case", WRAPPED)
def test_wrappers_and_prefixes_are_removed(case: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    assert_loads(WRAPPED[case](state), state, tmp_path, ("n_averaged",) if case == "AveragedModel" else ())


def test_another_tower_is_left_aside_and_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    content = {**prefixed(state, "visual.trunk."), "text.ln_final.weight": torch.ones(3), "logit_scale": torch.ones(())}
    assert_loads(content, state, tmp_path, ("text.ln_final.weight", "logit_scale"))


@pytest.mark.parametrize("prefix", ["{}.backbone.", "{}_backbone.vit."])  # DINO's, lightly's
def test_of_teacher_and_student_the_teacher_is_read(prefix: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    student = prefixed(zeros, prefix.format("student"))
    assert_loads({**student, **prefixed(state, prefix.format("teacher"))}, state, tmp_path, tuple(student))


INERT: dict[str, Any] = {
    "numpy scalars": {"best": np.float64(0.5), "step": np.int64(3), "flag": np.bool_(True), "half": np.float32(1)},
    "paths": {"out": Path("/tmp/x"), "pure": PurePosixPath("a/b")},
    "dates": {"when": datetime.datetime(2024, 1, 2), "took": datetime.timedelta(seconds=3), "day": datetime.date(2024, 1, 2)},
    "defaultdict": {"meters": defaultdict(list, a=[1, 2])},
}


@pytest.mark.parametrize("kind", INERT)
@pytest.mark.parametrize("zipped", [True, False])
def test_inert_objects_beside_the_weights_are_not_made(
    kind: str, zipped: bool, state: dict[str, Tensor], tmp_path: Path
) -> None:
    torch.save({"model": state, **INERT[kind]}, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    assert set(read_file(tmp_path / "a.pth").tensors) == set(state)


def test_an_array_by_name_is_refused_instead_of_lost(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({**state, "head.weight": state["head.weight"].numpy()}, tmp_path / "a.pth")
    with pytest.raises(VitrailError, match="would execute code when read"):
        load(tmp_path / "a.pth")


def test_inert_names_do_not_open_a_door(tmp_path: Path) -> None:
    """The stand-ins neither call what they are given nor touch the file system."""

    class Exploit:
        def __reduce__(self) -> Any:
            return Path, (str(tmp_path / "made"),)

    torch.save({"model": {"a": torch.zeros(1)}, "path": Exploit()}, tmp_path / "a.pth")
    content = read_file(tmp_path / "a.pth")
    assert list(content.tensors) == ["a"]
    assert not (tmp_path / "made").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_said_to_be_a_program(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(2, 3)).save(str(tmp_path / "clip.pt"))
    with pytest.raises(VitrailError, match="is a TorchScript program") as caught:
        load(tmp_path / "clip.pt")
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["model.", "timm_model.", ""])
def test_shards_with_a_prefix_are_read(prefix: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    folder.mkdir()
    tensors = prefixed(state, prefix)
    weight_map = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(tensors)}
    for file in sorted(set(weight_map.values())):
        save_file({name: tensor for name, tensor in tensors.items() if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    torch.save(state, tmp_path / "plain.pth")
    assert_close(load(folder, heads=3)(IMAGES), load(tmp_path / "plain.pth", heads=3)(IMAGES), rtol=0, atol=0)


def test_moco_v3s_small_model_has_heads_of_32(tmp_path: Path) -> None:
    """Twelve heads at width 384, which only its fixed position table gives away."""
    model = small_vit(width=384, depth=1, mlp=16, heads=12, patch=(4, 4), image=(8, 8), gelu="exact")
    save(model, tmp_path / "model.pth", format="timm")
    state = torch.load(tmp_path / "model.pth", weights_only=True)
    table = torch.cat([torch.zeros(1, 384), sincos2d((2, 2), 384, "moco").flatten(0, 1)])[None]
    content = {"state_dict": prefixed({**state, "pos_embed": table}, "module.base_encoder."), "arch": "vit_small"}
    torch.save(content, tmp_path / "moco.pth")
    loaded = load(tmp_path / "moco.pth")
    assert isinstance(loaded.config, ViTConfig)
    assert loaded.config.heads == 12
    assert loaded.preprocess is not None
    assert (loaded.preprocess.mean[0], loaded.preprocess.interpolation) == (0.485, "bilinear")
