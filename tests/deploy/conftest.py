"""Tests of the deployment files with the real programs, collected only if KVPROXY_DEPLOY is set (`make test-deploy`)."""

import os

if not os.environ.get("KVPROXY_DEPLOY"):
    collect_ignore_glob = ["test_*.py"]
