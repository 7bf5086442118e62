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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
from numpy import ndarray
from PIL import Image

from vitrail.bench.http_load import LoadResult, build_request, send_load
from vitrail.bench.interleaved_timing import best_of_interleaved
from vitrail.data.decode import decode
from vitrail.data.sources.dataset import Progress
from vitrail.data.sources.panes.dataset import build_panes
from vitrail.data.transforms import resize_and_crop
from vitrail.errors import VitrailError
from vitrail.inference.load import Backend, load_predictor
from vitrail.inference.predictor import Predictor
from vitrail.system import available_cores

IMAGE_SIZE, NUM_IMAGES = (375, 500), 32  # of drawn images, the usual size in ImageNet
STARTUP_TIMEOUT = 300.0  # seconds for a server to load its model


@dataclass(frozen=True)
class ServeSpeed:
    """Images per second, and seconds from a request to its response; the best turn of each counts."""

    ratio: float
    served: float
    offline: float
    p50: float
    p99: float
    mean_batch_size: float  # mean batch size in the server
    num_responses: int
    other_statuses: dict[int, int]  # status: unsuccessful responses
    backend: str
    clients: int
    max_batch_size: int
    threads: int | None
    num_images: int
    rounds: int


def benchmark_serve(
    run: str,
    clients: int = 32,
    seconds: float = 30.0,
    rounds: int = 3,
    backend: Backend = "auto",
    max_batch_size: int = 16,
    threads: int | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> ServeSpeed:
    """Run the benchmark. ``seconds`` are the total of all turns of both."""
    contents = _load_images(folder)
    predictor, turn_seconds = load_predictor(run, backend, threads), seconds / (2 * rounds)
    requests, loads = [build_request(content) for content in contents], list[LoadResult]()
    with _start_server(run, backend, max_batch_size, max(clients, max_batch_size) * 2, threads) as (host, port):

        def served() -> int:
            loads.append(send_load(host, port, requests, clients, turn_seconds))
            return len(loads[-1].seconds)

        send_load(host, port, requests, clients, 0.5)  # warm-up
        with ThreadPoolExecutor(available_cores()) as decoders:
            offline = _offline(predictor, contents, max_batch_size, decoders, turn_seconds)
            best = best_of_interleaved({"offline": offline, "served": served}, rounds, progress)
        mean_batch_size = _mean_batch_size(host, port)
    latencies = sorted(latency for result in loads for latency in result.seconds)
    other_statuses = sum((result.other_statuses for result in loads), Counter[int]())
    return ServeSpeed(
        ratio=round(best["served"] / best["offline"], 3),
        served=best["served"],
        offline=best["offline"],
        p50=statistics.median(latencies),
        p99=latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))],
        mean_batch_size=mean_batch_size,
        num_responses=len(latencies),
        other_statuses=dict(other_statuses),
        backend=predictor.backend,
        clients=clients,
        max_batch_size=max_batch_size,
        threads=threads,
        num_images=len(contents),
        rounds=rounds,
    )


def _offline(
    predictor: Predictor, contents: Sequence[bytes], batch_size: int, decoders: ThreadPoolExecutor, seconds: float
) -> Callable[[], int]:
    """Return a turn of full batches for ``seconds``; two batches are being decoded while one is computed."""

    def work() -> int:
        end, done, submitted = time.perf_counter() + seconds, 0, 0
        pending: list[Future[ndarray]] = []
        while time.perf_counter() < end:
            while len(pending) < 3 * batch_size:
                pending.append(decoders.submit(_decode_and_fit, contents[submitted % len(contents)], predictor))
                submitted += 1
            predictor.outputs(np.stack([one.result() for one in pending[:batch_size]]))
            del pending[:batch_size]
            done += batch_size
        for one in pending:
            one.cancel()
        return done

    predictor.outputs(np.stack([_decode_and_fit(contents[0], predictor)] * batch_size))
    return work


def _decode_and_fit(content: bytes, predictor: Predictor) -> ndarray:
    return resize_and_crop(decode(content), predictor.preprocess)


def _load_images(folder: Path | None) -> list[bytes]:
    """Return the JPEGs of a folder, or drawn ones."""
    if folder is not None:
        paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg") and path.is_file())
        if not paths:
            raise VitrailError(f"{folder} has no JPEG files to measure with; leave --data out")
        return [path.read_bytes() for path in paths[:: max(len(paths) // NUM_IMAGES, 1)][:NUM_IMAGES]]
    source, encoded = build_panes("train", NUM_IMAGES, IMAGE_SIZE), []
    for index in range(NUM_IMAGES):
        file = io.BytesIO()
        Image.fromarray(source.read(index)).save(file, "JPEG", quality=90)
        encoded.append(file.getvalue())
    return encoded


@contextmanager
def _start_server(run: str, backend: str, batch_size: int, queue: int, threads: int | None) -> Iterator[tuple[str, int]]:
    options = ["--port", "0", "--json", "--request-timeout", "60"]
    options += ["--backend", backend, "--max-batch", str(batch_size), "--max-queue", str(queue)]
    options += ["--threads", str(threads)] if threads else []
    command = [sys.executable, "-m", "vitrail", "serve", run, *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stderr is not None
        line = server.stdout.readline()
        if not line:
            raise VitrailError(server.stderr.read().removeprefix("vitrail: ").strip() or "the server did not start")
        address = urlsplit(json.loads(line)["url"])
        yield address.hostname or "127.0.0.1", address.port or 0
    finally:
        server.terminate()
        server.communicate(timeout=STARTUP_TIMEOUT)


def _mean_batch_size(host: str, port: int) -> float:
    with urlopen(f"http://{host}:{port}/metrics", timeout=30) as response:
        lines = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if not line.startswith("#"))
    return float(lines["vitrail_batch_size_sum"]) / max(float(lines["vitrail_batch_size_count"]), 1)
