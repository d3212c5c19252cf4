import argparse
from pathlib import Path

import pytest

from backends.engines.reference.command import run
from backends.engines.reference.settings import ReferenceSettings, add_arguments, to_settings


def arguments(*options: str) -> argparse.Namespace:
    """Parsed options."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(options)


def parse(*options: str) -> ReferenceSettings:
    """Settings from options."""
    return to_settings(arguments(*options))


def test_defaults(llama: Path) -> None:
    """Any free loopback port, the directory's name, one thread, float32, no store."""
    made = parse("--role", "main", "--model", str(llama))
    assert (made.host, made.port, made.served_model_name) == ("127.0.0.1", 0, "tiny-llama")
    assert (made.threads, made.dtype, made.kv_store, made.kv_chunk_tokens) == (1, "float32", None, 64)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--listen", "8000"), "--listen"),
        (("--listen", "127.0.0.1:x"), "--listen"),
        (("--listen", "127.0.0.1:70000"), "--listen"),
        (("--kv-chunk", "50"), "--kv-chunk"),
        (("--model", "/nowhere"), "--model"),
    ],
)
def test_bad_options_are_named(
    llama: Path, options: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says which one and ends with status 2."""
    assert run(arguments("--role", "main", "--model", str(llama), *options)) == 2
    assert named in capsys.readouterr().err
