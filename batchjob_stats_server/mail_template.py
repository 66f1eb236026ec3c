"""E-mails to users about unused resources, as addresses that a mail program opens."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from batchjob.runtime.settings import SettingsError
from batchjob_stats_server.options import ReportOptions

MAIL_FIELDS = (
    "user", "cluster", "days", "cpu_hours", "gpu_hours", "cpu_percent", "gpu_percent", "url"
)  # fmt: skip
_DEFAULT_TEXT = """\
Your jobs on {cluster}
Dear {user},

in the last {days} days your jobs on {cluster} left {cpu_hours} hours of allocated CPU time and
{gpu_hours} hours of allocated GPU time unused. They used {cpu_percent} of the CPU time and
{gpu_percent} of the GPU time that was measured.

Your jobs, with advice on what to request: {url}

Please contact us if we can help.
"""


class MailTemplate(NamedTuple):
    """The text and the address; each may contain `{user}` and other fields."""

    address: str
    subject: str
    body: str

    def link(self, fields: Mapping[str, str]) -> str:
        to, subject, body = (
            re.sub(r"{(\w+)}", lambda match: fields[match[1]], text) for text in self
        )
        lines = quote(body.replace("\n", "\r\n"), safe="")
        return f"mailto:{quote(to, safe='@')}?subject={quote(subject, safe='')}&body={lines}"


def load_mail_template(options: ReportOptions) -> MailTemplate | None:
    """None if no address is configured; raises SettingsError."""
    if not options.mail_address:
        return None
    text, path = _DEFAULT_TEXT, options.mail_file
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"report.mail-file: {path}: {error}") from error
    for name in re.findall(r"{(\w*)}", text + options.mail_address):
        if name not in MAIL_FIELDS:
            where = "report.mail-file" if f"{{{name}}}" in text else "report.mail-address"
            raise SettingsError(
                f"{where}: unknown field {{{name}}}; expected one of {', '.join(MAIL_FIELDS)}"
            )
    if "{user}" not in options.mail_address:
        raise SettingsError("report.mail-address: expected {user} in it, as in {user}@example.org")
    subject, _, body = text.partition("\n")
    return MailTemplate(options.mail_address, subject.strip(), body.strip("\n") + "\n")
