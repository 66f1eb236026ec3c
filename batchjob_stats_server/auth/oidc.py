"""Log-in through the site's OpenID provider: code flow with PKCE (OpenID Connect Core 1.0).

Addresses and keys come from the provider's configuration (Discovery 1.0). Its keys are read again
when a token is signed with an unknown one, so that a provider may renew them at any time.
"""

import base64
import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from authlib.common.errors import AuthlibBaseError
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from batchjob.runtime.http_client import FetchError, HttpReply, fetch, tls_context
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.values import LOOPBACK
from batchjob_stats_db.database.sessions import ProviderSession
from batchjob_stats_server.options import OidcOptions

CALLBACK_PATH = "/oidc/callback"

_TIMEOUT_SECONDS = 10.0
_METADATA_CACHE_SECONDS = 3600.0
_KEYS_REFETCH_SECONDS = 10.0  # minimum interval between two fetches because of an unknown key
_LEEWAY_SECONDS = 60
_LONGEST_TOKEN_SECONDS = 600  # maximum age of a logout token
_ALGORITHMS = [f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)] + [
    "EdDSA"
]
_LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"


class OidcError(Exception):
    """A log-in failed; the text is for the user and for the log."""


class ProviderUnreachableError(OidcError):
    """The provider does not answer, or not as OpenID Connect requires."""


class PendingLogin(NamedTuple):
    """What the browser stores while the user is at the provider, and sends when it returns."""

    state: str
    nonce: str
    verifier: str
    next: str

    def encode(self) -> str:
        """As the value of a cookie."""
        return base64.urlsafe_b64encode(json.dumps(self).encode()).decode()


def parse_pending_login(text: str) -> PendingLogin:
    """Parse the value of a cookie; raises OidcError."""
    try:
        values = parse_json(base64.urlsafe_b64decode(text.encode()))
        state, nonce, verifier, next_path = map(str, values)
        "".join((state, nonce, verifier, next_path)).encode()  # no lone surrogates
    except (ValueError, TypeError, RecursionError) as error:
        raise OidcError("this log-in was not started in this browser, or it has expired") from error
    return PendingLogin(state, nonce, verifier, next_path)


Person = tuple[str, frozenset[str], ProviderSession]
"""Who logged in, according to the provider: the user, their groups, and the session there."""


