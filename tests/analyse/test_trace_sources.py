"""One stream of prompts from all kinds of traces."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard

from kvproxy.analyse.simulate.pool_simulation import lru_hits
from kvproxy.analyse.simulate.trace_reader import TraceError
from kvproxy.analyse.workload_reader import read_workload
from tests.analyse.test_transcripts import conversation
from tests.commands.run import kvproxy
from tests.journal.sessions.requests import Sessions, request, user


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def stored(seconds: float, parent: int | None, *hashes: int) -> list[Any]:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": []}
    return [seconds, [event | {"block_size": 16}], None]


EVENTS = (stored(1.0, None, 1, 2), stored(1.5, 2, 3), stored(60.0, 3, 4), stored(61.0, None, 9), stored(99.0, 2, 5))


def test_kv_events_show_stored_blocks_and_the_cached_blocks_before_them(tmp_path: Path) -> None:
    (file := tmp_path / "events.msgpack").write_bytes(b"".join(map(msgpack.packb, EVENTS)))
    trace = read_workload(file)
    assert [len(chain.blocks) for chain in trace.chains] == [3, 4, 1, 3]
    assert lru_hits(trace.chains, [None]) == [5]
    assert (trace.block_tokens, "too low" in trace.notes[0]) == (16, True)
    file.write_bytes(msgpack.packb(EVENTS[0]) + msgpack.packb({"events": 3, "ts": 1}))
    with pytest.raises(TraceError, match="batch 2: the events are not a list"):
        read_workload(file)


# Rows of BurstGPT_1.csv and BurstGPT_3.csv (CC BY 4.0).
PUBLISHED_LENGTHS = {
    "BurstGPT_1.csv": """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,Conversation log
""",
    "BurstGPT_3.csv": """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log
