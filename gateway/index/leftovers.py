"""Large containers that nobody reads any more: their entries are freed in steps, beside the event loop.

To free millions of entries at once would hold up everybody for as long as that takes.
"""

import time
from threading import Thread
from typing import Any

STEP_ENTRIES = 4096


def let_go(*containers: dict[Any, Any] | set[Any]) -> None:
    """Empty containers that the caller has no use for any more; small ones are left to go by themselves."""
    large = [container for container in containers if len(container) > STEP_ENTRIES]
    if large:
        Thread(target=_empty, args=(large,), name="let-go", daemon=True).start()


def _empty(containers: list[dict[Any, Any] | set[Any]]) -> None:
    while containers:
        container = containers.pop()
        take = container.popitem if isinstance(container, dict) else container.pop
        while container:
            for _ in range(min(STEP_ENTRIES, len(container))):
                take()
            time.sleep(0)  # lets others run
