"""Server-sent events out of bytes, without I/O.

The parser follows the WHATWG rules for ``data`` fields and ignores everything else (comments, ``event``, ``id``,
``retry``). Bytes may be cut anywhere, also inside a line end or a character; nothing is decoded here. A line ends with
LF, CRLF or CR. Each ``feed`` turns CR and CRLF into LF first, so the rest knows one line end only; a CR that is the
last byte fed counts at once, and the LF that may follow it is skipped, so no event waits for a byte that might not
come. What engines nearly always send, whole events of one ``data`` line each, is split in one go.
"""

BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 8 * 1024 * 1024


class EventTooLarge(Exception):
    """An event, or a line that never ends, is larger than the parser was told to hold."""


class SseParser:
    """Feed it bytes; it gives the ``data`` of each complete event. Work is linear in the bytes fed, however cut."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._is_start = True
        self._ended_in_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that ``data`` completes, oldest first. Events without data are left out.

        Raises EventTooLarge; the parser is of no use afterwards.
        """
        if self._ended_in_cr and data:
            self._ended_in_cr = False
            if data[0] == 10:
                data = data[1:]
        if b"\r" in data:
            self._ended_in_cr = data[-1] == 13
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._line and not self._data and data.startswith(b"data: ") and data.endswith(b"\n\n"):
            whole = data[6:-2].split(b"\n\ndata: ")
            # Each event has its two line feeds and no more, so there is no other line between them.
            if data.count(b"\n") == 2 * len(whole) and b"" not in whole and len(data) <= self._max_event_bytes:
                self._is_start = False
                return whole
        head, *lines = data.split(b"\n")
        self._line += head
        events: list[bytes] = []
        for rest in lines:
            line = bytes(self._line)
            self._line = bytearray(rest)
            if self._is_start:
                self._is_start = False
                line = line.removeprefix(BOM)
            self._end_line(line, events)
        if len(self._line) + self._data_bytes > self._max_event_bytes:
            raise EventTooLarge(f"event larger than {self._max_event_bytes} bytes")
        return events

    def _end_line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            value = line[6:] if line[5:6] == b" " else line[5:]
            self._hold(value)
        elif not line:
            if self._data_bytes:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
            self._data.clear()
            self._data_bytes = 0
        elif line == b"data":
            self._hold(b"")

    def _hold(self, value: bytes) -> None:
        # The line feed that joins two data lines counts, so lines without bytes are bounded too.
        self._data_bytes += len(value) + bool(self._data)
        self._data.append(value)
        if self._data_bytes > self._max_event_bytes:
            raise EventTooLarge(f"event larger than {self._max_event_bytes} bytes")
