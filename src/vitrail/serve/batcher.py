"""Many clients, one model: pictures are decoded by a few threads, wait in a bounded queue and are computed in batches by one.

A batch goes when it is full, when nobody else is on the way, or when its first picture has waited ``max_delay``. What is late,
or whose client has left, is never computed. When a batch fails it is computed again one by one: a bad picture fails alone.
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

Job = Callable[[Engine, ndarray], Any]  # what is computed of one picture alone, in place of its logits
log = logging.getLogger("vitrail.serve")
BROKEN = "the model could not be run on the picture; the server's log says why"


@dataclass(eq=False)
class Visit:
    """A picture in the house. Its future has logits, what its job made, or a Trouble; cancelled, the client has left."""

    future: "asyncio.Future[Any]"
    entered: float
    ahead: int  # pictures in the house when it came, with itself
    job: Job | None
    pixels: ndarray | None = None
    queued: float = 0.0
    taken: bool = False


class Batcher:
    """``open_engine`` is called by the thread that computes; until it is done, and after ``close``, nobody is let in."""

    def __init__(self, open_engine: Callable[[], Engine], how: Serving, metrics: Metrics) -> None:
        self.how, self.metrics = how, metrics
        self.engine: Engine | None = None
        self.error: BaseException | None = None  # why there is no engine
        self.closing = False
        self.inside = self.coming = self.bytes = 0  # pictures; those not yet decoded; bytes of bodies that are held
        self.pace = 0.0  # seconds a picture, as of late
        self._open = open_engine
        self._waiting: deque[Visit] = deque()
        self._lock = Condition()

    def start(self, opened: Callable[[], None]) -> None:
        """``opened`` is called on the running loop when the engine is there, or is known never to be."""
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
        """Refuse at once what would find no room, or would not have its turn in time by the pace of late."""
        if self.closing or self.engine is None:
            raise resting("draining" if self.closing else "loading its model")
        wait = self.inside * self.pace
        if self.inside + count > self.how.queue or (self.inside and wait + count * self.pace > self.how.deadline):
            raise full(wait)

    def hold(self, size: int) -> None:
        """Memory for so many more bytes of a request; negative: they are gone."""
        with self._lock:
            if size > 0 and self.bytes + size > self.how.max_bodies:
                raise Trouble(503, "the server holds as many requests as it has memory for; try again later", "memory", 1.0)
            self.bytes += size

    def enter(self, pictures: Sequence[bytes], job: Job | None = None) -> list[Visit]:
        """All of a request or none. Their bytes, which must be held, are let go of once they are decoded."""
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
        """What became of each. Whoever's turn has not come by the deadline is told so; who is being computed is waited for."""
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
        """Compute what is in the house, then rest."""
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
        with suppress(RuntimeError):  # the loop is gone: asked to stop while loading
            self._loop.call_soon_threadsafe(self._opened)
        while self.engine is not None and (batch := self._next()):
            start = time.monotonic()
            for visit in batch:
                visit.taken = True
            self._compute(self.engine, batch)
            self.metrics.batch(len(batch), time.monotonic() - start)

    def _warm(self, engine: Engine) -> Engine:
        """The first call may compile or allocate; no client should wait for that."""
        if not engine.labels:
            raise VitrailError(
                f"{engine.model} has no classifier (classes=0); teach it classes first: vitrail finetune RUN DATA"
            )
        grey = np.full((self.how.max_batch, *engine.preprocess.image, len(engine.preprocess.mean)), 128, np.uint8)
        engine.logits(grey[:1])
        start = time.monotonic()
        engine.logits(grey)
        self.pace = (time.monotonic() - start) / len(grey)
        return engine

    def _next(self) -> list[Visit]:
        """The next batch, in order of arrival; none when the house is closed and empty."""
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
            log.exception("a picture could not be computed")
            outcomes = [Trouble(500, BROKEN, "failed", picture=True)]
        now = time.monotonic()
        fresh = min((now - visit.entered) / visit.ahead for visit in batch)
        self.pace += 0.3 * (fresh - self.pace)
        self._settle(list(zip(batch, outcomes, strict=True)))

    def _settle(self, settled: list[tuple[Visit, Any]]) -> None:
        with self._lock:
            self.inside -= len(settled)
        with suppress(RuntimeError):  # the loop is gone, and whoever waited with it
            self._loop.call_soon_threadsafe(_tell, settled)


def _tell(settled: list[tuple[Visit, Any]]) -> None:
    for visit, outcome in settled:
        visit.pixels = None
        if not visit.future.done():
            visit.future.set_result(outcome)


def _seen(content: bytes, how: Preprocess, largest: int) -> ndarray | Trouble:
    """The picture as the model sees it, or why not."""
    try:
        return fitted(decode(content, largest=largest), how)
    except VitrailError as error:
        return Trouble(422, str(error), "broken", picture=True)
    except MemoryError:
        return Trouble(503, "there is not enough memory to decode the picture; try again later", "full", 1.0, picture=True)
    except Exception:
        log.exception("a picture could not be made ready")
        return Trouble(500, "the picture could not be made ready; the server's log says why", "failed", picture=True)
