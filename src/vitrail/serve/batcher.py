"""Dynamic batching: images are decoded by several threads, wait in a bounded queue and are computed in batches by one.

A batch starts when it is full, when no other image is being decoded, or when its first image has waited ``max_batch_delay``.
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

from vitrail.data.decode import ImageSize
from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import to_sized_pixels
from vitrail.errors import VitrailError
from vitrail.inference.predictor import Predictor, require_outputs
from vitrail.serve.config import ServeConfig
from vitrail.serve.errors import RequestError, deadline_exceeded, not_ready, queue_full
from vitrail.serve.metrics import Metrics
from vitrail.system import available_cores

Job = Callable[[Predictor, ndarray], Any]  # computed for one image alone, instead of its outputs
Finish = Callable[["SizedOutput"], Any]  # makes the result of an image from its outputs, outside of the compute thread
log = logging.getLogger("vitrail.serve")
FINISH_FAILED_MESSAGE = "the result for this image could not be written; see the server's log"
MODEL_FAILED_MESSAGE = "the model failed on this image; see the server's log"


@dataclass(frozen=True)
class SizedOutput:
    """The outputs for an image, with its own size and the model's input; ``is_cancelled`` once nobody waits for the result."""

    outputs: ndarray
    pixels: ndarray
    size: ImageSize
    is_cancelled: Callable[[], bool]


@dataclass(eq=False)
class QueuedImage:
    """An image in flight; its future resolves to outputs, a job's result or a RequestError. A disconnect cancels it."""

    future: "asyncio.Future[Any]"
    arrived_at: float
    queue_position: int  # images in flight on arrival, including itself
    job: Job | None
    finish: Finish | None = None
    pixels: ndarray | None = None
    size: ImageSize = (0, 0)
    queued_at: float = 0.0
    started: bool = False


