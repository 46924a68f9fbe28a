"""Pins what was warmed, so that it stays."""

from collections.abc import Sequence

from kvproxy.commands.bodies import PATHS
from kvproxy.commands.client import ProxyClient
from kvproxy.commands.warm_file import Failure, WarmRequest
from kvproxy.commands.warm_run import Report
from kvproxy.errors import KvproxyError

_APIS = {path: api for api, path in PATHS.items()}


def keep_all(client: ProxyClient, requests: Sequence[WarmRequest], file: str, report: Report) -> int:
    """Pin the prompt of each request as FILE:LINE; a prompt that cannot be pinned counts as failed.

    Returns:
        How many tokens are pinned. Prompts that begin alike share theirs, which are counted for each.
    """
    tokens = 0
    for request in requests:
        if request.path == PATHS["embeddings"]:
            continue
        name = f"{file}:{request.line}"
        try:
            done = client.post("/admin/blocks/pins", request.body, name=name, api=_APIS[request.path])
        except KvproxyError as error:
            report.failures.append(Failure(request.line, f"it is not pinned: {error.message}"))
        else:
            tokens += done["tokens"]
    return tokens
