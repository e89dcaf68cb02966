r"""verdict_cases.tsv: name, gold answer, response and right verdict (1 correct, 0 wrong), one case a line."""

from pathlib import Path

import pytest

from hardwon.verifiers.math import grade, parses

LINES = Path(__file__).with_name("verdict_cases.tsv").read_text(encoding="utf-8").splitlines()
CASES = [line.split("\t") for line in LINES if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("gold", "response", "right"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_verdict(gold, response, right):
    assert parses(gold)
    found = grade(gold, response)
    assert found["correct"] == bool(int(right)), found["message"]
    assert found["correct"] or found["message"]
