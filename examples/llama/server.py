"""A small HTTP server for a model, which clients of OpenAI's API can talk to."""

import argparse
import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import fastapi
import uvicorn
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from . import hosts, requests, responses, tokenizer, trained
from .chat_template import TemplateError
from .conversations import Encoder
from .data_config import DataConfig
from .engine import BusyError, Engine, Job, Part
from .options import SettingError
from .requests import CHOICES, Chat, Completion, Request, RequestError
from .responses import Head
from .tokenizer import Tokenizer
from .wording import Wording

BODY = 4 << 20  # the most bytes of a request
_SHORT = 16  # new tokens of a completion that gives no number, as in OpenAI's API


class Service:
    """Answers requests with an engine.

    Args:
        engine: the engine, which a thread of its own runs.
        tokenizer: the model's.
        name: the model's.
        template: a file with a chat template; None: the tokenizer's.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, name: str, template: str | None = None
    ):
        self.engine, self.tokenizer, self.name = engine, tokenizer, name
        self._encoder = Encoder(tokenizer, DataConfig(kind="chat", template=template))
        self._encoding = asyncio.Lock()
        self._began = responses.now()

    def models(self) -> dict[str, Any]:
        """The list of models, which has one."""
        one = {"id": self.name, "object": "model", "created": self._began, "owned_by": "xfunc"}
        return {"object": "list", "data": [one]}

    async def answer(self, kind: type[Request], http: fastapi.Request) -> Response:
        """Answer a request, at once or in a stream."""
        asked: Any = requests.read(kind, await _body(http))
        if asked.model != self.name:
            raise RequestError(
                f"there is no model {asked.model!r}: use {self.name!r}", 404, "model"
            )
        async with self._encoding:  # Templates keep state; a long text must not delay others.
            prompts = await asyncio.to_thread(self.prompts, asked)
        answer = Answer(self, asked, prompts)
        answer.begin()
        if not asked.stream:
            return await answer.whole(http)
        return StreamingResponse(answer.stream(http), media_type="text/event-stream")

    def prompts(self, asked: Completion | Chat) -> list[list[int]]:
        """The tokens of the prompts."""
        if isinstance(asked, Chat):
            try:
                return [self._encoder.prompt([message.plain() for message in asked.messages])]
            except TemplateError as error:
                raise RequestError(str(error), field="messages") from error
        if not asked.prompts or not all(asked.prompts):
            raise RequestError("prompt is empty", field="prompt")
        if len(asked.prompts) * (asked.n or 1) > CHOICES:
            raise RequestError(f"prompt asks for more than {CHOICES} answers", field="prompt")
        return [
            self.tokenizer.encode_prompt(each) if isinstance(each, str) else each
            for each in asked.prompts
        ]


class Answer:
    """The answer to one request.

    Args:
        service: the service that answers it.
        asked: the request.
        prompts: the tokens of its prompts.
    """

    def __init__(self, service: Service, asked: Completion | Chat, prompts: list[list[int]]):
        self._service, self._asked = service, asked
        self._chat = isinstance(asked, Chat)
        prefix = "chatcmpl" if self._chat else "cmpl"
        name = f"{prefix}-{uuid.uuid4().hex}"
        self._head = Head(name, service.name, responses.now(), self._chat)
        self._loop = asyncio.get_running_loop()
        self._parts: asyncio.Queue[tuple[int, Part]] = asyncio.Queue()
        pairs = [(prompt, how) for prompt in prompts for how in asked.settings()]
        self._prompt_tokens = sum(map(len, prompts))
        try:
            self._jobs = [self._job(i, *pair) for i, pair in enumerate(pairs)]
        except ValueError as error:
            raise RequestError(str(error)) from error
        self._left = len(self._jobs)

    def _job(self, number: int, prompt: list[int], settings: Any) -> Job:
        asked, known = self._asked, self._service.tokenizer

        def deliver(part: Part) -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended: nobody is listening.
                self._loop.call_soon_threadsafe(self._parts.put_nowait, (number, part))

        room = self._service.engine.length - len(prompt)
        new = asked.max_tokens
        if isinstance(asked, Chat):
            new = asked.max_completion_tokens or new or max(room, 1)
        new = min(_SHORT, max(room, 1)) if new is None else new
        self._service.engine.check(prompt, new)
        return Job(
            prompt,
            new,
            settings,
            top=asked.top or 0,
            ends=() if known.end is None else (known.end,),
            wording=Wording(known, prompt, asked.stops),
            deliver=deliver,
        )

    def begin(self) -> None:
        """Submit it to the engine."""
        try:
            self._service.engine.submit(*self._jobs)
        except BusyError as error:
            raise RequestError(str(error), 503) from error
        except ValueError as error:
            raise RequestError(str(error)) from error

    async def whole(self, http: fastapi.Request) -> Response:
        """The answer, once it is complete."""
        found: list[list[Part]] = [[] for _ in self._jobs]
        async for number, part in self._coming(http):
            found[number].append(part)
            if part.ended == "error":
                return _error(f"{part.error}", 500)
        if any(not parts or parts[-1].ended == "cancelled" for parts in found):
            return Response(status_code=499)  # Nobody reads it.
        choices = [
            responses.choice(i, parts, self._chances(parts), self._chat, stream=False)
            for i, parts in enumerate(found)
        ]
        return JSONResponse(self._head.whole(choices, self._usage()))

    async def stream(self, http: fastapi.Request) -> AsyncIterator[str]:
        """The parts of the answer, as they come."""
        offsets = [0] * len(self._jobs)
        if self._chat:
            for i in range(len(self._jobs)):
                yield _event(self._head.chunk([responses.opening(i)]))
        async for number, part in self._coming(http):
            if part.ended == "error":
                yield _event(responses.error(f"{part.error}", "server_error"))
                return
            chances = self._chances([part], offsets[number])
            offsets[number] += sum(len(self._text(t.number)) for t in part.tokens)
            if part.text or part.tokens or part.ended:
                made = responses.choice(number, [part], chances, self._chat, stream=True)
                yield _event(self._head.chunk([made]))
        if self._asked.asks_usage:
            yield _event(self._head.chunk([], self._usage()))
        yield "data: [DONE]\n\n"

    async def _coming(self, http: fastapi.Request) -> AsyncIterator[tuple[int, Part]]:
        """Parts, until all answers have ended; if the client disconnects, they are cancelled."""
        watch = asyncio.create_task(self._watch(http))
        try:
            while self._left:
                number, part = await self._parts.get()
                self._left -= part.ended is not None
                yield number, part
        finally:
            watch.cancel()
            self._service.engine.cancel(*self._jobs)

    async def _watch(self, http: fastapi.Request) -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass
        self._service.engine.cancel(*self._jobs)

    def _text(self, token: int) -> str:
        return self._service.tokenizer.decode([token])

    def _chances(self, parts: list[Part], offset: int = 0) -> Any:
        tokens = [token for part in parts for token in part.tokens]
        known = self._service.tokenizer
        return responses.chances(tokens, known, self._asked.top, self._chat, offset)

    def _usage(self) -> dict[str, int]:
        return responses.usage(self._prompt_tokens, sum(len(job.made) for job in self._jobs))


def app(service: Service) -> fastapi.FastAPI:
    """The app with its routes; its lifespan runs the engine in a thread."""

    @contextlib.asynccontextmanager
    async def running(_: fastapi.FastAPI) -> AsyncIterator[None]:
        thread = threading.Thread(target=service.engine.run, name="engine")
        thread.start()
        try:
            yield
        finally:
            service.engine.close()
            await asyncio.to_thread(thread.join)

    made = fastapi.FastAPI(lifespan=running, docs_url=None, redoc_url=None, openapi_url=None)

    @made.get("/health")
    async def health() -> dict[str, Any]:
        if not service.engine.is_open:
            raise RequestError("the engine has ended: restart the server", 503)
        running, waiting = service.engine.load
        return {"status": "ok", "running": running, "waiting": waiting}

    @made.get("/v1/models")
    async def models() -> dict[str, Any]:
        return service.models()

    @made.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name != service.name:
            raise RequestError(f"there is no model {name!r}: use {service.name!r}", 404)
        return service.models()["data"][0]

    @made.post("/v1/completions")
    async def completions(http: fastapi.Request) -> Response:
        return await service.answer(Completion, http)

    @made.post("/v1/chat/completions")
    async def chat(http: fastapi.Request) -> Response:
        return await service.answer(Chat, http)

    @made.exception_handler(RequestError)
    async def refuse(_: fastapi.Request, error: RequestError) -> Response:
        return _error(str(error), error.status, error.field)

    @made.exception_handler(HTTPException)
    async def other(_: fastapi.Request, error: HTTPException) -> Response:
        return _error(str(error.detail), error.status_code)

    @made.exception_handler(ClientDisconnect)
    async def gone(_: fastapi.Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)

    return made


async def _body(http: fastapi.Request) -> bytes:
    body, announced = bytearray(), http.headers.get("content-length", "0")
    too_large = RequestError(f"the request is larger than {BODY} bytes", 413)
    if int(announced) > BODY:
        raise too_large
    async for chunk in http.stream():
        body += chunk
        if len(body) > BODY:
            raise too_large
    return bytes(body)


def _error(message: str, status: int, field: str | None = None) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse(responses.error(message, kind, field), status)


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def serve(args: argparse.Namespace, say: Callable[[str], object] = print) -> int:
    """Load a model, compile all it needs, and answer requests until a signal arrives."""
    if not 0 <= args.port < 65536:
        raise SettingError(f"--port is {args.port}: use a number up to 65535")
    hosts.check_alone("serve")
    found = trained.load(args.folder, args.step, args.config, args.settings)
    known = tokenizer.load(found.tokenizer)
    engine = Engine(
        found.computing(),
        found.recipe.model,
        size=args.slots,
        length=args.length,
        plan=found.recipe.plan,
        waiting=args.waiting,
    )
    name, what = args.name or args.folder.resolve().name, found.name
    service = Service(engine, known, name, found.run.data.template)
    del found  # Frees the trained weights, if those in the arithmetic dtype are a copy.
    say(f"compiling for {args.slots} texts of up to {args.length} tokens")
    engine.warm_up()
    say(f"{what} is {name!r} at http://{args.host}:{args.port}/v1")
    uvicorn.run(app(service), host=args.host, port=args.port, log_level="warning")
    return 0
