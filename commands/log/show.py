"""kvproxy log show"""

from dataclasses import asdict
from typing import Annotated

import typer

from kvproxy.commands.formatting import moment
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Token, Url
from kvproxy.commands.output import print_facts, print_json


def show(
    request: Annotated[str, typer.Argument(help="Id of a request, its first digits, or its number.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show the record of a request.

    Example: kvproxy log show 3f2a
    """
    from kvproxy.journal.reasons import meaning
    from kvproxy.proxy_client.journal import open_journal

    record = open_journal(url, token, data).record(request)
    if as_json:
        print_json(asdict(record))
        return
    fields = ((name, value) for name, value in asdict(record).items() if name != "time" and value not in (None, ""))
    print_facts([("time", moment(record.time)), *fields, ("meaning", meaning(record.reason))])
