"""The server of the Llama example in a thread, with a small random model."""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import uvicorn

import xfunc as xf
from examples.llama import model, server, tokenizer
from examples.llama.engine import Engine
from examples.llama.plan import Plan

TEMPLATE = """{%- for m in messages %}
    {%- if m.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('no role ' + m.role) }}
    {%- endif %}{{- '[' + m.role + '] ' + m.content + '\\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '[assistant] ' }}{%- endif %}"""
LENGTH = 64


class Running(NamedTuple):
    service: server.Service
    port: int

    def post(self, path: str, body: bytes | dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """What the server says to any bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


def random_params(config: model.Config) -> model.Params:
    generator = torch.Generator().manual_seed(0)
    return xf.tree.map(
        lambda shape: 0.3 * torch.randn(shape.shape, generator=generator), model.shapes(config)
    )


@contextlib.contextmanager
def listening(service: server.Service, backlog: int | None = None) -> Iterator[int]:
    """The port of a server."""
    made = uvicorn.Server(uvicorn.Config(server.app(service), log_level="warning"))
    listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
    thread = threading.Thread(target=made.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        made.should_exit = True
        thread.join()
        listener.close()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Running]:
    """A server with 4 slots; its tokenizer is in `folder`. In the end no request is left."""
    tokenizer.train(["the cat and the dog say yes and bye 日本 " * 20], 300, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config, plan = model.Config.tiny(320), Plan(block=16)
    params = random_params(config)
    engine = Engine(params, config, size=4, length=LENGTH, plan=plan, pieces=[8, 16], waiting=100)
    engine.warm_up()
    service = server.Service(engine, tokenizer.load(folder), "tiny")
    with listening(service) as port:
        yield Running(service, port)
    assert engine.load == (0, 0)
