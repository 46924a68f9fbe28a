"""Memoizes a function, which then takes only a question, by position or by name."""

import contextlib
import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar, cast

from kvproxy.library.arguments import check_not_async

F = TypeVar("F", bound=Callable[[str], str])
A = TypeVar("A", bound=Callable[[str], Awaitable[str]])
_UNKNOWN = inspect.Signature([inspect.Parameter("question", inspect.Parameter.POSITIONAL_ONLY)])


def memoize_function(get_or_set: Callable[[str, F], str], compute: F) -> F:
    check_not_async(compute)
    signature = _question_signature(compute)

    @wraps(compute)
    def answer(*arguments: Any, **named: Any) -> str:
        return get_or_set(_read_question(signature, arguments, named), compute)

    answer.__signature__ = signature  # type: ignore[attr-defined]
    return cast("F", answer)


def memoize_coroutine(get_or_set: Callable[[str, A], Awaitable[str]], compute: A) -> A:
    signature = _question_signature(compute)

    @wraps(compute)
    async def answer(*arguments: Any, **named: Any) -> str:
        return await get_or_set(_read_question(signature, arguments, named), compute)

    answer.__signature__ = signature  # type: ignore[attr-defined]
    return cast("A", answer)


def _question_signature(compute: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function without its optional parameters.

    Raises TypeError if the function cannot be called with a question only.
    """
    with contextlib.suppress(ValueError):  # Some built-in functions have no signature.
        signature = inspect.signature(compute)
        (name,) = _bind(signature).arguments
        parameter = signature.parameters[name]
        if parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            return signature.replace(parameters=[parameter.replace(default=inspect.Parameter.empty)])
    return _UNKNOWN


def _read_question(signature: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the question of a call. Raises TypeError for another argument."""
    try:
        (question,) = signature.bind(*arguments, **named).arguments.values()
    except TypeError as error:
        raise TypeError(f"a memoized function takes only the question {signature}, but the call has {error}") from None
    return question


def _bind(signature: inspect.Signature) -> inspect.BoundArguments:
    try:
        return signature.bind("question")
    except TypeError as error:
        raise TypeError(
            f"memoize requires a function of one argument, the question, but {error}: {_fix(signature)}"
        ) from None


def _fix(signature: inspect.Signature) -> str:
    if next(iter(signature.parameters), None) == "self":
        return (
            "decorate the method of the object instead, in __init__: self.ask = cache.memoize(namespace)(self.ask), with all that"
            " the answer depends on in the namespace"
        )
    return "use get_or_set with other values in the namespace, and functools.partial for the function"
