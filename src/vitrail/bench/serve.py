"""``vitrail bench serve``: the fraction of a model's speed that remains over HTTP with many clients.

The server is a process of its own, as a user starts it. The reference is the same predictor in this process without HTTP: the
same images, as many decoding threads, full batches, and the next ones decoded while one is computed. They take turns, and the
other one idles. The clients are in this process: their cost counts against the server alone.
"""

import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from numpy import ndarray
from PIL import Image

from vitrail.bench.load import Load, load, request
from vitrail.bench.turns import in_turns
from vitrail.data.decode import decode
from vitrail.data.prepare import fitted
from vitrail.data.sources.panes import panes
from vitrail.data.sources.source import Progress
from vitrail.data.threads import cores
from vitrail.errors import VitrailError
from vitrail.export.engine import Engine, Kind, open_engine

SIZE, PICTURES = (375, 500), 32  # of drawn images, the usual size in ImageNet
WAIT = 300.0  # seconds for a server to load its model


@dataclass(frozen=True)
class ServeSpeed:
    """Images per second, and seconds from a request to its response; the best turn of each counts."""

    ratio: float
    served: float
    offline: float
    p50: float
    p99: float
    batch: float  # mean batch size in the server
    answers: int
    others: dict[int, int]  # status: unsuccessful responses
    engine: str
    clients: int
    max_batch: int
    threads: int | None
    pictures: int
    rounds: int


def serve_speed(
    run: str,
    clients: int = 32,
    seconds: float = 30.0,
    rounds: int = 3,
    kind: Kind = "auto",
    max_batch: int = 16,
    threads: int | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> ServeSpeed:
    """Run the benchmark. ``seconds`` are the total of all turns of both."""
    contents = _pictures(folder)
    engine, each = open_engine(run, kind, threads), seconds / (2 * rounds)
    requests, loads = [request(content) for content in contents], list[Load]()
    with _server(run, kind, max_batch, max(clients, max_batch) * 2, threads) as (host, port):

        def served() -> int:
            loads.append(load(host, port, requests, clients, each))
            return len(loads[-1].seconds)

        load(host, port, requests, clients, 0.5)  # warm-up
        with ThreadPoolExecutor(cores()) as decoders:
            offline = _offline(engine, contents, max_batch, decoders, each)
            best = in_turns({"offline": offline, "served": served}, rounds, progress)
        batch = _mean_batch(host, port)
    times = sorted(time_ for one in loads for time_ in one.seconds)
    others: dict[int, int] = {}
    for one in loads:
        for status, count in one.others.items():
            others[status] = others.get(status, 0) + count
    return ServeSpeed(
        round(best["served"] / best["offline"], 3), best["served"], best["offline"],
        statistics.median(times), times[min(len(times) - 1, int(0.99 * len(times)))], batch, len(times), others,
        engine.name, clients, max_batch, threads, len(contents), rounds,
    )  # fmt: skip


def _offline(
    engine: Engine, contents: Sequence[bytes], batch: int, decoders: ThreadPoolExecutor, seconds: float
) -> Callable[[], int]:
    """Return a turn of full batches for ``seconds``; two batches are being decoded while one is computed."""

    def work() -> int:
        end, done, at = time.perf_counter() + seconds, 0, 0
        coming: list[Future[ndarray]] = []
        while time.perf_counter() < end:
            while len(coming) < 3 * batch:
                coming.append(decoders.submit(_seen, contents[at % len(contents)], engine))
                at += 1
            engine.logits(np.stack([one.result() for one in coming[:batch]]))
            del coming[:batch]
            done += batch
        for one in coming:
            one.cancel()
        return done

    engine.logits(np.stack([_seen(contents[0], engine)] * batch))
    return work


def _seen(content: bytes, engine: Engine) -> ndarray:
    return fitted(decode(content), engine.preprocess)


def _pictures(folder: Path | None) -> list[bytes]:
    """Return the JPEGs of a folder, or drawn ones."""
    if folder is not None:
        found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg") and path.is_file())
        if not found:
            raise VitrailError(f"{folder} has no JPEG files to measure with; leave --data out")
        return [path.read_bytes() for path in found[:: max(len(found) // PICTURES, 1)][:PICTURES]]
    source, made = panes("train", PICTURES, SIZE), []
    for index in range(PICTURES):
        file = io.BytesIO()
        Image.fromarray(source.content(index)).save(file, "JPEG", quality=90)
        made.append(file.getvalue())
    return made


@contextmanager
def _server(run: str, kind: str, batch: int, queue: int, threads: int | None) -> Iterator[tuple[str, int]]:
    options = [
        "--port",
        "0",
        "--json",
        "--engine",
        kind,
        "--max-batch",
        str(batch),
        "--max-queue",
        str(queue),
        "--request-timeout",
        "60",
    ]
    options += ["--threads", str(threads)] if threads else []
    command = [sys.executable, "-m", "vitrail", "serve", run, *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stderr is not None
        line = server.stdout.readline()
        if not line:
            raise VitrailError(server.stderr.read().removeprefix("vitrail: ").strip() or "the server did not start")
        place = urlsplit(json.loads(line)["url"])
        yield place.hostname or "127.0.0.1", place.port or 0
    finally:
        server.terminate()
        server.communicate(timeout=WAIT)


def _mean_batch(host: str, port: int) -> float:
    from urllib.request import urlopen

    with urlopen(f"http://{host}:{port}/metrics", timeout=30) as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#"))
    return float(lines["vitrail_batch_size_sum"]) / max(float(lines["vitrail_batch_size_count"]), 1)
