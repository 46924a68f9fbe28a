"""A start over many stored entries of one namespace: with the graph in files, without, and FAISS reading the same graph alone.

python -m tests.benchmarks.cold_start [--entries 1000000] [--kind float32] [--folder FOLDER] [--without]

The store is that of `lookup`, made where the folder lacks it. Every start is a process of its own; `--without` also starts
once without the graph, which is then built in the background, for minutes with a million entries.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from kvproxy.index.search.faiss_segment import Kind
from kvproxy.index.search.neighbours import FaissNeighbours
from kvproxy.index.store import SqliteStore
from tests.benchmarks.many import DIM, EMBEDDER, FOLDER, NAMESPACE, prepare, resident

STARTS = 3


def start(path: Path, kind: Kind, build: bool) -> dict[str, Any]:
    """Seconds until the store is open, the graph is there, and the first search is answered; MiB at its most.

    Args:
        build: wait for the graph that is built in the background, asking meanwhile.
    """
    # What any process that uses FAISS loads, whatever is stored.
    faiss.IndexFlatIP(DIM).add(np.zeros((1, DIM), np.float32))
    before, began, worked = resident(), time.perf_counter(), time.process_time()
    store = SqliteStore(path)
    assert store.missing_vectors(EMBEDDER, 1) == []
    opened = time.perf_counter() - began
    near = FaissNeighbours(store, EMBEDDER, DIM, kind)
    near.load()
    loaded = time.perf_counter() - began
    query = store.vectors(NAMESPACE, EMBEDDER, limit=1)[1][0]
    assert near.search(NAMESPACE, query, 1)
    first, cpu = time.perf_counter() - began, time.process_time() - worked
    index = near.indexes[NAMESPACE]
    seen = {"opened": opened, "loaded": loaded, "first": first, "cpu": cpu, "graph": index.graph is not None}
    if build:
        waits = []
        while index.graph is None:
            asked = time.perf_counter()
            near.search(NAMESPACE, query, 5)
            waits.append(time.perf_counter() - asked)
            time.sleep(0.2)
        near.settle()
        seen |= {"built": time.perf_counter() - began, "p50": float(np.median(waits)), "most": max(waits)}
    seen["mib"] = (_most_resident() - before) / 2**20
    near.close()
    store.close()
    return seen


def bare(path: Path) -> dict[str, float]:
    """Seconds in which FAISS alone reads the graph, and its MiB."""
    faiss.IndexFlatIP(DIM).add(np.zeros((1, DIM), np.float32))
    (file,) = path.with_name(path.name + "-index").glob("*.faiss")
    before, began, worked = resident(), time.perf_counter(), time.process_time()
    graph = faiss.read_index(str(file))
    assert graph.ntotal
    read, cpu = time.perf_counter() - began, time.process_time() - worked
    return {"read": read, "cpu": cpu, "mib": (_most_resident() - before) / 2**20}


def _most_resident() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def apart(what: str, path: Path, kind: str) -> dict[str, Any]:
    """A start in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.cold_start",
        "--worker",
        what,
        "--kind",
        kind,
        "--path",
        str(path),
    ]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def compare(path: Path, kind: str, *, without: bool) -> None:
    for _ in range(STARTS):
        ours, floor = apart("start", path, kind), apart("bare", path, kind)
        print(
            f"with the graph: store open {ours['opened']:.2f} s, loaded {ours['loaded']:.2f} s, first answer"
            f" {ours['first']:.2f} s ({ours['cpu']:.2f} s of CPU), at most {ours['mib']:.0f} MiB;"
            f" FAISS alone reads it in {floor['read']:.2f} s ({floor['cpu']:.2f}), {floor['mib']:.0f} MiB",
            flush=True,
        )
        assert ours["graph"]
    if without:
        for file in path.with_name(path.name + "-index").iterdir():
            file.unlink()
        ours = apart("build", path, kind)
        print(
            f"without: first answer {ours['first']:.2f} s; compared one by one for {ours['built']:.0f} s meanwhile, median"
            f" {ours['p50'] * 1e3:.0f} ms, most {ours['most'] * 1e3:.0f} ms; at most {ours['mib']:.0f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--kind", default="float32")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the stores are kept")
    parser.add_argument("--without", action="store_true", help="start once without the graph too")
    parser.add_argument("--worker", choices=("start", "build", "bare"), help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker == "bare":
        print(json.dumps(bare(arguments.path)))
    elif arguments.worker is not None:
        print(json.dumps(start(arguments.path, arguments.kind, arguments.worker == "build")))
    else:
        path = prepare(arguments.folder, arguments.entries, arguments.kind)
        compare(path, arguments.kind, without=arguments.without)


if __name__ == "__main__":
    main()
