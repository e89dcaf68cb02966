"""What was injected, in numbers, below the results."""

from __future__ import annotations

import sys


def pytest_terminal_summary(terminalreporter):
    module = sys.modules.get("test_kills")
    if module is None or not module.KILLED:
        return
    terminalreporter.section("kills")
    for (algorithm, stage, how), number in sorted(module.KILLED.items()):
        terminalreporter.write_line(f"{algorithm:18}{stage:18}{how:8}{number:4}")
    terminalreporter.write_line(f"{sum(module.KILLED.values()):48}")
