"""Checks the arguments of the library."""

import contextlib
import inspect
import itertools
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from kvproxy.errors import SettingsError
from kvproxy.index.policies.policy import Policy
from kvproxy.index.store_location import is_url, location_error
from kvproxy.settings.cache import CacheSettings, PolicyName
from kvproxy.units import MAX_SECONDS, parse_seconds

Seconds = float | str | timedelta
"""A duration in seconds, text such as `1h`, or a `timedelta`."""
BATCH = 1_000
"""Number of questions that are embedded and stored together."""
# Fields that only a proxy applies: it sees requests, tenants, and fresh responses.
_PROXY_FIELDS = {
    "enabled": "use no cache, or semantic=False for exact hits only",
    "sampled_requests": "call get for the requests that may have a stored answer",
    "conversations": "put earlier turns that change the answer into the namespace",
    "judge": "call feedback with the verdict",
    "judge_similarity": "call feedback with the verdict",
    "judge_budget": "call feedback with the verdict",
    "stale_while_revalidate": "give a longer ttl",
    "stale_if_error": "give a longer ttl",
    "shared": "put the user into the namespace to separate users",
}


def check_type(name: str, value: object, expected: type | tuple[type, ...], fix: str = "") -> None:
    types = expected if isinstance(expected, tuple) else (expected,)
    if not isinstance(value, types):
        names = " or ".join(each.__name__ for each in types)
        raise TypeError(f"{name} must be of the type {names}, not {type(value).__name__}{fix}")


def check_texts(**texts: object) -> None:
    for name, value in texts.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, not {type(value).__name__}")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"{name} has half of a surrogate pair at position {error.start}, which is not Unicode text: remove it"
                ) from None


def check_question(question: object, namespace: object) -> None:
    check_texts(question=question, namespace=namespace)
    if isinstance(question, str) and not question.strip():
        raise ValueError("the question is empty")


def check_memoize(namespace: object) -> None:
    if callable(namespace):
        raise TypeError("write @cache.memoize() with parentheses")
    check_texts(namespace=namespace)


def check_not_async(compute: object) -> None:
    if inspect.iscoroutinefunction(compute):
        raise TypeError("compute is a coroutine function: use open_async_cache, or a function that returns the answer")


def check_computed(answer: object) -> None:
    if not isinstance(answer, str):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(f"compute must return a string, not {type(answer).__name__}")


async def computed_answer(compute: Callable[[str], Awaitable[str]], question: str) -> str:
    result = compute(question)
    if not isinstance(result, Awaitable):
        kind = type(result).__name__
        raise TypeError(f"compute must return an awaitable, not {kind}: define it with async, or use open_cache")
    answer = await result
    check_computed(answer)
    return answer


def positive_seconds(name: str, value: Seconds) -> float:
    if isinstance(value, float) and value == math.inf:
        raise ValueError(f"{name} must be below ten years: give 3649d to keep an answer that does not expire")
    if (seconds := parse_seconds(value)) <= 0:
        raise ValueError(f"{name} must be positive, but it is {value!r}")
    if seconds >= MAX_SECONDS:
        raise ValueError(f"{name} must be below ten years (3650d), but it is {value!r}")
    return seconds


def checked_options(ttl: Seconds | None, tags: Sequence[str]) -> tuple[float | None, tuple[str, ...]]:
    """Return the options of an answer, which are checked before it is computed."""
    return None if ttl is None else positive_seconds("ttl", ttl), checked_tags(tags)


def check_tag(tag: str) -> None:
    if not tag.strip():
        raise ValueError("the tag is empty")


