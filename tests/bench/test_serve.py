"""Requests are sent and answered; the reported figures follow from them."""

from pathlib import Path

import pytest

from tests.serve.fake import coloured
from tests.serve.talking import colours
from tests.small import vit
from vitrail.bench.load import load, request
from vitrail.bench.serve import serve_speed
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.weights.checkpoint import save


def test_every_request_of_the_load_has_a_response_that_the_server_counted_too() -> None:
    with colours(max_batch=4, queue=4) as server:
        requests = [request(coloured(label), "image/png") for label in (1, 2)] + [request(b"?", "image/png")]
        done = load("127.0.0.1", server.port, requests, 7, 1.0)
        assert set(done.others) <= {422, 503}
        answered = server.number('vitrail_requests_total{path="/predict",status="200"}')
        assert len(done.seconds) == answered > 0
        for status, count in done.others.items():
            assert server.number(f'vitrail_requests_total{{path="/predict",status="{status}"}}') == count


def test_the_ratio_is_that_of_the_two_speeds(tmp_path: Path) -> None:
    model = vit()
    model.preprocess, model.labels = Preprocess((12, 15)), tuple("abcde")
    save(model, tmp_path / "small")
    for label in (3, 300):
        (tmp_path / f"{label}.jpg").write_bytes(coloured(label, (90, 70), "JPEG"))
    small = str(tmp_path / "small")
    speed = serve_speed(small, clients=5, seconds=1.0, rounds=1, max_batch=4, threads=1, folder=tmp_path)
    assert speed.ratio == pytest.approx(speed.served / speed.offline, abs=1e-3)
    assert 0 < speed.p50 <= speed.p99
    assert 1 <= speed.batch <= 4
    assert speed.answers > 0
    assert not speed.others
    with pytest.raises(VitrailError, match="no JPEG"):
        serve_speed(small, folder=tmp_path / "small")
