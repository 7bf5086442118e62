"""Guarantees of the batcher, with a predictor whose every step the test controls."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest
from numpy import ndarray

from tests.serve.fake import FakePredictor, coloured
from vitrail.serve.batcher import Batcher, Visit
from vitrail.serve.metrics import Metrics
from vitrail.serve.settings import Serving
from vitrail.serve.trouble import Trouble

TIMEOUT = 300.0


@asynccontextmanager
async def running_batcher(engine: FakePredictor, **settings: Any) -> AsyncIterator[Batcher]:
    batcher, opened = Batcher(lambda: engine, Serving(**settings), Metrics()), asyncio.Event()
    batcher.start(opened.set)
    await asyncio.wait_for(opened.wait(), TIMEOUT)
    assert batcher.error is None
    engine.sizes.clear()
    try:
        yield batcher
    finally:
        await asyncio.to_thread(batcher.close)


def submit(batcher: Batcher, *labels: int) -> list[Visit]:
    images = [coloured(label) for label in labels]
    batcher.hold(sum(map(len, images)))
    return batcher.enter(images)


def label(outcome: Any) -> int:
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
class Busy:
    """A batcher whose predictor is blocked on the first image."""

    batcher: Batcher
    engine: FakePredictor
    first: list[Visit]
    open: Callable[[], None]


@asynccontextmanager
async def busy(**settings: Any) -> AsyncIterator[Busy]:
    gate = Gate()
    engine = FakePredictor(before=gate)
    async with running_batcher(engine, **settings) as batcher:
        first = submit(batcher, WHITE)
        await asyncio.to_thread(gate.reached.wait, TIMEOUT)
        yield Busy(batcher, engine, first, gate.open.set)


def test_results_come_in_order_and_belong_to_their_images() -> None:
    async def run() -> None:
        async with running_batcher(FakePredictor(), max_batch=5, queue=512) as batcher:
            visits = [submit(batcher, *range(first, first + 3)) for first in range(1, 301, 3)]
            for number, group in enumerate(visits):
                assert [label(one) for one in await batcher.answered(group)] == [3 * number + index for index in (1, 2, 3)]
            assert (batcher.inside, batcher.coming, batcher.bytes, batcher.waiting) == (0, 0, 0, 0)

    asyncio.run(run())


def test_images_that_wait_during_a_batch_form_the_next_batch() -> None:
    async def run() -> None:
        async with busy(
            max_batch=4, max_delay=10.0
        ) as context:  # the first alone, and at once: no other image is being decoded
            others = submit(context.batcher, *range(1, 8))
            await until(lambda: context.batcher.waiting == 7)
            context.open()
            assert [label(one) for one in await context.batcher.answered(context.first + others)] == [WHITE, *range(1, 8)]
            assert context.engine.sizes == [1, 4, 3]

    asyncio.run(run())


def test_a_bad_image_fails_alone_and_says_why() -> None:
    async def run() -> None:
        async with busy(max_batch=8) as context:
            black, broken = 0, [b"GIF89a but not really"]
            context.batcher.hold(len(broken[0]))
            others = submit(context.batcher, 3, black, 5) + context.batcher.enter(broken)
            await until(lambda: context.batcher.coming == 0)
            context.open()
            outcomes = await context.batcher.answered(context.first + others)
            assert [label(outcomes[index]) for index in (0, 1, 3)] == [WHITE, 3, 5]
            assert isinstance(outcomes[2], Trouble)
            assert (outcomes[2].status, outcomes[2].reason) == (500, "failed")
            assert isinstance(outcomes[4], Trouble)
            assert (outcomes[4].status, outcomes[4].reason) == (422, "invalid")

    asyncio.run(run())


def test_the_queue_is_bounded_and_refuses_all_of_a_request_or_none() -> None:
    async def run() -> None:
        async with busy(max_batch=2, queue=5) as context:
            others = submit(context.batcher, 1, 2, 3)
            with pytest.raises(Trouble) as refused:
                context.batcher.enter([coloured(4), coloured(5)])
            assert (refused.value.status, refused.value.reason) == (503, "full")
            others += submit(context.batcher, 6)
            context.open()
            assert [label(one) for one in await context.batcher.answered(context.first + others)] == [WHITE, 1, 2, 3, 6]
            assert [label(one) for one in await context.batcher.answered(submit(context.batcher, 4, 5))] == [4, 5]

    asyncio.run(run())


def test_an_image_that_would_miss_its_deadline_at_the_recent_throughput_is_refused_unless_the_queue_is_empty() -> None:
    async def run() -> None:
        gate = Gate()
        async with running_batcher(FakePredictor(before=gate), max_batch=1, queue=99, deadline=30.0) as batcher:
            batcher.pace = 20.0
            first = submit(batcher, WHITE)
            with pytest.raises(Trouble) as refused:
                batcher.check()
            assert refused.value.status == 503
            assert refused.value.retry == pytest.approx(20.0)
            gate.open.set()
            await batcher.answered(first)
            assert batcher.pace < 20.0

    asyncio.run(run())


def test_expired_images_fail_and_are_never_computed() -> None:
    async def run() -> None:
        async with busy(max_batch=1, deadline=0.3) as context:
            context.batcher.pace = 0.0
            (outcome,) = await context.batcher.answered(submit(context.batcher, 7))
            assert isinstance(outcome, Trouble)
            assert outcome.status == 504
            context.open()
            await asyncio.wait([context.first[0].future])
            await until(lambda: context.batcher.inside == 0)
            assert context.engine.sizes == [1]

    asyncio.run(run())


def test_images_of_a_disconnected_client_are_never_computed() -> None:
    async def run() -> None:
        async with busy(max_batch=1) as context:
            for visit in submit(context.batcher, 1, 2):
                visit.future.cancel()
            last = submit(context.batcher, 3)
            context.open()
            assert [label(one) for one in await context.batcher.answered(context.first + last)] == [WHITE, 3]
            await until(lambda: context.batcher.inside == 0)
            assert context.engine.sizes == [1, 1]

    asyncio.run(run())


def test_closing_computes_the_images_in_flight_and_accepts_no_more() -> None:
    async def run() -> None:
        gate = Gate()
        async with running_batcher(FakePredictor(before=gate), max_batch=2) as batcher:
            visits = submit(batcher, WHITE, 1, 2, 3)
            await asyncio.to_thread(gate.reached.wait, TIMEOUT)
            closed = asyncio.ensure_future(asyncio.to_thread(batcher.close, TIMEOUT))
            await until(lambda: batcher.closing)
            with pytest.raises(Trouble, match="draining"):
                batcher.check()
            gate.open.set()
            await closed
            assert [label(one) for one in await batcher.answered(visits)] == [WHITE, 1, 2, 3]

    asyncio.run(run())


def test_request_bodies_share_a_bounded_memory() -> None:
    async def run() -> None:
        async with running_batcher(FakePredictor(), max_body=100) as batcher:
            batcher.hold(790)
            with pytest.raises(Trouble) as refused:
                batcher.hold(11)
            assert (refused.value.status, refused.value.reason, batcher.bytes) == (503, "memory", 790)
            batcher.hold(10)
            batcher.hold(-800)

    asyncio.run(run())


def test_a_predictor_that_fails_to_load_is_reported_and_nothing_is_accepted() -> None:
    def broken() -> FakePredictor:
        raise OSError("no such model")

    async def run() -> None:
        batcher, opened = Batcher(broken, Serving(), Metrics()), asyncio.Event()
        batcher.start(opened.set)
        await asyncio.wait_for(opened.wait(), TIMEOUT)
        assert str(batcher.error) == "no such model"
        with pytest.raises(Trouble, match="loading"):
            batcher.check()
        batcher.close()

    asyncio.run(run())


def test_a_job_gets_one_image_at_a_time() -> None:
    async def run() -> None:
        async with running_batcher(FakePredictor()) as batcher:
            images = [coloured(9), coloured(18)]
            batcher.hold(sum(map(len, images)))
            visits = batcher.enter(images, lambda engine, pixels: (engine.name, *pixels.shape))
            assert await batcher.answered(visits) == [("fake", 4, 6, 3)] * 2

    asyncio.run(run())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not true():
            await asyncio.sleep(0.005)
