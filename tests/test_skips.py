"""A skip is a question: one that is not on the list fails CI, and all are counted at the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
ALLOWED, UNKNOWN = "vLLM needs an environment of its own", "somebody forgot to install it"
MODULE = "import pytest\n\ndef test_that_runs(): pass\n\ndef test_that_does_not(): pytest.skip({reason!r})\n"


@pytest.mark.parametrize(
    ("reason", "ci", "exit_code"), [(ALLOWED, "true", 0), (UNKNOWN, "true", 1), (UNKNOWN, "", 0)]
)
def test_an_unknown_skip_fails_ci_and_only_there(tmp_path, reason, ci, exit_code):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_module.py").write_text(MODULE.format(reason=reason))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, "CI": ci}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == exit_code, done.stdout
    assert ("NOT ALLOWED" in done.stdout) == (reason == UNKNOWN)


def test_a_module_that_cannot_be_imported_is_a_skip_too(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_module.py").write_text("import pytest\n\npytest.importorskip('no_such_package')\n")
    (tmp_path / "test_other.py").write_text("def test_that_runs(): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, "CI": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "no_such_package" in done.stdout
