"""KV that fake engines lend each other as vLLM does over NIXL, with what kills a real one."""

from collections.abc import Sequence
from typing import Any


class Loans:
    """Tickets of all engines of one test. ``spoilt``: uses that would have ended a real engine or read wrong memory."""

    def __init__(self) -> None:
        self.lent: dict[str, list[int]] = {}
        self.redeemed: list[str] = []
        self.spoilt: list[str] = []

    @property
    def open(self) -> int:
        """Tickets that nobody has used."""
        return len(self.lent) - len(self.redeemed)

    def lend(self, engine: str, prompt: Sequence[int]) -> dict[str, Any]:
        """Make a ticket; the reader must give it back unread."""
        name = f"{engine}-{len(self.lent)}"
        self.lent[name] = list(prompt)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2, 3]],
            "remote_engine_id": engine,
            "remote_request_id": name,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
        }

    def redeem(self, params: dict[str, Any], prompt: Sequence[int]) -> bool:
        """Use a ticket; False: the reader dies of it."""
        name = params["remote_request_id"]
        if name in self.redeemed:
            self.spoilt.append(f"{name} was used twice")
        elif self.lent[name] != list(prompt):
            self.spoilt.append(f"{name} is for {len(self.lent[name])} tokens, not {len(prompt)}")
        self.redeemed.append(name)
        return not self.spoilt
