"""A real SMTP server on loopback, which keeps the mails that it takes."""

import asyncio
import email
import email.policy
import ssl
import threading
from collections.abc import Callable
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope


class Relay:
    """The server in a thread of its own. `answer`: its reply to a mail; None: it is taken.

    `options` are aiosmtpd's, such as a context for STARTTLS; `tls` encrypts from the start.
    """

    def __init__(
        self,
        answer: Callable[[Envelope], str | None] = lambda _: None,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        **options: Any,
    ):
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.answer = answer
        self.answer_recipient: Callable[[str], str | None] = lambda _: None
        self._loop = asyncio.new_event_loop()
        listen = self._loop.create_server(
            lambda: SMTP(self, loop=self._loop, **options), "127.0.0.1", port, ssl=tls
        )
        self._server = self._loop.run_until_complete(listen)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def handle_RCPT(self, server, session, envelope, address, options):
        if refusal := self.answer_recipient(address):
            return refusal
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        if refusal := self.answer(envelope):
            return refusal
        self.mails.append(email.message_from_bytes(envelope.content, policy=email.policy.default))
        self.recipients.append(envelope.rcpt_tos)
        return "250 OK"

    def stop(self):
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