class OidcProvider:
    """The provider that the options name. Methods may wait for it, for a few seconds at most."""

    def __init__(
        self,
        options: OidcOptions,
        secret: str,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = options.name
        self._options = options
        self._secret = secret
        self._now = now
        self._monotonic = monotonic
        self._metadata: tuple[float, Mapping[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None

    @property
    def _redirect_uri(self) -> str:
        return f"{self._options.server_url}{CALLBACK_PATH}"

    def begin(self, next_path: str) -> tuple[str, PendingLogin]:
        """Where to redirect the browser, and what it has to bring back."""
        state, nonce, verifier = map(secrets.token_urlsafe, (24, 24, 48))
        pending_login = PendingLogin(state, nonce, verifier, next_path)
        digest = hashlib.sha256(pending_login.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._options.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(self._options.scope),
            "state": pending_login.state,
            "nonce": pending_login.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        endpoint = self._endpoint("authorization_endpoint")
        separator = "&" if urlsplit(endpoint).query else "?"
        return f"{endpoint}{separator}{urlencode(query)}", pending_login

    def finish(self, pending_login: PendingLogin, answer: Mapping[str, str]) -> Person:
        """The person who came back, by the parameters of the callback; raises OidcError."""
        if not secrets.compare_digest(
            answer.get("state", "").encode(), pending_login.state.encode()
        ):
            raise OidcError("this log-in was not started in this browser")
        issuer = answer.get("iss")  # RFC 9207: the provider that answered
        if issuer is not None and issuer != self._options.issuer:
            raise OidcError("the response is from another provider")
        if "error" in answer:
            raise OidcError(
                f"the provider refused: {answer.get('error_description') or answer['error']}"
            )
        if "code" not in answer:
            raise OidcError("the provider sent no authorization code")
        tokens = self._fetch_tokens(answer["code"], pending_login.verifier)
        claims = self._verify_id_token(tokens, pending_login.nonce)
        return self._read_person(str(tokens.get("access_token", "")), claims)

    def logout_url(self) -> str:
        """Where to end the session at the provider (RP-Initiated Logout 1.0); "" if nowhere."""
        try:
            endpoint = self._endpoint("end_session_endpoint")
        except ProviderUnreachableError:  # our own sessions end anyway
            return ""
        after = f"{self._options.server_url}/signed-out"
        query = {"client_id": self._options.client_id, "post_logout_redirect_uri": after}
        return f"{endpoint}?{urlencode(query)}"

    def verify_logout_token(self, token: str) -> ProviderSession:
        """The session that a log-out token ends (Back-Channel Logout 1.0, 2.6).

        Raises OidcError.
        """
        claims = self._decode(token).claims
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        issued = claims.get("iat")
        is_fresh = (
            isinstance(issued, int | float) and abs(self._now() - issued) < _LONGEST_TOKEN_SECONDS
        )
        events = claims.get("events")
        session = str(claims.get("sub") or ""), str(claims.get("sid") or "")
        if not (
            claims.get("iss") == self._options.issuer
            and self._options.client_id in audiences
            and is_fresh
            and isinstance(events, dict)
            and _LOGOUT_EVENT in events
            and "nonce" not in claims
            and any(session)
        ):
            raise OidcError("expected a log-out token of the provider")
        return session

    def _fetch_tokens(self, code: str, verifier: str) -> Mapping[str, Any]:
        """Exchange the code for tokens (RFC 6749, section 4.1.3)."""
        options = self._options
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": verifier,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if self._secret:
            both = f"{options.client_id}:{self._secret}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(both).decode()}"
        else:
            form["client_id"] = options.client_id
        endpoint = self._endpoint("token_endpoint")
        reply = self._fetch(endpoint, headers, "POST", urlencode(form).encode())
        if reply.status < 500:
            with contextlib.suppress(FetchError):
                document = reply.json()
                if isinstance(document, dict) and (kind := document.get("error")):
                    text = document.get("error_description", "")
                    raise OidcError(f"the provider refused the code: {kind}: {text}")
        return _parse_json(reply)

    def _verify_id_token(self, token_response: Mapping[str, Any], nonce: str) -> Mapping[str, Any]:
        decoded = self._decode(str(token_response.get("id_token", "")))
        options = {
            "iss": {"essential": True, "value": self._options.issuer},
            "aud": {"essential": True, "value": self._options.client_id},
            "nonce": {"essential": True, "value": nonce},
        }
        params = {
            "client_id": self._options.client_id,
            "nonce": nonce,
            "access_token": token_response.get("access_token"),
        }
        claims = CodeIDToken(decoded.claims, decoded.header, options, params)
        try:
            claims.validate(now=int(self._now()), leeway=_LEEWAY_SECONDS)
        except (AuthlibBaseError, JoseError, ValueError, TypeError) as error:
            raise OidcError(f"invalid ID token from the provider: {error}") from error
        return decoded.claims

    def _read_person(self, access_token: str, claims: Mapping[str, Any]) -> Person:
        claim_names = (self._options.user_claim, self._options.groups_claim)
        missing = any(name not in claims for name in claim_names)
        if missing and self._provider_metadata().get("userinfo_endpoint"):
            endpoint = self._endpoint("userinfo_endpoint")
            more = _parse_json(self._fetch(endpoint, {"Authorization": f"Bearer {access_token}"}))
            if more.get("sub") != claims["sub"]:
                raise OidcError("the provider's answer is about another user")
            claims = {**more, **claims}
        user, groups = (claims.get(name) for name in claim_names)
        if not isinstance(user, str) or not user:
            raise OidcError(f"the provider sent no {self._options.user_claim}")
        named = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
        session = str(claims["sub"]), str(claims.get("sid") or "")
        return user, frozenset(each for each in named if isinstance(each, str)), session

    def _decode(self, text: str) -> jwt.Token:
        """Decode a signed token; the keys are read again if none of them matches."""
        metadata = self._provider_metadata()
        supported = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        algorithms = [each for each in _ALGORITHMS if each in supported]
        errors = (JoseError, ValueError, KeyError, TypeError)
        with contextlib.suppress(*errors):
            return jwt.decode(text, self._key_set(refetch=False), algorithms=algorithms)
        try:
            return jwt.decode(text, self._key_set(refetch=True), algorithms=algorithms)
        except errors as error:
            raise OidcError(f"invalid signature from the provider: {error}") from error

    def _key_set(self, refetch: bool) -> KeySet:
        cached, now = self._keys, self._monotonic()
        if cached and (not refetch or now - cached[0] < _KEYS_REFETCH_SECONDS):
            return cached[1]
        answer = _parse_json(self._fetch(self._endpoint("jwks_uri")))
        try:
            # Its content is the provider's: anything but a key set raises one of these errors.
            keys = KeySet.import_key_set(answer)  # type: ignore[arg-type]
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise ProviderUnreachableError(
                f"the provider's keys cannot be read: {error}"
            ) from error
        self._keys = now, keys
        return keys

    def _provider_metadata(self) -> Mapping[str, Any]:
        cached, now = self._metadata, self._monotonic()
        if cached and now - cached[0] < _METADATA_CACHE_SECONDS:
            return cached[1]
        issuer = self._options.issuer
        metadata = _parse_json(self._fetch(f"{issuer}/.well-known/openid-configuration"))
        if metadata.get("issuer") != issuer:
            raise ProviderUnreachableError(
                f"oidc.issuer: {issuer} reports the issuer {metadata.get('issuer')!r}"
            )
        self._metadata = now, metadata
        return metadata

    def _endpoint(self, name: str) -> str:
        url = str(self._provider_metadata().get(name, ""))
        parts = urlsplit(url)
        if parts.scheme != "https" and parts.hostname not in LOOPBACK:
            raise ProviderUnreachableError(f"the provider's {name} is not an https URL: {url!r}")
        return url

    def _fetch(
        self, url: str, headers: Mapping[str, str] | None = None, method: str = "GET",
        body: bytes | None = None,
    ) -> HttpReply:  # fmt: skip
        """A reply of the provider, which may be outside the site, so that a proxy is needed."""
        try:
            return fetch(
                url, method=method, headers={"Accept": "application/json", **(headers or {})},
                body=body, seconds=_TIMEOUT_SECONDS, proxies=True,
                tls=tls_context(self._options.ca_file) if self._options.ca_file else None,
            )  # fmt: skip
        except (FetchError, OSError, ValueError) as error:
            raise ProviderUnreachableError(f"no answer from the provider: {error}") from error


def _parse_json(reply: HttpReply) -> dict[str, Any]:
    try:
        document = reply.json()
    except FetchError as error:
        raise ProviderUnreachableError(f"the provider's answer cannot be read: {error}") from error
    if reply.status != HTTPStatus.OK:
        raise ProviderUnreachableError(f"the provider answers {reply.status}")
    if not isinstance(document, dict):
        raise ProviderUnreachableError("the provider's answer is not a JSON object")
    return document
