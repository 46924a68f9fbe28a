"""Triton decides how a kernel runs when its file is imported, so its interpreter is chosen before any test runs."""

import os

os.environ["TRITON_INTERPRET"] = "1"
