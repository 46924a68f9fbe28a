"""Keeps web pages of upstreams from acting with the proxy's origin, which is the origin of the dashboard."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

RawHeaders = list[tuple[bytes, bytes]]

CLEAR_STORAGE = {"clear-site-data": '"storage"'}
"""Makes a browser remove the origin's workers, and its storage."""
_WORKERS = ("serviceworker", "sharedworker", "worker", "audioworklet", "paintworklet")
_DOCUMENTS = ("document", "iframe", "frame", "fencedframe", "object", "embed")
# These apply to the whole origin, not to one response. A device-bound session would let the upstream delay each of its requests.
_ORIGIN_POLICIES = frozenset(
    b"service-worker-allowed clear-site-data strict-transport-security alt-svc nel report-to use-as-dictionary"
    b" secure-session-registration secure-session-challenge sec-session-registration sec-session-challenge"
    b" set-login accept-ch critical-ch public-key-pins expect-ct".split()
)
# A browser runs no script in these. It ignores a type that it cannot parse, and then looks for HTML in the body.
_PASSIVE_TYPE = re.compile(
    rb"(application/(json|[\w.-]+\+json|x-ndjson|jsonl|octet-stream)|text/(plain|event-stream|csv)"
    rb"|image/(png|jpeg|gif|webp|avif)|audio/[\w.-]+|video/[\w.-]+|font/[\w.-]+)[ \t]*(;[^,]*)?",
    re.IGNORECASE,
)
# A sandboxed document has an origin of its own and runs no script.
_SANDBOX = (b"content-security-policy", b"sandbox")
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")


def requests_worker(headers: Mapping[str, str]) -> bool:
    """Whether a browser requests the script of a worker. A service worker would see every request of its origin."""
    return "service-worker" in headers or headers.get("sec-fetch-dest") in _WORKERS


@lru_cache(maxsize=256)
def _is_passive(content_type: bytes) -> bool:
    return _PASSIVE_TYPE.fullmatch(content_type) is not None


def isolate_response(headers: Iterable[tuple[bytes, bytes]], request_headers: Mapping[str, str]) -> RawHeaders:
    """Return an upstream's response headers without policies for the whole origin; sandbox a document.

    Every response is sandboxed that a browser could show as a document, whatever the request was for, because a browser may
    show a response that it cached for another purpose.
    """
    lower = [(name.lower(), value) for name, value in headers]
    kept = [header for header in lower if header[0] not in _ORIGIN_POLICIES]
    types = [value.strip() for name, value in kept if name == b"content-type"]
    is_passive = bool(types) and all(map(_is_passive, types))
    if not is_passive or request_headers.get("sec-fetch-dest") in _DOCUMENTS:
        kept += [_SANDBOX, _NO_SNIFFING]
    return kept
