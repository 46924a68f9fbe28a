import re

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import field, loads

SESSION_HEADERS = (
    "x-session-id",
    # Claude Code, opencode, and Codex.
    "x-claude-code-session-id",
    "x-opencode-session",
    "x-session-affinity",
    "session-id",
    "session_id",
)
_LONGEST = 128
_LEGACY = re.compile(r"_session_([0-9a-fA-F-]{36})$")


def session_name(request: ApiRequest) -> str | None:
    """Return the id of a coding agent's session in a header, or else in `metadata.user_id` (older versions of Claude Code)."""
    for header in SESSION_HEADERS:
        if name := request.headers.get(header):
            return name[:_LONGEST]
    user = field(request.body.get("metadata"), "user_id")
    if not isinstance(user, str):
        return None
    if found := _LEGACY.search(user):
        return found[1]
    if user.startswith("{"):
        try:
            session = field(loads(user.encode("utf-8", "replace")), "session_id")
        except ValueError:
            return None
        return session[:_LONGEST] if isinstance(session, str) and session else None
    return None
