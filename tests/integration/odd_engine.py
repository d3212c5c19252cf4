"""Engines that are wrong in ways that no option of ``pdd engine`` makes them: ``--odd KIND`` before the command."""

from collections.abc import Callable, Mapping

from backends.engines.reference import kv_store
from gateway.__main__ import main

FLAG = "--odd"


def drop_salts() -> None:
    """Leave cache salts out of the keys of the KV store, as an engine does that does not know them."""
    vars(kv_store)["_configs"] = lambda _: {}


def rename() -> None:
    """Store under another name of the model, as LMCache does where vLLM's ``--model`` is another path."""
    make = vars(kv_store)["LMCacheMetadata"]
    vars(kv_store)["LMCacheMetadata"] = lambda **fields: make(**fields | {"model_name": "elsewhere/demo"})


ODD: Mapping[str, Callable[[], None]] = {"drop_salts": drop_salts, "rename": rename}


def run(arguments: list[str]) -> int:
    """Run a ``pdd`` command, in the odd way that the first two arguments may name."""
    if arguments[0] == FLAG:
        ODD[arguments[1]]()
        arguments = arguments[2:]
    return main(arguments)
