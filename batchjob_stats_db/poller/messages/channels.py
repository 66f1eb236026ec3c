"""Sends one message by mail, to a webhook or to ntfy, and says what became of it."""

import contextlib
import hashlib
import hmac
import json
import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from batchjob.runtime.http_client import FetchError, fetch, tls_context
from batchjob.runtime.reason import reason
from batchjob.runtime.subprocesses import SchedulerError, call
from batchjob_stats_db.database.subscriptions import MAIL, NTFY, WEBHOOK, is_address, signature
from batchjob_stats_db.poller.messages.options import MessageOptions
from batchjob_stats_db.poller.options import read_secret_option

_SECONDS = 15.0  # for one step of SMTP, and for a request
_MOST_SECONDS = 60.0  # for a mail as a whole: a relay may answer byte by byte
_MAX_ANSWER = 64 * 1024
_NTFY_CHARACTERS = 3500  # ntfy makes an attachment of what has more than 4096 bytes
_MAX_HEADER_LENGTH = 900  # RFC 5322 allows 998; a subject that fits is not folded


class Message(NamedTuple):
    """What is told, the same for all channels."""

    id: str
    user: str
    subject: str
    text: str
    html: str
    url: str  # of the page it is about
    unsubscribe: str  # URL
    document: Mapping[str, Any]  # for programs


class Outcome(NamedTuple):
    """`later`: certainly not received, and may be tried again; `doubt`: perhaps received.

    `busy`: the place takes nothing at all for now.
    """

    result: Literal["sent", "refused", "later", "doubt"]
    detail: str = ""
    busy: bool = False


SENT = Outcome("sent")


class Channels:
    """The configured channels; for one thread."""

    def __init__(self, options: MessageOptions) -> None:
        """Raises SettingsError if a secret cannot be read."""
        self._options = options
        name = "messages.smtp-password-file"
        self._password = read_secret_option(name, options.smtp_password_file)
        self._ntfy_token = read_secret_option("messages.ntfy-token-file", options.ntfy_token_file)
        self._addresses: dict[str, str] = {}

    def place(self, channel: str, target: str) -> str:
        """The server to which a channel sends: one that fails is spared for a while."""
        return f"{channel} {urlsplit(target).netloc if channel == WEBHOOK else ''}"

    def forget_addresses(self) -> None:
        """Look up the addresses of users again when they are needed."""
        self._addresses.clear()

    def send(self, channel: str, target: str, message: Message, site: Mapping[str, str]) -> Outcome:
        """Send; never raises for what a server or a user does."""
        if channel == MAIL:
            return self._mail(target, message)
        if channel == NTFY:
            headers = {"Authorization": f"Bearer {self._ntfy_token}"} if self._ntfy_token else {}
            short = message.text[:_NTFY_CHARACTERS]
            document = {"topic": target, "title": message.subject, "message": short,
                        "click": message.url}  # fmt: skip
            return _post(self._options.ntfy, document, headers)
        key = signature(site, "webhook", f"{message.user} {target}")
        return _post(target, message.document, {}, key)

    def _mail(self, target: str, message: Message) -> Outcome:
        try:
            address = target or self._address_of(message.user)
        except SchedulerError as error:
            return Outcome("later", f"messages.address-command: {error}")
        if not is_address(address):
            return Outcome("refused", f"expected an address, got {address!r:.80}")
        try:
            with self._relay() as relay:
                return _hand_over(relay, self._options.sender, address, message)
        except (OSError, smtplib.SMTPException, UnicodeError) as error:
            return Outcome("later", f"{self._options.smtp}: {reason(error)}", busy=True)

    def _address_of(self, user: str) -> str:
        if not self._options.address_command:
            return self._options.address.replace("{user}", user)
        if user not in self._addresses:
            # "--" would be taken for the user by simple scripts; no login begins with a dash.
            argv = [self._options.address_command, user]
            printed = call(argv, timeout=_SECONDS, output_limit=_MAX_ANSWER)
            self._addresses[user] = printed.decode("utf-8", "replace").strip()
        return self._addresses[user]

    @contextlib.contextmanager
    def _relay(self) -> Iterator[smtplib.SMTP]:
        """A connection to the relay, encrypted and logged in, which ends after some time."""
        given, host = self._options, socket.gethostname()
        context: ssl.SSLContext | None = None
        if given.smtp_tls != "none":
            context = tls_context(given.smtp_ca_file)
        parts = urlsplit(f"//{given.smtp}")
        port = parts.port or {"tls": 465, "starttls": 587, "none": 25}[given.smtp_tls]
        relay: smtplib.SMTP
        if given.smtp_tls == "tls":
            relay = smtplib.SMTP_SSL(local_hostname=host, timeout=_SECONDS, context=context)
        else:
            relay = smtplib.SMTP(local_hostname=host, timeout=_SECONDS)
        watch = threading.Timer(_MOST_SECONDS, _break_off, (relay,))
        watch.daemon = True
        watch.start()
        try:
            # The name is what certificates are checked for.
            relay._host = parts.hostname  # type: ignore[attr-defined]
            relay.connect(parts.hostname or "", port)
            if given.smtp_tls == "starttls":
                relay.starttls(context=context)
            if given.smtp_user:
                relay.login(given.smtp_user, self._password)
            yield relay
        finally:
            watch.cancel()
            with contextlib.suppress(OSError, smtplib.SMTPException):
                relay.quit()
            relay.close()

    def problem(self) -> str:
        """Why the relay cannot be used; "" if it can, or there is none."""
        if not self._options.smtp:
            return ""
        try:
            with self._relay() as relay:
                relay.noop()
        except (OSError, smtplib.SMTPException, UnicodeError) as error:
            return f"messages.smtp: {self._options.smtp}: {reason(error)}"
        return ""


