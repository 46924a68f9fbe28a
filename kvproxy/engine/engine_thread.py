"""The thread that an engine runs on. Everything that touches the engine runs here, between steps."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from kvproxy.engine.core import EngineCore
from kvproxy.engine.event_publisher import create_publisher
from kvproxy.engine.health import EngineHealth, StepFailed, describe, is_device_error, request_failed
from kvproxy.errors import KvproxyError, Overloaded
from kvproxy.generation import Delta, GenerationRequest
from kvproxy.settings import EngineSettings

T = TypeVar("T")
Job = Callable[[], None]
Send = Callable[[Delta | KvproxyError], None]
_log = logging.getLogger(__name__)
_LOOK = 0.1


def run_on_temporary_thread(work: Callable[[], T]) -> T:
    """What some work gives that computes much and comes before the engine's thread.

    OpenMP keeps helpers for every thread that ever computed, until that thread ends. Where helpers and threads are more than
    the cores, GNU's lets none of them wait actively for its next piece of work, and the many small pieces of a step take half
    as long again.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="kvproxy-load", daemon=True).start()
    return future.result()


class EngineThread:
    """Steps an engine as long as it has work, and runs jobs in between.

    Args:
        engine: what runs here; nobody else may touch it once the thread is started.
        settings: threads of a forward pass, and where KV events go.

    Attributes:
        health: how the engine is.
        publisher: of its KV events, None where they are not asked for.
    """

    def __init__(self, engine: EngineCore, settings: EngineSettings) -> None:
        self.health = EngineHealth()
        self._engine = engine
        self._threads = settings.threads
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvproxy-engine", daemon=True)
        self._open: dict[str, Send] = {}
        if engine.tiers is not None:
            engine.tiers.wake = lambda: self._jobs.put(_nothing)
        self.publisher = create_publisher(settings, lambda: self._jobs.put(self._publish_all))

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current step; requests under way get an error. Waits for the end."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()
        if self.publisher is not None:
            self.publisher.close()

    def put(self, job: Job) -> None:
        """Have a job done between steps.

        Raises:
            Overloaded: the thread does not run.
        """
        if not self._thread.is_alive():
            raise Overloaded("the engine is not running: start the server again")
        self._jobs.put(job)

    def submit(self, request: GenerationRequest, send: Send) -> None:
        """Queue a request; `send` gets its pieces, or one error. It must not block.

        Raises:
            Overloaded: the engine is dead.
        """
        if self.health.dead is not None:
            raise Overloaded(self.health.dead)
        self.put(lambda: self._submit(request, send))

    def _submit(self, request: GenerationRequest, send: Send) -> None:
        try:
            if self.health.dead is not None:
                raise Overloaded(self.health.dead)
            self._engine.submit(request, send, send)
            self._open[request.id] = send
        except KvproxyError as error:
            send(error)
        except Exception as error:
            send(request_failed(error))
            raise

    def cancel(self, request: GenerationRequest, send: Send) -> None:
        """Drop a request that was submitted with `send`, and free its blocks; nothing where it is over."""
        self._jobs.put(lambda: self._cancel(request.id, send))

    def _cancel(self, request_id: str, send: Send) -> None:
        # Another request of the same id was refused, and must not take this one with it.
        if self._open.get(request_id) is send:
            del self._open[request_id]
            self._engine.cancel(request_id)

    def _run(self) -> None:
        import torch

        if self._threads:
            torch.set_num_threads(self._threads)
        try:
            while self._take_jobs():
                self._step()
                self._publish()
            self.health.died("the server is shutting down")
        except Exception as error:
            _log.exception("the engine's thread ends")
            self.health.died(f"the engine's thread ended ({describe(error)}): start the server again")
        self._drop(Overloaded(self.health.dead or ""))
        self._engine.close()

    def _take_jobs(self) -> bool:
        """Run what came in since the last step, waiting for something while there is no work; False to end."""
        engine = self._engine
        while not (self._jobs.empty() and engine.has_work and not engine.is_stalled):
            try:
                # A load that hangs wakes nobody, so its deadline must be looked at.
                job = self._jobs.get(timeout=_LOOK if engine.is_stalled else None)
            except queue.Empty:
                continue
            if job is None:
                return False
            try:
                job()
            except Exception:
                _log.exception("a job on the engine's thread failed")
            self._publish()
        return True

    def _step(self) -> None:
        try:
            computed = self._engine.step()
        except StepFailed as error:
            _log.exception("a step failed; its requests are dropped")
            self.health.step_failed(error)
        except Exception as error:
            _log.exception("the engine failed; all requests are dropped and the prefix cache is emptied")
            self.health.step_failed(error)
            if is_device_error(error):
                self.health.died(f"the device failed ({describe(error)}): start the server again")
            self._drop(request_failed(error))
        else:
            if computed:
                self.health.step_done()

    def _drop(self, error: KvproxyError) -> None:
        """Tell everybody under way, even where the engine is too broken to say who that is."""
        listeners, self._open = self._open, {}
        try:
            self._engine.fail(error)
        except Exception as second:
            _log.exception("the engine cannot be emptied")
            self.health.died(f"the engine failed ({describe(second)}): start the server again")
        for send in listeners.values():
            with contextlib.suppress(RuntimeError):  # The client's event loop is closed.
                send(error)

    def _publish(self) -> None:
        """Tell subscribers what changed, a batch a step. Answers do not depend on it, so a failure is only logged."""
        if self.publisher is None:
            return
        try:
            if events := self._engine.manager.take_events():
                self.publisher.publish(events)
        except Exception:
            _log.exception("KV events were not published; subscribers lack them until they ask for the whole content")

    def _publish_all(self) -> None:
        """Tell a late subscriber what is cached."""
        self._publish()
        if self.publisher is not None:
            self.publisher.publish_all(self._engine.manager.snapshot())


def _nothing() -> None:
    """A job that only wakes the engine's thread."""
