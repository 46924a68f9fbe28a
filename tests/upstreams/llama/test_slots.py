"""Slots of llama.cpp behind a proxy: choice of slots, saved files, and restores."""

import concurrent.futures
import contextlib
import logging
import random
from array import array
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from kvproxy.installation.checks.servers import CheckWarning, check_proxy
from tests.commands.run import kvproxy
from tests.polling import until
from tests.servers import run_app
from tests.upstreams import fleets
from tests.upstreams.llama.fake_server import BYTES_PER_TOKEN, Llama, template
from tests.upstreams.llama.proxies import TURN, conversation, llama, proxy


def test_requests_go_to_the_slot_with_the_longest_prefix(tmp_path: Path) -> None:
    with llama(tmp_path) as (server, running):
        one, two = conversation("one"), conversation("two")
        assert running.turn(one, "hello") < 20
        assert running.turn(two, "hello") < 20
        for number in range(3):
            for each in (one, two):
                known = len(template(each[:-1])) + len(each[-1]["content"])
                assert running.predicted([*each, {"role": "user", "content": str(number)}]) == known
                assert running.turn(each, str(number)) == known
        assert len({orjson.loads(body)["id_slot"] for body in server.bodies}) == 2
        assert server.files == {}

        # A client's own slot is respected; otherwise only id_slot is added.
        sent = b'{ "messages":[{"content":"caf\\u00e9","role":"user"}] ,"id_slot":1,"x":1.0}'
        headers = {"content-type": "application/json"}
        httpx.post(f"{running.url}/v1/chat/completions", content=sent, headers=headers).raise_for_status()
        assert server.bodies[-1] == sent
        plain = sent.replace(b',"id_slot":1', b"")
        httpx.post(f"{running.url}/v1/chat/completions", content=plain, headers=headers).raise_for_status()
        assert server.bodies[-1][-len(plain) + 1 :] == plain[1:]
        assert server.bodies[-1][: -len(plain) + 1] in (b'{"id_slot":0,', b'{"id_slot":1,')


def test_explain_shows_the_first_difference_from_the_closest_prefix(tmp_path: Path) -> None:
    with llama(tmp_path) as (_, running):
        common, chat = "Compare the colours red and ", list[dict[str, Any]]()
        running.turn(chat, f"{common}blue.")
        assert running.explain([{"role": "user", "content": f"{common}green."}])["divergence"] == {
            "position": len(f"<user>{common}"),
            "cached": "blue.\n<assis",
            "prompt": "green.\n<assi",
            "context": common[-12:],
        }
        assert running.explain([*chat, {"role": "user", "content": "Go on."}])["divergence"] is None


def test_the_server_places_requests_for_several_slots(tmp_path: Path) -> None:
    with llama(tmp_path) as (server, running):
        for more in ({"n": 2}, {"cache_prompt": False}, {"lora": [{"id": 0, "scale": 1.0}]}, {"id_slot": -1}):
            running.ask("hello", **more).raise_for_status()
            assert orjson.loads(server.bodies[-1]).get("id_slot") == more.get("id_slot")
        found = running.post("/explain", fleets.chat("hello") | {"n": 2}, api="chat").json()["prefix"]
        assert (found["matched_tokens"], found["engine"]) == (None, None)
        assert found["reason"] == "llama-server chooses the slots of requests with n above 1"


def test_a_displaced_prefix_is_saved_and_restored(tmp_path: Path) -> None:
    """For six conversations over two slots, the server computes less than half of the tokens."""
    topics = [f"{number} is the topic" for number in range(6)]

    def talk(ask: "object") -> None:
        chats = {topic: conversation(topic) for topic in topics}
        for turn in range(4):
            for chat in chats.values():
                ask(chat, f"turn {turn}")  # type: ignore[operator]

    with llama(tmp_path) as (server, running):
        talk(running.turn)
        # The last restore is confirmed a moment after its response.
        until(lambda: running.status()["slots"]["confirmed"] == 18)
        assert running.status()["slots"]["restores"] == 18
        assert server.errors == []
        through = server.computed

    alone = Llama()
    with run_app(alone.app) as url, httpx.Client(base_url=url) as client:

        def ask(chat: list[dict[str, str]], text: str) -> None:
            chat.append({"role": "user", "content": text})
            answer = client.post("/v1/chat/completions", json={"messages": chat}).json()
            chat.append(answer["choices"][0]["message"])

        talk(ask)
    assert through < alone.computed / 2


