"""Options of messages to people about their jobs, and what is wrong with them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from batchjob.runtime import values
from batchjob.runtime.settings import option
from batchjob.secret_files import secret_file
from batchjob_stats_db.database.subscriptions import (
    MAIL,
    NTFY,
    WEBHOOK,
    Offer,
    Wish,
    parse_wish,
    quiet_hours,
)


@values.with_metavar("ZONE")
def _parse_zone(value: Any) -> str:
    try:
        return ZoneInfo(str(value)).key
    except (OSError, ValueError, LookupError):
        raise ValueError(f"expected a time zone such as Europe/Paris, got {value!r}") from None


@values.with_metavar("ADDRESS")
def _parse_address(value: Any) -> str:
    name, at, domain = values.text(value).rpartition("@")
    if value == "" or (at and name and domain and value.isprintable() and " " not in value):
        return str(value)
    raise ValueError(f"expected an address such as batchjob@example.org, got {value!r}")


@values.with_metavar("HOST[:PORT]")
def _parse_relay(value: Any) -> str:
    try:
        parts = urlsplit(f"//{values.text(value)}")
        if value == "" or (parts.hostname and parts.port != 0 and parts.netloc == value):
            return str(value)
    except ValueError:
        pass
    raise ValueError(f"expected HOST or HOST:PORT, got {value!r}")


@dataclass(frozen=True)
class MessageOptions:
    """Messages to people about their jobs; without a server none are sent."""

    # fmt: off
    server: str = option("",
        "URL of the server, from which the reports in messages come; none: no messages.",
        parse=values.http_url)
    token_file: str = option("",
        "File with a token of the server that has the role viewer.", parse=secret_file)
    ca_file: str = option("", "CA certificates (PEM) to trust instead of the system's.")
    link: str = option("",
        "URL of the server in links (default: messages.server).", parse=values.http_url)
    default: tuple[Wish, ...] = option((),
        "Event that people without a subscription for it are told of by mail: end, failure, "
        "started, idle=30m, memory=90% or digest.", parse=parse_wish, repeat=True)
    quiet_hours: str = option("", "Hours in which nothing is sent, such as 22:00-07:00, unless "
        "a subscription has its own.", parse=quiet_hours)
    zone: str = option("UTC", "Time zone of quiet hours and of times in messages.",
        parse=_parse_zone)
    gather: float = option(180.0,
        "How long a message waits for others to the same person.", parse=values.duration)
    storm: int = option(5, "Number of messages waiting for a person, above which they become one "
        "summary, at most one an hour.", parse=values.at_least_one)
    oldest: float = option(86400.0,
        "Age at which a message that could not be sent is dropped.", parse=values.duration)
    smtp: str = option("", "Relay for mails; none: no mails.", parse=_parse_relay)
    smtp_tls: str = option("starttls", "Encryption of the connection to the relay.",
        parse=values.one_of("starttls", "tls", "none"))
    smtp_ca_file: str = option("",
        "CA certificates (PEM) for the relay, instead of the system's.")
    smtp_user: str = option("", "User for log-in at the relay.")
    smtp_password_file: str = option("", "File with that user's password.", parse=secret_file)
    sender: str = option("", "Sender of mails.", parse=_parse_address)
    address: str = option("", "Address of a user, such as {user}@example.org.",
        parse=_parse_address)
    address_command: str = option("", "Program that prints the address of the user whose name is "
        "its argument, instead of messages.address.", metavar="PATH")
    webhook: tuple[str, ...] = option((),
        "URL with which those of people's webhooks must begin; none: no webhooks.",
        parse=values.http_url, repeat=True)
    ntfy: str = option("", "URL of a server of ntfy; none: no ntfy.", parse=values.http_url)
    ntfy_token_file: str = option("", "File with a token for that server.", parse=secret_file)
    # fmt: on

    def offer(self) -> Offer | None:
        """What people may choose; None: no messages are sent."""
        given = ((MAIL, self.smtp), (WEBHOOK, self.webhook), (NTFY, self.ntfy))
        channels = tuple(name for name, value in given if value)
        if not self.server or not channels:
            return None
        defaults = tuple(map(str, self.default))
        return Offer(channels, defaults, self.webhook, self.quiet_hours)

    def problems(self) -> Iterator[str]:
        """What contradicts itself or is missing, one line each."""
        if self == NO_MESSAGES:
            return
        if not self.server:
            given = [each.name for each in fields(self) if getattr(self, each.name) != each.default]
            name = given[0].replace("_", "-")
            yield f"messages.server: expected the URL of the server, since messages.{name} is set"
        if not self.token_file:
            yield "messages.token-file: expected a file with a token that has the role viewer"
        if not (self.smtp or self.webhook or self.ntfy):
            yield "messages: expected at least one of smtp, webhook, ntfy"
        if self.default and not self.smtp:
            yield "messages.default: expected messages.smtp, since defaults are sent by mail"
        if self.smtp:
            yield from self._mail_problems()

    def _mail_problems(self) -> Iterator[str]:
        if not self.sender:
            yield "messages.sender: expected an address such as batchjob@example.org"
        if not self.address_command and "{user}" not in self.address:
            yield "messages.address: expected an address with {user}, or messages.address-command"
        if bool(self.smtp_user) != bool(self.smtp_password_file):
            yield "messages.smtp-user: expected together with messages.smtp-password-file"
        host = urlsplit(f"//{self.smtp}").hostname
        if self.smtp_user and self.smtp_tls == "none" and host not in values.LOOPBACK:
            yield "messages.smtp-tls: expected starttls or tls, which keep the password secret"


NO_MESSAGES = MessageOptions()
