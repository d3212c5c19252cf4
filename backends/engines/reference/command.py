"""``pdd engine``: a thin start that needs neither torch nor LMCache until it runs."""

import argparse
import importlib
import os
import sys

from backends.engines.reference.settings import add_arguments, to_settings

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; the process's exit status."""
    try:
        settings = to_settings(args)
    except ValueError as error:
        print(f"pdd engine: {error}", file=sys.stderr)  # noqa: T201 (a command's message)
        return 2
    # Both are read when the libraries are imported. LMCache reports usage to its makers unless told not to.
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        service = importlib.import_module("backends.engines.reference.service")
    except ModuleNotFoundError as error:
        message = f"pdd engine: {error.name} is not installed; in a checkout: pip install '.[engine]'"
        print(message, file=sys.stderr)  # noqa: T201 (a command's message)
        return 2
    return int(service.serve(settings))


def main() -> int:
    """``python -m backends.engines.reference.command``."""
    parser = argparse.ArgumentParser(prog="pdd engine")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
