"""Sessions of the dashboard, so that a browser does not store the admin token."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

SESSION_HEADER = "x-kvproxy-session"
SESSION_SECONDS = 12 * 3600
# A stolen cookie allows guesses of the token, so a guess must be slow.
_SCRYPT_COST = 2**14


@dataclass(frozen=True, slots=True)
class AdminSession:
    """A session has two halves, and a request needs both.

    Attributes:
        cookie: value of a cookie that no script can read. Browsers send it to every port of the host.
        proof: value of the header `x-kvproxy-session`, known to the page only. Another page cannot send it.
    """

    cookie: str
    proof: str


class AdminSessions:
    """Issues and checks sessions for one admin token.

    Both halves are signed with a key derived from the token. Processes with one token accept each other's sessions, and a
    changed token ends all sessions.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.time) -> None:
        self._token = token
        self._clock = clock

    @cached_property
    def _key(self) -> bytes:
        salt = b"kvproxy session of the dashboard"
        return hashlib.scrypt(self._token.encode(), salt=salt, n=_SCRYPT_COST, r=8, p=1, dklen=32)

    @cached_property
    def cookie_name(self) -> str:
        """A name per token, because servers on one host share their cookies."""
        return f"kvproxy-{self._sign('name')[:12]}"

    def begin(self, cookies: Mapping[str, str]) -> AdminSession:
        """Return a new session, or extend the session of the cookies, so that other tabs keep it."""
        session_id = self._find_id(cookies) or secrets.token_hex(16)
        signed = f"{session_id}.{int(self._clock()) + SESSION_SECONDS}"
        return AdminSession(f"{signed}.{self._sign(f'cookie {signed}')}", self._sign(f"proof {session_id}"))

    def is_valid(self, cookies: Mapping[str, str], proof: str) -> bool:
        session_id = self._find_id(cookies)
        return session_id is not None and _are_equal(proof, self._sign(f"proof {session_id}"))

    def _find_id(self, cookies: Mapping[str, str]) -> str | None:
        signed, _, signature = cookies.get(self.cookie_name, "").rpartition(".")
        if not _are_equal(signature, self._sign(f"cookie {signed}")):
            return None
        session_id, _, expires = signed.partition(".")
        return session_id if self._clock() < int(expires) else None

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


def _are_equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
