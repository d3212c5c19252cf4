"""A protocol-true engine of vLLM's dialect on a real socket: scripted course, faults, gates and records.

async with FakeEngine("rld") as engine:
    engine.scripts.append(Script(holds={3: gate}))
    ...  # drive the code under test against engine.url
    await gate.arrivals()
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from backends.engines.vllm_chat import RENDER_PATH, TOKENIZE_PATH
from backends.engines.vllm_generate import GENERATE_PATH
from tests.fakes.loans import Loans
from tests.fakes.script import (
    EOS,
    Cut,
    EndAs,
    ErrorEvent,
    LoseIds,
    NextId,
    Refuse,
    Script,
    Verbatim,
    hashed_next,
)
from tests.fakes.server import AppServer

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Coroutine[Any, Any, dict[str, Any]]]
State = Literal["running", "ended", "aborted", "refused", "failed"]


@dataclass(slots=True, eq=False)
class Call:
    """Record of one call. ``ids``: what was sent so far, lost ids included.

    A call of ``/inference/v1/generate`` has its body in the words of ``/v1/completions``; ``sent`` is as it came.
    """

    body: dict[str, Any]
    headers: dict[str, str]
    path: str = "/v1/completions"
    sent: dict[str, Any] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    state: State = "running"

    @property
    def prompt(self) -> list[int]:
        """Prompt ids as they came."""
        return list(self.body["prompt"])


class CutConnection(Exception):
    """The script says that the connection breaks here."""


class FakeEngine(AppServer):
    """Serves /v1/completions (streamed), /v1/models, /health and /metrics. ``scripts`` come first, then ``script``.

    ``generates``: it has /inference/v1/generate, too. ``event_sources``: what it tells at /kv_event_sources.
    """

    def __init__(
        self,
        name: str = "engine",
        *,
        model: NextId = hashed_next,
        served_model: str = "demo",
        max_model_len: int = 8192,
        block_size_tokens: int = 16,
        api_key: str | None = None,
        script: Script | None = None,
        ssl_context: ssl.SSLContext | None = None,
        keep_alive_s: float = 60.0,
        generates: bool = False,
        event_sources: dict[str, Any] | None = None,
        loans: Loans | None = None,
    ) -> None:
        super().__init__(self._app, ssl_context=ssl_context, keep_alive_s=keep_alive_s)
        self.name = name
        self.model = model
        self.served_model = served_model
        self.max_model_len = max_model_len
        self.block_size_tokens = block_size_tokens
        self.api_key = api_key
        self.generates = generates
        self.scale_out: int | None = None
        """What it answers on these paths to a request without anything; None: by what it has."""
        self.event_sources = event_sources
        self.script = script or Script()
        self.scripts: deque[Script] = deque()
        self.judge: Callable[[list[int]], Script | None] = lambda prompt: None
        """Names another script for some prompts."""
        self.model_of: Callable[[Call], NextId] = lambda call: self.model
        """The model that answers a call."""
        self.calls: list[Call] = []
        self.questions = 0
        """Requests for anything but tokens: probes, loads."""
        self.boot_time = 1_790_000_000.25
        self.healthy = True
        self.loans = loans
        self.reads_chat: Callable[[dict[str, Any]], list[int] | Refuse] | None = None
        """What /tokenize makes of a chat; None: there is no such path."""
        self.chats: list[dict[str, Any]] = []
        """What /tokenize was asked."""
        self.metrics: str | None = None
        """Text of /metrics; None: written from the records."""

    @property
    def running(self) -> int:
        """Calls being answered now."""
        return sum(call.state == "running" for call in self.calls)

    async def calls_made(self, count: int = 1) -> Call:
        """Wait until ``count`` calls came in all; return the last of them."""
        await self._watch.until(lambda: len(self.calls) >= count)
        return self.calls[count - 1]

    async def idle(self) -> None:
        """Wait until no call is running."""
        await self._watch.until(lambda: not self.running)

    async def questioned(self, times: int) -> None:
        """Wait until it was asked ``times`` times in all how it is."""
        await self._watch.until(lambda: self.questions >= times)

    async def sent(self, call: Call, tokens: int) -> None:
        """Wait until ``call`` was sent ``tokens`` ids."""
        await self._watch.until(lambda: len(call.ids) >= tokens)

    async def _app(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if body == b"{}" and scope["path"] in (GENERATE_PATH, RENDER_PATH):
            status = self.scale_out or (400 if self.generates and scope["path"] == GENERATE_PATH else 404)
            await answer(send, status, error_body(status, "Field required"))
        elif scope["path"] == "/v1/completions" or (self.generates and scope["path"] == GENERATE_PATH):
            if scope["method"] == "POST":
                await self._completions(scope, body, receive, send)
            else:
                await answer(send, 405, {"detail": "Method Not Allowed"})
        elif scope["path"] == TOKENIZE_PATH and self.reads_chat is not None:
            await self._tell_chat(orjson.loads(body), self.reads_chat, send)
        else:
            self.questions += 1
            self._watch.changed()
            if scope["path"].startswith("/v1/") and self.api_key and not has_key(scope, self.api_key):
                await answer(send, 401, {"error": "Unauthorized"})
            else:
                await self._small(scope["path"], send)

    async def _tell_chat(
        self, asked: dict[str, Any], reads_chat: Callable[[dict[str, Any]], list[int] | Refuse], send: Send
    ) -> None:
        self.chats.append(asked)
        told = reads_chat(asked)
        if isinstance(told, Refuse):
            await answer(send, told.status, told.body, told.headers)
        else:
            await answer(send, 200, {"tokens": told, "count": len(told), "max_model_len": self.max_model_len})

    async def _small(self, path: str, send: Send) -> None:
        if path == "/v1/models":
            card = {"id": self.served_model, "object": "model", "owned_by": "vllm", "max_model_len": self.max_model_len}
            await answer(send, 200, {"object": "list", "data": [card]})
        elif path == "/health":
            await answer(send, 200 if self.healthy else 503, b"")
        elif path == "/metrics":
            await answer(send, 200, (self.metrics or self._metrics()).encode())
        elif path == "/kv_event_sources" and self.event_sources is not None:
            await answer(send, 200, self.event_sources)
        else:
            await answer(send, 404, error_body(404, "Not Found"))

    def _metrics(self) -> str:
        labels = f'engine="0",model_name="{self.served_model}"'
        return (
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{{{labels}}} {float(self.running)}\n"
            f"vllm:num_requests_waiting{{{labels}}} 0.0\n"
            f"vllm:kv_cache_usage_perc{{{labels}}} {min(1.0, self.running / 8)}\n"
            f'vllm:cache_config_info{{block_size="{self.block_size_tokens}",cache_dtype="auto",engine="0"}} 1.0\n'
            f"process_start_time_seconds {self.boot_time}\n"
        )

    async def _completions(self, scope: dict[str, Any], body: bytes, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        sent = orjson.loads(body)
        fields = _as_completion(sent) if scope["path"] == GENERATE_PATH else sent
        call = Call(fields, headers, scope["path"], sent)
        self.calls.append(call)
        self._watch.changed()
        answering = asyncio.create_task(self._answer(call, send))
        leaving = asyncio.create_task(receive())
        transport = scope["state"]["transport"]
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                call.state = answering.result()
            else:
                call.state = "aborted"
        except CutConnection:
            call.state = "failed"
            transport.close()
            await leaving
        except asyncio.CancelledError:  # the server is being stopped, and only it cancels this task
            call.state = "failed"
        finally:
            self._watch.changed()
            for task in (answering, leaving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, CutConnection):
                    await task

    async def _answer(self, call: Call, send: Send) -> State:
        script = self.scripts.popleft() if self.scripts else self.script
        script = self.judge(call.prompt) or script
        if script.arrival:
            await script.arrival.hold()
        refusal = script.fault if isinstance(script.fault, Refuse) else self._refusal(call)
        if refusal:
            await answer(send, refusal.status, refusal.body, refusal.headers)
            return "refused"
        if script.fault == Cut(None) or not self._reads_well(call):
            raise CutConnection
        if not call.body.get("stream"):
            return await self._answer_whole(call, script, send)
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
            }
        )
        if isinstance(script.fault, Verbatim):
            pieces = script.fault.pieces
            for piece in pieces:
                await send_piece(send, piece)
            if script.fault.cut:
                raise CutConnection
        else:
            async for event in self._events(call, script):
                await send_piece(send, b"data: " + event + b"\n\n")
        await send({"type": "http.response.body", "body": b""})
        return "failed" if isinstance(script.fault, ErrorEvent) else "ended"

    def _reads_well(self, call: Call) -> bool:
        """Whether the engine survives reading another one's KV, if it is asked to."""
        params = call.body.get("kv_transfer_params") or {}
        if self.loans is None or not params.get("do_remote_prefill"):
            return True
        return self.loans.redeem(params, call.prompt)

    async def _answer_whole(self, call: Call, script: Script, send: Send) -> State:
        await self._hold(script, 0)
        ids, finish, stop_reason = self._answer_ids(call)
        call.ids.extend(ids)
        choice = {"index": 0, "text": "", "token_ids": ids, "finish_reason": finish, "stop_reason": stop_reason}
        body = self._envelope(call) | {"choices": [choice], "usage": self._usage(call, script)}
        if self.loans is not None and (call.body.get("kv_transfer_params") or {}).get("do_remote_decode"):
            body["kv_transfer_params"] = self.loans.lend(self.name, call.prompt)
        await answer(send, 200, body)
        return "ended"

    def _refusal(self, call: Call) -> Refuse | None:
        prompt, most = call.body.get("prompt"), call.body.get("max_tokens", 16)
        if self.api_key and call.headers.get("authorization") != f"Bearer {self.api_key}":
            return Refuse(401, {"error": "Unauthorized"})
        if call.body.get("model") != self.served_model:
            return Refuse(404, error_body(404, "The model does not exist.", "model"))
        if not isinstance(prompt, list) or not prompt or not all(type(item) is int for item in prompt):
            return Refuse(400, error_body(400, "prompt must be a list of token ids", "prompt"))
        if len(prompt) + most > self.max_model_len:
            text = f"This model's maximum context length is {self.max_model_len} tokens."
            return Refuse(400, error_body(400, text, "input_tokens"))
        return None

    async def _events(self, call: Call, script: Script) -> AsyncIterator[bytes]:
        """Yield the payloads of all SSE events, [DONE] included."""
        answer_ids, finish, stop_reason = self._answer_ids(call)
        fault = script.fault
        if isinstance(fault, Cut | ErrorEvent | EndAs):
            answer_ids = answer_ids[: fault.after_tokens]
        if isinstance(fault, EndAs):
            finish = fault.finish_reason
        stops = sorted({*script.holds, len(answer_ids)})
        sizes = (script.chunks[i % len(script.chunks)] for i in range(10_000_000))
        await self._hold(script, 0)
        if not answer_ids and isinstance(fault, EndAs):
            yield self._chunk(call, script, 0, (finish, stop_reason))
        while len(call.ids) < len(answer_ids):
            if script.step:
                await script.step.hold()
            start = len(call.ids)
            bound = next(stop for stop in stops if stop > start)
            end = min(start + next(sizes), bound)
            is_last = end == len(answer_ids) and not isinstance(fault, Cut | ErrorEvent)
            call.ids.extend(answer_ids[start:end])
            yield self._chunk(call, script, start, (finish, stop_reason) if is_last else (None, None))
            self._watch.changed()
            await asyncio.sleep(0)
            if end > start:
                await self._hold(script, end)
        if isinstance(fault, Cut):
            raise CutConnection
        if isinstance(fault, ErrorEvent):
            yield orjson.dumps({"error": fault.error})
        else:
            if script.end:
                await script.end.hold()
            if script.with_usage and call.body.get("stream_options", {}).get("include_usage"):
                yield orjson.dumps(self._envelope(call) | {"choices": [], "usage": self._usage(call, script)})
        if not (isinstance(fault, EndAs) and not fault.done):
            yield b"[DONE]"

    async def _hold(self, script: Script, tokens: int) -> None:
        gate = script.holds.get(tokens)
        if gate:
            await gate.hold()

    def _answer_ids(self, call: Call) -> tuple[list[int], str | None, int | None]:
        """The whole answer with its finish_reason and stop_reason, under the body's limits and stops."""
        body = call.body
        model, stops = self.model_of(call), set(body.get("stop_token_ids", ()))
        context = call.prompt
        first = len(context)
        while len(context) - first < body.get("max_tokens", 16):
            token = model(context)
            ends = (token == EOS and not body.get("ignore_eos")) or token in stops
            if ends and len(context) - first < body.get("min_tokens", 0):
                token, ends = (max({EOS, *stops}) + 1), False
            context.append(token)
            if ends:
                return context[first:], "stop", token if token in stops else None
        return context[first:], "length", None

    def _envelope(self, call: Call) -> dict[str, Any]:
        request_id = call.headers.get("x-request-id", "anonymous")
        return {"id": f"cmpl-{request_id}", "object": "text_completion", "created": 1_790_000_000, "model": self.name}

    def _chunk(self, call: Call, script: Script, start: int, end: tuple[str | None, int | None]) -> bytes:
        ids: Sequence[int] | None = call.ids[start:]
        choice: dict[str, Any] = {"index": 0, "finish_reason": end[0], "stop_reason": end[1], "logprobs": None}
        if call.path == GENERATE_PATH:
            if call.body.get("logprobs") is not None:
                choice["logprobs"] = {"content": content_logprobs_of(call.ids[start:], call.body["logprobs"])}
            choice["token_ids"] = ids
            head = {"request_id": call.body["request_id"], "output_mode": "tokens"}
            return orjson.dumps(head | {"choices": [choice], "usage": self._usage_so_far(call, script)})
        choice["text"] = "".join(f"<{token}>" for token in call.ids[start:])
        if call.body.get("logprobs") is not None:
            choice["logprobs"] = logprobs_of(call.ids[start:], call.body["logprobs"])
        if isinstance(script.fault, LoseIds):
            kept = [token for place, token in enumerate(call.ids[start:], start) if place not in script.fault.positions]
            ids = None if script.fault.as_null and not kept else kept
            choice["text"] = ""
        if call.body.get("return_token_ids"):
            choice["token_ids"] = ids
            choice["prompt_token_ids"] = call.prompt if start == 0 else None
        usage = self._usage_so_far(call, script)
        return orjson.dumps(self._envelope(call) | {"choices": [choice]} | ({"usage": usage} if usage else {}))

    def _usage_so_far(self, call: Call, script: Script) -> dict[str, Any] | None:
        options = call.body.get("stream_options") or {}
        if script.with_usage and script.counts_up and options.get("continuous_usage_stats"):
            return self._usage(call, replace(script, cached_tokens=None))
        return None

    def _usage(self, call: Call, script: Script) -> dict[str, Any]:
        prompt_tokens, completion_tokens = len(call.prompt), len(call.ids)
        usage: dict[str, Any] = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        usage["total_tokens"] = prompt_tokens + completion_tokens
        if script.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": script.cached_tokens}
        return usage