class Batcher:
    """Bounded queue and compute thread, which loads the predictor; before that, and after ``close``, nothing is accepted."""

    def __init__(self, open_predictor: Callable[[], Predictor], config: ServeConfig, metrics: Metrics) -> None:
        self.config, self.metrics = config, metrics
        self.predictor: Predictor | None = None
        self.error: BaseException | None = None  # why the predictor could not be loaded
        self.closing = False
        self.in_flight = self.decoding = self.finishing = 0  # images; of these, not yet decoded; computed and not yet finished
        self.body_bytes = 0  # of request bodies
        self.seconds_per_image = 0.0  # recent seconds per image
        self._open_predictor = open_predictor
        self._queue: deque[QueuedImage] = deque()
        self._lock = Condition()

    def start(self, on_loaded: Callable[[], None]) -> None:
        """Start the threads; ``on_loaded`` is called on the running loop once the predictor has loaded or failed."""
        self._loop, self._on_loaded, self.closing = asyncio.get_running_loop(), on_loaded, False
        threads = self.config.decode_workers or available_cores()
        self._decode_pool = ThreadPoolExecutor(threads, "vitrail-decoder")
        self._finish_pool = ThreadPoolExecutor(threads, "vitrail-finisher")
        self._thread = Thread(target=self._run, name="vitrail-compute", daemon=True)
        self._thread.start()

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    def is_alive(self) -> bool:
        return self._thread.is_alive() or self.closing

    def check_admission(self, count: int = 1) -> None:
        """Refuse images that exceed the queue, or would miss the deadline at the recent throughput."""
        if self.closing or self.predictor is None:
            raise not_ready("draining" if self.closing else "loading its model")
        wait = self.in_flight * self.seconds_per_image
        if self.in_flight + count > self.config.max_queue or (
            self.in_flight and wait + count * self.seconds_per_image > self.config.request_timeout
        ):
            raise queue_full(wait)

    def reserve_bytes(self, size: int) -> None:
        """Reserve memory for request bodies; a negative size releases it."""
        with self._lock:
            if size > 0 and self.body_bytes + size > self.config.max_total_body:
                raise RequestError(503, "the server has no memory for more requests; try again later", "memory", 1.0)
            self.body_bytes += size

    def submit(self, contents: Sequence[bytes], job: Job | None = None, finish: Finish | None = None) -> list[QueuedImage]:
        """Queue all images of a request or none. Their bytes must be reserved, and are released once decoded.

        ``finish`` makes the results from the outputs; else they are the outputs themselves.
        """
        now, images = time.monotonic(), []
        with self._lock:
            self.check_admission(len(contents))
            for _ in contents:
                self.in_flight += 1
                self.decoding += 1
                images.append(QueuedImage(self._loop.create_future(), now, self.in_flight, job, finish))
        for image, content in zip(images, contents, strict=True):
            self._decode_pool.submit(self._decode, image, content)
        return images

    async def wait(self, images: Sequence[QueuedImage]) -> list[Any]:
        """Wait for the outcomes. Images not started by the deadline fail; those being computed are waited for."""
        futures = [image.future for image in images]
        remaining = images[0].arrived_at + self.config.request_timeout - time.monotonic()
        _, pending = await asyncio.wait(futures, timeout=max(remaining, 0))
        for image in images:
            if not image.started and not image.future.done():
                image.future.set_result(deadline_exceeded())
        if pending:
            _, unfinished = await asyncio.wait(futures, timeout=self.config.request_timeout)
            for future in unfinished:
                future.set_result(deadline_exceeded())
        if any(future.cancelled() for future in futures):
            raise ClientDisconnect
        return [future.result() for future in futures]

    def close(self, timeout: float = 5.0) -> None:
        """Compute the images in flight, then stop the threads."""
        with self._lock:
            self.closing = True
            self._lock.notify_all()
        self._thread.join(timeout)
        for pool in (self._decode_pool, self._finish_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _decode(self, image: QueuedImage, content: bytes) -> None:
        outcome: RequestError | None = None
        if image.future.done() or self.predictor is None:
            outcome = deadline_exceeded()
        else:
            result = _preprocess(content, self.predictor.preprocess, self.config.max_pixels)
            if isinstance(result, RequestError):
                outcome = result
            else:
                image.pixels, image.size = result
        size, content = len(content), b""
        with self._lock:
            self.body_bytes -= size
            self.decoding -= 1
            if outcome is None:
                image.queued_at = time.monotonic()
                self._queue.append(image)
            self._lock.notify()
        if outcome is not None:
            self._resolve([(image, outcome)])

    def _run(self) -> None:
        try:
            self.predictor = self.predictor or self._warm_up(self._open_predictor())
        except BaseException as error:
            self.error = error
        with suppress(RuntimeError):  # the loop is closed: stopped while loading
            self._loop.call_soon_threadsafe(self._on_loaded)
        while self.predictor is not None and (batch := self._next_batch()):
            start = time.monotonic()
            for image in batch:
                image.started = True
            self._compute(self.predictor, batch)
            self.metrics.count_batch(len(batch), time.monotonic() - start)

    def _warm_up(self, predictor: Predictor) -> Predictor:
        """Run the predictor once, so that no client waits for compilation or allocation, and time it."""
        require_outputs(predictor)
        preprocess = predictor.preprocess
        blank = np.full((self.config.max_batch, *preprocess.image_size, preprocess.channels), 128, preprocess.pixel_type)
        predictor.outputs(blank[:1])
        start = time.monotonic()
        predictor.outputs(blank)
        self.seconds_per_image = (time.monotonic() - start) / len(blank)
        return predictor

    def _next_batch(self) -> list[QueuedImage]:
        """Return the next batch in order of arrival; empty once the batcher is closed and drained."""
        with self._lock:
            while True:
                self._drop_expired()
                if self.finishing >= self.config.max_batch:  # so that outputs, which may be large, do not pile up
                    self._lock.wait()
                    continue
                if not self._queue:
                    if self.closing and not self.decoding and not self.finishing:
                        return []
                    self._lock.wait()
                    continue
                first = self._queue[0]
                if first.job is not None:
                    return [self._queue.popleft()]
                remaining = first.queued_at + self.config.max_batch_delay - time.monotonic()
                if len(self._queue) >= self.config.max_batch or not self.decoding or remaining <= 0:
                    break
                self._lock.wait(remaining)
            batch: list[QueuedImage] = []
            while self._queue and len(batch) < self.config.max_batch and self._queue[0].job is None:
                batch.append(self._queue.popleft())
            return batch

    def _drop_expired(self) -> None:
        oldest_arrival = time.monotonic() - self.config.request_timeout
        while self._queue and (self._queue[0].future.done() or self._queue[0].arrived_at <= oldest_arrival):
            self._resolve([(self._queue.popleft(), deadline_exceeded())])

    def _compute(self, predictor: Predictor, batch: list[QueuedImage]) -> None:
        try:
            job, pixels = batch[0].job, [image.pixels for image in batch if image.pixels is not None]
            outcomes = list(predictor.outputs(np.stack(pixels))) if job is None else [job(predictor, pixels[0])]
            assert len(outcomes) == len(batch)
        except RequestError as error:
            outcomes = [error]
        except Exception:
            if len(batch) > 1:
                for image in batch:
                    self._compute(predictor, [image])
                return
            log.exception("the model failed on an image")
            outcomes = [RequestError(500, MODEL_FAILED_MESSAGE, "failed", is_image_error=True)]
        resolved = []
        for image, outcome in zip(batch, outcomes, strict=True):
            if image.finish is None or isinstance(outcome, RequestError):
                resolved.append((image, outcome))
            else:
                with self._lock:
                    self.finishing += 1
                self._finish_pool.submit(self._finish, image, outcome)
        self._resolve(resolved)

    def _finish(self, image: QueuedImage, outputs: ndarray) -> None:
        outcome: Any
        assert image.finish is not None
        assert image.pixels is not None
        try:
            outcome = image.finish(SizedOutput(outputs, image.pixels, image.size, image.future.done))
        except RequestError as error:
            outcome = error
        except MemoryError:
            outcome = RequestError(503, "there is not enough memory; try again later", "full", 1.0, is_image_error=True)
        except Exception:
            log.exception("the result for an image could not be written")
            outcome = RequestError(500, FINISH_FAILED_MESSAGE, "failed", is_image_error=True)
        self._resolve([(image, outcome)])
        with self._lock:
            self.finishing -= 1
            self._lock.notify()

    def _resolve(self, results: list[tuple[QueuedImage, Any]]) -> None:
        computed, now = [image for image, _ in results if image.started], time.monotonic()
        with self._lock:
            self.in_flight -= len(results)
            if computed:
                measured = min((now - image.arrived_at) / image.queue_position for image in computed)
                self.seconds_per_image += 0.3 * (measured - self.seconds_per_image)
        with suppress(RuntimeError):  # the loop is closed, and its waiters with it
            self._loop.call_soon_threadsafe(_set_results, results)


def _set_results(results: list[tuple[QueuedImage, Any]]) -> None:
    for image, outcome in results:
        image.pixels = None
        if not image.future.done():
            image.future.set_result(outcome)


def _preprocess(content: bytes, preprocess: Preprocess, max_pixels: int) -> tuple[ndarray, ImageSize] | RequestError:
    """Return the preprocessed image and the size that it had, or the error."""
    try:
        return to_sized_pixels(content, preprocess, max_pixels)
    except VitrailError as error:
        return RequestError(422, str(error), "invalid", is_image_error=True)
    except MemoryError:
        return RequestError(
            503, "there is not enough memory to decode the image; try again later", "full", 1.0, is_image_error=True
        )
    except Exception:
        log.exception("an image could not be preprocessed")
        return RequestError(500, "the image could not be preprocessed; see the server's log", "failed", is_image_error=True)
