"""The rights of a person by name, or of a token: at most its maker's current rights.

At the end, the audit log: who looked at whose jobs, and who made and revoked tokens for others.
"""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from batchjob_stats_db.database.access import Access, ClusterLogin
from batchjob_stats_db.database.tokens import Maker, Token, TokenRole
from batchjob_stats_server.options import AuthOptions

MAX_TOKEN_CHAIN = 8
"""Maximum number of tokens, each created with the one before; looking them up must stay cheap."""

Via = Literal["token", "header", "certificate", "cookie", "process", "session"]


class Principal(NamedTuple):
    """A person, their rights, and how they were identified."""

    user: str
    role: TokenRole
    via: Via
    clusters: tuple[str, ...] = ()  # clusters on which the login is theirs; empty: all
    expiry_time: int | None = None
    token_id: int | None = None
    token_ancestors: int = 0  # number of tokens from which its token descends
    token_creator: str = ""  # who created the token, if that is another user
    certificate: str = ""  # theirs, or of the maker of the token
    person: tuple[str, tuple[str, ...]] | None = None  # set if a token is limited to some clusters
    process: str = ""  # the server process whose own token identified them

    @property
    def is_browser(self) -> bool:
        """Whether a cookie identified them: it reads, and changes what a page has a form for."""
        return self.via in ("cookie", "session")

    def person_key(self) -> tuple[str, tuple[str, ...]]:
        """The person: a name, and the clusters on which it is theirs.

        A person's tokens for different clusters share the limits of that person.
        """
        return self.person or (self.user, self.clusters)

    def as_maker(self) -> Maker:
        if self.process:
            return Maker(self.user, "process", self.process)
        if self.token_id is not None:
            return Maker(self.user, parent_id=self.token_id)
        return Maker(self.user, self.via, self.certificate)


class ProcessToken(NamedTuple):
    """A token that is not in the database: it is valid until the process ends."""

    text: str
    user: str
    role: TokenRole

    @property
    def process(self) -> str:
        """A name of the process, from which nobody can tell the token."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]


class CredentialError(Exception):
    """Nobody is identified, such as by a token that has lost its rights; the text says why."""

    def __init__(self, text: str, reason: str = "certificate", status: int = 401) -> None:
        """`reason`: a word by which the metrics count it."""
        super().__init__(text)
        self.reason = reason
        self.status = status


def configured_role(auth: AuthOptions, user: str, groups: frozenset[str]) -> TokenRole:
    """The role that the configuration assigns to a name, or to one of its groups."""
    if user in auth.admin or groups & set(auth.admin_group):
        return TokenRole.ADMIN
    viewer = user in auth.viewer or groups & set(auth.viewer_group)
    return TokenRole.VIEWER if viewer else TokenRole.USER


def principal_of_token(chain: Sequence[Token], maker: Principal | None) -> Principal:
    """The owner of a token, and its present rights; raises CredentialError.

    `chain`: the token, the one with which it was made, and so on. `maker`: the maker of the first
    one, with their present rights; None for the server itself.
    """
    principal = maker
    person = None if maker is None else maker.person_key()
    for token in reversed(chain):
        principal = _limit_to_maker(token, principal)
        if person is None or person[0] != token.username:
            person = principal.person_key()
    assert principal is not None
    first, last = chain[-1], chain[0]
    creator = first.maker or first.username
    return principal._replace(
        expiry_time=last.expiry_time,
        token_id=last.id,
        token_ancestors=len(chain) - 1,
        token_creator="" if creator == last.username else creator,
        certificate=first.maker_certificate if first.maker_via == "certificate" else "",
        person=person,
    )


def _limit_to_maker(token: Token, maker: Principal | None) -> Principal:
    clusters: tuple[str, ...] = (token.cluster,) if token.cluster else ()
    if maker is None:
        return Principal(token.username, token.role, "token", clusters)
    if token.username != maker.user and maker.role is not TokenRole.ADMIN:
        raise CredentialError(
            f"{maker.user}, who created the token, can no longer create tokens for others"
        )
    if maker.clusters:
        clusters = tuple(each for each in clusters or maker.clusters if each in maker.clusters)
        if not clusters:
            raise CredentialError(
                f"{maker.user}, who created the token, has no rights there any longer"
            )
    return Principal(token.username, token.role.at_most(maker.role), "token", clusters)


def script_access(principal: Principal, access: Access) -> Access:
    """The visible jobs whose batch scripts a person may read.

    Their own; an admin also those of the admin's clusters. Scripts may contain secrets such as
    passwords, so viewers and account coordinators see the jobs without them.
    """
    if principal.role is TokenRole.ADMIN:
        return access
    logins = tuple(ClusterLogin(cluster, principal.user) for cluster in principal.clusters or ("",))
    return Access(users=access.users or logins)


audit_log = logging.getLogger("batchjob.audit")

_MAX_USERS_NAMED = 20
_MAX_WORD = 200  # characters of what a caller writes
_NOT_ASKED = ("fields", "format", "limit", "token")  # a token is a secret, here in a wrong place


def log_jobs_seen(principal: Principal, what: str, rows: Iterable[Mapping[Any, Any]]) -> None:
    """Record whose jobs are in an answer to `principal`; own jobs are not recorded.

    For a token made by another user, no jobs count as the user's own.
    """
    users = {row["username"] for row in rows}
    others = sorted(users if principal.token_creator else users - {principal.user})
    if others:
        more = len(others) - _MAX_USERS_NAMED
        names = ", ".join(others[:_MAX_USERS_NAMED]) + (f" and {more} others" if more > 0 else "")
        log_action(principal, f"saw {what} of {names}")


def log_question(
    principal: Principal, access: Access, path: str, parameters: Iterable[tuple[str, str]]
) -> None:
    """Record, before the answer, a question whose answer may be about others.

    It may name nobody, as sums do, or be empty or an error, and was asked nevertheless.
    """
    given = [pair for pair in parameters if pair[0] not in _NOT_ASKED]
    sees_others = access.everything or access.clusters or access.accounts
    is_own = ("user", principal.user) in given or not sees_others
    if principal.token_creator or not is_own:
        words = [f"{_shown(name)}={value[:_MAX_WORD]!r}" for name, value in given]
        log_action(principal, " ".join((f"asked for {path[:_MAX_WORD]!r}:", *words)).rstrip(":"))


def _shown(name: str) -> str:
    """The name of a parameter, on one line and without blanks: it may be no name that we know."""
    return name if name.isidentifier() and len(name) <= _MAX_WORD else repr(name[:_MAX_WORD])


def log_action(principal: Principal, what: str) -> None:
    """Record an action, under the name of the person behind it."""
    creator = principal.token_creator
    who = f"{creator} as {principal.user}" if creator else principal.user
    audit_log.info("%s (%s) %s", who, principal.role, what)