def has_key(scope: dict[str, Any], key: str) -> bool:
    """Whether a request has the engine's key, which vLLM asks for under /v1 alone."""
    return (b"authorization", f"Bearer {key}".encode()) in scope["headers"]


def logprobs_of(ids: Sequence[int], alternatives: int) -> dict[str, Any]:
    """vLLM's completion logprobs with tokens written as ids: the chosen token first, then the alternatives."""
    return {
        "tokens": [f"token_id:{token}" for token in ids],
        "token_logprobs": [-0.5] * len(ids),
        "text_offset": [0] * len(ids),
        "top_logprobs": [{f"token_id:{token + i}": -0.5 - i for i in range(max(1, alternatives))} for token in ids],
    }


def content_logprobs_of(ids: Sequence[int], alternatives: int) -> list[dict[str, Any]]:
    """The same as /inference/v1/generate writes it: one object for each token."""
    return [
        {
            "token_id": token,
            "logprob": -0.5,
            "rank": 1,
            "top_logprobs": [
                {"token_id": other, "logprob": -0.5 - rank, "rank": rank + 1}
                for rank, other in enumerate(range(token, token + alternatives))
            ],
        }
        for token in ids
    ]


def _as_completion(sent: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in sent.items() if name not in ("token_ids", "sampling_params")}
    sampling: dict[str, Any] = sent["sampling_params"]
    return fields | sampling | {"prompt": sent["token_ids"]}


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """An error as the engine writes it."""
    return {"error": {"message": message, "type": "BadRequestError", "param": param, "code": status}}


async def answer(send: Send, status: int, body: Any, headers: Any = None) -> None:
    """Send one whole response; anything but bytes goes out as JSON."""
    payload = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    lines.append((b"content-length", str(len(payload)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": payload})


async def send_piece(send: Send, piece: bytes) -> None:
    """Send one piece of a streamed body."""
    await send({"type": "http.response.body", "body": piece, "more_body": True})
