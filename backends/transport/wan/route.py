"""A listener of the link and the connections that came through it."""

import asyncio
from dataclasses import dataclass

import msgspec

from backends.transport.serving import bind
from backends.transport.wan.lane import Lane
from backends.transport.wan.pipe import Pipe, PipeEnd


class RouteStats(msgspec.Struct, frozen=True):
    """One route: where it listens, where it leads, and what crossed so far in each direction."""

    listen: str
    target: str
    connections: int
    to_target_bytes: int
    from_target_bytes: int


@dataclass(frozen=True, slots=True)
class WanRoute:
    """Listen at ``listen_host:listen_port`` (0: a free port) and relay to ``target_host:target_port``."""

    target_host: str
    target_port: int
    listen_host: str = "127.0.0.1"
    listen_port: int = 0


class RunningRoute:
    """A route at work, over the lanes ``up`` (toward the target) and ``down``."""

    def __init__(self, route: WanRoute, up: Lane, down: Lane) -> None:
        self._route = route
        self._up = up
        self._down = down
        self._server: asyncio.Server | None = None
        self._pipes: set[Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._past_up_bytes = 0
        self._past_down_bytes = 0
        self.port = route.listen_port

    async def start(self) -> None:
        """Listen. Raises ``backends.transport.serving.CannotListen``."""
        listener = bind(self._route.listen_host, self._route.listen_port)
        self.port = listener.getsockname()[1]
        self._server = await asyncio.get_running_loop().create_server(self._accept, sock=listener)

    async def stop(self) -> None:
        """Listen no more and break all connections."""
        if self._server is not None:
            self._server.close()
        self.refuse(True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def refuse(self, refusing: bool) -> None:
        """Break all connections and refuse new ones, or take them again."""
        self._refusing = refusing
        if refusing:
            for pipe in tuple(self._pipes):
                pipe.break_off()

    def stats(self) -> RouteStats:
        """State and counts as of now."""
        return RouteStats(
            listen=f"{self._route.listen_host}:{self.port}",
            target=f"{self._route.target_host}:{self._route.target_port}",
            connections=len(self._pipes),
            to_target_bytes=self._past_up_bytes + sum(pipe.near.out.crossed_bytes for pipe in self._pipes),
            from_target_bytes=self._past_down_bytes + sum(pipe.far.out.crossed_bytes for pipe in self._pipes),
        )

    def _accept(self) -> PipeEnd:
        pipe = Pipe(self._up, self._down, self._forget)
        self._pipes.add(pipe)
        task = asyncio.get_running_loop().create_task(self._connect(pipe))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pipe.near

    async def _connect(self, pipe: Pipe) -> None:
        if self._refusing:
            pipe.refuse()
            return
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: pipe.far, self._route.target_host, self._route.target_port
            )
        except OSError:
            pipe.refuse()

    def _forget(self, pipe: Pipe) -> None:
        self._pipes.discard(pipe)
        self._past_up_bytes += pipe.near.out.crossed_bytes
        self._past_down_bytes += pipe.far.out.crossed_bytes
