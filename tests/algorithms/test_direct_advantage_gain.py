"""The whole method on the embedded task: held-out accuracy rises beyond its interval (a minute of CPU)."""

import pytest
from run_and_die import train

from hardwon.evaluate import compare, load_evaluation, stored_evaluations


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_held_out_accuracy_rises(tmp_path):
    settings = {"num_problems": 500, "epochs": 2, "validations_per_epoch": 2, "eval_problems": 256}
    train("direct_advantage", tmp_path / "run", settings)
    for kind in ("sampled", "greedy"):
        files = stored_evaluations(tmp_path / "run", kind)
        gain = compare(*(load_evaluation(files[n]) for n in (min(files), max(files))))
        print(kind, gain)
        assert gain.low > 0
