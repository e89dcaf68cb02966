"""What a person sees and does while something runs: one live line with an ETA, and Ctrl-C that saves."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# Where the output is no terminal (a log file), a line every so many seconds.
LOG_SECONDS = 15.0


class Display:
    """A progress bar with a line of figures; in a log file, a line now and then."""

    def __init__(self, total: int, done: int = 0, title: str = "training", console: Console | None = None):
        self.console = console or Console()
        self.total, self.title, self.started, self.first = total, title, time.monotonic(), done
        self._last_line = -LOG_SECONDS
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
            disable=not self.console.is_terminal,
            speed_estimate_period=60,
        )
        self._task = self._progress.add_task(title, total=total, completed=done, figures="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Start the bar anew for the next stage of a run that has several."""
        self.total, self.title, self.started, self.first = total, title, time.monotonic(), done
        self._progress.reset(self._task, total=total, completed=done, description=title, figures="")

    def update(self, done: int, figures: Mapping[str, str]) -> None:
        """Show `done` of the total and short figures such as `{"reward": "0.41"}`."""
        text = "  ".join(f"{k} {v}" for k, v in figures.items())
        self._progress.update(self._task, completed=done, figures=text)
        now = time.monotonic()
        if not self.console.is_terminal and (now - self._last_line >= LOG_SECONDS or done == self.total):
            self._last_line = now
            spent = now - self.started
            left = spent / max(done - self.first, 1) * (self.total - done)
            self.print(f"{self.title} {done}/{self.total}  {text}  {spent:.0f} s, ETA {left:.0f} s")

    def print(self, text: str) -> None:
        """A line that stays, above the live one. A log file on a full disk loses it, and nothing else."""
        with contextlib.suppress(OSError):
            self.console.print(text, highlight=False)


@contextlib.contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does: for stages that go on from what is in their files."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        previous = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: nothing to catch here
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class Interrupt:
    """Turns Ctrl-C and SIGTERM (as clusters send) into a flag that a loop reads between iterations.

    A second Ctrl-C stops at once.
    """

    def __init__(self, display: Display | None = None):
        self.requested = False
        self._display = display
        self._previous: dict[int, object] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
        if self._display is not None:
            self._display.print("Finishing this iteration, then saving. Ctrl-C again stops at once.")

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._handle)
            except ValueError:  # not the main thread: nothing to catch here
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)  # type: ignore[arg-type]
