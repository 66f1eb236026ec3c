"""Slurm's accounts, members, coordinators and administrators, from sacctmgr or slurmrestd.

Facts: sacctmgr(1); `users` and `associations` of /slurmdb/<version>/, which sacctmgr of 23.02 and
newer also prints with --json. A coordinator of an account is also one of its sub-accounts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import CommandOptions, run
from batchjob.runtime.values import one_of
from batchjob.schedulers.accounting import AccountingModule, SourceError
from batchjob.schedulers.fields import quarantined_row, sanitize_text
from batchjob.schedulers.records import (
    Account,
    Administrator,
    Association,
    Associations,
    QuarantinedRow,
    Role,
)
from batchjob.schedulers.slurm.accounting.site_accounting import check_visibility
from batchjob.schedulers.slurm.json_format import raise_for_errors, rows, state_words
from batchjob.schedulers.slurm.slurmrestd import RestOptions, Slurmrestd

_SOURCE = "sacctmgr"

_DELIMITER = "|"  # sacctmgr accepts no other; account and user names must not contain it
_LIMITS = (
    "GrpTRES", "GrpJobs", "GrpSubmit", "GrpWall", "MaxTRES", "MaxJobs", "MaxSubmit", "MaxWall"
)  # fmt: skip
_ASSOCIATIONS = ("Cluster", "Account", "User", "ParentName", *_LIMITS)
_USERS = ("User", "DefaultAccount", "Admin", "Coordinators")
_LEVELS = {"Operator": "operator", "Administrator": "administrator"}


@dataclass(frozen=True)
class SacctmgrOptions(RestOptions, CommandOptions):
    by: str = option("command", "How to query Slurm.", parse=one_of("command", "rest"))
    sacctmgr: str = option("sacctmgr", "The command sacctmgr, or its path.")
    slurm_cluster: str = option(
        "", "Name of the cluster in slurmdbd, if it differs from the name here."
    )


class Sacctmgr:
    name = _SOURCE

    def __init__(self, cluster: str, options: SacctmgrOptions) -> None:
        self.cluster = cluster
        self._options = options
        self._server = Slurmrestd(options) if options.by == "rest" else None

    def check(self) -> tuple[str, ...]:
        if self._server is not None:
            return ()
        return check_visibility(self._options, self._options.sacctmgr, ("users", "accounts", "all"))

    def read(self) -> Associations:
        associations = self._by_command() if self._server is None else self._by_rest(self._server)
        if not associations.associations:
            raise SourceError(
                f"sacctmgr: no users with an account on cluster {self._slurm_name()!r}; "
                "check the name (slurm-cluster) and that all users are visible"
            )
        return associations

    def _slurm_name(self) -> str:
        return self._options.slurm_cluster or self.cluster

    def _by_command(self) -> Associations:
        quarantine: list[QuarantinedRow] = []
        arguments = ["associations", f"cluster={self._slurm_name()}"]
        associations = self._query_rows(arguments, _ASSOCIATIONS, quarantine)
        users = self._query_rows(["users", "withcoord"], _USERS, quarantine)
        return self._associations(
            [
                (row["Account"], row["User"], row["ParentName"], _limits(row))
                for row in associations
            ],
            [
                (row["User"], row["DefaultAccount"], row["Admin"], row["Coordinators"].split(","))
                for row in users
            ],
            quarantine,
        )

    def _query_rows(
        self, arguments: list[str], fields: tuple[str, ...], quarantine: list[QuarantinedRow]
    ) -> list[dict[str, str]]:
        argv = [self._options.sacctmgr, "--noheader", "--parsable2", "--readonly", "show"]
        argv += [*arguments, f"format={','.join(fields)}"]
        output = run(self._options, argv).decode("utf-8", "backslashreplace")
        found = []
        for line in output.splitlines():
            cells = line.split(_DELIMITER)
            if len(cells) == len(fields):
                found.append(dict(zip(fields, map(sanitize_text, cells), strict=True)))
            elif line.strip():
                reason = f"expected {len(fields)} columns, got {len(cells)}"
                quarantine.append(quarantined_row(_SOURCE, reason, line))
        return found

    def _by_rest(self, server: Slurmrestd) -> Associations:
        query = {"with_assocs": "true", "with_coords": "true"}
        # v0.0.38 and older refuse unknown query parameters and always answer in full.
        has_flags = int(server.version().rpartition(".")[2]) >= 39
        users = server.get("slurmdb", "users", query if has_flags else None)
        associations = server.get("slurmdb", "associations")
        raise_for_errors(users)
        raise_for_errors(associations)
        name = self._slurm_name()
        return self._associations(
            [
                (_text(row, "account"), _text(row, "user"), _text(row, "parent_account"), "")
                for row in rows(associations, "associations")
                if row.get("cluster") == name
            ],
            list(map(_parse_user, rows(users, "users"))),
            [],
        )

    def _associations(
        self,
        associations: Iterable[tuple[str, str, str, str]],
        users: list[tuple[str, str, str, list[str]]],
        quarantine: list[QuarantinedRow],
    ) -> Associations:
        """From (account, user, parent, limits) and (user, default account, level, coordinated)."""
        default_accounts = {user: account for user, account, _, _ in users}
        associations = list(associations)
        accounts = {
            account: Account(self.cluster, account, parent, limits)
            for account, user, parent, limits in associations
            if not user
        }
        parents = {account: each.parent for account, each in accounts.items()}
        members = {(account, user) for account, user, _, _ in associations if user}
        coordinators = {
            (account, user)
            for user, _, _, coordinated in users
            for account in _coordinated_accounts(coordinated, parents)
        }
        found = [
            Association(self.cluster, account, user, role, default_accounts.get(user) == account)
            for role, pairs in ((Role.MEMBER, members), (Role.COORDINATOR, coordinators))
            for account, user in sorted(pairs)
        ]
        return Associations(
            tuple(found),
            tuple(Administrator(u, _LEVELS[level]) for u, _, level, _ in users if level in _LEVELS),
            tuple(accounts[account] for account in sorted(accounts)),
            tuple(quarantine),
        )


def _coordinated_accounts(coordinated: Iterable[str], parents: dict[str, str]) -> Iterator[str]:
    """The cluster's accounts that are coordinated, or have an ancestor that is."""
    coordinated_accounts = set(coordinated)
    for account in parents:
        seen: set[str] = set()
        ancestor = account
        while ancestor and ancestor not in seen:
            if ancestor in coordinated_accounts:
                yield account
                break
            seen.add(ancestor)
            ancestor = parents.get(ancestor, "")


def _parse_user(row: dict[str, Any]) -> tuple[str, str, str, list[str]]:
    default = row.get("default")
    coordinators = row.get("coordinators")
    return (
        _text(row, "name"),
        _text(default, "account") if isinstance(default, dict) else "",
        next(iter(state_words(row.get("administrator_level"))), ""),
        [_text(each, "name") for each in coordinators or () if isinstance(each, dict)],
    )


def _limits(row: dict[str, str]) -> str:
    """The limits that are set, of the account itself; some versions write -1 for none."""
    return " ".join(f"{name}={row[name]}" for name in _LIMITS if row[name] not in ("", "-1"))


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return sanitize_text(value) if isinstance(value, str) else ""


ACCOUNTING = AccountingModule(SacctmgrOptions, Sacctmgr)
