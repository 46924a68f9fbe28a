"""Triton decides how a kernel runs when its file is imported; and tiny models are computed fastest on one thread."""

import os
from collections.abc import Iterator

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
