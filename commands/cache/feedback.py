from typing import Annotated

import typer

from kvproxy.commands.cache.ls import Id
from kvproxy.commands.command import command
from kvproxy.commands.options import StoreOptions
from kvproxy.commands.output import Output, text_output

Question = Annotated[str | None, typer.Option(help="Question for which the response was served; the policy learns.")]


@command
def reject(*, id: Id, question: Question = None, responses: StoreOptions) -> Output:
    """Stop serving a response for similar questions.

    Identical requests still receive it. Undo this with approve.

    Example: kvproxy cache reject 3f2a
    """
    with responses.open() as cache:
        done = cache.feedback(id, right=False, question=question)
    return text_output(done, f"rejected {done['id'][:12]}")


@command
def approve(*, id: Id, question: Question = None, responses: StoreOptions) -> Output:
    """Undo a rejection.

    With --question, the policy learns that the response was right for this question.

    Example: kvproxy cache approve 3f2a --question "What is a KV block?"
    """
    with responses.open() as cache:
        done = cache.feedback(id, right=True, question=question)
    return text_output(done, f"approved {done['id'][:12]}")


@command
def pin(id: Id, responses: StoreOptions) -> Output:
    """Pin a stored response, so that it is evicted last.

    A pinned response expires as before.

    Example: kvproxy cache pin 3f2a
    """
    with responses.open() as cache:
        done = cache.pin(id, pinned=True)
    return text_output(done, f"pinned {done['id'][:12]}")


@command
def unpin(id: Id, responses: StoreOptions) -> Output:
    """Remove the pin of a stored response.

    Example: kvproxy cache unpin 3f2a
    """
    with responses.open() as cache:
        done = cache.pin(id, pinned=False)
    return text_output(done, f"unpinned {done['id'][:12]}")
