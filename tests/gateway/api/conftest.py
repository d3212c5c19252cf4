"""The API over a scripted generator, behind a real socket."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from gateway.api.admin import Pages
from gateway.api.app import ApiState, build_app
from gateway.api.endpoint import RequestLimits
from gateway.auth.admin import AdminAuth
from gateway.text.model import ServedModel, load_model
from tests.fakes.answers import ScriptedGenerator, say
from tests.fakes.server import AppServer
from tests.gateway.api.access import make_access
from tests.gateway.model_dir import model_dir

__all__ = ["model_dir"]

# A slow machine is no failure; pytest's own timeout holds.


@pytest.fixture(scope="session")
def model(model_dir: Path) -> Iterator[ServedModel]:
    """A small served model."""
    served = load_model("tiny", model_dir)
    yield served
    served.close()


@pytest.fixture
def generator(model: ServedModel) -> ScriptedGenerator:
    """A generator that says a short text with split characters."""
    ids = model.encoder.encode_now("Hello 😀 世界, you all.")
    return ScriptedGenerator(lambda request: say(ids))


@pytest.fixture
def state(model: ServedModel, generator: ScriptedGenerator) -> ApiState:
    """The API's surroundings."""
    return ApiState(
        models={"tiny": model, "org/other": replace(model, name="org/other", template=None)},
        generator=generator,
        created=1_700_000_000,
        access=make_access(),
        pages=Pages(
            find_missing=lambda: [],
            find_timeline={"known": {"legs": []}}.get,
            render_metrics=lambda: (b"up 1\n", "text/plain"),
        ),
        admin_auth=AdminAuth(is_open=True),
        limits=RequestLimits(body_bytes=1 << 20),
    )


@pytest.fixture
async def server(state: ApiState) -> AsyncIterator[AppServer]:
    """The API on a socket."""
    served = AppServer(build_app(state))
    await served.start()
    yield served
    await served.stop()


@pytest.fixture(scope="session", autouse=True)
def loaded_openai() -> None:
    """Let openai-python do its late imports, which read files, before a loop runs."""
    openai.AsyncOpenAI(base_url="http://127.0.0.1", api_key="any")
