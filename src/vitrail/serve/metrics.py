"""Server metrics in the Prometheus text format (version 0.0.4).

Written here rather than with a library: there are a dozen metrics, all names and labels are known beforehand, and counting
must cost next to nothing under load. Each server has its own metrics, where a library's registry is per process.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Lock

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCH_SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Histogram:
    """Cumulative histogram: counts per bucket, sum and number of values."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        cumulative = 0
        for edge, count in zip((*map(_format_number, self.edges), "+Inf"), self.counts, strict=True):
            cumulative += count
            yield f'{name}_bucket{{le="{edge}"}} {cumulative}'
        yield f"{name}_sum {_format_number(self.sum)}"
        yield f"{name}_count {cumulative}"


class Metrics:
    """Thread-safe counters and histograms; ``gauges`` are evaluated when the text is requested."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.images: Counter[str] = Counter(dict.fromkeys(("predicted", "invalid", "timed_out", "failed", "disconnected"), 0))
        self.rejected: Counter[str] = Counter(dict.fromkeys(("full", "memory", "loading", "draining"), 0))
        self.request_seconds, self.batch_sizes, self.batch_seconds = (
            Histogram(SECONDS_BUCKETS),
            Histogram(BATCH_SIZE_BUCKETS),
            Histogram(SECONDS_BUCKETS),
        )
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def count_request(self, path: str, status: int, seconds: float) -> None:
        with self.lock:
            self.requests[path, status] += 1
            self.request_seconds.add(seconds)

    def count_images(self, outcome: str, count: int = 1) -> None:
        with self.lock:
            self.images[outcome] += count

    def count_rejection(self, reason: str) -> None:
        with self.lock:
            self.rejected[reason] += 1

    def count_batch(self, size: int, seconds: float) -> None:
        with self.lock:
            self.batch_sizes.add(size)
            self.batch_seconds.add(seconds)

    def text(self) -> str:
        with self.lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _header("vitrail_requests_total", "counter", "Requests by path and status; 499: the client disconnected.")
        for (path, status), count in sorted(self.requests.items()):
            yield f'vitrail_requests_total{{path="{path}",status="{status}"}} {count}'
        yield from _header("vitrail_images_total", "counter", "Images by outcome.")
        for outcome, count in sorted(self.images.items()):
            yield f'vitrail_images_total{{outcome="{outcome}"}} {count}'
        yield from _header("vitrail_rejected_requests_total", "counter", "Requests refused on arrival, by reason.")
        for reason, count in sorted(self.rejected.items()):
            yield f'vitrail_rejected_requests_total{{reason="{reason}"}} {count}'
        for name, (help_text, histogram) in {
            "vitrail_request_seconds": ("Request latency in seconds.", self.request_seconds),
            "vitrail_batch_size": ("Images per batch.", self.batch_sizes),
            "vitrail_batch_seconds": ("Compute time per batch in seconds.", self.batch_seconds),
        }.items():
            yield from _header(name, "histogram", help_text)
            yield from histogram.lines(name)
        for name, (help_text, read) in self.gauges.items():
            yield from _header(name, "gauge", help_text)
            yield f"{name} {_format_number(read())}"


def _header(name: str, kind: str, help_text: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
