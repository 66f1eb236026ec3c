"""Whether the poller may see all jobs and accounts of Slurm.

Facts: slurmdbd.conf(5) and slurm.conf(5) PrivateData; sacctmgr(1) AdminLevel. Slurm does not refuse
a query for rows that the caller must not see: it omits them.
"""

import re

from batchjob.runtime.subprocesses import CommandOptions, SchedulerError, run

_SETTING = re.compile(r"(\w+)\s*=\s*(.*?)\s*")


def check_visibility(
    options: CommandOptions, sacctmgr: str, kinds: tuple[str, ...]
) -> tuple[str, ...]:
    """For `check()`: what to grant if PrivateData hides one of `kinds` ("jobs", "users" ...)."""
    try:
        output = run(options, [sacctmgr, "show", "configuration"]).stdout.decode("utf-8", "replace")
        settings = [
            match.groups() for line in output.splitlines() if (match := _parse_setting(line))
        ]
        private = {
            word.strip().lower()
            for name, value in settings
            if name == "PrivateData"
            for word in value.split(",")
        }
        hidden_kinds = sorted(private.intersection(kinds))
        if not hidden_kinds:
            return ()
        user = run(options, ["id", "-un"]).stdout.decode().strip()
        if user == "root" or any(
            name == "SlurmUserId" and value.startswith(f"{user}(") for name, value in settings
        ):
            return ()
        argv = [sacctmgr, "--noheader", "--parsable2", "show", "user", user, "format=Admin"]
        level = run(options, argv).stdout.decode("utf-8", "replace").strip()
    except SchedulerError as error:
        return (f"cannot determine whether all jobs are visible: {error}",)
    if level in ("Operator", "Administrator"):
        return ()
    return (
        f"PrivateData={','.join(hidden_kinds)} hides the jobs of other users from {user}: "
        f"grant access with `sacctmgr add user {user} account=root adminlevel=Operator` "
        f"(or `sacctmgr modify user {user} set adminlevel=Operator` if there is such a user)",
    )


def _parse_setting(line: str) -> re.Match[str] | None:
    return _SETTING.fullmatch(line.strip())