def _break_off(relay: smtplib.SMTP) -> None:
    with contextlib.suppress(OSError, AttributeError):
        assert relay.sock is not None
        relay.sock.shutdown(socket.SHUT_RDWR)


def _hand_over(relay: smtplib.SMTP, sender: str, address: str, message: Message) -> Outcome:
    """Give a mail to the relay. Only once it was sent in full is there a doubt."""
    mail = _compose(sender, address, message).as_bytes()
    relay.ehlo_or_helo_if_needed()
    for command, argument in ((relay.mail, sender), (relay.rcpt, address)):
        code, answer = command(argument)
        if code // 100 != 2:
            return _refusal(code, answer)
    try:
        code, answer = relay.data(mail)
    except smtplib.SMTPDataError as error:
        return _refusal(error.smtp_code, error.smtp_error)
    except (OSError, smtplib.SMTPException) as error:
        return Outcome("doubt", reason(error), busy=True)
    return SENT if code // 100 == 2 else _refusal(code, answer)


def _refusal(code: int, answer: bytes | str) -> Outcome:
    """4xx is for now, 5xx for good (RFC 5321, 4.2.1); 421 is the relay's good-bye."""
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
    detail = f"{code} {' '.join(text.split())}"
    return Outcome("refused" if code // 100 == 5 else "later", detail, busy=code == 421)


def _compose(sender: str, address: str, message: Message) -> EmailMessage:
    mail = EmailMessage(SMTP.clone(max_line_length=_MAX_HEADER_LENGTH))
    mail["From"], mail["To"], mail["Subject"] = sender, address, message.subject
    mail["Date"] = formatdate(localtime=True)
    mail["Message-ID"] = f"<{message.id}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834
    mail["List-Unsubscribe"] = f"<{message.unsubscribe}>"  # RFC 2369
    mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"  # RFC 8058
    mail.set_content(message.text, cte="quoted-printable")
    mail.add_alternative(message.html, subtype="html", cte="quoted-printable")
    return mail


SIGNATURE = "X-Batchjob-Signature"


def _post(
    url: str, document: Mapping[str, Any], headers: Mapping[str, str], key: str = ""
) -> Outcome:
    """POST a document; a redirect is not followed, since nobody allowed the place it names."""
    body = json.dumps(document).encode()
    if key:
        digest = hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
        headers = {**headers, SIGNATURE: f"sha256={digest}"}
    try:
        reply = fetch(
            url, method="POST", headers={"Content-Type": "application/json", **headers}, body=body,
            seconds=_SECONDS, limit=_MAX_ANSWER, proxies=True,
        )  # fmt: skip
    except FetchError as error:
        in_doubt = error.reason in ("deadline", "too_large", "malformed")
        return Outcome("doubt" if in_doubt else "later", str(error), busy=True)
    if reply.status // 100 == 2:
        return SENT
    for_now = reply.status // 100 == 5 or reply.status in (408, 425, 429)
    return Outcome("later" if for_now else "refused", f"status {reply.status}")
