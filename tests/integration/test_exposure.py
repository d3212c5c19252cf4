"""A gateway process as it is exposed: TLS, keys, and the operator's pages on a listener of their own."""

import os
import signal
import ssl
from pathlib import Path

import httpx
import pytest
import yaml

from gateway.demo.cluster import find_free_ports
from gateway.demo.processes import Child, pdd
from tests.certificates import make_certificates
from tests.fakes.engine import FakeEngine
from tests.fakes.gates import HoldGate
from tests.fakes.script import Script
from tests.gateway.model_dir import make_model_dir
from tests.integration.regions import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
NO_IDLE = httpx.Limits(max_keepalive_connections=0)
"""Nobody says goodbye on an idle TLS connection of httpx, and a server that ends waits half a minute for that."""
BODY = {"model": "demo", "prompt": "Hello", "stream": True, "max_tokens": 8, "ignore_eos": True}


async def test_two_listeners(tmp_path: Path) -> None:
    """The API speaks TLS and shows no operator's page; those are on their own port, until the last answer has ended."""
    certificates = make_certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(certificates.authority))
    (tmp_path / "model").mkdir()
    async with (
        FakeEngine("p") as prefill,
        FakeEngine("md") as main,
        httpx.AsyncClient(verify=context, limits=NO_IDLE) as http,
    ):
        (port,) = find_free_ports(1)
        admin = f"https://127.0.0.1:{port}"
        settings = {
            "listen": "127.0.0.1:0",
            "admin": {"listen": f"127.0.0.1:{port}"},
            "tls": {"cert_file": str(certificates.server), "key_file": str(certificates.server_key)},
            "models": [{"name": "demo", "path": str(make_model_dir(tmp_path / "model")), "kv_bytes_per_token": 1}],
            "engines": [
                {"id": name, "role": name.upper(), "model": "demo", "region": "a", "url": engine.url}
                for name, engine in (("p", prefill), ("md", main))
            ],
            "canary_interval_s": 0,
        }
        (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(settings))
        child = Child("gateway", tmp_path, pdd("serve", "--config", str(tmp_path / "gateway.yaml")), patience_s=60.0)
        await child.start()
        try:
            assert child.url.startswith("https://")

            async def is_ready() -> bool:
                return bool((await http.get(f"{child.url}/ready")).json() == {"ready": True})

            assert await eventually(is_ready, 30)
            assert (await http.get(f"{child.url}/metrics")).status_code == 404
            gate = HoldGate()
            main.scripts.append(Script(holds={1: gate}))
            async with http.stream("POST", f"{child.url}/v1/completions", json=BODY) as answer:
                pieces = answer.aiter_raw()
                await anext(pieces)
                os.kill(child.pid, signal.SIGTERM)

                async def is_draining() -> bool:
                    missing = (await http.get(f"{admin}/ready")).json()["missing"]
                    return bool(missing == ["the gateway is shutting down"])

                assert await eventually(is_draining, 10)
                assert "pdd_requests_in_flight" in (await http.get(f"{admin}/metrics")).text
                gate.open()
                rest = b"".join([piece async for piece in pieces])
            assert rest.endswith(b"data: [DONE]\n\n")
            assert await child.wait() == 0
        finally:
            await child.stop()
