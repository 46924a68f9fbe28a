"""kvproxy cache reject, approve"""

from typing import Annotated

import typer

from kvproxy.commands.cache.options import Id
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Store, Token, Url
from kvproxy.commands.output import print_result
from kvproxy.proxy_client.cache import open_cache

Question = Annotated[str | None, typer.Option(help="Question for which the response was served; the policy learns.")]


def reject(
    id: Id,
    question: Question = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Stop serving a response for similar questions.

    Identical requests still receive it. Undo this with approve.

    Example: kvproxy cache reject 3f2a
    """
    with open_cache(url, token, store, data) as cache:
        done = cache.feedback(id, right=False, question=question)
    print_result(done, as_json, f"rejected {done['id'][:12]}")


def approve(
    id: Id,
    question: Question = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    store: Store = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Undo a rejection.

    With --question, the policy learns that the response was right for this question.

    Example: kvproxy cache approve 3f2a --question "What is a KV block?"
    """
    with open_cache(url, token, store, data) as cache:
        done = cache.feedback(id, right=True, question=question)
    print_result(done, as_json, f"approved {done['id'][:12]}")