def checked_tags(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise TypeError(f"tags must be a sequence of strings: write ({tags!r},)")
    check_type("tags", tags, Iterable)
    names = tuple(tags)
    check_texts(**{f"tags[{place}]": tag for place, tag in enumerate(names)})
    for place, tag in enumerate(names):
        with _naming(f"tags[{place}]"):
            check_tag(tag)
    return tuple(dict.fromkeys(names))


def checked_questions(questions: Sequence[str], namespace: object) -> list[str]:
    if isinstance(questions, str):
        raise TypeError(f"questions must be a sequence of strings: write [{questions[:80]!r}]")
    check_type("questions", questions, Iterable)
    listed = list(questions)
    for place, question in enumerate(listed):
        with _naming(f"questions[{place}]"):
            check_question(question, namespace)
    return listed


def pair_batches(answers: Mapping[str, str] | Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Yield pairs of a question and its answer in lists of 1,000. All pairs of a sequence or dict are checked first."""
    check_type("answers", answers, Iterable)
    pairs: Iterator[tuple[str, str]]
    if isinstance(answers, Mapping):
        pairs = map(_checked_pair, answers, answers.items())
    else:
        pairs = map(_checked_pair, itertools.count(), answers)
    if isinstance(answers, Mapping | Sequence):
        pairs = iter(list(pairs))
    while batch := list(itertools.islice(pairs, BATCH)):
        yield batch


def _checked_pair(place: object, pair: object) -> tuple[str, str]:
    name = f"answers[{place!r:.80}]"
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"{name} is no pair of a question and its answer: give pairs, or a dict")
    question, answer = pair
    with _naming(name):
        check_question(question, "")
        check_texts(answer=answer)
    return question, answer


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Begin the message of an error with a name."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def checked_lifetimes(ttls: Mapping[str, Seconds]) -> dict[str, float]:
    check_type("namespace_ttls", ttls, Mapping, ': write {"news": "1h"}')
    check_texts(**{f"namespace_ttls[{name!r}]": name for name in ttls})
    return {name: positive_seconds(f"namespace_ttls[{name!r}]", ttl) for name, ttl in ttls.items()}


def checked_location(where: object) -> str | Path:
    """Return the URL or the path of a store, in which `~` is expanded."""
    check_type("where", where, (str, Path))
    text = str(where)
    if (error := location_error(text)) is not None:
        raise SettingsError(error)
    if is_url(text):
        return text
    path = Path(os.path.expanduser(text))
    if path == Path():
        raise SettingsError("a store needs a name: give a path, for example answers.db")
    if not path.parent.is_dir():
        raise SettingsError(f"there is no folder {path.parent}: create it, or name another file")
    if path.is_dir():
        raise SettingsError(f"{text} is a folder: give the path of a file in it, for example {path / 'answers.db'}")
    return path


def check_settings(settings: CacheSettings) -> None:
    for name, fix in _PROXY_FIELDS.items():
        if getattr(settings, name) != CacheSettings.model_fields[name].default:
            raise SettingsError(f"CacheSettings({name}=...) has no effect in a library: leave it out; {fix}")


def check_limit(name: str, limit: object) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"{name} must be a positive integer or None, but it is {limit!r}")


def checked_guards(guards: Any) -> tuple[Any, ...]:
    is_sequence = isinstance(guards, Sequence) and not isinstance(guards, str)
    if not is_sequence or not all(hasattr(guard, "vetoes") and hasattr(guard, "name") for guard in guards):
        raise TypeError(
            "guards must be a sequence of kvproxy.Guard: write [Guard('name', 'reason for users', differs)], or give the"
            " names of plugins in CacheSettings(extra_guards=...)"
        )
    return tuple(guards)


def with_policy(settings: CacheSettings, policy: Any) -> tuple[CacheSettings, Policy | None]:
    """Return the settings with a policy that is a name, and None; or else the settings, and the policy."""
    if isinstance(policy, str):
        if policy not in (names := get_args(PolicyName)):
            raise ValueError(
                f"unknown policy {policy[:80]!r}: use {', '.join(names)}, or an object with the methods of Policy"
            )
        return settings.model_copy(update={"policy": policy}), None
    if policy is not None:
        _check_attributes("policy", policy, "a name", "name", "num_neighbours", "floor", "decide")
        if inspect.iscoroutinefunction(policy.decide):
            raise TypeError(
                "policy.decide is a coroutine function: define it without async, let it wait for the model, and give the"
                " number of lookups at a time, for example lookup_threads=32"
            )
    return settings, policy


def checked_embedder(embedder: Any) -> Any:
    if isinstance(embedder, str | Path):
        return str(embedder)
    if inspect.isroutine(embedder):
        raise TypeError("embedder is a function: write FunctionEmbedder('name of the model', function)")
    _check_attributes(
        "embedder", embedder, "a name, a folder, a FunctionEmbedder", "name", "dim", "vocabulary", "embed", "can_read"
    )
    return embedder


def _check_attributes(name: str, value: object, others: str, *attributes: str) -> None:
    missing = [each for each in attributes if not hasattr(value, each)]
    if missing or isinstance(value, type):
        raise TypeError(
            f"{name} must be {others}, or an object with the attributes {', '.join(attributes)};"
            f" {type(value).__name__} " + (f"lacks {', '.join(missing)}" if missing else "is a class: create an object")
        )
