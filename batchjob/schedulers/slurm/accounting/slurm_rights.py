"""Whether Slurm lets the poller see everybody's jobs and accounts.

Facts: slurmdbd.conf(5) and slurm.conf(5) PrivateData; sacctmgr(1) AdminLevel. Slurm does not refuse
a query for rows that the caller must not see: it omits them.
"""

import re

from batchjob.runtime.subprocesses import CommandOptions, SchedulerError, run

_SETTING = re.compile(r"(\w+)\s*=\s*(.*?)\s*")


def hidden(options: CommandOptions, sacctmgr: str, things: tuple[str, ...]) -> tuple[str, ...]:
    """A line if PrivateData hides any of `things` ("jobs", "users" ...) from us, else nothing."""
    try:
        shown = run(options, [sacctmgr, "show", "configuration"]).stdout.decode("utf-8", "replace")
        settings = [match.groups() for line in shown.splitlines() if (match := _match(line))]
        private = {
            word.strip().lower()
            for name, value in settings
            if name == "PrivateData"
            for word in value.split(",")
        }
        kept = sorted(private.intersection(things))
        if not kept:
            return ()
        me = run(options, ["id", "-un"]).stdout.decode().strip()
        if me == "root" or any(
            name == "SlurmUserId" and value.startswith(f"{me}(") for name, value in settings
        ):
            return ()
        argv = [sacctmgr, "--noheader", "--parsable2", "show", "user", me, "format=Admin"]
        level = run(options, argv).stdout.decode("utf-8", "replace").strip()
    except SchedulerError as error:
        return (f"cannot determine whether all jobs are visible: {error}",)
    if level in ("Operator", "Administrator"):
        return ()
    return (
        f"PrivateData={','.join(kept)} hides the jobs of other users from {me}: grant access "
        f"with `sacctmgr add user {me} account=root adminlevel=Operator` "
        f"(or `sacctmgr modify user {me} set adminlevel=Operator` if there is such a user)",
    )


def _match(line: str) -> re.Match[str] | None:
    return _SETTING.fullmatch(line.strip())
