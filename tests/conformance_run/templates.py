"""Chat templates of real models: prompts made here beside those of vLLM's own renderer.

The templates are in the wheel of the PyPI package ``xinference``, which is downloaded and neither installed nor kept.
CONFORMANCE_WHEELS names a folder that may have the wheel already, and where it is put.
"""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.text.model import ServedModel, load_model
from gateway.text.shapes import READ_ON_PURPOSE, SHAPES
from gateway.text.template import ChatTemplate, TemplateRejected
from tests.conformance_run.parts import NotRun
from tests.conformance_run.prompts import render_here
from tests.gateway.model_dir import make_model_dir

PACKAGE = "xinference==4.1.0"
PYTHON_WITH_VLLM = Path(".venv-e2e/bin/python")
VLLM_TIMEOUT_S = 900
SPECIAL = {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>", "pad_token": "<|endoftext|>"}
SHOWN = 40
OWN_READINGS = dict.fromkeys(
    READ_ON_PURPOSE, "thoughts among the parts are reasoning here, and the answer's text in vLLM"
)
"""Shapes that are read in another way on purpose, and why."""

VERDICTS = ("same", "differs", "refused", "explained")

Prompts = Mapping[str, Mapping[str, Any]]


def run() -> Mapping[str, object]:
    """Return how many prompts of all templates and shapes are the same here and in vLLM."""
    if not PYTHON_WITH_VLLM.exists():
        raise NotRun(f"{PYTHON_WITH_VLLM} is not there: `make e2e` installs it")
    with tempfile.TemporaryDirectory() as folder:
        templates = read_templates(find_wheel(Path(os.environ.get("CONFORMANCE_WHEELS", folder))))
        directory = write_model(Path(folder) / "model")
        theirs = ask_vllm(directory, templates, SHAPES, Path(folder))
        model = load_model("m", directory)
        try:
            return compare(templates, theirs, model)
        finally:
            model.close()


def find_wheel(folder: Path) -> Path:
    """Return the wheel with the templates, downloaded if it is not there. Raises NotRun."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(folder.glob("xinference-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
        if subprocess.run(command, check=False).returncode:
            raise NotRun(f"{PACKAGE} cannot be downloaded")
        found = sorted(folder.glob("xinference-*.whl"))
    return found[-1]


def read_templates(wheel: Path) -> dict[str, str]:
    """Return the different chat templates by the name of a model that has it."""
    templates: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if not (name.startswith("xinference/model/llm/models/") and name.endswith(".json")):
                continue
            for number, template in enumerate(find_templates(json.loads(archive.read(name)))):
                if template not in templates.values():
                    templates[f"{Path(name).stem}/{number}" if number else Path(name).stem] = template
    return templates


def find_templates(value: Any) -> list[str]:
    """Return every chat template in a model's description, in order."""
    if isinstance(value, list):
        return [template for entry in value for template in find_templates(entry)]
    if not isinstance(value, dict):
        return []
    found = value.get("chat_template")
    own = [found] if isinstance(found, str) and found else []
    return own + [template for entry in value.values() for template in find_templates(entry)]


def write_model(directory: Path) -> Path:
    """Write a small model directory that both sides can load."""
    make_model_dir(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps(SPECIAL), encoding="utf-8")
    return directory


def ask_vllm(directory: Path, templates: Mapping[str, str], bodies: Mapping[str, Any], folder: Path) -> Prompts:
    """Return vLLM's prompts, or its reasons for none, by template and shape. Raises NotRun."""
    job, result = folder / "job.json", folder / "result.json"
    job.write_text(json.dumps({"directory": str(directory), "templates": templates, "bodies": dict(bodies)}))
    script = Path(__file__).with_name("vllm_prompts.py")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [str(PYTHON_WITH_VLLM), str(script), str(job), str(result)]
    done = subprocess.run(command, env=environment, timeout=VLLM_TIMEOUT_S, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotRun(f"vLLM's renderer failed: {done.stderr[-1000:]}")
    prompts: Prompts = json.loads(result.read_text(encoding="utf-8"))
    return prompts


def compare(templates: Mapping[str, str], theirs: Prompts, model: ServedModel) -> Mapping[str, object]:
    """Count, and print what differs."""
    verdicts: Counter[str] = Counter()
    shapes: dict[str, Counter[str]] = {shape: Counter() for shape in SHAPES}
    differing: dict[str, list[str]] = {}
    for name, source in templates.items():
        try:
            template: ChatTemplate | None = ChatTemplate(source, SPECIAL)
        except TemplateRejected:
            template = None
        for shape, body in SHAPES.items():
            ours = None if template is None else render_here(template, body)
            verdict = judge(ours, theirs[name][shape]["text"])
            if verdict == "differs" and shape in OWN_READINGS:
                verdict = "explained"
            verdicts[verdict] += 1
            shapes[shape][verdict] += 1
            if verdict == "differs":
                differing.setdefault(name, []).append(shape)
    for shape, found in shapes.items():
        counts = [f"{verdict} {found[verdict]:4}" for verdict in VERDICTS]
        print(f"   {shape:20} {' '.join(counts)} {OWN_READINGS.get(shape, '')}")
    for name, names in list(differing.items())[:SHOWN]:
        print(f"   differs: {name}: {', '.join(names)}")
    return {
        "templates.templates": len(templates),
        "templates.conversations": len(SHAPES),
        **{f"templates.{verdict}": verdicts[verdict] for verdict in VERDICTS},
        "templates.differing": differing,
    }


def judge(ours: str | None, theirs: str | None) -> str:
    """Say "same", "refused" by both, or "differs"."""
    if ours is None and theirs is None:
        return "refused"
    return "same" if ours == theirs else "differs"
