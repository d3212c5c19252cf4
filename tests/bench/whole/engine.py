"""A scripted engine as a process of its own, light enough to be no part of what is measured.

It speaks vLLM's dialect, plain chats and the bridge's transfers, and always says the same token. Short answers come at
once, longer ones at reading pace: one token every ``GAP_S``. ``python -m tests.bench.whole.engine TOKEN_ID``
"""

import asyncio
import os
import re
import sys
from typing import cast

import uvloop

from backends.transport.lifetime import die_with_parent

MODEL = "m"
CONTEXT_TOKENS = 1 << 20
AT_ONCE_TOKENS = 2
GAP_S = 0.025
KV_S = 0.2
MAX_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LINES_HEAD = STREAM_HEAD.replace(b"text/event-stream", b"application/x-ndjson")
END = b"0\r\n\r\n"
PAGES = {
    b"/health": b"{}",
    b"/v1/models": b'{"object":"list","data":[{"id":"%s","max_model_len":%d}]}' % (MODEL.encode(), CONTEXT_TOKENS),
    b"/metrics": b'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'
    b'vllm:kv_cache_usage_perc{engine="0"} 0.1\nvllm:cache_config_info{block_size="16",engine="0"} 1.0\n'
    b"process_start_time_seconds 1790000000.25\n",
    b"/v1/link": b'{"rate_bytes_per_s":1e6,"queued_bytes":0,"rtt_s":0.03,"up":true,"wan_bytes_total":0}',
}
ID = b'"id":"cmpl-0123456789abcdef0123456789abcdef","created":1790000000,"model":"m"'
CHAT = (
    b'data: {%s,"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" the"},"logprobs":null,'
    b'"finish_reason":%s}]}\n\n'
)
COMPLETION = (
    b'data: {%s,"object":"text_completion","choices":[{"index":0,"text":" the","logprobs":null,"finish_reason":%s,'
    b'"stop_reason":null,"token_ids":[%d]}],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
)
TRANSFER = b'{"state":"%s","chunks_total":4,"chunks_done":%d,"chunks_present":0,"wan_bytes":1000}\n'


def frame(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class Engine(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, token: int) -> None:
        self._token = token
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._due_s = 0.0
        self._is_chat = False
        self._prompt_tokens = self._most = self._said = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_bytes := self._buffer.find(b"\r\n\r\n") + 4) >= 4:
            found = LENGTH.search(self._buffer, 0, head_bytes)
            size = head_bytes + (int(found[1]) if found else 0)
            if len(self._buffer) < size:
                return
            path = self._buffer.split(b" ", 2)[1]
            body, self._buffer = self._buffer[head_bytes:size], self._buffer[size:]
            self._answer(path, body)

    def _answer(self, path: bytes, body: bytes) -> None:
        self._is_chat = path == b"/v1/chat/completions"
        if self._is_chat or path == b"/v1/completions":
            self._stream(body)
        elif path == b"/v1/transfers":
            self._transport.write(LINES_HEAD + frame(TRANSFER % (b"open", 0)))
            self._loop.call_later(KV_S, self._transport.write, frame(TRANSFER % (b"complete", 4)) + END)
        else:
            page = PAGES.get(path)
            status = b"200 OK" if page is not None else b"404 Not Found"
            self._transport.write(
                b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(page or b""), page or b"")
            )

    def _stream(self, body: bytes) -> None:
        most = MAX_TOKENS.search(body)
        self._most, self._said = int(most[1]) if most else AT_ONCE_TOKENS, 0
        ids_at = body.find(b'"prompt":[')
        self._prompt_tokens = 1 + body.count(b",", ids_at, body.find(b"]", ids_at)) if ids_at >= 0 else 1
        self._transport.write(STREAM_HEAD)
        self._due_s = self._loop.time()
        if self._most > AT_ONCE_TOKENS:
            self._say_next()
        else:
            self._transport.write(b"".join([self._token_frame() for _ in range(self._most)]) + self._last_words())

    def _say_next(self) -> None:
        if self._transport.is_closing():
            return
        piece = self._token_frame()
        if self._said == self._most:
            self._transport.write(piece + self._last_words())
            return
        self._transport.write(piece)
        self._due_s += GAP_S
        self._loop.call_at(self._due_s, self._say_next)

    def _token_frame(self) -> bytes:
        self._said += 1
        finish = b'"length"' if self._said == self._most else b"null"
        if self._is_chat:
            return frame(CHAT % (ID, finish))
        counts = (self._prompt_tokens, self._prompt_tokens + self._said, self._said)
        return frame(COMPLETION % (ID, finish, self._token, *counts))

    def _last_words(self) -> bytes:
        return frame(b"data: [DONE]\n\n") + END


async def serve(token: int) -> None:
    """Serve for ever."""
    server = await asyncio.get_running_loop().create_server(lambda: Engine(token), "127.0.0.1", 0, backlog=4096)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    die_with_parent(parent_pid=os.getppid())
    uvloop.run(serve(int(sys.argv[1])))
