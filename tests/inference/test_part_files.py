"""Part files of one folder: whichever processes write them, however they end, each part is there once and whole."""

import json
import random
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.small_models import small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.inference.model_hash import model_hash
from vitrail.inference.part_files import PartDraft, PartFiles, PartManifest, choose_part_size

REQUEST = {"weights": "a" * 64, "top_k": 5}


def start_parts(folder: Path, rank: int = 0, ranks: int = 1, num_images: int = 23, part: int = 4) -> PartFiles:
    parts = PartFiles(folder, ".txt", num_images, part, rank, ranks)
    parts.start(REQUEST)
    return parts


def write_rows(parts: PartFiles, part: int, draft: PartDraft) -> None:
    draft.path.write_text("".join(f"{number}\n" for number in parts.image_indices(part)))


def write_pending(parts: PartFiles) -> list[int]:
    written = []
    for part in parts.pending():
        with parts.write_part(part) as draft:
            write_rows(parts, part, draft)
        written.append(part)
    return written


def read_all_rows(folder: Path) -> list[int]:
    return [int(line) for path in sorted(folder.glob("part-*")) for line in path.read_text().splitlines()]


class Worker:
    """A process that runs step by step: it starts a part, or ends it."""

    def __init__(self, parts: PartFiles) -> None:
        self.parts, self.todo = parts, parts.pending()
        self.part: int | None = None
        self.writing: AbstractContextManager[PartDraft] | None = None
        self.written: list[int] = []

    def step(self) -> bool:
        if self.writing is not None and self.part is not None:
            self.writing.__exit__(None, None, None)
            self.written.append(self.part)
            self.writing = None
            return True
        self.part = next(self.todo, None)
        if self.part is None:
            return False
        self.writing = self.parts.write_part(self.part)
        write_rows(self.parts, self.part, self.writing.__enter__())
        return True


