"""Checks with each outcome. Processes that run them import this module only, which takes no time."""

import os
import time
from typing import Any

from tests.gpu.check import Check, Figures, Missed, NotHere

# Far more than the start of a process takes on a busy machine.
_SECONDS = 600


def works(device: Any) -> Figures:
    return {"device": device.type}


def misses(device: Any) -> Figures:
    raise Missed("too slow", {"ratio": "2.0"})


def lacks(device: Any) -> Figures:
    raise NotHere("no such part")


def crashes(device: Any) -> Figures:
    os._exit(7)


def hangs(device: Any) -> Figures:
    time.sleep(600)
    return {}


CHECKS = [
    Check("lacks", _SECONDS, lacks),
    Check("misses", _SECONDS, misses),
    Check("crashes", _SECONDS, crashes),
    Check("works", _SECONDS, works),
    Check("hangs", 1, hangs),
]
