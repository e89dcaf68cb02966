"""What holds for every test: a directory of its own to work in, and no skip that nobody knows of."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter

import pytest

ALLOWED_SKIPS = {
    r"vLLM needs an environment of its own": "its pins exclude our transformers; see docs/vllm.md",
    r"verl's V1 trainer cannot be imported here": "`make test-verl` runs these in an environment of its own",
    r"no gold answer: ": "sets of reasoning_gym that come without a solution",
}
"""Reason of a skip (a regular expression) -> why it is no loss. With CI set any other skip fails the run."""
if shutil.which("bwrap") is None:
    ALLOWED_SKIPS[r"layer N does not hold here: "] = "bubblewrap is not installed"
if os.geteuid() != 0:
    ALLOWED_SKIPS[r"mounting a small file system needs root"] = "test_run.py limits file sizes instead"

SKIPPED: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """No test sees what lies in the directory where pytest was started, such as the runs of a demo."""
    monkeypatch.chdir(tmp_path)


def pytest_runtest_logreport(report):
    if report.skipped:
        count_skip(report)


def pytest_collectreport(report):
    if report.skipped:
        count_skip(report)


def count_skip(report):
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    SKIPPED[reason.removeprefix("Skipped: ")] += 1


def unknown_skips() -> list[str]:
    return [reason for reason in SKIPPED if not any(re.match(allowed, reason) for allowed in ALLOWED_SKIPS)]


def pytest_terminal_summary(terminalreporter):
    if not SKIPPED:
        return
    terminalreporter.section("skipped")
    for allowed, why in ALLOWED_SKIPS.items():
        number = sum(count for reason, count in SKIPPED.items() if re.match(allowed, reason))
        if number:
            terminalreporter.write_line(f"{number:4}  allowed: {allowed}... ({why})")
    for reason in unknown_skips():
        terminalreporter.write_line(f"{SKIPPED[reason]:4}  NOT ALLOWED: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """A module that cannot be imported here is found by its skips, and so is a layer that does not hold."""
    if os.environ.get("CI") and unknown_skips() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
