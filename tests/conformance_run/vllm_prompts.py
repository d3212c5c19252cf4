"""What vLLM's own renderer makes of chat requests: run by the Python that has vLLM, ``vllm_prompts.py JOB RESULT``.

JOB names a model directory, templates and request bodies; RESULT has, for each template and body, the prompt's text, or
null and the reason where vLLM refuses it.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from vllm.config import ModelConfig, VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.renderers import renderer_from_config
from vllm.renderers.online_renderer import OnlineRenderer


async def render(renderer: OnlineRenderer, body: dict[str, Any]) -> dict[str, str | None]:
    """Return a request's prompt text, or the reason of its refusal."""
    try:
        answer = await renderer.render_chat(ChatCompletionRequest.model_validate({"model": "m", **body}))
    except (VLLMValidationError, ValueError) as error:
        return {"text": None, "why": str(error)[:300]}
    if not isinstance(answer, tuple):
        return {"text": None, "why": answer.error.message[:300]}
    return {"text": answer[1][0]["prompt"]}


async def render_all(job: Any) -> dict[str, Any]:
    """Return a job's prompts by template and body."""
    config = ModelConfig(model=job["directory"], dtype="float32", max_model_len=4096)
    base = renderer_from_config(VllmConfig(model_config=config))
    rendered = {}
    for name, template in job["templates"].items():
        renderer = OnlineRenderer(
            config,
            base,
            request_logger=None,
            chat_template=template,
            chat_template_content_format="auto",
            enable_auto_tools=True,
            tool_parser="hermes",
        )
        rendered[name] = {shape: await render(renderer, body) for shape, body in job["bodies"].items()}
    return rendered


if __name__ == "__main__":
    prompts = asyncio.run(render_all(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
    Path(sys.argv[2]).write_text(json.dumps(prompts, ensure_ascii=False), encoding="utf-8")
