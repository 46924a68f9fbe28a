"""`kvproxy explain`: which layer would answer a request, and why?"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from os.path import commonprefix
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import PUBLIC_TENANT
from kvproxy.commands.formatting import Formatted, local_time, one_line, quoted
from kvproxy.commands.options import ApiKey, JournalOptions, completion_of
from kvproxy.commands.output import Output, print_facts, print_text
from kvproxy.commands.request_body import PromptOptions, RequestFieldOptions
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.statistics_text import policy_sentences
from kvproxy.commands.tables import Layout, Row, digest_column, print_table, text_column
from kvproxy.errors import KvproxyError, NotFound
from kvproxy.index.policies.policy import JUDGE_BY_MODEL
from kvproxy.operations.api_paths import client_headers
from kvproxy.operations.client import ProxyClient
from kvproxy.operations.operation import fields_of
from kvproxy.operations.suggestions import request_ids
from kvproxy.telemetry.printable_text import escape_controls
from kvproxy.units import plural, tenant_name

if TYPE_CHECKING:
    from kvproxy.apis.model_route import ModelRoute
    from kvproxy.backends.reports import PrefixReport
    from kvproxy.flow.explanation import (
        ClosestRequest,
        FieldDifference,
        InputsExplanation,
        NeighbourExplanation,
        RequestExplanation,
        SemanticExplanation,
    )
    from kvproxy.index.policies.policy import LearningStatus
    from kvproxy.operations.journal_reports import RecordExplanation

_CREDENTIALS = frozenset({"authorization", "x-api-key"})
_SAMPLING = frozenset({"temperature", "top_p", "top_k"})
_LISTED_BLOCKS = 12
_LISTED_CHANGES = 4
_SHOWN = 40
_LISTED_CHARACTERS = 200
_LIMITS = {
    "min_similarity": "similarity at least",
    "min_probability": "probability at least",
    "max_error": "share of wrong hits at most",
    "max_hit_error": "error of a hit at most",
}


def explain(
    *,
    prompt: PromptOptions,
    api: Annotated[ApiName | None, Option(help="API of the body.", show_default="detected")] = None,
    model: Annotated[str | None, Option(help="Model of the request.", show_default="the first listed")] = None,
    request: Annotated[
        str | None,
        Option(help="Id of an earlier request, to explain its cache miss.", autocompletion=completion_of(request_ids)),
    ] = None,
    changes: RequestFieldOptions,
    api_key: ApiKey = None,
    layout: Annotated[Layout, RowFields("similarity", "score", "error", "verdict", "why", "id", "prompt")],
    proxy: JournalOptions,
) -> Output:
    """Explain which layer would answer a request, and why.

    Nothing is computed or stored. Give the settings that clients send, such as --max-tokens. With --request it explains why
    an earlier request missed the cache; the id is in the response header x-request-id. Each client sees only responses of
    its own tenant: give its key with --api-key. It predicts the refusal of unknown keys, too. A request to /v1/messages is
    looked up with the headers of each version of Anthropic's SDKs; --header selects other headers. Without --api, a body that
    fits both chat and messages is looked up in both.

    Example: kvproxy explain "What is a block?"

    Example: kvproxy explain --file request.json --api messages --api-key "$KEY"

    Example: kvproxy explain --request 3f2a
    """
    if request is not None:
        from kvproxy.operations.journal_parameters import RecordName
        from kvproxy.operations.journal_reports import explain_record

        miss = proxy.open().perform(explain_record, RecordName(request))
        return Output(asdict(miss.explained), lambda: _print_miss(miss))
    from kvproxy.operations.proxy import RequestFormat, explain_request

    client = proxy.client()
    body = prompt.body()
    from kvproxy.analyse.log_formats.log_format import detect_api

    # A body with only `input` is most likely for Responses.
    chosen = api or detect_api(body) or ("responses" if "input" in body else "chat")
    body |= changes.fields()
    apis: list[ApiName] = (
        [chosen, "messages"] if api is None and chosen == "chat" and _fits_messages(body) else [chosen]
    )
    own = changes.headers()
    # Credentials of --header replace those of --api-key.
    left_out = _CREDENTIALS if _CREDENTIALS & own.keys() else frozenset()
    forms = [
        (name, {header: value for header, value in form.items() if header not in left_out} | own)
        for name in apis
        for form in client_headers(name, api_key)
    ]
    _, headers = forms[0]
    if model is not None or "model" not in body:
        body["model"] = model or client.first_model(headers)
    explanation = client.perform(explain_request, RequestFormat(chosen), body, headers=headers)
    for name, form in forms[1:] if explanation.exact.id is None else ():
        other = client.perform(explain_request, RequestFormat(name), body, headers=form)
        if _closeness(other) > _closeness(explanation):
            explanation = other
    # With routes, the proxy has chosen the upstream, which may serve more models than it lists.
    if model is not None and not explanation.route and explanation.layer not in ("exact", "semantic", "refused"):
        _check_model_is_listed(client, model, headers)
    return Output(explanation, lambda: _print_explanation(explanation, layout))


def _fits_messages(body: dict[str, Any]) -> bool:
    """Whether a body of chat completions may be one of Anthropic's Messages API, too."""
    from kvproxy.apis import APIS

    fields = APIS["messages"].fields
    roles = {turn.get("role") for turn in body.get("messages") or () if isinstance(turn, dict)}
    return (
        "max_tokens" in body
        and roles <= {"user", "assistant"}
        and body.keys() <= fields.key | fields.ignored | _SAMPLING
    )