@pytest.mark.parametrize("seed", range(12))
def test_workers_at_any_speed_write_every_part_once_and_one_of_them_reports(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    ranks, num_images = rng.randint(1, 5), rng.randint(1, 60)
    workers = [Worker(start_parts(tmp_path / "out", rank, ranks, num_images, 3)) for rank in range(ranks)]
    speeds, reports = [rng.random() ** 3 + 0.01 for _ in workers], 0
    while workers:
        (worker,) = rng.choices(workers, speeds[: len(workers)])
        if not worker.step():
            finalised = worker.parts.finalise()
            reports += finalised is not None and finalised[1]
            workers.remove(worker)
    assert read_all_rows(tmp_path / "out") == list(range(num_images))
    assert reports == 1
    assert not list((tmp_path / "out" / "_in_progress").iterdir())
    done = json.loads((tmp_path / "out" / "_done.json").read_text())
    assert (done["num_images"], done["num_bad"]) == (num_images, 0)
    assert [part["file"] for part in done["parts"]] == sorted(path.name for path in (tmp_path / "out").glob("part-*"))


def test_a_part_in_progress_is_left_to_its_worker(tmp_path: Path) -> None:
    slow, quick = (Worker(start_parts(tmp_path / "out", rank, 2)) for rank in range(2))
    assert slow.step()
    assert slow.part == 0
    while quick.step():
        pass
    assert sorted(quick.written) == [1, 2, 3, 4, 5]  # and helped
    while slow.step():
        pass
    assert slow.written == [0]
    assert read_all_rows(tmp_path / "out") == list(range(23))


def test_a_helper_that_was_killed_and_restarted_writes_its_unfinished_part(tmp_path: Path) -> None:
    """Ranks are restarted one by one, as a scheduler does: no other process is left to write the part."""
    first, helper = (Worker(start_parts(tmp_path / "out", rank, 2)) for rank in range(2))
    first.step()  # at part 0
    while helper.part != 4:
        helper.step()  # its own parts, then one of the other's, where it is killed
    while first.step():
        pass
    again = start_parts(tmp_path / "out", 1, 2)
    assert write_pending(again) == [4]
    assert read_all_rows(tmp_path / "out") == list(range(23))
    assert again.finalise() == (PartManifest(23, 0, 59), True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_unfinished_part_of_a_killed_worker_is_written_by_any_other(ranks: int, tmp_path: Path) -> None:
    killed = Worker(start_parts(tmp_path / "out", 1, 4))
    for _ in range(3):
        killed.step()
    assert (killed.written, killed.part) == ([1], 5)
    first = (tmp_path / "out" / "part-000001.txt").stat()
    (tmp_path / "out" / "_in_progress" / "_parts-1-0123456789ab").touch()
    workers = [start_parts(tmp_path / "out", rank, ranks) for rank in range(ranks)]
    written = [part for parts in workers for part in write_pending(parts)]
    assert sorted(written) == [0, 2, 3, 4, 5]
    assert read_all_rows(tmp_path / "out") == list(range(23))
    after = (tmp_path / "out" / "part-000001.txt").stat()  # read, but not rewritten
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (first.st_ino, first.st_mtime_ns, first.st_size)
    assert workers[0].finalise() == (PartManifest(23, 0, 59), True)
    assert not list((tmp_path / "out" / "_in_progress").iterdir())


def test_of_two_workers_on_the_same_part_one_stays_and_neither_fails(tmp_path: Path) -> None:
    one, two = start_parts(tmp_path / "out"), start_parts(tmp_path / "out")
    with one.write_part(2) as first, two.write_part(2) as second:
        write_rows(one, 2, first)
        second.path.write_text("8\n9\n10\n11.0\n")  # as another GPU may compute it
    text = (tmp_path / "out" / "part-000002.txt").read_text()
    assert text == "8\n9\n10\n11.0\n"  # the inner one ends first
    assert one.manifest(2) == PartManifest(4, 0, len(text))


def test_a_part_that_is_truncated_or_has_no_manifest_is_rewritten(tmp_path: Path) -> None:
    parts = start_parts(tmp_path / "out")
    assert write_pending(parts) == [0, 1, 2, 3, 4, 5]
    finalised = parts.finalise()
    assert finalised is not None
    assert finalised[1]
    assert write_pending(start_parts(tmp_path / "out")) == []
    parts.part_path(1).write_text(parts.part_path(1).read_text()[:-1])
    (tmp_path / "out" / "_manifests" / "000002.json").unlink()
    (tmp_path / "out" / "_manifests" / "000003.json").write_text("{")
    parts.part_path(4).unlink()
    again = start_parts(tmp_path / "out")
    assert not (tmp_path / "out" / "_done.json").exists()
    assert again.finalise() is None
    assert write_pending(again) == [1, 2, 3, 4]
    assert read_all_rows(tmp_path / "out") == list(range(23))


def test_a_part_that_fails_leaves_nothing(tmp_path: Path) -> None:
    parts = start_parts(tmp_path / "out")
    with pytest.raises(ValueError, match="no number"), parts.write_part(0) as draft:
        draft.path.write_text(f"0\n{int('no number')}\n")
    assert parts.manifest(0) is None
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["_in_progress", "_manifests", "_parts.json"]


def test_a_folder_is_for_one_request(tmp_path: Path) -> None:
    start_parts(tmp_path / "out")
    for changes, sentence in (
        ({"weights": "b" * 64}, "was started with other weights; name another folder"),
        ({"top_k": 3}, "was started with top_k 5 instead of 3; name"),
        ({"drop_patches": 0.5}, "was started with drop_patches None instead of 0.5; name"),
    ):
        with pytest.raises(VitrailError, match=sentence):
            PartFiles(tmp_path / "out", ".txt", 23, 4).start({**REQUEST, **changes})
    with pytest.raises(VitrailError, match="with part_size 4 instead of 5"):
        start_parts(tmp_path / "out", part=5)
    (tmp_path / "out" / "_parts.json").write_text("[")
    with pytest.raises(VitrailError, match="does not hold a request"):
        start_parts(tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(VitrailError, match=r"with mine.txt in it; name a new one"):
        start_parts(tmp_path / "full")
    for bad in ("gone/out", "full/mine.txt"):
        with pytest.raises(VitrailError, match="part files need a folder"):
            start_parts(tmp_path / bad)


@pytest.mark.parametrize(
    ("num_images", "expected"), [(1, 256), (32_768, 256), (32_769, 512), (1_000_000, 8192), (10**9, 16384)]
)
def test_the_size_of_a_part_follows_from_the_images_alone(num_images: int, expected: int, tmp_path: Path) -> None:
    assert choose_part_size(tmp_path, num_images, None) == expected
    assert choose_part_size(tmp_path, num_images, 7) == 7
    start_parts(tmp_path / "out", part=9)
    assert choose_part_size(tmp_path / "out", num_images, None) == 9  # as it was started


def test_too_many_bad_images_are_refused_in_the_end(tmp_path: Path) -> None:
    parts = PartFiles(tmp_path / "out", ".txt", 23, 4, max_bad_fraction=0.05)
    parts.start(REQUEST)
    for part in parts.pending():
        with parts.write_part(part) as draft:
            draft.num_bad = int(part < 2)
    with pytest.raises(VitrailError, match=r"2 of 23 images cannot be used, more than the tolerated fraction of 0\.05"):
        parts.finalise()
    assert not (tmp_path / "out" / "_done.json").exists()


def test_models_that_predict_differently_have_different_hashes() -> None:
    model = small_vit()
    first = model_hash(model)
    assert model_hash(model) == first
    hashes = {first}
    model.preprocess = Preprocess((12, 15))
    hashes.add(model_hash(model))
    model.class_names = ("a", "b", "c", "d", "e")
    hashes.add(model_hash(model))
    next(iter(model.head.parameters())).data[0] += 1e-6
    hashes.add(model_hash(model))
    model.metadata["recipe"] = {"task": {"kind": "classification", "loss": "sigmoid"}}
    hashes.add(model_hash(model))
    assert len(hashes) == 5
