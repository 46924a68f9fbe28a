"""What is deployed beside the proxy, tried for real: collected only where KVPROXY_DEPLOY is set (`make test-deploy`)."""

import os

if not os.environ.get("KVPROXY_DEPLOY"):
    collect_ignore_glob = ["test_*.py"]
