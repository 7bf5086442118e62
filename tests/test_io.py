"""What is written appears whole or not at all, with the usual permissions, and a lock ends with its process."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.disk_limit import limit_file_size
from vitrail import io
from vitrail.io import atomic_folder, atomic_path, atomic_write, file_lock


@pytest.mark.parametrize("locked", [False, True])
def test_a_file_is_written_whole_or_not_at_all(locked: bool, tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    with atomic_path(path, locked) as temporary:
        assert (temporary.parent, temporary.suffix, temporary.read_bytes()) == (tmp_path, ".json", b"")
        assert not path.exists()
        temporary.write_text("half")
    atomic_write(path, "é", locked)
    assert path.read_bytes() == "é".encode()
    with limit_file_size(100), pytest.raises(OSError, match="File too large"):
        atomic_write(path, b"x" * 1000, locked)
    with pytest.raises(ZeroDivisionError), atomic_path(path, locked):
        _ = 1 / 0
    assert path.read_bytes() == "é".encode()
    assert os.listdir(tmp_path) == ["new.json"]


def test_with_a_lock_what_a_killed_process_left_is_overwritten(tmp_path: Path) -> None:
    script = "import os, sys; from pathlib import Path; from vitrail.io import atomic_folder, atomic_path\n"
    script += "with atomic_path(Path('a.json'), locked=True) as file, atomic_folder(Path('b'), locked=True) as folder:\n"
    script += "    file.write_text('half'); (folder / 'half').touch(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert len(os.listdir(tmp_path)) == 2
    atomic_write(tmp_path / "a.json", "all", locked=True)
    with atomic_folder(tmp_path / "b", locked=True) as temporary:
        assert not os.listdir(temporary)
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b"]


def test_the_temporary_name_of_a_long_name_is_not_too_long(tmp_path: Path) -> None:
    atomic_write(tmp_path / f"{'ä' * 120}.json", "all")
    assert os.listdir(tmp_path) == [f"{'ä' * 120}.json"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_whole_or_not_at_all(exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange:
        monkeypatch.setattr(io, "_exchange_names", lambda first, second: False)
    for name in ("old", "new"):
        with atomic_folder(tmp_path / "mine") as temporary:
            (temporary / name).touch()
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "mine") as temporary:
        _ = 1 / 0
    assert os.listdir(tmp_path) == ["mine"]
    assert os.listdir(tmp_path / "mine") == ["new"]


def test_where_names_cannot_be_exchanged_a_failure_brings_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "_exchange_names", lambda first, second: False)
    rename = Path.rename

    def fail_for_new(path: Path, target: Path) -> Path:
        if path.name.endswith(".part"):
            raise OSError("no")
        return rename(path, target)

    with atomic_folder(tmp_path / "mine") as temporary:
        (temporary / "old").touch()
    monkeypatch.setattr(Path, "rename", fail_for_new)
    with pytest.raises(OSError, match="no"), atomic_folder(tmp_path / "mine"):
        pass
    assert os.listdir(tmp_path) == ["mine"]
    assert os.listdir(tmp_path / "mine") == ["old"]


def test_permissions_are_the_usual_ones(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    usual = stat.S_IMODE((tmp_path / "usual").stat().st_mode)
    with atomic_path(tmp_path / "file") as temporary:
        temporary.chmod(0o600)  # as safetensors does
    with atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "file").touch(0o600)
    for path in (tmp_path / "file", tmp_path / "folder" / "file"):
        assert stat.S_IMODE(path.stat().st_mode) == usual


def test_a_lock_keeps_others_out_and_ends_with_its_process(tmp_path: Path) -> None:
    with (
        file_lock(tmp_path / "lock"),
        pytest.raises(ValueError, match="taken"),
        file_lock(tmp_path / "lock", ValueError("taken")),
    ):
        pass
    script = "import os; from pathlib import Path; from vitrail.io import file_lock\n"
    script += "with file_lock(Path('lock')): print('locked', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(ValueError, match="taken"), file_lock(tmp_path / "lock", ValueError("taken")):
            pass
        process.kill()
    with file_lock(tmp_path / "lock", ValueError("taken")):
        pass
