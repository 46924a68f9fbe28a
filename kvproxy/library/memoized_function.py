"""The signature of a memoized function, which takes only a question, by position or by name."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

_UNKNOWN = inspect.Signature([inspect.Parameter("question", inspect.Parameter.POSITIONAL_ONLY)])


def question_signature(compute: Callable[..., Any]) -> inspect.Signature:
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


def read_question(signature: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
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
