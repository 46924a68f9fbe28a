"""Joins the requests in the input of a batch with the responses in its output."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kvproxy.analyse.log_formats.log_format import LoggedRequest

BATCH_OUTPUTS = "of outputs of batches without their input"
"""Cause to skip a row."""


def is_output(request: LoggedRequest) -> bool:
    """Whether it is a response in the output of a batch."""
    return bool(request.batch_id) and not request.has_prompt


def join_outputs(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """Return the requests with the responses that the output of a batch has for their ids, and without these outputs.

    An id that several requests or several outputs have joins nothing.
    """
    inputs, outputs = (
        {request.batch_id: request for request in requests if request.batch_id and request.has_prompt is has_prompt}
        for has_prompt in (True, False)
    )
    counts = Counter((request.batch_id, request.has_prompt) for request in requests)
    joined = {id for id in inputs.keys() & outputs.keys() if counts[id, True] == counts[id, False] == 1}
    return [
        _with_output(request, outputs[request.batch_id]) if request.batch_id in joined else request
        for request in requests
        if request.has_prompt or request.batch_id not in joined
    ]


def _with_output(request: LoggedRequest, output: LoggedRequest) -> LoggedRequest:
    time = output.time if request.time is None else request.time
    return replace(request, response=output.response, time=time)
