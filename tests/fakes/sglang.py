"""A protocol-true SGLang server: ``/generate`` in SGLang's words over the scripts of ``tests.fakes.engine``."""

from collections.abc import AsyncIterator
from typing import Any

import orjson

from tests.fakes.engine import Call, FakeEngine, Receive, Send, answer
from tests.fakes.script import NextId, Refuse, Script, hashed_next


class FakeSglang(FakeEngine):
    """Serves /generate, /v1/models, /health, /get_server_info and /metrics.

    ``incremental``: events hold new ids only. ``old``: events hold text and no ids. ``mode``: its disaggregation mode.
    """

    def __init__(
        self,
        *,
        model: NextId = hashed_next,
        incremental: bool = False,
        old: bool = False,
        mode: str = "null",
        api_key: str | None = None,
    ) -> None:
        super().__init__("sglang", model=model, api_key=api_key)
        self.incremental = incremental
        self.old = old
        self.mode = mode
        self.bodies: list[dict[str, Any]] = []

    async def _app(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["path"] != "/generate":
            await super()._app(scope, receive, send)
            return
        body = orjson.loads((await receive())["body"])
        self.bodies.append(body)
        await self._completions(scope, orjson.dumps(translate(body, self.served_model)), receive, send)

    async def _small(self, path: str, send: Send) -> None:
        if path == "/get_server_info":
            info = {"page_size": self.block_size_tokens, "disaggregation_mode": self.mode, "internal_states": [{}]}
            await answer(send, 200, info)
        else:
            await super()._small(path, send)

    def _metrics(self) -> str:
        labels = f'engine_type="unified",model_name="{self.served_model}",tp_rank="0"'
        return (
            f"sglang:num_running_reqs{{{labels}}} {float(self.running)}\n"
            f"sglang:num_queue_reqs{{{labels}}} 0.0\n"
            f"sglang:token_usage{{{labels}}} {min(1.0, self.running / 8)}\n"
        )

    def _refusal(self, call: Call) -> Refuse | None:
        if self.api_key and call.headers.get("authorization") != f"Bearer {self.api_key}":
            return Refuse(401, {"error": "Unauthorized"})
        return None

    async def _events(self, call: Call, script: Script) -> AsyncIterator[bytes]:
        tokens = len(call.prompt)
        if tokens + call.body.get("max_tokens", 0) > self.max_model_len:
            text = (
                f"The input ({tokens} tokens) is longer than the model's context length ({self.max_model_len} tokens)."
            )
            yield orjson.dumps({"error": {"message": text}})
            yield b"[DONE]"
            return
        async for event in super()._events(call, script):
            yield event

    def _answer_ids(self, call: Call) -> tuple[list[int], str | None, int | None]:
        ids, finish, stop_reason = super()._answer_ids(call)
        if finish == "stop" and call.body.get("ignore_eos"):
            # SGLang goes on past any stop token then.
            context = call.prompt + ids
            while len(context) - len(call.prompt) < call.body["max_tokens"]:
                context.append(self.model(context))
            return context[len(call.prompt) :], "length", None
        return ids, finish, stop_reason

    def _chunk(self, call: Call, script: Script, start: int, end: tuple[str | None, int | None]) -> bytes:
        told = call.ids[start:] if self.incremental else call.ids
        meta: dict[str, Any] = {
            "id": call.headers.get("x-request-id"),
            "finish_reason": finish_reason(end[0], call),
            "prompt_tokens": len(call.prompt),
            "weight_version": "default",
            "completion_tokens": len(call.ids),
            "cached_tokens": script.cached_tokens,
        }
        if (alternatives := call.body.get("logprobs")) is not None:
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = [[-0.5, token, None] for token in told]
            if alternatives:
                tops = [[[-0.5 - i, token + i, None] for i in range(alternatives)] for token in told]
                meta["output_top_logprobs"] = tops
        text = "".join(f"<{token}>" for token in told)
        return orjson.dumps({"text": text, "meta_info": meta} | ({} if self.old else {"output_ids": told}))


def translate(body: dict[str, Any], model: str) -> dict[str, Any]:
    """The body in the words that the scripts are followed by."""
    params = body["sampling_params"]
    fields = {"model": model, "prompt": body["input_ids"], "max_tokens": params.get("max_new_tokens", 128)}
    fields["stream"] = body.get("stream")
    fields |= {name: params[name] for name in ("stop_token_ids", "ignore_eos") if name in params}
    if "min_new_tokens" in params:
        fields["min_tokens"] = params["min_new_tokens"]
    if body.get("return_logprob"):
        fields["logprobs"] = body["top_logprobs_num"]
    return fields


def finish_reason(reason: str | None, call: Call) -> dict[str, Any] | None:
    """A finish as SGLang writes it; EOS and stop tokens look alike."""
    match reason:
        case None:
            return None
        case "length":
            return {"type": "length", "length": len(call.ids)}
        case "stop":
            return {"type": "stop", "matched": call.ids[-1]}
    return {"type": reason, "message": "Aborted", "status_code": None, "err_type": None}
