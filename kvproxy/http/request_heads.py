"""Checks of request heads: the request line and the headers (RFC 9110, RFC 9112)."""

import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from kvproxy.errors import ExpectationFailed, InvalidRequest, KvproxyError, NotSupported, UpgradeRequired

Headers = Sequence[tuple[bytes, bytes]]
_CONTROLS = re.compile(rb"[\x00-\x1f\x7f]")
_CONTROLS_WITHOUT_TAB = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
# RFC 3986, section 3.2.2, and bytes of names that are not ASCII.
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+(%[\w.~-]+)?\]|[\w.~!$&'()*+,;=%\x80-\xff-]+)(:[0-9]{0,5})?")
_UPGRADE = (b"upgrade", b"http2-settings")


def head_error(method: bytes, version: str, target: bytes, headers: Headers) -> KvproxyError | None:
    """Return an error if a head is not supported, or if proxy and upstream could parse it differently; else None.

    The HTTP parser already rejects a repeated Content-Length, a Content-Length with a Transfer-Encoding, and bad line ends.
    """
    if version not in ("1.0", "1.1"):
        return InvalidRequest("the request line names no version of HTTP that is served: HTTP/1.1 or HTTP/1.0")
    if _CONTROLS_WITHOUT_TAB.search(b"".join([value for _, value in headers])):
        return InvalidRequest("a header holds a control character: send each header on one line")
    hosts = 0
    for name, value in headers:
        match name:
            case b"host":
                hosts += 1
                if not _HOST.fullmatch(value.strip()):
                    return InvalidRequest("the header Host is no host with an optional port")
            case b"transfer-encoding" if version == "1.0" or value.strip().lower() != b"chunked":
                return InvalidRequest("the only Transfer-Encoding of requests is chunked, in HTTP/1.1")
            case b"expect" if value.strip().lower() != b"100-continue":
                return ExpectationFailed("the only expectation is 100-continue: leave out the header Expect")
            case b"upgrade" if b"websocket" in _split_tokens(value):
                # Clients fall back to HTTP after this status, and try WebSocket again after others.
                return UpgradeRequired("WebSocket is not supported: send the request over HTTP/1.1")
            case b"upgrade" if any(protocol != b"h2c" for protocol in _split_tokens(value)):
                return NotSupported("upgrades are not supported: send the request over HTTP/1.1")
    if method == b"CONNECT":
        return NotSupported("CONNECT is not supported: this is a reverse proxy")
    if hosts > 1 or (hosts == 0 and version != "1.0"):
        return InvalidRequest("a request has exactly one header Host")
    if _CONTROLS.search(unquote_to_bytes(target.partition(b"?")[0])):
        return InvalidRequest("the path holds a control character")
    return None


def head_without_upgrade(method: bytes, version: str, target: bytes, headers: Headers) -> bytes:
    """Encode a head without its offer to upgrade the protocol, which a server may ignore (RFC 9110, section 7.8)."""
    lines = [b"%s %s HTTP/%s" % (method, target, version.encode())]
    for name, value in headers:
        if name == b"connection":
            value = b", ".join(token for token in _split_tokens(value) if token not in _UPGRADE)
        if name not in _UPGRADE and (value or name != b"connection"):
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _split_tokens(value: bytes) -> list[bytes]:
    return [token.strip().lower() for token in value.split(b",") if token.strip()]
