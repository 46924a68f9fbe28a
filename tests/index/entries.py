"""Entries for tests."""

from typing import Any

from kvproxy.index.entry import Entry, new_id


def make_entry(prompt: str = "What is a block?", **fields: Any) -> Entry:
    values: dict[str, Any] = {
        "id": new_id(),
        "key": f"key of {fields.get('namespace', 'n')} {prompt}",
        "namespace": "n",
        "tenant": "public",
        "model": "demo",
        "endpoint": "chat",
        "prompt": prompt,
        "semantic": True,
        "request": b'{"model": "demo"}',
        "response": b'{"choices": []}',
        "created": 1000.0,
        "expires": 1e12,
        "completion_tokens": 5,
    }
    return Entry(**(values | fields))
