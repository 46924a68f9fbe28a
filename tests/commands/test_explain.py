"""kvproxy explain predicts the answering layer for each API and client."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import httpx
import pytest

from kvproxy.analyse.log_formats.log_format import detect_api
from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.clients.client_keys import add_client, set_disabled
from kvproxy.commands.explain import SENTENCES, _policy_and_limits, learned_policy_lines
from kvproxy.flow.explanation import SemanticExplanation
from kvproxy.flow.layers.layer import Prediction
from kvproxy.index.policies.policy import LearningStatus
from kvproxy.operations.api_paths import ANTHROPIC_VERSIONS, PATHS, credential_headers
from tests.commands.run import NOWHERE, Demo, ask, kvproxy, result
from tests.commands.upstream import proxied, said
from tests.polling import until
from tests.servers import run_front


def test_explain_names_the_settings_that_differ_from_a_similar_question(tmp_path: Path) -> None:
    with proxied(tmp_path, cache={"semantic": True, "lookup_timeout": 60}) as url:
        headers = credential_headers("chat", "own") | {"cache-control": "confirm"}
        body = said("How do I reset my password?")
        httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
        given = ("explain", "How can I reset my password?", "--model", "m", "--api-key")
        until(lambda: result(*given, "own", url=url)["semantic"]["neighbours"])
        closest = result(*given, "own", "--temperature", "0.7", url=url)["closest"]
        assert closest["differs"] == [{"part": "temperature", "stored": None, "request": 0.7}]
        assert closest["similarity"] > 0.9
        shown = kvproxy(*given, "own", "--temperature", "0.7", "--system", "Be brief.", url=url).stdout
        assert "has a similar question (cosine 0." in shown
        assert "temperature (stored unset, request 0.7)" in shown, shown
        assert "messages[0] system (stored unset" in shown, shown
        for other in (("other",), ("own", "--temperature", "0.7", "--system", "Be brief.", "--max-tokens", "3")):
            assert result(*given, *other, url=url)["closest"] is None


def test_explain_names_the_fields_that_differ_from_the_closest_stored_request(tmp_path: Path) -> None:
    with proxied(tmp_path) as url:
        for tenant, fields in (("own", {"temperature": 0.5}), ("other", {}), ("own", {"temperature": 0.5, "seed": 1})):
            headers = credential_headers("chat", tenant) | {"cache-control": "confirm, max-age=60"}
            httpx.post(f"{url}/v1/chat/completions", json=said("What?", **fields), headers=headers).raise_for_status()
        given = ("explain", "What?", "--model", "m", "--api-key", "own", "--temperature", "0.7")
        assert result(*given, url=url)["closest"]["differs"] == [{"part": "temperature", "stored": 0.5, "request": 0.7}]
        shown = kvproxy(*given, url=url).stdout
        assert " has the same question, and differs in temperature (stored 0.5, request 0.7)" in shown
        system = kvproxy(*given[:-1], "0.5", "--system", "Be brief.", url=url).stdout
        assert 'messages[0] system (stored unset, request "Be brief.")' in system
        body = said("Why?") | {"messages": [{"role": "system", "content": "Be brief."}, *said("Why?")["messages"]]}
        headers = credential_headers("chat", "own") | {"cache-control": "confirm"}
        httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
        (missing,) = result("explain", "Why?", "--model", "m", "--api-key", "own", url=url)["closest"]["differs"]
        assert missing == {"part": "messages[0] system", "stored": body["messages"][0], "request": None}
        # Nothing of another tenant is shown.
        assert result("explain", "What?", "--model", "m", "--api-key", "third", url=url)["closest"] is None
        assert result(*given[:-1], "0.5", url=url)["closest"] is None


def test_explain_says_that_a_stored_question_has_other_passages_or_none(tmp_path: Path) -> None:
    question = "When does the pool in Elm Street open?"
    passages = f"Context:\nThe pool in Elm Street opens at six.\n\nIts sauna costs five euros.\n\nQuestion: {question}"
    with proxied(tmp_path) as url:

        def explained(stored: str, asked: str, namespace: str) -> str:
            headers = {"cache-control": "confirm", "x-kvproxy-namespace": namespace}
            httpx.post(f"{url}/v1/chat/completions", json=said(stored), headers=headers).raise_for_status()
            return kvproxy("explain", asked, "--model", "m", "--namespace", namespace, url=url).stdout

        alone = explained(question, passages, "a")
        assert " has the same question without the other text of this message, such as passages" in alone
        assert " has the same question beside other text, such as passages" in explained(passages, question, "b")
        other = explained(passages, passages.replace("six", "seven"), "c")
        assert " has the same question, and differs in messages[0] user" in other


def test_the_name_of_a_file_is_no_prompt(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(said("What?")))
    for command in ("explain", "ask"):
        done = kvproxy(command, file, url=NOWHERE)
        assert (done.returncode, f"{file} is a file: give a file with a request as --file {file}" in done.stderr) == (
            2,
            True,
        )
    assert "is a file" not in kvproxy("explain", "a" * 5_000, url=NOWHERE).stderr


def test_explain_takes_a_namespace(tmp_path: Path) -> None:
    with proxied(tmp_path) as url:
        headers = {"cache-control": "confirm", "x-kvproxy-namespace": "w0"}
        httpx.post(f"{url}/v1/chat/completions", json=said("What?"), headers=headers).raise_for_status()
        layers = [
            result("explain", "What?", "--model", "m", *more, url=url)["layer"] for more in ((), ("--namespace", "w0"))
        ]
        given = ("explain", "What?", "--model", "m", "--temperature", 0.5)
        namespaces: dict[str, list[object]] = {
            name: result(*given, *(("--namespace", name) if name else ()), url=url)["closest"]["differs"]
            for name in ("", "w0", "w1")
        }
        forgotten = result("explain", "What?", "--model", "m", url=url)["closest"]["differs"]
    assert (layers[0] == "exact", layers[1]) == (False, "exact")
    temperature = [{"part": "temperature", "stored": None, "request": 0.5}]
    assert namespaces == dict.fromkeys(namespaces, temperature)
    assert forgotten == [{"part": "namespace", "stored": "not recorded", "request": None}]


def test_explain_finds_what_each_version_of_anthropics_sdk_stored(tmp_path: Path) -> None:
    with proxied(tmp_path) as url:
        # Version 2.11 of the SDK sends these headers; the last ones are of another client.
        bodies = {
            version: said(f"Since {version}?") | {"max_tokens": 9} for version in (*ANTHROPIC_VERSIONS, "2030-01-01")
        }
        for version, body in bodies.items():
            headers = {"authorization": "Bearer own", "anthropic-version": version, "cache-control": "confirm"}
            httpx.post(f"{url}/v1/messages", json=body, headers=headers).raise_for_status()

        def explained(version: str, *more: str) -> Any:
            file = tmp_path / "request.json"
            file.write_text(json.dumps(bodies[version]))
            return result("explain", "--file", file, "--api", "messages", "--api-key", "own", *more, url=url)

        for version in ANTHROPIC_VERSIONS:
            assert explained(version)["layer"] == "exact"
        other = explained("2030-01-01")
        (difference,) = other["closest"]["differs"]
        assert (difference["part"], difference["stored"]) == ("header anthropic-version", "not recorded")
        assert explained("2030-01-01", "--header", "anthropic-version: 2030-01-01")["layer"] == "exact"


def test_explain_names_the_layer_that_answers(demo: Demo) -> None:
    url, system = demo[0], "You explain things. " * 30

    def explain(question: str) -> Any:
        return result("explain", question, "--system", system, "--temperature", 0, url=url)

    assert explain("What is decode?")["layer"] == "none"
    ask(url, "What is decode?", system, temperature=0)
    exact = explain("What is decode?")
    assert exact["layer"] == "exact"
    assert 'detail="exact"' in ask(url, "What is decode?", system, temperature=0).headers["cache-status"]
    similar = explain("Please tell me what decode is")
    assert similar["layer"] == "semantic"
    assert similar["semantic"]["neighbours"][0]["id"] == exact["exact"]["id"]
    given = ("explain", "Please tell me what decode is", "--system", system, "--temperature", 0)
    shown = re.sub(r"\x1b\[[\d;]*m", "", kvproxy(*given, url=url, columns=80).stdout)
    table = re.search(r"^Similarity.*?(?=^prefix)", shown, re.M | re.S)
    assert table is not None
    assert max(map(len, table[0].splitlines())) <= 80
    reworded = ask(url, "Can you tell me what decode is?", system, temperature=0)
    assert "semantic" in reworded.headers["cache-status"]
    other = explain("What is TTFT?")
    assert other["layer"] == "prefix"
    assert other["prefix"]["matched_tokens"] > 100
    assert other["prefix"]["divergence"]["position"] >= other["prefix"]["matched_tokens"]
    text = kvproxy("explain", "What isn't decode?", "--system", system, "--temperature", 0, url=url).stdout
    assert "only one is negated" in " ".join(text.split())
    assert "diverges" in text


def test_neighbours_are_shown_without_their_shared_beginning(demo: Demo) -> None:
    url, passage = demo[0], "Parcels take three days, letters take two days, and both of them are insured. "
    for question in ("How long does a letter take?", "Is a parcel insured?"):
        ask(url, passage + question, "", temperature=0)
    given = ("explain", passage + "What is insured?", "--system", "", "--temperature", 0)
    shown = kvproxy(*given, url=url, columns=200).stdout
    assert "… Is a parcel insured?" in shown
    assert "Parcels" not in shown.partition("prefix")[0]
    explained = result(*given, url=url)["semantic"]
    assert {row["prompt"][:8] for row in explained["neighbours"]} == {"Parcels "}
    assert explained["question"] is None


def test_the_question_beside_passages_is_named(demo: Demo) -> None:
    url, form = (
        demo[0],
        "Context:\nParcels take three days, letters take two days, and both are insured.\n\nQuestion: {}",
    )
    ask(url, form.format("How long does a parcel take?"), "", temperature=0)
    given = ("explain", form.format("How long do letters take?"), "--system", "", "--temperature", 0)
    explained = result(*given, url=url)["semantic"]
    assert explained["question"] == "How long do letters take?"
    assert [row["prompt"] for row in explained["neighbours"]] == ["How long does a parcel take?"]
    shown = " ".join(kvproxy(*given, url=url).stdout.split())
    assert "question How long do letters take? The other text of the message must be equal." in shown
    assert "In this namespace, with all passages, 0 verdicts" in shown
    changed = form.replace("two days", "five days").format("How long does a parcel take?")
    shown = " ".join(kvproxy("explain", changed, *given[2:], url=url).stdout.split())
    assert "has the same question, and differs in messages[0] user (stored" in shown
    assert '(stored "… two days, and both are insured.' in shown
    assert 'request "… five days, and both are insured.' in shown
    assert "no stored question of the same tenant, model, system prompt, passages, settings" in shown


def test_the_api_key_selects_the_tenant(demo: Demo) -> None:
    url, question = demo[0], "What is a tenant's key?"
    ask(url, question, headers={"authorization": "Bearer own"})
    assert result("explain", question, "--api-key", "own", url=url)["layer"] == "exact"
    assert result("explain", question, url=url, OPENAI_API_KEY="own")["layer"] == "exact"
    foreign = kvproxy("explain", question, "--api-key", "another", url=url).stdout
    assert "Another tenant stored an identical request" in foreign
    public = kvproxy("explain", question, url=url).stdout
    assert re.search(r"tenant +public", public)
    assert "Another tenant" in public
    assert "another tenant" not in kvproxy("explain", "Nobody asked this?", url=url).stdout
    reworded, hint = ("explain", "Which key does a tenant have?", "--temperature", "0.3"), "give it with --api-key"
    assert hint in kvproxy(*reworded, url=url).stdout
    assert hint not in kvproxy(*reworded, "--api-key", "own", url=url).stdout


SAID = [{"role": "user", "content": "What is an API?"}]
BODIES: dict[ApiName, dict[str, Any]] = {
    "messages": {"system": "Be brief.", "messages": SAID, "max_tokens": 50},
    "responses": {"instructions": "Be brief.", "input": "What is an API?"},
}


@pytest.mark.parametrize("api", BODIES)
def test_the_api_of_a_body_is_detected(demo: Demo, tmp_path: Path, api: ApiName) -> None:
    url, body = demo[0], {"model": "demo"} | BODIES[api]
    file = tmp_path / "body.json"
    file.write_text(json.dumps(body))
    key = f"client of {api}"
    answered = httpx.post(f"{url}{PATHS[api]}", json=body, headers=credential_headers(api, key), timeout=300)
    assert answered.is_success, answered.text
    explained = result("explain", "--file", file, "--api-key", key, url=url)
    assert (explained["api"], explained["layer"]) == (api, "exact")
    piped = kvproxy("explain", "--file", "-", "--api", api, "--api-key", key, url=url, stdin=file.read_bytes())
    assert "an identical request is stored" in piped.stdout


def test_a_body_that_fits_two_apis_is_looked_up_in_both(demo: Demo, tmp_path: Path) -> None:
    url, file = demo[0], tmp_path / "body.json"
    apis: tuple[ApiName, ...] = ("messages", "chat")
    for api in apis:
        body = {"model": "demo", "max_tokens": 50, "messages": [{"role": "user", "content": f"What is {api} here?"}]}
        file.write_text(json.dumps(body))
        httpx.post(f"{url}{PATHS[api]}", json=body, headers=credential_headers(api, "two"), timeout=300)
        explained = result("explain", "--file", file, "--api-key", "two", url=url)
        assert (explained["api"], explained["layer"]) == (api, "exact")


@pytest.mark.parametrize(
    ("body", "api"),
    [
        ({"messages": []}, "chat"),
        ({"messages": SAID, "max_tokens": 5, "tools": [{"type": "function", "function": {}}]}, "chat"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "chat"),
        ({"messages": SAID, "system": "s"}, "messages"),
        ({"messages": SAID, "stop_sequences": ["x"]}, "messages"),
        ({"messages": SAID, "tools": [{"name": "f", "input_schema": {}}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages"),
        ({"prompt": [1, 2]}, "completions"),
        ({"input": "x"}, None),
        ({"input": ["x", "y"]}, None),
        ({"input": "x", "dimensions": 5}, "embeddings"),
        ({"input": [{"role": "user", "content": "x"}]}, "responses"),
        ({"input": "x", "instructions": "s"}, "responses"),
        ({"messages": 5, "tools": 5}, "chat"),
        ({"messages": [5, {"content": [5]}], "tools": [5]}, "chat"),
        ({}, None),
    ],
)
def test_the_api_is_detected_from_the_fields_of_a_body(body: dict[str, Any], api: ApiName | None) -> None:
    assert detect_api(body) == api
    assert {name: each.path for name, each in APIS.items()} == PATHS


def test_the_admin_token_and_the_api_key_are_separate(tmp_path: Path) -> None:
    with proxied(tmp_path, admin_token="secret") as url:
        ask(url, "What is a token?", headers={"authorization": "Bearer own"})
        given = ("explain", "What is a token?", "--model", "demo", "--api-key", "own")
        refused = kvproxy(*given, url=url)
        assert (refused.returncode, "is not the admin token" in refused.stderr) == (1, True)
        assert result(*given, "--token", "secret", url=url)["layer"] == "exact"
        assert result(*given, url=url, KVPROXY_ADMIN_TOKEN="secret")["layer"] == "exact"
        assert len(result("cache", "ls", "--token", "secret", url=url)) == 1
        assert "forward" in kvproxy("top", "--interval", 0.1, "--token", "secret", url=url).stdout
        assert kvproxy("top", "--interval", 0.1, url=url).returncode == 1


def test_refusals_of_a_clients_key_or_model_are_predicted(tmp_path: Path) -> None:
    with run_front(tmp_path, NOWHERE) as (url, services):
        key = add_client(services.settings, "ann", models=("small-*",))
        disabled = add_client(services.settings, "bob")
        set_disabled(services.settings, "bob", disabled=True)
        until(lambda: services.clients.requires_key)
        for given, model, refusal in (
            (None, "small-1", "no API key was given"),
            ("unknown", "small-1", "this proxy does not know the given API key"),
            (disabled, "small-1", "the client bob is disabled"),
            (key, "large", "the client ann may not use the model 'large'"),
            (key, "small-1", None),
        ):
            arguments = ("explain", "What?", "--model", model, *(("--api-key", given) if given else ()))
            headers = {"authorization": f"Bearer {given}"} if given else {}
            sent = ask(url, "What?", model=model, headers=headers)
            explained, text = result(*arguments, url=url), kvproxy(*arguments, url=url).stdout
            assert (explained["layer"] == "refused") == (refusal is not None) == (sent.status_code in (401, 403))
            if refusal is not None:
                assert explained["refusal"] == sent.json()["error"]["message"]
                assert text.startswith(f"The proxy would refuse the request: {refusal}")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "give a prompt"),
        (("x", "--file", "y"), 2, "give a prompt"),
        (("--file", "no-such-file"), 3, "no file"),
        (("--file", "README.md"), 2, "README.md is not JSON"),
        (("--file", "."), 2, "cannot read ."),
        (("--file", "README.md", "--system", "x"), 2, "needs a prompt"),
        (("x", "--api", "images"), 2, "--api"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], code: int, says: str) -> None:
    done = kvproxy("explain", *arguments)
    assert (done.returncode, says in done.stderr.replace("\n", " ")) == (code, True), done.stderr


def test_a_file_takes_one_request(tmp_path: Path) -> None:
    (tmp_path / "two.jsonl").write_text("{}\n{}\n")
    assert "(--file takes one request)" in kvproxy("explain", "--file", tmp_path / "two.jsonl").stderr


def test_a_model_that_is_not_served_is_an_error(demo: Demo, tmp_path: Path) -> None:
    embedded = kvproxy("explain", "What is a model?", "--model", "nope", url=demo[0])
    assert (embedded.returncode, embedded.stdout, embedded.stderr.count("\n")) == (3, "", 1)
    assert "model 'nope' is not served here: use 'demo'" in embedded.stderr
    with proxied(tmp_path) as url:
        unlisted = kvproxy("explain", "What is a model?", "--model", "nope", "--json", url=url)
        assert (unlisted.returncode, unlisted.stdout, unlisted.stderr.count("\n")) == (3, "", 1)
        assert "does not list the model 'nope': use one of m" in unlisted.stderr
        assert result("explain", "What is a model?", "--model", "m", url=url)["layer"] == "none"
        # A server may answer under names that it does not list.
        ask(url, "What is a model?", model="alias")
        assert result("explain", "What is a model?", "--model", "alias", url=url)["layer"] == "exact"


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"serves": True}, "The learned policy decides."),
        ({}, "Until more is learned, hits in English need the policy checked."),
        ({"serves_checked": False}, "No similar question is answered until more is learned."),
        (
            {"serves_checked": False, "checked_equal": 14, "checked_different": 6},
            "checked is suspended: 6 of 20 fresh responses",
        ),
    ],
)
def test_the_policy_that_decides_is_named(facts: dict[str, Any], text: str) -> None:
    status = LearningStatus(
        20,
        **{"serves": False, **facts},
        level=0,
        served=0,
        expected_wrong=0,
        most_wrong=0,
        max_error=0.02,
        would_serve=0,
        doubted=0,
    )
    shown = " ".join(learned_policy_lines(status))
    assert text in shown
    assert ('cache.judge = "model"' in shown) == ("checked_different" in facts)


def test_the_bound_of_all_hits_is_told_from_the_limit_of_one() -> None:
    learned = SemanticExplanation(policy="learned", min_similarity=0.6, max_error=0.02)
    assert _policy_and_limits(learned) == "learned (similarity at least 0.6, share of wrong hits at most 0.02)"
    assert _policy_and_limits(replace(learned, max_hit_error=0.01)).endswith("0.02, error of a hit at most 0.01)")


def test_every_layer_has_a_sentence() -> None:
    """Also one that a plugin added."""
    assert SENTENCES.keys() == {*get_args(get_type_hints(Prediction)["layer"]), "prefix", "none"}
