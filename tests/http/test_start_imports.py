"""A proxy imports what its start and its first requests need, and the rest later."""

import subprocess
import sys

_SCRIPT = "import sys, kvproxy.commands.serve, kvproxy.http.serve, kvproxy.upstreams.fleet; print(*sys.modules)"
_LATER = {"fastapi", "pydantic.v1", "opentelemetry", "yaml", "httpx", "rich", "jinja2", "onnxruntime", "torch"}


def test_the_start_imports_no_admin_routes() -> None:
    loaded = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True).stdout.split()
    assert _LATER.isdisjoint(loaded)
    assert len(loaded) < 1_050
