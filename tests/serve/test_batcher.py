"""Guarantees of the batcher, with a predictor whose every step the test controls."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest
from numpy import ndarray

from tests.serve.fake_predictor import FakePredictor, coloured_image
from vitrail.serve.batcher import Batcher, Finish, QueuedImage, SizedOutput
from vitrail.serve.config import ServeConfig
from vitrail.serve.errors import RequestError
from vitrail.serve.metrics import Metrics

TIMEOUT = 300.0


@asynccontextmanager
async def run_batcher(predictor: FakePredictor, **settings: Any) -> AsyncIterator[Batcher]:
    batcher, opened = Batcher(lambda: predictor, ServeConfig(**settings), Metrics()), asyncio.Event()
    batcher.start(opened.set)
    await asyncio.wait_for(opened.wait(), TIMEOUT)
    assert batcher.error is None
    predictor.batch_sizes.clear()
    try:
        yield batcher
    finally:
        await asyncio.to_thread(batcher.close)


def submit(batcher: Batcher, *labels: int) -> list[QueuedImage]:
    images = [coloured_image(label) for label in labels]
    batcher.reserve_bytes(sum(map(len, images)))
    return batcher.submit(images)


def submit_to_finish(batcher: Batcher, finish: Finish, *labels: int) -> list[QueuedImage]:
    images = [coloured_image(label) for label in labels]
    batcher.reserve_bytes(sum(map(len, images)))
    return batcher.submit(images, finish=finish)


def predicted_label(outcome: Any) -> int:
    assert isinstance(outcome, ndarray), outcome
    return int(outcome.argmax())


class Gate:
    """Block the predictor on a white image until the test opens the gate."""

    def __init__(self) -> None:
        self.reached, self.open = Event(), Event()

    def __call__(self, images: ndarray) -> None:
        if (images[:, 0, 0].min(axis=1) >= 224).any():
            self.reached.set()
            assert self.open.wait(TIMEOUT)


WHITE = 511


@dataclass
class BlockedBatcher:
    """A batcher whose predictor is blocked on the first image."""

    batcher: Batcher
    predictor: FakePredictor
    first: list[QueuedImage]
    unblock: Callable[[], None]


@asynccontextmanager
async def blocked_batcher(**settings: Any) -> AsyncIterator[BlockedBatcher]:
    gate = Gate()
    predictor = FakePredictor(on_batch=gate)
    async with run_batcher(predictor, **settings) as batcher:
        first = submit(batcher, WHITE)
        await asyncio.to_thread(gate.reached.wait, TIMEOUT)
        yield BlockedBatcher(batcher, predictor, first, gate.open.set)


def test_results_come_in_order_and_belong_to_their_images() -> None:
    async def run() -> None:
        async with run_batcher(FakePredictor(), max_batch=5, max_queue=512) as batcher:
            requests = [submit(batcher, *range(first, first + 3)) for first in range(1, 301, 3)]
            for number, images in enumerate(requests):
                labels = [predicted_label(outcome) for outcome in await batcher.wait(images)]
                assert labels == [3 * number + index for index in (1, 2, 3)]
            assert (batcher.in_flight, batcher.decoding, batcher.body_bytes, batcher.queue_length) == (0, 0, 0, 0)

    asyncio.run(run())


def test_images_that_wait_during_a_batch_form_the_next_batch() -> None:
    async def run() -> None:
        async with blocked_batcher(
            max_batch=4, max_batch_delay=10.0
        ) as context:  # the first alone, and at once: no other image is being decoded
            others = submit(context.batcher, *range(1, 8))
            await wait_until(lambda: context.batcher.queue_length == 7)
            context.unblock()
            assert [predicted_label(outcome) for outcome in await context.batcher.wait(context.first + others)] == [
                WHITE,
                *range(1, 8),
            ]
            assert context.predictor.batch_sizes == [1, 4, 3]

    asyncio.run(run())


def test_a_bad_image_fails_alone_and_says_why() -> None:
    async def run() -> None:
        async with blocked_batcher(max_batch=8) as context:
            black, broken = 0, [b"GIF89a but not really"]
            context.batcher.reserve_bytes(len(broken[0]))
            others = submit(context.batcher, 3, black, 5) + context.batcher.submit(broken)
            await wait_until(lambda: context.batcher.decoding == 0)
            context.unblock()
            outcomes = await context.batcher.wait(context.first + others)
            assert [predicted_label(outcomes[index]) for index in (0, 1, 3)] == [WHITE, 3, 5]
            assert isinstance(outcomes[2], RequestError)
            assert (outcomes[2].status, outcomes[2].reason) == (500, "failed")
            assert isinstance(outcomes[4], RequestError)
            assert (outcomes[4].status, outcomes[4].reason) == (422, "invalid")

    asyncio.run(run())


def test_the_queue_is_bounded_and_refuses_all_of_a_request_or_none() -> None:
    async def run() -> None:
        async with blocked_batcher(max_batch=2, max_queue=5) as context:
            others = submit(context.batcher, 1, 2, 3)
            with pytest.raises(RequestError) as refused:
                context.batcher.submit([coloured_image(4), coloured_image(5)])
            assert (refused.value.status, refused.value.reason) == (503, "full")
            others += submit(context.batcher, 6)
            context.unblock()
            assert [predicted_label(outcome) for outcome in await context.batcher.wait(context.first + others)] == [
                WHITE,
                1,
                2,
                3,
                6,
            ]
            assert [predicted_label(outcome) for outcome in await context.batcher.wait(submit(context.batcher, 4, 5))] == [4, 5]

    asyncio.run(run())


def test_an_image_that_would_miss_its_deadline_at_the_recent_throughput_is_refused_unless_the_queue_is_empty() -> None:
    async def run() -> None:
        gate = Gate()
        async with run_batcher(FakePredictor(on_batch=gate), max_batch=1, max_queue=99, request_timeout=30.0) as batcher:
            batcher.seconds_per_image = 20.0
            first = submit(batcher, WHITE)
            with pytest.raises(RequestError) as refused:
                batcher.check_admission()
            assert refused.value.status == 503
            assert refused.value.retry_after == pytest.approx(20.0)
            gate.open.set()
            await batcher.wait(first)
            assert batcher.seconds_per_image < 20.0

    asyncio.run(run())


def test_expired_images_fail_and_are_never_computed() -> None:
    async def run() -> None:
        async with blocked_batcher(max_batch=1, request_timeout=0.3) as context:
            context.batcher.seconds_per_image = 0.0
            (outcome,) = await context.batcher.wait(submit(context.batcher, 7))
            assert isinstance(outcome, RequestError)
            assert outcome.status == 504
            context.unblock()
            await asyncio.wait([context.first[0].future])
            await wait_until(lambda: context.batcher.in_flight == 0)
            assert context.predictor.batch_sizes == [1]

    asyncio.run(run())


def test_images_of_a_disconnected_client_are_never_computed() -> None:
    async def run() -> None:
        async with blocked_batcher(max_batch=1) as context:
            for image in submit(context.batcher, 1, 2):
                image.future.cancel()
            last = submit(context.batcher, 3)
            context.unblock()
            assert [predicted_label(outcome) for outcome in await context.batcher.wait(context.first + last)] == [WHITE, 3]
            await wait_until(lambda: context.batcher.in_flight == 0)
            assert context.predictor.batch_sizes == [1, 1]

    asyncio.run(run())


def test_closing_computes_the_images_in_flight_and_accepts_no_more() -> None:
    async def run() -> None:
        gate = Gate()
        async with run_batcher(FakePredictor(on_batch=gate), max_batch=2) as batcher:
            images = submit(batcher, WHITE, 1, 2, 3)
            await asyncio.to_thread(gate.reached.wait, TIMEOUT)
            closed = asyncio.ensure_future(asyncio.to_thread(batcher.close, TIMEOUT))
            await wait_until(lambda: batcher.closing)
            with pytest.raises(RequestError, match="draining"):
                batcher.check_admission()
            gate.open.set()
            await closed
            assert [predicted_label(outcome) for outcome in await batcher.wait(images)] == [WHITE, 1, 2, 3]

    asyncio.run(run())


def test_request_bodies_share_a_bounded_memory() -> None:
    async def run() -> None:
        async with run_batcher(FakePredictor(), max_body=100) as batcher:
            batcher.reserve_bytes(790)
            with pytest.raises(RequestError) as refused:
                batcher.reserve_bytes(11)
            assert (refused.value.status, refused.value.reason, batcher.body_bytes) == (503, "memory", 790)
            batcher.reserve_bytes(10)
            batcher.reserve_bytes(-800)

    asyncio.run(run())


def test_a_predictor_that_fails_to_load_is_reported_and_nothing_is_accepted() -> None:
    def broken() -> FakePredictor:
        raise OSError("no such model")

    async def run() -> None:
        batcher, opened = Batcher(broken, ServeConfig(), Metrics()), asyncio.Event()
        batcher.start(opened.set)
        await asyncio.wait_for(opened.wait(), TIMEOUT)
        assert str(batcher.error) == "no such model"
        with pytest.raises(RequestError, match="loading"):
            batcher.check_admission()
        batcher.close()

    asyncio.run(run())


def test_a_job_gets_one_image_at_a_time() -> None:
    async def run() -> None:
        async with run_batcher(FakePredictor()) as batcher:
            contents = [coloured_image(9), coloured_image(18)]
            batcher.reserve_bytes(sum(map(len, contents)))
            images = batcher.submit(contents, lambda predictor, pixels: (predictor.backend, *pixels.shape))
            assert await batcher.wait(images) == [("fake", 4, 6, 3)] * 2

    asyncio.run(run())


async def wait_until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not true():
            await asyncio.sleep(0.005)


def test_results_are_finished_in_another_thread_and_count_as_in_flight_until_then() -> None:
    """As long as a batch of them is unfinished, no other is computed, so that outputs do not pile up."""

    async def run() -> None:
        opened, sizes = Event(), list[tuple[int, int]]()

        def finish(output: SizedOutput) -> int:
            assert opened.wait(TIMEOUT)
            sizes.append(output.size)
            return int(output.outputs.argmax())

        predictor = FakePredictor()
        async with run_batcher(predictor, max_batch=2, max_queue=5) as batcher:
            images = submit_to_finish(batcher, finish, 11, 12, 13, 14, 15)
            while batcher.finishing < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert sum(predictor.batch_sizes) <= 3
            assert batcher.in_flight == 5
            with pytest.raises(RequestError, match="full"):
                submit(batcher, 3)
            opened.set()
            assert await asyncio.wait_for(batcher.wait(images), TIMEOUT) == [11, 12, 13, 14, 15]
            assert sizes == [(7, 9)] * 5
            while batcher.in_flight or batcher.finishing:
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_result_that_cannot_be_finished_fails_alone() -> None:
    async def run() -> None:
        def finish(output: SizedOutput) -> int:
            if output.outputs.argmax() == 12:
                raise RuntimeError("broken")
            return int(output.outputs.argmax())

        async with run_batcher(FakePredictor(), max_batch=4) as batcher:
            outcomes = await asyncio.wait_for(batcher.wait(submit_to_finish(batcher, finish, 11, 12, 0, 13)), TIMEOUT)
        assert (outcomes[0], outcomes[3]) == (11, 13)
        assert [outcome.status for outcome in outcomes[1:3]] == [500, 500]

    asyncio.run(run())


def test_closing_waits_for_results_that_are_being_finished() -> None:
    async def run() -> None:
        def finish(output: SizedOutput) -> str:
            time.sleep(0.2)
            return "done"

        async with run_batcher(FakePredictor()) as batcher:
            images = submit_to_finish(batcher, finish, 11)
            while not batcher.finishing:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(batcher.close)
            assert await asyncio.wait_for(batcher.wait(images), TIMEOUT) == ["done"]

    asyncio.run(run())