def _closeness(explanation: "RequestExplanation") -> tuple[bool, bool, bool]:
    """Rank explanations of one request with the headers of several clients: the best one has an equal stored request."""
    return explanation.exact.id is not None, explanation.layer == "semantic", explanation.closest is not None


def _print_miss(miss: "RecordExplanation") -> None:
    print_text("\n".join(map(escape_controls, miss.sentences)))
    record = miss.explained.record
    facts = {"request": record.request_id, "time": local_time(record.time), "reason": record.reason}
    question = [] if miss.question is None else [("question", _beginning(one_line(miss.question)))]
    tenant_and_model = [("tenant", tenant_name(record.tenant)), ("model", record.model)]
    print_facts([*facts.items(), *question, *tenant_and_model], for_people=True)


def _beginning(question: str) -> str:
    """Return the beginning of a long question; --json has all of it."""
    return question if len(question) <= _LISTED_CHARACTERS else f"{question[:_LISTED_CHARACTERS]}..."


def _check_model_is_listed(client: ProxyClient, model: str, headers: dict[str, str]) -> None:
    try:
        listed = client.models(headers)
    except KvproxyError:
        return
    if listed and model not in listed:
        names = ", ".join(listed[:5]) + (" and more" if len(listed) > 5 else "")
        raise NotFound(f"{client.url} does not list the model {model!r}: use one of {names}")


SENTENCES = {
    "exact": "The response cache would answer: an identical request is stored.",
    "semantic": "The response cache would answer with the response to a similar question.",
    "shared": "An identical request is in flight, and both would receive its response.",
    "plugin": "A layer of a plugin would answer.",
    "refused": "The request would be refused: it accepts only a stored response, and none answers it.",
    "prefix": "The engine would answer, and reuse a part of the prompt.",
    "none": "No cache would answer this request: the engine would compute all of it.",
}
_UPSTREAM_SENTENCE = "No stored response would answer: the upstream would, and what it would reuse is unknown."


def _print_explanation(explanation: "RequestExplanation", layout: Layout) -> None:
    is_unknown = explanation.layer == "none" and (
        explanation.prefix is None or explanation.prefix.matched_tokens is None
    )
    if explanation.refusal is not None:
        print_text(f"The proxy would refuse the request: {explanation.refusal}.")
    elif explanation.inputs is not None and explanation.layer in ("exact", "none"):
        print_text(_inputs_sentence(explanation.inputs))
    else:
        print_text(_UPSTREAM_SENTENCE if is_unknown else SENTENCES[explanation.layer])
    exact, semantic, prefix = explanation.exact, explanation.semantic, explanation.prefix
    stored = "not stored" if exact.id is None else f"stored as {exact.id[:12]}"
    if exact.id is not None and exact.freshness != "fresh":
        stored += ", expired" if exact.freshness == "expired" else f", expired ({exact.freshness})"
    print_facts(
        [
            ("tenant", tenant_name(explanation.tenant)),
            *([("API", explanation.api)] if explanation.api != "chat" else []),
            *([("model", _route_text(explanation.route))] if explanation.route else []),
            *([("rule", explanation.rule)] if explanation.rule else []),
            ("exact key", f"{explanation.key[:16]}{'' if explanation.inputs else f', {stored}'}"),
            ("namespace", explanation.namespace[:16]),
            *([("policy", _policy_and_limits(semantic))] if semantic.policy else []),
            *([("question", _question_beside_passages(semantic.question))] if semantic.question else []),
        ],
        for_people=True,
    )
    if explanation.other_tenants:
        print_text("Another tenant stored an identical request: give its key with --api-key.")
    if explanation.closest is not None and explanation.layer != "semantic":
        print_text(_closest_request_sentence(explanation.closest))
    # The response to an equal request is served, whatever its neighbours are.
    if explanation.layer != "exact":
        _print_semantic(explanation, layout)
    if prefix is None:
        print_text("prefix     unknown: the upstream manages its cache, and reports reuse only with its answer")
    else:
        _print_prefix(prefix)


