"""A load test of the server: 64 clients at a time, for as long as one likes, and its memory.

    python -m tests.llama.server_load --minutes 20

Requests are of mixed lengths, some streamed, some with samplers; some are refused, and some clients
disconnect. It prints the memory once per interval, and exits with status 1 if an answer was wrong,
something was compiled after the warm-up, or memory grew by more than `--allowed` MiB between the
end of the first fifth and the end.
"""

import argparse
import contextlib
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from examples.llama import model, server, slots, tokenizer
from examples.llama.engine import Engine
from examples.llama.plan import Plan
from tests.llama.serving import listening, random_params

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
LENGTH = 128
WORDS = "the cat and a dog or two birds sing 日本".split()


def resident() -> float:
    """MiB of this process in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("/proc/self/status has no VmRSS")


def made(folder: Path) -> server.Service:
    """A service of a small random model."""
    tokenizer.train([" ".join(WORDS) * 20], 300, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = model.Config.tiny(320)
    params = random_params(config)
    engine = Engine(params, config, size=16, length=LENGTH, plan=Plan(block=16), pieces=[8, 32])
    engine.warm_up()
    return server.Service(engine, tokenizer.load(folder), "tiny")


def request(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body; every answer depends on the body alone."""
    text = " ".join(draw.choices(WORDS, k=draw.randint(1, 20)))
    body: dict[str, Any] = {"model": "tiny", "max_tokens": draw.randint(1, 48), "seed": 7}
    body |= draw.choice(
        [{"temperature": 0}, {"top_p": 0.9}, {"temperature": 0.7, "top_k": 5}, {"logprobs": True}]
    )
    if draw.random() < 0.3:
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}
    if "logprobs" in body:
        body["logprobs"] = 2
    return "/v1/completions", body | {"prompt": text, "stop": draw.choice([None, ["cat"]])}


def ask(port: int, path: str, body: dict[str, Any], *, leave: bool = False) -> tuple[int, Any]:
    """The status and the choices that the server answers with; None if the client leaves."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with contextlib.closing(connection):
        content = json.dumps(body).encode()
        connection.request("POST", path, content, {"Content-Type": "application/json"})
        if leave:
            return 0, None
        answer = connection.getresponse()
        if body.get("stream"):
            return answer.status, answer.read().count(b"data: ") > 1
        return answer.status, json.loads(answer.read()).get("choices")


class Load:
    """Clients, each of which asks again and again."""

    def __init__(self, port: int, clients: int, distinct: int, pause: float):
        self.asked, self.wrong, self._port = Counter[str](), list[str](), port
        self._pause = pause
        draw = random.Random(0)
        self._requests = [request(draw) for _ in range(distinct)]
        self._alone = [ask(port, path, body) for path, body in self._requests]
        assert {status for status, _ in self._alone} == {200}, self._alone
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._client, args=(n,)) for n in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _client(self, number: int) -> None:
        draw = random.Random(number)
        while not self._stop.wait(self._pause):
            which = draw.randrange(len(self._requests))
            path, body = self._requests[which]
            how = draw.choices(["plain", "stream", "leave", "refused"], [12, 4, 2, 2])[0]
            try:
                if how == "plain":
                    right = ask(self._port, path, body) == self._alone[which]
                elif how == "stream":
                    right = ask(self._port, path, body | {"stream": True}) == (200, True)
                elif how == "leave":
                    stream = body | {"stream": draw.random() < 0.5}
                    right = ask(self._port, path, stream, leave=True)[1] is None
                else:
                    right = ask(self._port, path, body | {"temperature": -1})[0] == 400
            except OSError as error:
                right, which = False, f"{which}: {error}"
            with self._lock:
                self.asked[how] += 1
                if not right:
                    self.wrong.append(f"{how} {which}")


def main() -> int:
    """Put the server under load, and tell of its memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--distinct", type=int, default=100, help="requests (default: 100)")
    parser.add_argument(
        "--pause", type=float, default=0, help="seconds of a client between requests (default: 0)"
    )
    parser.add_argument("--intervals", type=int, default=20)
    parser.add_argument("--allowed", type=float, default=16, help="MiB of growth (default: 16)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = made(Path(folder))
        with (
            listening(service, backlog=256) as port,
            Load(port, args.clients, args.distinct, args.pause) as load,
        ):
            compiles = slots.advance.cache_info().compiles
            sizes = []
            for interval in range(args.intervals):
                time.sleep(60 * args.minutes / args.intervals)
                sizes.append(resident())
                total = sum(load.asked.values())
                print(f"{interval + 1}: {sizes[-1]:.1f} MiB, {total} requests", flush=True)
    grown = sizes[-1] - sizes[args.intervals // 5 - 1]
    compiled = slots.advance.cache_info().compiles - compiles
    print(
        f"{dict(load.asked)}; {len(load.wrong)} wrong answers {load.wrong[:5]}; {compiled} compiled"
    )
    print(f"memory grew by {grown:.1f} MiB after the first fifth")
    return int(
        bool(load.wrong) or compiled > 0 or grown > args.allowed or service.engine.load != (0, 0)
    )


if __name__ == "__main__":
    sys.exit(main())
