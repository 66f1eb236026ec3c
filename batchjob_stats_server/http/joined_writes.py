"""The head of an answer leaves together with the first piece of its body."""

import asyncio
from typing import Any


class JoinedWrites:
    """A transport that keeps the first piece written in a pass of the event loop for the second.

    uvicorn writes the head and the body of an answer separately, and each write costs as much as
    finding the route of a request. A piece without a second leaves at the end of the pass, and
    never more than one is kept, so that the flow control of the transport works as before.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._kept = b""
        self._scheduled = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, piece: bytes) -> None:
        """Send it together with what was kept, or keep it."""
        if self._kept:
            kept, self._kept = self._kept, b""
            self._transport.writelines((kept, piece))
        elif self._scheduled:
            self._transport.write(piece)
        else:
            self._kept = piece
            self._scheduled = True
            self._loop.call_soon(self._end_of_pass)

    def close(self) -> None:
        """Send what was kept, and close."""
        self._send_kept()
        self._transport.close()

    def _end_of_pass(self) -> None:
        self._scheduled = False
        self._send_kept()

    def _send_kept(self) -> None:
        if self._kept:
            kept, self._kept = self._kept, b""
            self._transport.write(kept)
