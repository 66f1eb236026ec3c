"""What of a cluster is asked, and how: the options of the collector."""

from dataclasses import dataclass
from typing import Any

from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import CommandOptions
from batchjob.runtime.values import duration, one_of, text
from batchjob.secret_files import secret_file
from collectors.cluster.metrics import PARTS

SCHEDULERS = {
    "slurm": ("collectors.cluster.slurm", "scontrol"),
    "pbs": ("collectors.cluster.pbs", "pbsnodes"),
    "lsf": ("collectors.cluster.lsf", "bhosts"),
}
"""Name -> the module that asks it, and the command that shows it can be asked from this host.

Imported when it is needed: HTTP and TLS are megabytes that compute nodes do without.
"""


def _url(value: Any) -> str:
    if value == "":
        return ""
    from batchjob.schedulers.slurm.slurmrestd import server

    return server(value)


@dataclass(frozen=True)
class ClusterOptions(CommandOptions):
    """Which scheduler is asked, and how."""

    timeout: float = option(20.0, "Longest wait for one answer.", parse=duration)
    scheduler: str = option(
        "auto",
        "The scheduler; auto takes the one whose commands are here.",
        parse=one_of("auto", *SCHEDULERS),
    )
    interval: float = option(30.0, "Time between two readings of a part.", parse=duration)
    without: tuple[str, ...] = option(
        (),
        "Part to leave out, where others serve it already: " + ", ".join(PARTS) + "; may be"
        " repeated.",
        parse=one_of(*PARTS),
        repeat=True,
    )
    users: bool = option(False, "Show jobs and CPUs of each user too, not of accounts alone.")
    native: bool = option(
        True,
        "Show what Slurm 25.11 and later show themselves, at their own /metrics, too.",
    )
    pbsfs: str = option(
        "",
        "Command that prints PBS' fair share as `pbsfs` does, which only root may call; without"
        " one PBS shows none.",
        parse=text,
    )
    slurmrestd_url: str = option(
        "",
        "Ask Slurm here instead of by its commands: http://host:port, https://host:port or "
        "unix:/path.",
        parse=_url,
    )
    slurmrestd_user: str = option("", "User whom the token belongs to.", parse=text)
    slurmrestd_token_file: str = option(
        "",
        "File with the JSON Web Token (`scontrol token`); read for each request.",
        parse=secret_file,
    )
    slurmrestd_ca_file: str = option(
        "", "File with the certificates to trust, for https.", parse=text
    )
