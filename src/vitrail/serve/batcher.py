"""Dynamic batching: images are decoded by several threads, wait in a bounded queue and are computed in batches by one.

A batch starts when it is full, when no other image is being decoded, or when its first image has waited ``max_delay``.
Expired images, and those whose client has disconnected, are never computed. A failed batch is retried image by image, so
that a bad image fails alone.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

import numpy as np
from numpy import ndarray
from starlette.requests import ClientDisconnect

from vitrail.data.decode import decode
from vitrail.data.prepare import fitted
from vitrail.data.preprocess import Preprocess
from vitrail.data.threads import cores
from vitrail.errors import VitrailError
from vitrail.export.engine import Engine
from vitrail.serve.metrics import Metrics
from vitrail.serve.settings import Serving
from vitrail.serve.trouble import Trouble, full, late, resting

Job = Callable[[Engine, ndarray], Any]  # computed for one image alone, instead of its logits
log = logging.getLogger("vitrail.serve")
BROKEN = "the model failed on this image; see the server's log"


@dataclass(eq=False)
class Visit:
    """An image in flight. Its future resolves to logits, a job's result or a Trouble; cancelled if the client disconnects."""

    future: "asyncio.Future[Any]"
    entered: float
    ahead: int  # images in flight on arrival, including itself
    job: Job | None
    pixels: ndarray | None = None
    queued: float = 0.0
    taken: bool = False