def test_prefixes_survive_restarts_of_server_and_proxy(tmp_path: Path) -> None:
    server = Llama()
    chat = conversation("kept")
    with run_app(server.app) as url:
        with proxy(tmp_path, url, save_after=0.05) as running:
            running.turn(chat, "hello")
            until(lambda: running.status()["slots"]["saved"] == 1)
            server.restart()
            known = len(template(chat[:-1])) + len(chat[-1]["content"])
            body = tmp_path / "next.json"
            body.write_bytes(orjson.dumps({"model": "m", "messages": [*chat, {"role": "user", "content": "again"}]}))
            shown = kvproxy("explain", "--file", body, url=running.url).stdout
            assert f"prefix     {known:,} of " in shown
            assert f"{known:,} tokens of them restored from a file" in shown
            assert running.predicted([*chat, {"role": "user", "content": "again"}]) == known
            assert running.turn(chat, TURN * 2) == known
        # New turns are saved when the proxy stops.
        server.restart()
        with proxy(tmp_path, url) as running:
            known = len(template(chat[:-1])) + len(chat[-1]["content"])
            assert running.turn(chat, "and again") == known
            assert running.explain(chat)["engine"] == url


def test_a_prefix_of_another_model_is_never_restored(tmp_path: Path) -> None:
    with llama(tmp_path, save_after=0.05) as (server, running):
        chat = conversation("kept")
        running.turn(chat, "hello")
        until(lambda: running.status()["slots"]["saved"] == 1)
        server.restart("two")
        assert running.turn(chat, "again") == 0
        until(lambda: running.status()["slots"]["saved"] == 1)
        server.restart("one")
        assert running.turn(chat, "once more") > 100
        assert server.errors == []


def test_a_changed_model_is_detected_before_a_restore(tmp_path: Path) -> None:
    server = Llama()
    with run_app(server.app) as url:
        with proxy(tmp_path, url) as running:
            chat = conversation("kept")
            running.turn(chat, "hello")
        server.restart()
        with proxy(tmp_path, url) as running:
            # No slot was used, so `/slots` does not show the restart.
            server.restart("two")
            assert running.turn(chat, "again") == 0
        assert server.errors == []
        assert "restore 0" not in server.actions


def test_restores_stop_after_failures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), llama(tmp_path) as (server, running):
        server.ignores_restores = True
        chats = [conversation(str(number)) for number in range(4)]
        for turn in range(3):
            for chat in chats:
                running.turn(chat, f"turn {turn}")
        assert sum(action.startswith("restore") for action in server.actions) == 3
        assert "--swa-full" in running.status()["notes"][0]
        assert len([line for line in caplog.messages if "--swa-full" in line]) == 1
        # Restores are enabled again after a restart.
        server.ignores_restores = False
        server.restart()
        running.turn(chats[0], "more")
        assert running.status()["notes"] == []


@pytest.mark.parametrize(
    ("server", "fix"),
    [
        (Llama(lists_slots=False), "--slots"),
        (Llama(saves=False), "--slot-save-path"),
        (Llama(adapters=["one.gguf"]), "LoRA"),
    ],
)
def test_a_server_whose_slots_cannot_be_saved_works_and_gets_advice(tmp_path: Path, server: Llama, fix: str) -> None:
    with llama(tmp_path, server, save_after=0.0) as (_, running):
        for number in range(4):
            chat = conversation(str(number))
            running.turn(chat, "hello") if server.lists_slots else running.ask(chat).raise_for_status()
        assert fix in running.status()["advice"][0]
        assert running.status()["notes"] == []
        with pytest.raises(CheckWarning, match=fix):
            check_proxy(running.url, None)
        assert server.files == {}
        assert not server.adapters or server.actions == []


def test_doctor_only_warns_of_possible_improvements(monkeypatch: pytest.MonkeyPatch) -> None:
    def advise() -> str:
        raise CheckWarning("start it with --slots")

    monkeypatch.setattr("kvproxy.installation.checks.all_checks.all_checks", lambda *_: [("proxy", advise)])
    done = kvproxy("doctor")
    assert (done.returncode, done.stdout) == (0, "warn  proxy       start it with --slots\n")


def test_a_deleted_file_is_forgotten(tmp_path: Path) -> None:
    with llama(tmp_path, save_after=0.0) as (server, running):
        chats = [conversation(str(number)) for number in range(3)]
        for chat in chats:
            running.turn(chat, "hello")
        until(lambda: running.status()["slots"]["saved"] == 3)
        server.files.clear()
        assert running.turn(chats[0], "again") == 0
        assert running.turn(chats[0], "and again") > 100
        until(lambda: chats[0] and running.status()["slots"]["saved"] == 3)


