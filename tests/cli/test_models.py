"""Published models by name: listed at once, fetched from a hub on this machine, checked and cached, or refused in one line."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from tests.cli.fake_hub import FakeHub, running_hub, unreachable_hub, use_hub
from tests.data.images import write_class_folders
from tests.small_models import small_vit
from tests.tiers import quick_first
from vitrail.cli.main import run
from vitrail.errors import VitrailError
from vitrail.models.cost import cost
from vitrail.models.variants import variant
from vitrail.weights.catalogue import CATALOGUE, search_models
from vitrail.weights.hub import select_files
from vitrail.weights.load import load
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]
REPOSITORY = CATALOGUE["dinov2-s14"].repository
WIDTH, DEPTH, PATCH, SIDE = 24, 2, 14, 56  # of the stand-in: everything but its names and its patches is small
PREPROCESSOR = {
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "resample": 3,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def dinov2_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a repository like DINOv2's, with random weights and a copy of them that nobody should download."""
    folder.mkdir()
    block = {
        "norm1.weight": (WIDTH,), "norm1.bias": (WIDTH,), "norm2.weight": (WIDTH,), "norm2.bias": (WIDTH,),
        **{f"attention.attention.{name}.weight": (WIDTH, WIDTH) for name in ("query", "key", "value")},
        **{f"attention.attention.{name}.bias": (WIDTH,) for name in ("query", "key", "value")},
        "attention.output.dense.weight": (WIDTH, WIDTH), "attention.output.dense.bias": (WIDTH,),
        "layer_scale1.lambda1": (WIDTH,), "layer_scale2.lambda1": (WIDTH,),
        "mlp.fc1.weight": (4 * WIDTH, WIDTH), "mlp.fc1.bias": (4 * WIDTH,),
        "mlp.fc2.weight": (WIDTH, 4 * WIDTH), "mlp.fc2.bias": (WIDTH,),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.cls_token": (1, 1, WIDTH),
        "embeddings.mask_token": (1, WIDTH),
        "embeddings.position_embeddings": (1, 1 + (SIDE // PATCH) ** 2, WIDTH),
        "embeddings.patch_embeddings.projection.weight": (WIDTH, 3, PATCH, PATCH),
        "embeddings.patch_embeddings.projection.bias": (WIDTH,),
        **{f"encoder.layer.{layer}.{name}": shape for layer in range(DEPTH) for name, shape in block.items()},
        "layernorm.weight": (WIDTH,),
        "layernorm.bias": (WIDTH,),
    }
    save_file({name: 0.1 * torch.randn(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    config = {
        "model_type": "dinov2",
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": 3,
        "mlp_ratio": 4,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,
        "image_size": SIDE,
        "patch_size": PATCH,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (folder / "pytorch_model.bin").write_bytes(b"the same weights in another format")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def hub_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Start a hub with a stand-in for dinov2-s14, and direct the client to it."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "vitrail"))
    monkeypatch.delenv("VITRAIL_MIRROR", raising=False)
    with running_hub() as built:
        use_hub(built, tmp_path / "cache", monkeypatch, constants)
        built.files[REPOSITORY], built.private[REPOSITORY] = dinov2_files(tmp_path / "published"), False
        yield built


# The list -------------------------------------------------------------------------------------------------------------


def test_the_list_has_every_model_with_its_numbers(capsys: Capture) -> None:
    assert run(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert set(rows) == set(CATALOGUE)
    plain = cost(variant("B/16"))
    assert (rows["vit-b16-augreg"]["parameters"], rows["vit-b16-augreg"]["macs"]) == (plain.parameters, plain.macs)
    assert rows["clip-l14-336"]["image"] == 336
    assert all(
        isinstance(row[key], str) and row[key] for row in rows.values() for key in ("licence", "trained_on", "repository")
    )


def test_the_list_is_filtered_by_words(capsys: Capture) -> None:
    assert run(["models", "--filter", "DINOv2 base"]) == 0
    printed = capsys.readouterr().out
    assert "facebook/dinov2-base" in printed
    assert "dinov2-small" not in printed
    assert {model.licence for model in search_models("cc-by-nc")} == {"CC-BY-NC-4.0"}
    assert run(["models", "--filter", "resnet"]) == 2
    assert "--filter must match one of the" in capsys.readouterr().err


def test_a_model_is_inspected_and_planned_without_a_download(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.weights.hub.fetch", None)
    assert run(["inspect", "dinov2-s14", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == cost(CATALOGUE["dinov2-s14"].config).parameters
    assert run(["inspect", "dinov2-s14", "--image-size", "518", "--classes", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["grid"] == [37, 37]
    assert run(["plan", "finetune", "--model", "dinov2-s14", "--classes", "7", "--json"]) == 0
    with_head = 384 * 7 + 7
    planned = json.loads(capsys.readouterr().out)["model"]["parameters"]
    assert planned == cost(CATALOGUE["dinov2-s14"].config).parameters + with_head
    assert run(["plan", "plain", "--model", "dinov2-s14"]) == 2
    assert "trains from random weights" in capsys.readouterr().err


# The hub --------------------------------------------------------------------------------------------------------------


def test_a_name_is_fetched_once_and_loaded_as_listed(hub_server: FakeHub, tmp_path: Path) -> None:
    model = load("dinov2-s14")
    assert model.config.image == (224, 224)  # the position table is of another size
    assert model.preprocess is not None
    assert (model.preprocess.image_size, model.preprocess.resize_to) == ((224, 224), (256, 256))
    stored = load_file(tmp_path / "published" / "model.safetensors")
    assert_close(model.state_dict()["norm.weight"], stored["layernorm.weight"], rtol=0, atol=0)
    downloads = [request for request in hub_server.requests if "/resolve/" in request]
    assert sorted(request.rpartition("/")[2] for request in downloads) == [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    again = load("DINOv2-S14", image=28)
    assert again.config.image == (28, 28)
    assert [request for request in hub_server.requests if "/resolve/" in request] == downloads  # the cache
    by_address = load(f"hf:{REPOSITORY}")
    assert by_address.config.image == (SIDE, SIDE)


@pytest.mark.parametrize("mode", ["HF_HUB_OFFLINE", "the hub is gone"])
def test_without_a_network_the_cache_is_used(mode: str, hub_server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    first = load("dinov2-s14")
    monkeypatch.setattr(
        constants, *(("HF_HUB_OFFLINE", True) if mode == "HF_HUB_OFFLINE" else ("ENDPOINT", "http://127.0.0.1:9"))
    )
    before = len(hub_server.requests)
    assert_close(dict(load("dinov2-s14").state_dict()), dict(first.state_dict()), rtol=0, atol=0)
    assert len(hub_server.requests) == before
    with pytest.raises(VitrailError, match=r"^dinov2-b14 \(facebook/dinov2-base\) cannot be downloaded: the hub cannot be"):
        load("dinov2-b14")


def test_a_damaged_download_is_refused_and_not_kept(hub_server: FakeHub, tmp_path: Path) -> None:
    hub_server.damaged = {"model.safetensors"}
    with pytest.raises(VitrailError, match=r"damaged on its way: model.safetensors must have the SHA-256 \w{12}\.\.\. that"):
        load("dinov2-s14")
    assert not list((tmp_path / "cache").rglob("model.safetensors"))
    hub_server.damaged = set()
    assert load("dinov2-s14").config.image == (224, 224)


def test_photos_are_finetuned_from_a_name(hub_server: FakeHub, tmp_path: Path, capsys: Capture) -> None:
    write_class_folders(tmp_path / "photos", {"cat": 12, "dog": 12})
    settings = ["--set", "steps=2", "--set", "batch_size=4", "--set", "schedule.warmup_steps=0"]
    assert run(["finetune", "dinov2-s14", "photos", "--out", "runs/photos", *settings]) == 0
    assert "init      dinov2-s14: huggingface weights with a new head for 2 classes" in capsys.readouterr().err
    recipe = json.loads((tmp_path / "runs" / "photos" / "recipe.json").read_text())
    assert recipe["init_from"] == "dinov2-s14"
    trained = load("runs/photos")
    assert (trained.config.classes, trained.config.image) == (2, (224, 224))
    assert run(["push", "runs/photos", "me/mine", "--out", "pushed", "--license", "mit"]) == 0
    assert f'base_model: "{REPOSITORY}"' in (tmp_path / "pushed" / "README.md").read_text()


def test_every_command_on_weights_takes_a_name(hub_server: FakeHub, tmp_path: Path, capsys: Capture) -> None:
    write_class_folders(tmp_path / "photos", {"cat": 3, "dog": 3})
    assert run(["weights", "show", "dinov2-s14", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tensors"] == 7 + 18 * DEPTH
    assert run(["weights", "convert", "dinov2-s14", "mine", "--to", "vitrail"]) == 0
    assert run(["embed", "dinov2-s14", "photos", "--out", "features.npz"]) == 0
    assert run(["weights", "verify", "mine", "dinov2-s14"]) == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"mine", "features.npz"}


def test_the_environment_selects_the_hub(hub_server: FakeHub, tmp_path: Path) -> None:
    """In a process of its own: HF_ENDPOINT and HF_HOME are the client's own variables, which it reads on import."""
    with unreachable_hub("closed", tmp_path / "home") as environment:
        command = [sys.executable, "-m", "vitrail", "weights", "show", "dinov2-s14", "--json"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**environment, "HF_ENDPOINT": hub_server.url}
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tensors"] > 0
    assert "%" not in done.stderr  # progress bars are for terminals


def test_a_terminal_shows_the_progress_of_a_download_and_nothing_after_it(hub_server: FakeHub, tmp_path: Path) -> None:
    with unreachable_hub("closed", tmp_path / "home") as environment:
        environment |= {"HF_ENDPOINT": hub_server.url}
        first, second = (_stderr_in_a_terminal(["weights", "show", "dinov2-s14", "--json"], environment) for _ in range(2))
    assert "100%" in first
    assert second == ""


def test_a_repository_without_weights_is_refused(hub_server: FakeHub) -> None:
    hub_server.files["me/empty"], hub_server.private["me/empty"] = {"README.md": b"nothing here"}, False
    with pytest.raises(VitrailError, match=r"^hf:me/empty has no weights that can be read: no model\.safetensors"):
        load("hf:me/empty")


def test_a_mirror_is_read_in_place_of_the_hub(hub_server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dinov2_files(_parents(tmp_path / "mirror" / REPOSITORY))
    monkeypatch.setenv("VITRAIL_MIRROR", str(tmp_path / "mirror"))
    load("dinov2-s14")
    assert hub_server.requests == []
    with pytest.raises(VitrailError, match=r"refuses it \(404\): there is no facebook/dinov2-base"):
        load("dinov2-b14")  # not in the mirror, so asked of the hub


def test_a_path_of_that_name_is_the_path(hub_server: FakeHub, tmp_path: Path) -> None:
    save(small_vit(), tmp_path / "dinov2-s14")
    assert load("dinov2-s14").config == small_vit().config
    assert hub_server.requests == []


@pytest.mark.parametrize("kind", quick_first(["closed", "silent"]))
def test_without_a_hub_there_is_one_sentence_soon(kind: str, tmp_path: Path) -> None:
    script = "import sys, time; from vitrail.cli.main import run; import huggingface_hub, vitrail.training.prepare\n"
    script += "started = time.monotonic(); code = run(sys.argv[1:]); print(time.monotonic() - started); sys.exit(code)"
    write_class_folders(tmp_path / "photos", {"cat": 4, "dog": 4})
    with unreachable_hub(kind, tmp_path / "home") as environment:
        command = [
            sys.executable,
            "-c",
            script,
            "finetune",
            "dinov2-s14",
            str(tmp_path / "photos"),
            "--out",
            str(tmp_path / "run"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 2
    sentence = (
        "dinov2-s14 (facebook/dinov2-small) cannot be downloaded: the hub cannot be reached and the model is not in the cache"
    )
    assert done.stderr.splitlines()[-1] == f"vitrail: {sentence}"
    assert float(done.stdout) < 5
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["inspect"],
        ["weights", "show"],
        ["weights", "verify"],
        ["predict", "x.jpg"],
        ["finetune", "fashion"],
        ["probe", "fashion"],
    ],
    ids=" ".join,
)
def test_an_unknown_name_is_answered_with_the_nearest(words: list[str], capsys: Capture) -> None:
    *command, last = [*words[:1], "dinov2-s15", *words[1:]] if words[0] != "weights" else [*words, "dinov2-s15"]
    started = time.monotonic()
    assert run([*command, last]) == 2
    assert (
        "dinov2-s15 does not exist and is no name of a published model; did you mean 'dinov2-s14'?" in capsys.readouterr().err
    )
    assert time.monotonic() - started < 5


def test_one_copy_of_the_weights_is_selected() -> None:
    sidecars = ["config.json", "preprocessor_config.json"]
    both = [
        *sidecars,
        "README.md",
        "model.safetensors",
        "pytorch_model.bin",
        "tf_model.h5",
        "onnx/model.onnx",
        "onnx/config.json",
    ]
    assert select_files(both) == [*sidecars, "model.safetensors"]
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    sharded = [*sidecars, *shards, "model.safetensors.index.json", "pytorch_model.bin"]
    assert select_files(sharded) == [*sidecars, "model.safetensors.index.json", *shards]
    clip = ["open_clip_config.json", "open_clip_pytorch_model.bin", "open_clip_model.safetensors"]
    assert select_files(clip) == ["open_clip_config.json", "open_clip_model.safetensors"]
    own: Any = ["vitrail.json", "model.safetensors", "decoder.safetensors", "README.md"]
    assert select_files(own) == ["vitrail.json", "decoder.safetensors", "model.safetensors"]


def _stderr_in_a_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    """Run a command whose stderr is a terminal of 100 columns, and return what it printed there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    command = [sys.executable, "-m", "vitrail", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as process:
        os.close(theirs)
        printed = b""
        while chunk := _read_terminal(ours):
            printed += chunk
    os.close(ours)
    assert process.returncode == 0, printed
    return printed.decode()


def _read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


def _parents(folder: Path) -> Path:
    folder.parent.mkdir(parents=True)
    return folder