19440161.0,d5983bf9-4b48-497b-892b-a58995247443,2,ChatGPT,36,29,65,Conversation log
""",
}


@pytest.mark.parametrize(
    ("name", "tokens", "seconds"),
    [("BurstGPT_1.csv", [(472, 18), (1087, 230), (417, 276)], 113), ("BurstGPT_3.csv", [(906, 446), (36, 29)], 51)],
)
def test_lengths_are_read_as_published(tmp_path: Path, name: str, tokens: list[tuple[int, int]], seconds: int) -> None:
    (tmp_path / name).write_text(PUBLISHED_LENGTHS[name])
    arrivals = read_workload(tmp_path / name).arrivals
    assert [(each.tokens, each.output) for each in arrivals] == tokens
    assert int(arrivals[-1].seconds - arrivals[0].seconds) == seconds


def test_lengths_size_fleets_only(tmp_path: Path) -> None:
    rows = "".join(f"{second},ChatGPT,900000000,18\n" for second in range(500))
    (file := tmp_path / "burst.csv").write_text(
        "Timestamp,Model,Request tokens,Response tokens\n4,ChatGPT,3,1\n" + rows
    )
    done = kvproxy("simulate", file)
    assert (done.returncode, "give --engines or --ttft" in done.stderr) == (2, True)
    fleet = kvproxy("simulate", file, "--engines", 2, "--json")
    assert "no reuse can be known" in fleet.stderr
    assert {each["refused"] for each in json.loads(fleet.stdout)["results"]} == {500}


def test_ids_of_a_folder_belong_to_their_file(tmp_path: Path) -> None:
    request = {"in": 128, "out": 1, "hash_ids": [1, 2]}
    session = {"block_size": 64, "hash_id_scope": "local", "requests": [request | {"t": 0.0}, request | {"t": 10.0}]}
    for name in ("a.json", "b.json", "c.json"):
        (tmp_path / name).write_text(json.dumps(session))
    trace = read_workload(tmp_path)
    assert lru_hits(trace.chains, [None]) == [3]
    assert [arrival.seconds for arrival in trace.arrivals] == [0, 0, 0, 10, 10, 10]
    assert [arrival.seconds for arrival in read_workload(tmp_path, users=2).arrivals] == [0, 0, 10, 10, 10, 20]


def test_a_transcript_is_read_by_its_texts(tmp_path: Path) -> None:
    conversation().write(tmp_path / "5e55.jsonl")
    trace = read_workload(tmp_path, block_size=2)
    first, second, *_ = trace.chains
    assert list(second.blocks[: len(first.blocks) - 1]) == list(first.blocks[:-1])
    assert "system prompt" in trace.notes[0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,many,18\n", "line 2: bad request"),
        ("a.jsonl", lines({"input_length": 9, "timestamp": 1}, {"input_length": 9}), "line 2: has no timestamp"),
        ("a.jsonl", lines({"input_length": 9}, {"input_length": -1}), "line 2: bad request"),
        ("a.jsonl", "\ud83d", "line 1: the file is no UTF-8 text"),
        ("a.jsonl", "[" * 3000, "line 1: not JSON"),
        ("a.jsonl", "messages", "line 1: not JSON"),
        ("a.jsonl", lines({"messages": []}), "kvproxy estimate shows its hit rates by pool size"),
        ("a.jsonl", "PAR1", "Parquet file: convert it"),
        ("a.jsonl", lines({"tokens": [1]}, {"tokens": "x"}), "line 2: bad request"),
        ("a.jsonl", lines({"tokens": [1]}, []), "line 2: expected a JSON object"),
        ("a.jsonl", lines({"hash_ids": [1], "input_length": 600}, {}), "line 2: bad request"),
        ("a.jsonl", lines({"other": 1}), "line 1: expected hash_ids"),
        ("a.txt", "", "line 1: the file is empty"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text, errors="surrogatepass")
    with pytest.raises(TraceError, match=message):
        read_workload(tmp_path / name)


def compressed(text: str) -> dict[str, bytes]:
    half, compressor = len(text) // 2, zstandard.ZstdCompressor()
    frames = [compressor.compress(part.encode()) for part in (text[:half], text[half:])]
    return {"a.jsonl": text.encode(), "a.jsonl.gz": gzip.compress(text.encode()), "a.jsonl.zst": b"".join(frames)}


def test_files_may_be_compressed_several_or_piped(tmp_path: Path) -> None:
    rows = [{"timestamp": second, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]} for second in range(3)]
    files = compressed(lines(*rows))
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        whole = read_workload(tmp_path / name)
        assert [arrival.seconds * 1000 for arrival in whole.arrivals] == [0, 1, 2]
        piped = json.loads(kvproxy("simulate", "-", "--blocks", 9, "--json", stdin=content).stdout)
        assert piped == json.loads(kvproxy("simulate", tmp_path / name, "--blocks", 9, "--json").stdout)
    assert read_workload(*(tmp_path / name for name in files)).arrivals == read_workload(tmp_path).arrivals
    several = kvproxy("simulate", *(tmp_path / name for name in files), "--blocks", 9)
    assert "9 requests" in several.stdout
    assert "the file is empty" in kvproxy("simulate", "-").stderr


def test_logs_may_be_compressed(tmp_path: Path) -> None:
    for name, content in compressed(
        lines({"model": "m", "messages": [user("a")]}, {"model": "m", "messages": [user("b")]})
    ).items():
        (tmp_path / name).write_bytes(content)
        assert "read as requests: 2 rows" in kvproxy("lint", tmp_path / name, "--data", tmp_path / "data").stderr


@pytest.mark.parametrize("damage", [lambda content: content[:-3], lambda content: content[:9] + b"?" + content[10:]])
def test_a_damaged_zstandard_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    (file := tmp_path / "a.jsonl.zst").write_bytes(damage(compressed(lines({"input_length": 9}) * 9)["a.jsonl.zst"]))
    with pytest.raises(TraceError, match="line 1: the file is damaged"):
        read_workload(file)
    assert kvproxy("estimate", file).returncode == 2


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines({"input_length": 9}).encode())[:-12])
    with pytest.raises(TraceError, match="line 1: the file is damaged"):
        read_workload(tmp_path)


def test_a_journal_states_its_measured_reuse_and_why_hit_rates_differ(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"))
    sessions.add(*(request([user(f"What is block {at}?")], 40, 32 if at else 0, at) for at in range(4)))
    sessions.close()
    trace = read_workload(Path(sessions.place))
    assert "different messages count as new" in trace.notes[0]
    assert "reused 60.0% of the prompt tokens" in trace.notes[1]
    assert lru_hits(trace.chains, [None]) == [0]


# The published columns of AzureLLMInferenceTrace_code.csv (2023) and of the traces of 2024.
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690"),
        ("2024-05-10 00:00:00.000000+00:00", "2024-05-10 00:00:04.314579+00:00"),
    ],
)
def test_azures_tables_have_lengths(tmp_path: Path, first: str, second: str) -> None:
    (file := tmp_path / "azure.csv").write_text(
        f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first},4808,10\n{second},3180,8\n"
    )
    trace = read_workload(file)
    assert [(each.tokens, each.output) for each in trace.arrivals] == [(4808, 10), (3180, 8)]
    assert trace.arrivals[1].seconds == pytest.approx(4.314579, abs=1e-5)
    file.write_text("time,tokens\n1,2\n")
    with pytest.raises(TraceError, match="unknown columns time, tokens: known tables have BurstGPT: Timestamp"):
        read_workload(file)


def test_rows_of_a_session_have_its_new_blocks(tmp_path: Path) -> None:
    """AIPerf's and Dynamo's sessions: 2,048 + 2,560 + 2,048 tokens, of which 2,048 and 1,536 are reused."""
    (file := tmp_path / "sessions.jsonl").write_text(
        lines(
            {"session_id": "a", "timestamp": 500, "input_length": 2048, "output_length": 9, "hash_ids": [1, 2, 3, 4]},
            {"session_id": "a", "delay": 1000, "input_length": 512, "output_length": 9, "hash_ids": [5]},
            {"session_id": "b", "delay": 9000, "input_length": 2048, "output_length": 9, "hash_ids": [1, 2, 3, 6]},
        )
    )
    trace = read_workload(file, block_size=512)
    assert [(each.seconds, each.tokens) for each in trace.arrivals] == [(0.5, 2048), (1.5, 2560), (9.0, 2048)]
    assert lru_hits(trace.chains, [None]) == [7]


def test_each_row_of_a_session_may_end_in_an_incomplete_block(tmp_path: Path) -> None:
    """Lengths and numbers of ids of the first rows of AIPerf's trace of Inference Day 2026 (Apache 2.0).

    By hand: the prompts have 42,277, 44,132, and 45,977 tokens, so 82, 86, and 89 whole blocks; of the second and the third,
    82 and 86 blocks were sent before, and of the other session 63.
    """
    ids, rows = list(range(1_000)), []
    for length, start, end in ((42_277, 0, 83), (1_855, 83, 87), (1_845, 87, 91)):
        place = {"timestamp": 0.0} if start == 0 else {"delay": 12_219.3}
        rows.append({"session_id": "a", "input_length": length, "hash_ids": ids[start:end], **place})
    other = [*ids[:63], *range(2_000, 2_039)]
    rows.append({"session_id": "b", "input_length": 52_196, "hash_ids": other, "timestamp": 99_000.0})
    (file := tmp_path / "sessions.jsonl").write_text(lines(*rows))
    trace = read_workload(file)
    assert trace.block_tokens == 512
    assert [each.tokens for each in trace.arrivals] == [42_277, 44_132, 45_977, 52_196]
    assert [len(each.chain.blocks) for each in trace.arrivals] == [82, 86, 89, 101]
    assert lru_hits(trace.chains, [None]) == [82 + 86 + 63]
