"""What is beside the run's own records may fail: it is said once, and the run and metrics.jsonl go on."""

import contextlib
import io
import logging
import sys
import types

import pytest
from rich.console import Console

from hardwon import cli, report, run
from hardwon.algorithms import direct_advantage, resolve
from hardwon.progress import Display
from hardwon.records import read_metrics
from hardwon.run import Run

# TensorBoard's thread dies of a full disk, and pytest hears of it in whichever test comes then.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
CONFIG = {"algorithm": "da3po"}


class FakeWandb(types.ModuleType):
    """wandb as far as it is used; `broken` names the call that fails, as each does without a network."""

    def __init__(self, broken):
        super().__init__("wandb")
        self.util = types.SimpleNamespace(generate_id=lambda: "id")
        self.broken, self.calls = broken, []

    def _call(self, name):
        self.calls.append(name)
        if name == self.broken:
            raise ConnectionError("Network is unreachable\nand a page of advice")

    def init(self, **settings):
        self._call("init")
        return types.SimpleNamespace(
            log=lambda values, step: self._call("log"), finish=lambda: self._call("finish")
        )


@pytest.mark.parametrize(
    ("broken", "calls"),
    [
        ("init", ["init"]),
        ("log", ["init", "log"]),
        ("finish", ["init", "log", "log", "log", "finish"]),
        (None, ["init", "log", "log", "log", "finish"]),
    ],
)
def test_wandb_without_a_network_ends_nothing(tmp_path, monkeypatch, caplog, broken, calls):
    """A logger that failed is not asked again: an attempt may take a minute each time."""
    wandb = FakeWandb(broken)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(run, "_check_sinks", lambda tensorboard, wandb: ["wandb"])
    with (
        caplog.at_level(logging.WARNING, "hardwon"),
        Run.create(tmp_path / "run", CONFIG, wandb=True) as held,
    ):
        for iteration in range(3):
            held.log(iteration, {"reward": float(iteration)})
    assert wandb.calls == calls
    assert [m["reward"] for m in read_metrics(tmp_path / "run")] == [0, 1, 2]
    said = [record.getMessage() for record in caplog.records]
    expected = "log_to=wandb failed and is turned off; metrics.jsonl has every metric: Network is unreachable"
    assert said == ([expected] if broken else [])


def test_one_logger_that_fails_leaves_the_other(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb("log"))
    monkeypatch.setattr(run, "_check_sinks", lambda tensorboard, wandb: ["wandb", "tensorboard"])
    with Run.create(tmp_path / "run", CONFIG) as held:
        held.log(1, {"reward": 1.0})
        assert list(held._sinks) == ["tensorboard"]


def test_tensorboard_on_a_full_disk_ends_nothing(tmp_path, monkeypatch, caplog):
    """Its thread dies at the first write, and the next call says so. /dev/full is a disk without room."""
    pytest.importorskip("tensorboard")
    from tensorboard.summary.writer import event_file_writer

    class Full:
        def __init__(self, name, mode):
            self.file = open("/dev/full", mode, buffering=0)  # noqa: SIM115

        def __getattr__(self, name):
            return getattr(self.file, name)

    gfile = types.SimpleNamespace(makedirs=lambda path: None, GFile=Full)
    monkeypatch.setattr(event_file_writer, "tf", types.SimpleNamespace(io=types.SimpleNamespace(gfile=gfile)))
    with (
        caplog.at_level(logging.WARNING, "hardwon"),
        Run.create(tmp_path / "run", CONFIG, tensorboard=True) as held,
    ):
        for iteration in range(30):  # more than its queue holds
            held.log(iteration, {"reward": 1.0})
    assert len(read_metrics(tmp_path / "run")) == 30
    assert [r.getMessage().count("No space left on device") for r in caplog.records] == [1]


def test_a_report_that_cannot_be_written_is_said_and_the_model_stays(tmp_path, monkeypatch, caplog):
    def fail(paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "write_report", fail)
    shown = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(cli, "console", shown)
    with caplog.at_level(logging.WARNING, "hardwon"):
        cli.finish(tmp_path / "run", tmp_path / "run/model")
    assert "run/model" in shown.file.getvalue()
    (record,) = caplog.records
    assert "run/model is trained, but its report could not be written" in record.getMessage()
    assert "hardwon report" in record.getMessage()


def test_a_log_file_on_a_full_disk_ends_nothing():
    """`hardwon train ... > log`: the lines are lost, the iterations are not."""
    with open("/dev/full", "w") as full:
        display = Display(3, console=Console(file=full))
        with display:
            for done in (1, 2, 3):
                display.print("iteration")
                display.update(done, {"reward": "1"})
            display.begin("next", 1)
        with pytest.raises(OSError, match="No space left"):  # the file does refuse
            full.write("x" * 100_000)
        with contextlib.suppress(OSError):
            full.close()


def test_plots_of_steps_that_cannot_be_drawn_are_said_and_the_model_is_there_first(tmp_path, monkeypatch):
    published = []

    def fail(path):
        assert published, "the model comes first"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(direct_advantage, "write_step_plots", fail)
    monkeypatch.setattr(Run, "publish", lambda self, source: published.append(source) or source)
    config = resolve("direct_advantage", {"run": str(tmp_path / "run")})
    out = io.StringIO()
    with Run.create(tmp_path / "run", config.model_dump(mode="json")) as held:
        done = held.path / "steps/iteration-1"
        done.mkdir(parents=True)
        (done / "policy.json").write_text("{}")  # all stages are done
        model = direct_advantage.train(config, held, Display(1, console=Console(file=out, width=200)))
    assert model == done / "policy"
    assert "plots of the steps could not be drawn" in out.getvalue()
