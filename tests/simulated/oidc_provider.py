"""An OpenID provider on loopback: discovery, code flow with PKCE, keys that change, log-out.

It logs in the user of `user_claims` without a form. `claims` override those of the ID token, so
that tests can make it issue invalid tokens.
"""

import base64
import contextlib
import hashlib
import json
import secrets
import time
from urllib.parse import urlencode

from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.helpers import http_server
from tests.helpers.http_server import Response

LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"


class OidcProvider:
    """One client; `now` is the time of its tokens."""

    def __init__(self, client_id, secret, now=time.time):
        self.client_id, self.secret, self.now = client_id, secret, now
        self.user_claims = {
            "sub": "248289761001",
            "preferred_username": "alice",
            "groups": ["staff"],
        }
        self.userinfo_only = ()  # claims that are in userinfo, but not in the ID token
        self.claims = {}
        self.redirect_uris = set()
        self.requested_paths = []  # in order
        self.codes, self.tokens = {}, {}
        self.server = None
        self.renew_key()

    @property
    def issuer(self):
        return self.server.url

    def renew_key(self):
        """Sign with a new key, and publish that one alone."""
        self.key = RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "use": "sig"})

    def signed(self, claims, key=None):
        key = key or self.key
        return jwt.encode({"alg": "RS256", "kid": key.kid or self.key.kid}, claims, key)

    def id_token(self, nonce, access=""):
        """`access`: the access token, whose hash is a claim (OpenID Connect Core 1.0, 3.1.3.6)."""
        now = int(self.now())
        token_claims = {
            name: each for name, each in self.user_claims.items() if name not in self.userinfo_only
        }
        claims = {
            "iss": self.issuer, "aud": self.client_id, "iat": now, "exp": now + 300,
            "nonce": nonce, "sid": "session-1", "at_hash": _half_hash(access),
            **token_claims, **self.claims,
        }  # fmt: skip
        return self.signed({name: each for name, each in claims.items() if each is not None})

    def logout_token(self, **claims):
        all_claims = {
            "iss": self.issuer, "aud": self.client_id, "iat": int(self.now()), "jti": "1",
            "events": {LOGOUT_EVENT: {}}, "sid": "session-1", **claims,
        }  # fmt: skip
        return self.signed({name: each for name, each in all_claims.items() if each is not None})

    def authorize(self, query):
        """The URL to which the browser is redirected."""
        assert query["client_id"] == self.client_id
        assert query["redirect_uri"] in self.redirect_uris
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        answer = {"code": code, "state": query["state"], "iss": self.issuer}
        return f"{query['redirect_uri']}?{urlencode(answer)}"

    def token(self, form, authorization):
        """(status, answer) of the token endpoint."""
        expected = base64.b64encode(f"{self.client_id}:{self.secret}".encode()).decode()
        if authorization != f"Basic {expected}":
            return 401, {"error": "invalid_client"}
        request = self.codes.pop(form.get("code"), None)  # valid once
        if (
            request is None
            or form.get("redirect_uri") != request["redirect_uri"]
            or create_s256_code_challenge(form.get("code_verifier", ""))
            != request["code_challenge"]
        ):
            return 400, {"error": "invalid_grant"}
        access = secrets.token_urlsafe(16)
        self.tokens[access] = self.user_claims
        return 200, {
            "access_token": access, "token_type": "Bearer", "expires_in": 300,
            "id_token": self.id_token(request.get("nonce"), access),
        }  # fmt: skip

    def resource(self, path, authorization):
        """(status, answer) of requests without a browser."""
        userinfo = self.tokens.get(authorization.removeprefix("Bearer "))
        documents = {
            "/.well-known/openid-configuration": self.discovery_document(),
            "/keys": {"keys": [self.key.as_dict(private=False)]},
            "/userinfo": userinfo,
        }
        found = documents.get(path)
        return (200, found) if found else (404, {})

    def discovery_document(self):
        return {
            "issuer": self.issuer,
            **{
                name: f"{self.issuer}/{path}"
                for name, path in (
                    ("authorization_endpoint", "authorize"), ("token_endpoint", "token"),
                    ("jwks_uri", "keys"), ("userinfo_endpoint", "userinfo"),
                    ("end_session_endpoint", "log-out"),
                )
            },
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }  # fmt: skip


def _half_hash(text):
    half = hashlib.sha256(text.encode()).digest()[:16]
    return base64.urlsafe_b64encode(half).decode().rstrip("=")


@contextlib.contextmanager
def serving(provider):
    """Answer on a free port of loopback."""

    def answer(request):
        provider.requested_paths.append(request.path)
        form = {name: values[0] for name, values in request.form.items()}
        if request.method == "POST":
            return _document(*provider.token(form, request.headers.get("Authorization")))
        if request.path == "/authorize":
            return _redirect(provider.authorize(form))
        if request.path == "/log-out":
            assert form["client_id"] == provider.client_id
            return _redirect(form["post_logout_redirect_uri"])
        authorization = request.headers.get("Authorization", "")
        return _document(*provider.resource(request.path, authorization))

    with http_server.serving(answer) as provider.server:
        yield provider


def _redirect(address):
    return Response(b"", 303, (("Location", address),))


def _document(status, document):
    headers = (("Content-Type", "application/json"),)
    return Response(json.dumps(document).encode(), status, headers)
