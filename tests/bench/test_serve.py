"""Requests are sent and answered; the reported figures follow from them."""

from pathlib import Path

import pytest

from tests.serve.fake_predictor import coloured_image
from tests.serve.server_process import start_fake_server
from tests.small_models import small_vit
from vitrail.bench.http_load import build_request, send_load
from vitrail.bench.serve import benchmark_serve
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.weights.save import save


def test_every_request_of_the_load_has_a_response_that_the_server_counted_too() -> None:
    with start_fake_server(max_batch=4, max_queue=4) as server:
        requests = [build_request(coloured_image(label), "image/png") for label in (1, 2)] + [build_request(b"?", "image/png")]
        done = send_load("127.0.0.1", server.port, requests, 7, 0.3)
        assert set(done.other_statuses) <= {422, 503}
        answered = server.metric('vitrail_requests_total{path="/predict",status="200"}')
        assert len(done.seconds) == answered > 0
        for status, count in done.other_statuses.items():
            assert server.metric(f'vitrail_requests_total{{path="/predict",status="{status}"}}') == count


@pytest.mark.thorough
def test_the_ratio_is_that_of_the_two_speeds(tmp_path: Path) -> None:
    model = small_vit()
    model.preprocess, model.class_names = Preprocess((12, 15)), tuple("abcde")
    save(model, tmp_path / "small")
    for label in (3, 300):
        (tmp_path / f"{label}.jpg").write_bytes(coloured_image(label, (90, 70), "JPEG"))
    small = str(tmp_path / "small")
    speed = benchmark_serve(small, clients=5, seconds=1.0, rounds=1, max_batch_size=4, threads=1, folder=tmp_path)
    assert speed.ratio == pytest.approx(speed.served / speed.offline, abs=1e-3)
    assert 0 < speed.p50 <= speed.p99
    assert 1 <= speed.mean_batch_size <= 4
    assert speed.num_responses > 0
    assert not speed.other_statuses
    with pytest.raises(VitrailError, match="no JPEG"):
        benchmark_serve(small, folder=tmp_path / "small")
