"""The standard library's `asyncio`: coroutines, and a few threads that make the answers."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.message import (
    RequestRefused,
    parse_request,
    render_response,
    text_response,
)
from benchmarks.http_servers.shared import (
    HEAD_BYTES,
    HEAD_SECONDS,
    IDLE_SECONDS,
    SEND_SECONDS,
    Places,
    answer,
    context_of,
)

_WORKERS = 4


class Streams:
    """Coroutines, and a few threads that make the answers."""

    def __init__(self, listeners: Sequence[socket.socket], web: WebAccess, *limits: object) -> None:
        del limits
        self._listeners, self._web = listeners, web
        self._places, self._log_ins = Places(), threading.Lock()
        self._workers = ThreadPoolExecutor(_WORKERS)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to accept clients."""
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """End."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)

    def responds(self, seconds: float) -> bool:
        """Nothing to ask."""
        del seconds
        return True

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        context = context_of(self._web)
        for listener in self._listeners:
            more = {} if context is None else {"ssl_handshake_timeout": HEAD_SECONDS}
            self._loop.run_until_complete(
                asyncio.start_server(
                    self._client, sock=listener, limit=HEAD_BYTES, ssl=context, **more
                )
            )
        self._loop.run_forever()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = (writer.get_extra_info("peername") or ("",))[0]
        if not self._places.take(address):
            writer.transport.abort()
            return
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await self._talk(reader, writer)
        finally:
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()
            self._places.leave(address)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seconds = HEAD_SECONDS
        while True:
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), seconds)
                request = parse_request(head[:-4])
            except asyncio.LimitOverrunError:
                request = None
            except RequestRefused as refused:
                writer.write(
                    render_response(text_response(refused.status, str(refused)), keep_alive=False)
                )
                request = None
            if request is None:
                return
            writer.write(
                await self._loop.run_in_executor(
                    self._workers, answer, self._web, self._log_ins, request
                )
            )
            await asyncio.wait_for(writer.drain(), SEND_SECONDS)
            if not request.keep_alive:
                return
            seconds = IDLE_SECONDS
