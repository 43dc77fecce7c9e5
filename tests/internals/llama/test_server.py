"""The server's engine while a client disconnects."""

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from examples.llama.engine import Job
from tests.llama.serving import Running, served


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(tmp_path_factory.mktemp("tokenizer")) as made:
        yield made


@pytest.mark.parametrize("stream", [True, False])
def test_server_disconnected_client_frees_its_slot(
    running: Running, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = running.service.engine
    begun, gone, freed = threading.Event(), threading.Event(), threading.Event()
    make, begin, cancel = engine._make, engine._begin, engine.cancel

    jobs: list[Job] = []

    def first_then_wait() -> None:
        make()
        jobs.extend(job for job in engine._slots if job and not job.ended and not jobs)
        if jobs:
            begun.set()
            assert gone.wait(60)

    def watched() -> None:
        begin()
        if gone.is_set() and engine.load == (0, 0):
            freed.set()

    def noted(*unwanted: Job) -> None:
        cancel(*unwanted)
        if jobs:
            gone.set()

    monkeypatch.setattr(engine, "_make", first_then_wait)
    monkeypatch.setattr(engine, "_begin", watched)
    monkeypatch.setattr(engine, "cancel", noted)
    body = {"model": "tiny", "prompt": "the", "max_tokens": 60, "stream": stream, "temperature": 0}
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(head.encode() + text)
        assert begun.wait(60)
        [job] = jobs
    assert freed.wait(60)
    assert job.ended == "cancelled"
    assert len(job.made) < 5