def _inputs_sentence(inputs: "InputsExplanation") -> str:
    if inputs.cached == inputs.count:
        stale = f", some expired ({inputs.stale})" if inputs.stale else ""
        return f"The response cache would answer: {plural(inputs.count, 'input')} of the array, all stored{stale}."
    rest = "the upstream would compute the others" if inputs.cached else "the upstream would compute them"
    return f"The response cache has {inputs.cached:,} of {plural(inputs.count, 'input')} of the array; {rest}."


def _question_beside_passages(question: str) -> str:
    return f"{_beginning(one_line(question))} The other text of the message must be equal."


def _route_text(route: "ModelRoute") -> str:
    name = route.model
    alias = "" if route.requested == name else f", for the alias {route.requested}"
    fallbacks = f"; if it fails, {', then '.join(route.fallbacks)}" if route.fallbacks else ""
    return f"{name}{alias}, at {' or '.join(route.upstreams)}{fallbacks}"


def _print_semantic(explanation: "RequestExplanation", layout: Layout) -> None:
    semantic = explanation.semantic
    if semantic.learned:
        print_text("\n".join(learned_policy_lines(semantic.learned, beside=semantic.question is not None)))
    if semantic.reason:
        print_text(f"similar    {semantic.reason}")
    elif not semantic.neighbours:
        passages = "passages, " if semantic.question else ""
        print_text(f"similar    no stored question of the same tenant, model, system prompt, {passages}settings")
        if explanation.tenant == PUBLIC_TENANT:
            print_text(
                "           requests without an API key have this tenant: if clients send a key, give it with --api-key"
            )
        print_text("           give all settings that clients send, such as --temperature or --max-tokens")
    if semantic.neighbours:
        start = _shared_beginning([neighbour.prompt for neighbour in semantic.neighbours])
        print_table([_neighbour_row(neighbour, start) for neighbour in semantic.neighbours], layout=layout)
    if semantic.shadow:
        print_text("shadow     shadow mode is on: an accepted response is counted, but not served")


def _closest_request_sentence(closest: "ClosestRequest") -> str:
    changes = closest.differs
    if other_text := _other_text_sentence(changes):
        return f"closest    {closest.id[:12]} {other_text}"
    parts = [f"{change.part} ({_format_change(change)})" for change in changes[:_LISTED_CHANGES]]
    more = f", and {len(changes) - _LISTED_CHANGES} more" if len(changes) > _LISTED_CHANGES else ""
    differs = f"differs in {', '.join(parts)}{more}"
    if closest.similarity is None:
        return f"closest    {closest.id[:12]} has the same question, and {differs}"
    return (
        f"closest    {closest.id[:12]} has a similar question (cosine {closest.similarity:.3f}), but {differs}: a rewording"
        " has hits only if its settings are equal"
    )


def _other_text_sentence(changes: Sequence["FieldDifference"]) -> str | None:
    """Return a sentence if only one of the two requests with the same question has other text, such as passages, beside it."""
    texts = [_text_of_field(value) for change in changes for value in (change.stored, change.request)]
    if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
        return None
    stored, request = (text.strip() for text in texts)
    if stored in request:
        return (
            "has the same question without the other text of this message, such as passages: its response is not served"
        )
    if request in stored:
        return (
            "has the same question beside other text, such as passages: its response is served only beside equal text"
        )
    return None


def _format_change(change: "FieldDifference") -> str:
    values = [_text_of_field(value) for value in (change.stored, change.request)]
    texts = [value for value in values if isinstance(value, str)]
    if start := _shared_beginning(texts):
        values = [f"… {text[start:]}" for text in texts]
    stored, request = map(_format_field_value, values)
    return f"stored {stored}, request {request}"


def _text_of_field(value: Any) -> Any:
    return value["content"] if isinstance(value, dict) and isinstance(value.get("content"), str) else value


