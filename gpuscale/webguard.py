"""Who may ask the HTTP server, and how often: client certificates, users, rate, headers.

`/healthz` and `/readyz` are open to everyone who reaches the port: kubelet's probes carry neither
certificate nor password, and the answers say nothing but yes or no.
"""

import asyncio
import base64
import binascii
import hashlib
import secrets
from collections.abc import Awaitable, Callable

import bcrypt
from aiohttp import web

from gpuscale.clock import Clock
from gpuscale.webconfig import WebConfig

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
PASSWORD_BYTES_MAX = 72
"""bcrypt looks at no more; a longer password would be accepted for its beginning."""
REMEMBERED_MAX = 100
"""Passwords known to be right or wrong, so that a scrape does not cost a hash each time."""
CHECKS_WAITING_MAX = 16
"""Passwords in the line for hashing; more are a flood, and get a 503 at once."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard:
    """A middleware and a signal over the configuration of the moment."""

    def __init__(self, config: WebConfig, clock: Clock) -> None:
        self._clock = clock
        self._hashing = asyncio.Semaphore(1)
        """One at a time: hashing is meant to be slow, and the node's CPU belongs to others."""
        self._waiting = 0
        self._known: dict[bytes, bool] = {}
        self._salt = secrets.token_bytes(16)
        self._config = config
        self._tokens = float(config.rate_burst)
        self._filled_at = clock.monotonic()

    def adopt(self, config: WebConfig) -> None:
        """Go on with another configuration; what was known about passwords is forgotten."""
        self._config = config
        self._known.clear()
        self._tokens = min(self._tokens, float(config.rate_burst))

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse, or hand on."""
        refusal = None if request.path in OPEN_PATHS else await self._refusal(request)
        return await handler(request) if refusal is None else refusal

    async def add_headers(self, _: web.Request, response: web.StreamResponse) -> None:
        """A signal for when an answer's head is about to be sent, whoever made it."""
        response.headers.update(self._config.headers)

    async def _refusal(self, request: web.Request) -> web.Response | None:
        config = self._config
        if config.rate_interval_s and not self._take():
            return web.Response(status=429, text="too many requests\n")
        if config.client_required and (reason := _certificate_fault(request, config.allowed_sans)):
            return web.Response(status=403, text=reason + "\n")
        if config.users:
            return await self._authenticate(request.headers.get("Authorization", ""))
        return None

    def _take(self) -> bool:
        """One token of the bucket, which gains one per interval up to the burst."""
        now = self._clock.monotonic()
        gained = (now - self._filled_at) / self._config.rate_interval_s
        self._tokens = min(float(self._config.rate_burst), self._tokens + gained)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    async def _authenticate(self, header: str) -> web.Response | None:
        unauthorized = web.Response(
            status=401,
            text="give the name and password of a user in the web config\n",
            headers={"WWW-Authenticate": 'Basic realm="gpuscale", charset="UTF-8"'},
        )
        given = _credentials(header)
        if given is None:
            return unauthorized
        user, password = given
        # An unknown user costs as much as a wrong password, so that names cannot be found by time.
        hashed = self._config.users.get(user, next(iter(self._config.users.values())))
        digest = hashlib.sha256(self._salt + hashed + user.encode() + b"\0" + password).digest()
        right = self._known.get(digest)
        if right is None:
            if self._waiting >= CHECKS_WAITING_MAX:
                return web.Response(status=503, text="too many passwords are being checked\n")
            right = await self._check(password, hashed) and user in self._config.users
            if len(self._known) >= REMEMBERED_MAX:
                self._known.pop(next(iter(self._known)))
            self._known[digest] = right
        return None if right else unauthorized

    async def _check(self, password: bytes, hashed: bytes) -> bool:
        self._waiting += 1
        try:
            async with self._hashing:
                return await asyncio.to_thread(bcrypt.checkpw, password, hashed)
        finally:
            self._waiting -= 1


def _credentials(header: str) -> tuple[str, bytes] | None:
    """(user, password) of a Basic authorization header (RFC 7617); None for anything else."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        name = user.decode()
    except (binascii.Error, ValueError):
        return None
    if not colon or len(password) > PASSWORD_BYTES_MAX or b"\0" in password:
        return None
    return name, password


def _certificate_fault(request: web.Request, allowed: tuple[str, ...]) -> str | None:
    """Why the client's certificate does not do; None where it does. That it verifies, TLS has seen to."""
    certificate = request.get_extra_info("peercert")
    if not certificate:
        return "a client certificate is required"
    names = {str(value) for _, value in certificate.get("subjectAltName", ())}
    if allowed and names.isdisjoint(allowed):
        return "the client certificate carries none of the allowed subject alternative names"
    return None