def test_a_busy_slot_is_not_used_and_waiting_is_bounded(tmp_path: Path) -> None:
    with llama(tmp_path, queue_timeout=0.3) as (server, running), concurrent.futures.ThreadPoolExecutor(3) as pool:
        for number in range(2):
            running.turn(conversation(str(number)), "hello")
        server.paused = True
        pending = [pool.submit(running.ask, conversation(str(number), 3 + number)) for number in range(3)]
        until(lambda: sum(slot.busy for slot in server.slots) == 2 and len(server.bodies) == 5)
        assert "id_slot" not in orjson.loads(server.bodies[-1])
        server.paused = False
        assert all(each.result().status_code == 200 for each in pending)
        # The contents of a slot are unknown after the server's own choice.
        running.idle()
        for number in range(3):
            chat = [*conversation(str(number)), {"role": "user", "content": "more"}]
            assert running.predicted(chat) <= running.ask(chat).json()["timings"]["cache_n"]
            running.idle()
        assert server.errors == []


def test_waiting_requests_get_the_released_slot(tmp_path: Path) -> None:
    with llama(tmp_path, Llama(1)) as (server, running), concurrent.futures.ThreadPoolExecutor(4) as pool:
        server.paused = True
        pending = [pool.submit(running.ask, conversation(str(number))) for number in range(4)]
        until(lambda: len(server.bodies) == 1)
        server.paused = False
        assert all(each.result().status_code == 200 for each in pending)
        assert all(orjson.loads(body)["id_slot"] == 0 for body in server.bodies)
        assert [action.split()[0] for action in server.actions] == ["save"] * 3


def test_files_stay_within_the_disk_budget(tmp_path: Path) -> None:
    limit = BYTES_PER_TOKEN * 800
    with llama(tmp_path, save_after=0.0, disk_size=limit) as (server, running):
        chats = [conversation(str(number), 2 + number % 3) for number in range(8)]
        for chat in chats:
            running.turn(chat, "hello")
            until(lambda: running.get("/blocks/chains")[-1] and running.status()["slots"]["saved_bytes"] <= limit)
        until(lambda: sum(BYTES_PER_TOKEN * len(file.tokens) for file in server.files.values()) <= limit)
        assert running.turn(chats[0], "long gone") < 20
        assert running.post("/blocks/reset").json()["reset"]
        assert [block["place"] for block in running.get("/blocks") if block["medium"] == "disk"] == []
        assert server.errors == []


def test_texts_are_requested_over_two_connections_and_once(tmp_path: Path) -> None:
    """Each connection, also an idle one, occupies a thread of llama-server."""
    with llama(tmp_path, Llama(12)) as (server, running):
        for number in range(12):
            running.turn(conversation(f"topic {number}"), "hello")
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            chains = list(pool.map(running.get, ["/blocks/chains"] * 3))
        assert {len({chain["first_text"] for chain in listed}) for listed in chains} == {12}
        assert server.max_concurrent_texts <= 2
        texts = server.texts
        running.get("/blocks/chains")
        assert server.texts == texts
        assert server.closed == {"/v1/chat/completions": {True}, "/detokenize": {False}}


def test_an_unknown_text_is_named(tmp_path: Path) -> None:
    with llama(tmp_path) as (server, running):
        server.refuses_texts = True
        for number in range(2):
            running.turn(conversation(f"topic {number}"), "hello")
        assert [chain["first_text"] for chain in running.get("/blocks/chains")] == [None, None]
        # Further calls would fail, too.
        assert server.texts == 1
        shown = kvproxy("blocks", url=running.url).stdout
        assert [line.split("\t")[-1] for line in shown.splitlines()[1:]] == ["unknown", "unknown"]
        block = running.get("/blocks/chains")[0]["leaf"]
        assert running.get(f"/blocks/{block}")["text"] is None
        server.refuses_texts = False
        assert "topic" in running.get("/blocks/chains")[0]["first_text"]


def test_a_server_that_ended_has_no_slots(tmp_path: Path) -> None:
    with contextlib.ExitStack() as server, contextlib.ExitStack() as own:
        url = server.enter_context(run_app(Llama().app))
        running = own.enter_context(proxy(tmp_path, url, save_after=0.0))
        running.turn(conversation("kept"), "hello")
        until(lambda: running.status()["slots"]["saved"] == 1)
        server.close()
        shown = kvproxy("blocks", url=running.url).stdout
        assert f"{url} does not respond" in shown
        assert "slot 0" not in shown
        assert "\ndisk\t" in shown
        assert url in running.get("/blocks/stats")["away"]
        assert f"{url} does not respond" in kvproxy("blocks", "stats", url=running.url).stdout


