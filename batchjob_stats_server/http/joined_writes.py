"""Sends the head of an answer together with the first piece of its body."""

import asyncio
from typing import Any


class JoinedWrites:
    """A transport that joins the first two pieces written in a pass of the event loop.

    uvicorn writes the head and the body of an answer separately, and each write costs as much as
    finding the route of a request. A first piece without a second is sent at the end of the pass.
    Only one piece is buffered, so that the flow control of the transport works as before.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._buffered = b""
        self._scheduled = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, piece: bytes) -> None:
        """Send the piece together with the buffered one, or buffer it."""
        if self._buffered:
            kept, self._buffered = self._buffered, b""
            self._transport.writelines((kept, piece))
        elif self._scheduled:
            self._transport.write(piece)
        else:
            self._buffered = piece
            self._scheduled = True
            self._loop.call_soon(self._end_of_pass)

    def close(self) -> None:
        """Send the buffered piece, and close."""
        self._flush()
        self._transport.close()

    def _end_of_pass(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        if self._buffered:
            kept, self._buffered = self._buffered, b""
            self._transport.write(kept)
