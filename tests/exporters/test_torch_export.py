"""A program runs without Vitrail, and a file that would do more than compute is refused."""

import io
import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.exporters.small import CLASS_NAMES, exportable_vit, random_images
from vitrail.errors import VitrailError
from vitrail.exporters.torch_export import write_program
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.vit import ViT

pytestmark = pytest.mark.compile


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[ViT, Path]:
    model = exportable_vit(registers=1)
    path = tmp_path_factory.mktemp("program") / "x.pt2"
    write_program(model, path)
    return model, path


def test_its_logits_are_the_models_at_any_batch_size(exported: tuple[ViT, Path]) -> None:
    model, path = exported
    predictor, reference = load_predictor(path), TorchPredictor(model)
    assert (predictor.backend, predictor.class_names, predictor.task.config.loss, predictor.preprocess) == (
        "program",
        CLASS_NAMES,
        "softmax",
        model.preprocess,
    )
    for count in (1, 2, 5):
        assert_allclose(predictor.outputs(random_images(count)), reference.outputs(random_images(count)), rtol=0, atol=1e-5)
    with pytest.raises(VitrailError, match="the width of images must be 15, got 20"):
        predictor.outputs(random_images(1, 12, 20))


@pytest.mark.thorough
def test_it_runs_without_vitrail(exported: tuple[ViT, Path], tmp_path: Path) -> None:
    model, path = exported
    np.save(tmp_path / "images.npy", random_images(3))
    script = (
        "import sys; sys.modules['vitrail'] = sys.modules['einops'] = None\n"
        "import numpy as np, torch\n"
        "logits, probabilities = torch.export.load(sys.argv[1]).module()(torch.from_numpy(np.load('images.npy')))\n"
        "np.save('logits.npy', logits.detach().numpy())"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, path], cwd=tmp_path, check=True)
    assert_allclose(np.load(tmp_path / "logits.npy"), TorchPredictor(model).outputs(random_images(3)), rtol=0, atol=1e-5)


def test_it_contains_no_local_paths(exported: tuple[ViT, Path]) -> None:
    with zipfile.ZipFile(exported[1]) as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
    for word in (str(Path(__file__).parents[2]), "site-packages", ".py"):
        assert word.encode() not in content


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return _explode, ("boom",)


def _explode(word: str) -> None:
    raise AssertionError(f"a pickle was executed: {word}")


def rewrite_archive(
    path: Path, out: Path, change: Callable[[str, bytes], bytes], extra: dict[str, bytes] | None = None
) -> Path:
    """Copy an archive with changed content."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
        for name, content in (extra or {}).items():
            new.writestr(name, content)
    return out


def set_in_json(suffix: str, key: str, value: object) -> Callable[[str, bytes], bytes]:
    """Return a change that sets the first such key to another value."""

    def replace_first(content: object) -> bool:
        if isinstance(content, dict):
            if key in content:
                content[key] = value
                return True
            return any(replace_first(item) for item in content.values())
        return isinstance(content, list) and any(replace_first(item) for item in content)

    def change(name: str, content: bytes) -> bytes:
        if not name.endswith(suffix):
            return content
        read = json.loads(content)
        assert replace_first(read), key
        return json.dumps(read).encode()

    return change


CODE = "__import__('os').abort()"


@pytest.mark.parametrize(
    "change",
    [
        lambda name, content: pickle.dumps(Bomb()) if name.endswith("sample_inputs/model.pt") else content,
        set_in_json("model_weights_config.json", "use_pickle", True),
        set_in_json("models/model.json", "expr_str", CODE),
        set_in_json("models/model.json", "expr_str", "Symbol('s1', positive=abort())"),
        set_in_json("models/model.json", "guards_code", [CODE]),
        set_in_json("models/model.json", "target", "torch.os.abort"),
        set_in_json("models/model.json", "target", "_operator.methodcaller"),
    ],
    ids=["inputs", "weights", "sizes", "call in sizes", "guards", "operator", "caller"],
)
def test_a_program_that_would_do_more_than_compute_is_refused_before_it_runs(
    exported: tuple[ViT, Path], tmp_path: Path, change: Callable[[str, bytes], bytes]
) -> None:
    bad = rewrite_archive(exported[1], tmp_path / "bad.pt2", change)
    with pytest.raises(VitrailError, match=r"bad\.pt2 .*(run only files that `vitrail export` wrote|or is damaged)"):
        load_predictor(bad)


def test_a_file_that_does_not_belong_in_a_program_is_refused(exported: tuple[ViT, Path], tmp_path: Path) -> None:
    extra = {"archive/data/constants/opaque_obj_0": pickle.dumps(Bomb())}
    with pytest.raises(VitrailError, match="opaque_obj_0', which does not belong in an exported program"):
        load_predictor(rewrite_archive(exported[1], tmp_path / "bad.pt2", lambda _, content: content, extra))


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.999])
def test_a_damaged_program_is_refused(exported: tuple[ViT, Path], tmp_path: Path, fraction: float) -> None:
    content = exported[1].read_bytes()
    (tmp_path / "x.pt2").write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(VitrailError, match="damaged"):
        load_predictor(tmp_path / "x.pt2")


def test_missing_metadata_is_refused(exported: tuple[ViT, Path], tmp_path: Path) -> None:
    for content in (b"{}", b"[", b"[1]"):
        path = rewrite_archive(exported[1], tmp_path / "x.pt2", lambda name, old, new=content: new if "extra/" in name else old)  # type: ignore[misc]
        with pytest.raises(VitrailError, match=r"export the model again|cannot be read"):
            load_predictor(path)


def test_the_archive_that_was_rewritten_unchanged_still_runs(exported: tuple[ViT, Path], tmp_path: Path) -> None:
    """Rewriting alone is no reason to refuse, so the changes above are."""
    same = rewrite_archive(exported[1], tmp_path / "same.pt2", lambda _, content: content)
    assert io.BytesIO(same.read_bytes()).getbuffer().nbytes
    assert (load_predictor(same).outputs(random_images(2)) == load_predictor(exported[1]).outputs(random_images(2))).all()