def test_a_reset_empties_all_files(tmp_path: Path) -> None:
    with llama(tmp_path, save_after=0.0) as (server, running):
        for number in range(4):
            running.turn(conversation(f"secret {number}"), "hello")
        until(lambda: running.status()["slots"]["saved"] == 4)
        broken = sorted(server.files)[2]
        server.refused_files.add(broken)
        done = kvproxy("blocks", "reset", url=running.url)
        assert done.returncode == 1
        assert "may contain conversations" in done.stderr
        assert broken in done.stderr
        server.refused_files.clear()
        done = kvproxy("blocks", "reset", url=running.url)
        assert (done.returncode, "for later saves: 4" in done.stdout) == (0, True)
        assert [file.tokens for file in server.files.values()] == [[]] * 4
        # The index has no tokens, either.
        secret = array("i", map(ord, "secret")).tobytes()
        until(lambda: not any(secret in path.read_bytes() for path in tmp_path.glob("slots.db*")))
        # Later saves use the files.
        running.turn(conversation("new"), "hello")
        until(lambda: running.status()["slots"]["saved"] == 1)
        assert len(server.files) == 4


def test_a_reset_waits_for_a_slot_that_is_being_saved(tmp_path: Path) -> None:
    with llama(tmp_path, save_after=0.0) as (server, running), concurrent.futures.ThreadPoolExecutor(1) as pool:
        server.delays_saves = True
        running.ask([*conversation("one"), {"role": "user", "content": "hello"}]).raise_for_status()
        until(lambda: server.actions)
        pending = pool.submit(running.post, "/blocks/reset")
        assert not concurrent.futures.wait([pending], 0.2).done
        server.delays_saves = False
        assert pending.result().json()["reset"]
        assert not any(slot.tokens for slot in server.slots)


def test_the_slot_of_a_cancelled_stream_is_known(tmp_path: Path) -> None:
    with llama(tmp_path) as (server, running):
        chat = [*conversation("one"), {"role": "user", "content": "hello"}]
        body = {"model": "m", "messages": chat, "stream": True, "answer": "a long story " * 50}
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body) as response,
        ):
            next(response.iter_raw())
            server.paused = True
        server.paused = False
        running.idle()
        assert running.predicted(chat) == len(template(chat)) - 1
        response = running.ask(chat, stream=True)
        assert response.text.endswith("data: [DONE]\n\n")
        running.idle()
        said = orjson.loads(server.bodies[-1])["messages"]
        assert said == chat
        more = [*chat, {"role": "assistant", "content": f"answer {sum(map(ord, template(chat))) % 997}"}]
        more.append({"role": "user", "content": "go on"})
        predicted = running.predicted(more)
        assert predicted > len(template(chat))
        assert running.ask(more).json()["timings"]["cache_n"] == predicted


def test_an_idle_slot_is_saved_before_the_server_clears_it(tmp_path: Path) -> None:
    with llama(tmp_path) as (server, running):
        server.clears_idle = True
        one, two = conversation("one"), conversation("two")
        running.turn(one, "hello")
        running.turn(two, "hello")
        running.turn(two, "hello again")
        assert "-np" in running.status()["advice"][0]
        for turn in range(3):
            for chat in (one, two):
                reused = running.turn(chat, str(turn))
                assert reused > 100 or (turn == 0 and chat is one)


@pytest.mark.parametrize("seed", range(2))
def test_predictions_equal_reports(tmp_path: Path, seed: int) -> None:
    """Explain predicts the reported reuse after random restarts, resets, and requests of other clients."""
    choose = random.Random(seed)
    with llama(tmp_path, save_after=choose.choice([0.0, 3600.0]), disk_size=BYTES_PER_TOKEN * 2000) as (
        server,
        running,
    ):
        chats = [conversation(choose.choice("abc") + str(number), choose.choice([1, 3, 5])) for number in range(6)]
        for step in range(20):
            chat = choose.choice(chats)
            match choose.randrange(12):
                case 0:
                    server.restart(choose.choice(["one", "two"]))
                case 1:
                    body = {"messages": chat, "id_slot": choose.randrange(2)}
                    httpx.post(f"{running.status()['url']}/v1/chat/completions", json=body).raise_for_status()
                case 2:
                    del chat[max(1, len(chat) - 4) :]
                case 3:
                    running.post("/blocks/reset").raise_for_status()
            question = f"{step} " + TURN * choose.randrange(2)
            found = running.explain([*chat, {"role": "user", "content": question}])
            predicted = found["matched_tokens"] + sum(found["tiers"].values())
            reused = running.turn(chat, question)
            # Other clients may leave unknown contents, so the reuse may be higher.
            assert reused == predicted if found["complete"] else reused >= predicted, step
            assert server.errors == []


def test_slots_are_branches_of_the_prefix_tree(tmp_path: Path) -> None:
    with llama(tmp_path) as (_, running):
        for number in range(2):
            running.turn(conversation(f"topic {number}"), "hello")
        branches = running.get("/blocks/tree")
        assert sorted(branch["text"].partition(":")[0] for branch in branches) == ["<system>topic 0", "<system>topic 1"]
        assert {branch["end"] for branch in branches} == {block["hash"] for block in running.get("/blocks")}
