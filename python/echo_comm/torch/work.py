"""Coded calls as c10d work: the handle a caller waits on, and the thread that works started calls off.

A group's started calls run in one thread of the group, in the order in which they were made, which is the same on all
ranks. A call that is waited for anyway runs in the caller's thread instead, after the started ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from echo_comm._library import EchoAbortedError, EchoTimeoutError


class CodedWork(dist.Work):  # type: ignore[misc]
    """One coded call: what c10d hands out for it. Thread-safe.

    The tensors belong to the call until it ended. What went wrong is raised by wait() and by the future.
    """

    def __init__(self, what: str, tensors: list[Tensor], outcome: Future[None]) -> None:
        super().__init__()
        self._what, self._tensors, self._outcome = what, tensors, outcome

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns when the tensors hold the result. timeout: 0 waits as long as the call may take.

        Raises the call's error, or EchoTimeoutError after `timeout`; the call then goes on.
        """
        seconds = timeout.total_seconds()
        try:
            self._outcome.result(seconds if seconds > 0 else None)
        except FutureTimeout:
            if self._outcome.done():  # the call's own timeout
                raise
            raise EchoTimeoutError(f"{self._what}: not finished after {seconds:g} s; the call goes on") from None
        except CancelledError:
            raise EchoAbortedError(f"{self._what}: the group was shut down before the call began") from None
        return True

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the call ended, well or not. Never waits."""
        return self._outcome.done()

    def is_success(self) -> bool:
        """Whether the call ended well."""
        return self._outcome.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """What went wrong; None: nothing so far."""
        if not self._outcome.done():
            return None
        if self._outcome.cancelled():
            return EchoAbortedError(f"{self._what}: the group was shut down before the call began")
        return self._outcome.exception()

    def result(self) -> list[Tensor]:
        """The tensors that received the result, after waiting for it."""
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Completes with the tensors that received the result, or with the call's error."""
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()

        def complete(_outcome: Future[None]) -> None:
            error = self.exception()
            if error is None:
                future.set_result(self._tensors)
            else:
                future.set_exception(error)

        self._outcome.add_done_callback(complete)
        return future


class CallQueue:
    """Runs the coded calls of one group, one at a time, in the order of submission.

    Calls are submitted by one thread at a time, as c10d asks of its callers.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None  # started with the first started call
        self._last: Future[None] | None = None

    def run(self, what: str, tensors: list[Tensor], call: Callable[[], None], started: bool) -> CodedWork:
        """Runs `call` here after the started ones, or, with `started`, in the group's thread."""
        if not started:
            self.drain()
            call()
            outcome: Future[None] = Future()
            outcome.set_result(None)
            return CodedWork(what, tensors, outcome)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="echo")
        self._last = self._thread.submit(_without_grad, call)
        return CodedWork(what, tensors, self._last)

    def drain(self) -> None:
        """Returns when all started calls ended. Their errors are raised where they are waited for, not here."""
        if self._last is not None:
            if not self._last.done():
                ended = threading.Event()
                self._last.add_done_callback(lambda _outcome: ended.set())
                ended.wait()
            self._last = None

    def close(self) -> None:
        """Started calls that have not begun end with EchoAbortedError. Does not wait for the one under way."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def _without_grad(call: Callable[[], None]) -> Any:
    with torch.no_grad():
        call()
