import contextlib
import logging
import queue
import threading
from collections.abc import Callable

import torch

from kvproxy.blocks.events import AllBlocksCleared
from kvproxy.engine.core import EngineCore
from kvproxy.engine.event_publisher import KVEventPublisher
from kvproxy.engine.health import EngineHealth, StepFailed, error_for_client, first_line, is_device_error
from kvproxy.errors import KvproxyError, Overloaded
from kvproxy.generation import Delta, GenerationRequest
from kvproxy.settings import EngineSettings

Job = Callable[[], None]
Send = Callable[[Delta | KvproxyError], None]
_log = logging.getLogger(__name__)
_STALL_POLL_SECONDS = 0.1


class EngineThread:
    """The thread that runs the engine's steps. All other calls of the engine run on it between two steps."""

    def __init__(self, engine: EngineCore, settings: EngineSettings) -> None:
        self.health = EngineHealth()
        self._engine = engine
        self._num_threads = settings.threads
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvproxy-engine", daemon=True)
        self._live: dict[str, Send] = {}
        if engine.tiers is not None:
            engine.tiers.wake = lambda: self._jobs.put(lambda: None)
        self.publisher: KVEventPublisher | None = None
        if settings.kv_events is not None:
            self.publisher = KVEventPublisher(
                settings.kv_events,
                settings.kv_replay,
                topic=settings.kv_topic,
                buffer=settings.kv_buffer,
                request_snapshot=lambda: self._jobs.put(self._publish_snapshot),
            )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()
        if self.publisher is not None:
            self.publisher.close()

    def run_between_steps(self, job: Job) -> None:
        """Enqueue a job, which must not block for long. Raises Overloaded if the thread does not run."""
        if not self._thread.is_alive():
            raise Overloaded("the engine is not running: start the server again")
        self._jobs.put(job)

    def submit(self, request: GenerationRequest, send: Send) -> None:
        """Enqueue a request. `send` receives its deltas, or its error, and must not block."""
        self.run_between_steps(lambda: self._submit(request, send))

    def _submit(self, request: GenerationRequest, send: Send) -> None:
        try:
            if self.health.fatal_error is not None:
                raise Overloaded(self.health.fatal_error)
            self._engine.add_request(request, send, send)
            self._live[request.id] = send
        except KvproxyError as error:
            send(error)
        except Exception as error:
            send(error_for_client(error))
            raise

    def abort(self, request: GenerationRequest, send: Send) -> None:
        """Abort the request that was submitted with `send`, if it is unfinished."""
        self._jobs.put(lambda: self._abort(request.id, send))

    def _abort(self, request_id: str, send: Send) -> None:
        # A refused request may have the same id.
        if self._live.get(request_id) is send:
            del self._live[request_id]
            self._engine.abort(request_id)

    def _run(self) -> None:
        if self._num_threads:
            torch.set_num_threads(self._num_threads)
        try:
            while self._run_jobs():
                self._step()
                self._publish()
            self.health.set_fatal("the server is shutting down")
        except Exception as error:
            _log.exception("the engine's thread stopped")
            self.health.set_fatal(f"the engine's thread stopped ({first_line(error)}): start the server again")
        self._fail_all(Overloaded(self.health.fatal_error or ""))
        self._engine.close()

    def _run_jobs(self) -> bool:
        engine = self._engine
        while not (self._jobs.empty() and engine.has_work and not engine.is_stalled):
            try:
                # A hanging load puts no job, so poll its deadline.
                job = self._jobs.get(timeout=_STALL_POLL_SECONDS if engine.is_stalled else None)
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
            _log.exception("a step failed; its requests were aborted")
            self.health.record_failure(error)
        except Exception as error:
            _log.exception("the engine failed; all requests were aborted and the prefix cache was cleared")
            self.health.record_failure(error)
            if is_device_error(error):
                self.health.set_fatal(f"the device failed ({first_line(error)}): start the server again")
            self._fail_all(error_for_client(error))
        else:
            if computed:
                self.health.record_success()

    def _fail_all(self, error: KvproxyError) -> None:
        callbacks, self._live = self._live, {}
        try:
            self._engine.fail_all(error)
        except Exception as second:
            _log.exception("the engine was not cleared")
            self.health.set_fatal(f"the engine failed ({first_line(second)}): start the server again")
        for send in callbacks.values():
            with contextlib.suppress(RuntimeError):  # The client's event loop is closed.
                send(error)

    def _publish(self) -> None:
        if self.publisher is None:
            return
        try:
            if events := self._engine.manager.take_events():
                self.publisher.publish(events)
        except Exception:
            _log.exception("KV events were not published; subscribers lack them until they request a snapshot")

    def _publish_snapshot(self) -> None:
        self._publish()
        if self.publisher is not None:
            self.publisher.publish([AllBlocksCleared(), *self._engine.manager.snapshot()])