def _format_field_value(value: Any) -> str:
    if value is None:
        return "unset"
    text = escape_controls(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _policy_and_limits(semantic: "SemanticExplanation") -> str:
    limits = ", ".join(f"{text} {limit}" for name, text in _LIMITS.items() if (limit := getattr(semantic, name)))
    return f"{semantic.policy} ({limits})" if limits else str(semantic.policy)


def learned_policy_lines(status: "LearningStatus", *, beside: bool = False) -> list[str]:
    """Describe what `learned` knows of a namespace. `beside`: of all passages beside its questions."""
    where = "In this namespace, with all passages" if beside else "In this namespace"
    first, *others = policy_sentences(fields_of(status))
    warning = status.warning
    others += [f"Warning: {warning}."] if warning is not None else []
    return [
        f"{'' if index else 'learned':<11}{line}"
        for index, line in enumerate([f"{where}, {first}", *_deciding_policy(status), *others])
    ]


def _deciding_policy(status: "LearningStatus") -> list[str]:
    if status.serves:
        return ["The learned policy decides."]
    if status.serves_checked:
        return ["Until more is learned, hits in English need the policy checked."]
    compared = status.checked_equal + status.checked_different
    if not compared:
        return ["No similar question is answered until more is learned."]
    return [
        f"The policy checked is suspended: {status.checked_different:,} of {plural(compared, 'fresh response')} to questions that"
        " it accepts differ. A hit needs a small estimated error, too.",
        f"If these responses are equal in other words, {JUDGE_BY_MODEL}.",
    ]


def _shared_beginning(prompts: Sequence[str]) -> int:
    """Return the length of the words, such as passages, with which all prompts begin; 0 if a table has room for them."""
    if len(prompts) < 2:
        return 0
    shared = commonprefix(prompts)  # noqa: RUF071 - it compares characters, as required here.
    start = max(shared.rfind(" "), shared.rfind("\n")) + 1
    return start if start >= _SHOWN and shared not in prompts else 0


def _neighbour_row(neighbour: "NeighbourExplanation", start: int) -> Row:
    """Describe a neighbour. People see its prompt from index `start` on."""
    columns = {"Similarity#": "similarity", "Score#?": "score", "Error#?": "error"}
    return {
        **{column: _format_share(getattr(neighbour, name)) for column, name in columns.items()},
        "Verdict?": neighbour.verdict,
        text_column("Why"): neighbour.why,
        digest_column("Id", 8): neighbour.id,
        text_column("Prompt"): Formatted(f"… {neighbour.prompt[start:]}", neighbour.prompt)
        if start
        else neighbour.prompt,
    }


def _format_share(share: float | None) -> str | None:
    return None if share is None else f"{share:.3f}"


def _print_prefix(prefix: "PrefixReport") -> None:
    if prefix.matched_tokens is None:
        print_text(f"prefix     unknown: {prefix.reason}")
        return
    # llama.cpp restores a slot from a whole file, so its tokens count as cached.
    from_file = prefix.tiers.get("disk", 0) if prefix.slots else 0
    cached = prefix.matched_tokens + from_file
    print_text(f"prefix     {cached:,} of {prefix.prompt_tokens:,} tokens are cached{_block_names(prefix.blocks)}")
    for group in prefix.groups:
        from kvproxy.commands.blocks.engine_lines import layer_group_name

        name = layer_group_name(group.number, group.kind, group.window)
        print_text(f"  {name}: {group.tokens:,} tokens on its own")
    for name, tokens in prefix.tiers.items():
        origin = "of them restored from a file" if prefix.slots else "more"
        print_text(f"  {name:8} {tokens:,} tokens {origin}")
    if prefix.engine:
        rank = "" if prefix.rank is None else f", rank {prefix.rank}"
        print_text(f"engine     {prefix.engine}{rank}{'' if prefix.complete else ' (incomplete mirror)'}")
    if prefix.reason:
        print_text(f"           {prefix.reason}")
    if divergence := prefix.divergence:
        print_text(f"diverges   at token {divergence.position:,}")
        for name in ("context", "cached", "prompt"):
            print_text(f"  {'after' if name == 'context' else name:<8} {quoted(getattr(divergence, name))}")


def _block_names(blocks: Sequence[int | str]) -> str:
    if not blocks:
        return ""
    if len(blocks) > 1 and all(isinstance(id, int) for id in blocks):
        consecutive = groupby(enumerate(map(int, blocks)), lambda pair: pair[1] - pair[0])
        runs = [[id for _, id in run] for _, run in consecutive]
        names = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    else:
        names = [str(id)[:12] for id in blocks]
    more = f" and {len(names) - _LISTED_BLOCKS} more" if len(names) > _LISTED_BLOCKS else ""
    return f", in blocks {', '.join(names[:_LISTED_BLOCKS])}{more}"
