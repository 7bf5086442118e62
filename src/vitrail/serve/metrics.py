"""What a server has done, counted, in Prometheus' text format (version 0.0.4).

Written here rather than by a library: it is a dozen numbers, all names and labels are known beforehand, and counting them must
cost next to nothing in the middle of a flood. A server has numbers of its own, where a library's registry is the process's.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Lock

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Histogram:
    """How many values were at most so large, their sum and their number."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        below = 0
        for edge, count in zip((*map(_number, self.edges), "+Inf"), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{edge}"}} {below}'
        yield f"{name}_sum {_number(self.sum)}"
        yield f"{name}_count {below}"


class Metrics:
    """Counted from several threads. ``gauges`` are asked when the numbers are."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.pictures: Counter[str] = Counter(dict.fromkeys(("answered", "broken", "late", "failed", "left"), 0))
        self.rejected: Counter[str] = Counter(dict.fromkeys(("full", "memory", "loading", "draining"), 0))
        self.seconds, self.batches, self.computing = Histogram(SECONDS), Histogram(SIZES), Histogram(SECONDS)
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def request(self, path: str, status: int, seconds: float) -> None:
        with self.lock:
            self.requests[path, status] += 1
            self.seconds.add(seconds)

    def picture(self, outcome: str, count: int = 1) -> None:
        with self.lock:
            self.pictures[outcome] += count

    def reject(self, reason: str) -> None:
        with self.lock:
            self.rejected[reason] += 1

    def batch(self, size: int, seconds: float) -> None:
        with self.lock:
            self.batches.add(size)
            self.computing.add(seconds)

    def text(self) -> str:
        with self.lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _head("vitrail_requests_total", "counter", "Requests by path and status; 499: the client left.")
        for (path, status), count in sorted(self.requests.items()):
            yield f'vitrail_requests_total{{path="{path}",status="{status}"}} {count}'
        yield from _head("vitrail_pictures_total", "counter", "Pictures by what became of them.")
        for outcome, count in sorted(self.pictures.items()):
            yield f'vitrail_pictures_total{{outcome="{outcome}"}} {count}'
        yield from _head("vitrail_rejected_total", "counter", "Requests that were refused at once, by the reason.")
        for reason, count in sorted(self.rejected.items()):
            yield f'vitrail_rejected_total{{reason="{reason}"}} {count}'
        for name, (said, histogram) in {
            "vitrail_request_seconds": ("From a request's first byte to its answer.", self.seconds),
            "vitrail_batch_pictures": ("Pictures computed at a time.", self.batches),
            "vitrail_batch_seconds": ("Computing of a batch.", self.computing),
        }.items():
            yield from _head(name, "histogram", said)
            yield from histogram.lines(name)
        for name, (said, asked) in self.gauges.items():
            yield from _head(name, "gauge", said)
            yield f"{name} {_number(asked())}"


def _head(name: str, kind: str, said: str) -> tuple[str, str]:
    return f"# HELP {name} {said}", f"# TYPE {name} {kind}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