class Batcher:
    """Bounded queue and compute thread, which loads the engine; before that, and after ``close``, nothing is accepted."""

    def __init__(self, open_engine: Callable[[], Engine], how: Serving, metrics: Metrics) -> None:
        self.how, self.metrics = how, metrics
        self.engine: Engine | None = None
        self.error: BaseException | None = None  # why the engine could not be loaded
        self.closing = False
        self.inside = self.coming = self.bytes = 0  # images in flight; of these, not yet decoded; bytes of request bodies
        self.pace = 0.0  # recent seconds per image
        self._open = open_engine
        self._waiting: deque[Visit] = deque()
        self._lock = Condition()

    def start(self, opened: Callable[[], None]) -> None:
        """Start the threads; ``opened`` is called on the running loop once the engine has loaded or failed."""
        self._loop, self._opened, self.closing = asyncio.get_running_loop(), opened, False
        self._decoders = ThreadPoolExecutor(self.how.decoders or cores(), "vitrail-decoder")
        self._thread = Thread(target=self._work, name="vitrail-engine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def alive(self) -> bool:
        return self._thread.is_alive() or self.closing

    def check(self, count: int = 1) -> None:
        """Refuse images that exceed the queue, or would miss the deadline at the recent throughput."""
        if self.closing or self.engine is None:
            raise resting("draining" if self.closing else "loading its model")
        wait = self.inside * self.pace
        if self.inside + count > self.how.queue or (self.inside and wait + count * self.pace > self.how.deadline):
            raise full(wait)

    def hold(self, size: int) -> None:
        """Reserve memory for request bodies; a negative size releases it."""
        with self._lock:
            if size > 0 and self.bytes + size > self.how.max_bodies:
                raise Trouble(503, "the server has no memory for more requests; try again later", "memory", 1.0)
            self.bytes += size

    def enter(self, pictures: Sequence[bytes], job: Job | None = None) -> list[Visit]:
        """Queue all images of a request or none. Their bytes must be reserved, and are released once decoded."""
        now, made = time.monotonic(), []
        with self._lock:
            self.check(len(pictures))
            for _ in pictures:
                self.inside += 1
                self.coming += 1
                made.append(Visit(self._loop.create_future(), now, self.inside, job))
        for visit, content in zip(made, pictures, strict=True):
            self._decoders.submit(self._decode, visit, content)
        return made

    async def answered(self, visits: Sequence[Visit]) -> list[Any]:
        """Wait for the outcomes. Images not started by the deadline fail; those being computed are waited for."""
        futures = [visit.future for visit in visits]
        left = visits[0].entered + self.how.deadline - time.monotonic()
        _, pending = await asyncio.wait(futures, timeout=max(left, 0))
        for visit in visits:
            if not visit.taken and not visit.future.done():
                visit.future.set_result(late())
        if pending:
            _, stuck = await asyncio.wait(futures, timeout=self.how.deadline)
            for future in stuck:
                future.set_result(late())
        if any(future.cancelled() for future in futures):
            raise ClientDisconnect
        return [future.result() for future in futures]

    def close(self, patience: float = 5.0) -> None:
        """Compute the images in flight, then stop the threads."""
        with self._lock:
            self.closing = True
            self._lock.notify_all()
        self._thread.join(patience)
        self._decoders.shutdown(wait=False, cancel_futures=True)

    def _decode(self, visit: Visit, content: bytes) -> None:
        outcome: Trouble | None = None
        if visit.future.done() or self.engine is None:
            outcome = late()
        else:
            made = _seen(content, self.engine.preprocess, self.how.max_pixels)
            visit.pixels, outcome = (None, made) if isinstance(made, Trouble) else (made, None)
        size, content = len(content), b""
        with self._lock:
            self.bytes -= size
            self.coming -= 1
            if outcome is None:
                visit.queued = time.monotonic()
                self._waiting.append(visit)
            self._lock.notify()
        if outcome is not None:
            self._settle([(visit, outcome)])

    def _work(self) -> None:
        try:
            self.engine = self.engine or self._warm(self._open())
        except BaseException as error:
            self.error = error
        with suppress(RuntimeError):  # the loop is closed: stopped while loading
            self._loop.call_soon_threadsafe(self._opened)
        while self.engine is not None and (batch := self._next()):
            start = time.monotonic()
            for visit in batch:
                visit.taken = True
            self._compute(self.engine, batch)
            self.metrics.batch(len(batch), time.monotonic() - start)

    def _warm(self, engine: Engine) -> Engine:
        """Run the engine once, so that no client waits for compilation or allocation, and time it."""
        if not engine.labels:
            raise VitrailError(f"{engine.model} has no classifier (classes=0); train one first: vitrail finetune RUN DATA")
        grey = np.full((self.how.max_batch, *engine.preprocess.image, len(engine.preprocess.mean)), 128, np.uint8)
        engine.logits(grey[:1])
        start = time.monotonic()
        engine.logits(grey)
        self.pace = (time.monotonic() - start) / len(grey)
        return engine

    def _next(self) -> list[Visit]:
        """Return the next batch in order of arrival; empty once the batcher is closed and drained."""
        with self._lock:
            while True:
                self._drop_the_dead()
                if not self._waiting:
                    if self.closing and not self.coming:
                        return []
                    self._lock.wait()
                    continue
                first = self._waiting[0]
                if first.job is not None:
                    return [self._waiting.popleft()]
                left = first.queued + self.how.max_delay - time.monotonic()
                if len(self._waiting) >= self.how.max_batch or not self.coming or left <= 0:
                    break
                self._lock.wait(left)
            batch: list[Visit] = []
            while self._waiting and len(batch) < self.how.max_batch and self._waiting[0].job is None:
                batch.append(self._waiting.popleft())
            return batch

    def _drop_the_dead(self) -> None:
        too_old = time.monotonic() - self.how.deadline
        while self._waiting and (self._waiting[0].future.done() or self._waiting[0].entered <= too_old):
            self._settle([(self._waiting.popleft(), late())])

    def _compute(self, engine: Engine, batch: list[Visit]) -> None:
        try:
            job, pixels = batch[0].job, [visit.pixels for visit in batch if visit.pixels is not None]
            outcomes = list(engine.logits(np.stack(pixels))) if job is None else [job(engine, pixels[0])]
            assert len(outcomes) == len(batch)
        except Trouble as trouble:
            outcomes = [trouble]
        except Exception:
            if len(batch) > 1:
                for visit in batch:
                    self._compute(engine, [visit])
                return
            log.exception("the model failed on an image")
            outcomes = [Trouble(500, BROKEN, "failed", picture=True)]
        now = time.monotonic()
        fresh = min((now - visit.entered) / visit.ahead for visit in batch)
        self.pace += 0.3 * (fresh - self.pace)
        self._settle(list(zip(batch, outcomes, strict=True)))

    def _settle(self, settled: list[tuple[Visit, Any]]) -> None:
        with self._lock:
            self.inside -= len(settled)
        with suppress(RuntimeError):  # the loop is closed, and its waiters with it
            self._loop.call_soon_threadsafe(_tell, settled)


def _tell(settled: list[tuple[Visit, Any]]) -> None:
    for visit, outcome in settled:
        visit.pixels = None
        if not visit.future.done():
            visit.future.set_result(outcome)


def _seen(content: bytes, how: Preprocess, largest: int) -> ndarray | Trouble:
    """Return the preprocessed image, or the error."""
    try:
        return fitted(decode(content, largest=largest), how)
    except VitrailError as error:
        return Trouble(422, str(error), "invalid", picture=True)
    except MemoryError:
        return Trouble(503, "there is not enough memory to decode the image; try again later", "full", 1.0, picture=True)
    except Exception:
        log.exception("an image could not be preprocessed")
        return Trouble(500, "the image could not be preprocessed; see the server's log", "failed", picture=True)
