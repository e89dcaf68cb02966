"""A verifier that hangs, crashes, leaks or returns garbage costs one verdict and nothing else (fault 17)."""

import os
import signal
import subprocess
import sys
import threading
import time

import faulty_verifiers as faulty
import pytest

from hardwon.verifiers.sandbox_inside import kernel
from hardwon.verifiers.worker_pool import Reply, WorkerPool, verdict


@pytest.fixture
def pool_of():
    pools = []

    def make(function, **settings):
        pools.append(WorkerPool(function, **({"seconds": 20.0, "num_workers": 1} | settings)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except FileNotFoundError:
        return False


def outcomes(replies):
    return [verdict(reply).outcome for reply in replies]


def test_replies_keep_the_order_of_the_calls(pool_of):
    pool = pool_of(faulty.graded, num_workers=2)
    assert [reply.value for reply in pool.run([("", str(i)) for i in range(200)])] == list(range(200))
    assert pool.run([]) == []


def test_a_hung_worker_is_ended_and_the_rest_is_judged(pool_of):
    pool = pool_of(faulty.faulty, seconds=0.5)
    started = time.monotonic()
    found = pool.run([("7", "7"), ("7", "hang"), ("7", "8"), ("7", "hang in C"), ("7", "7")])
    assert outcomes(found) == ["correct", "timeout", "wrong", "timeout", "correct"]
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    "response", ["raise", "exit", "kill", "nan", "inf", "none", "text", "object", "list"]
)
def test_a_failing_verifier_is_an_error_and_never_wrong(pool_of, response):
    found = pool_of(faulty.faulty).run([("7", response), ("7", "7")])
    assert outcomes(found) == ["error", "correct"]
    assert verdict(found[0]).message


def test_what_a_verifier_prints_is_not_its_reply(pool_of):
    assert outcomes(pool_of(faulty.faulty).run([("7", "print"), ("print", "print")])) == ["wrong", "correct"]


def test_a_crash_is_tried_once_more(pool_of, tmp_path):
    assert (
        outcomes(pool_of(faulty.crashes_once).run([(str(tmp_path), "a"), (str(tmp_path), "b")]))
        == ["correct"] * 2
    )


def test_memory_is_limited_and_a_leak_is_ended_and_tried_again(pool_of):
    pool = pool_of(faulty.faulty, memory_bytes=500 << 20)
    assert outcomes(pool.run([("7", "memory"), ("7", "7")])) == ["timeout", "correct"]
    leaking = pool_of(faulty.leaks, memory_bytes=200 << 20)  # 40 MiB a call: a worker lasts for 4 or 5
    assert outcomes(leaking.run([("", str(i)) for i in range(12)])) == ["correct"] * 12


def test_the_whole_group_of_a_hung_worker_is_ended(pool_of, tmp_path):
    assert outcomes(pool_of(faulty.starts_a_child, seconds=1.0).run([(str(tmp_path), "")])) == ["timeout"]
    child = int((tmp_path / "child").read_text())
    for _ in range(50):
        if not alive(child):
            break
        time.sleep(0.05)
    assert not alive(child)


def test_workers_do_not_import_torch_and_work_from_a_thread(pool_of):
    import torch  # noqa: F401 - the process already holds it, as in training

    found = []
    pool = pool_of(faulty.modules)
    thread = threading.Thread(target=lambda: found.extend(pool.run([("", "")])))
    thread.start()
    thread.join()
    assert outcomes(found) == ["correct"]


def test_close_leaves_no_process_and_a_later_run_starts_again(pool_of):
    pool = pool_of(faulty.pid, num_workers=2)
    pids = {int(reply.value) for reply in pool.run([("", "")] * 50)}
    pool.close()
    pool.close()
    assert not any(alive(pid) for pid in pids)
    assert not pids & {int(reply.value) for reply in pool.run([("", "")])}


def test_a_worker_that_died_between_runs_is_replaced(pool_of):
    pool = pool_of(faulty.pid)
    (first,) = pool.run([("", "")])
    os.kill(int(first.value), signal.SIGKILL)
    (second,) = pool.run([("", "")])
    assert second.kind == "done" and second.value != first.value


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import faulty_verifiers as faulty
from hardwon.verifiers.worker_pool import WorkerPool
pool = WorkerPool(faulty.pid, seconds=20, num_workers=1)
print(int(pool.run([("", "")])[0].value), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(1)", "import os; os.kill(os.getpid(), 9)"])
def test_the_end_of_the_interpreter_leaves_no_process(end):
    script = SCRIPT.format(folder=os.path.dirname(__file__), end=end)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    worker = int(done.stdout)
    for _ in range(100):
        if not alive(worker):
            break
        time.sleep(0.05)
    assert not alive(worker)


def test_a_verifier_that_cannot_be_imported_is_said_at_once(pool_of):
    pool = pool_of(faulty.good)
    pool.function = pool.function.replace(b"faulty_verifiers", b"absent_verifiers")
    with pytest.raises(RuntimeError, match="absent_verifiers"):
        pool.run([("", "")])


def test_settings_are_checked():
    with pytest.raises(ValueError, match="seconds=0"):
        WorkerPool(faulty.good, seconds=0)
    with pytest.raises(ValueError, match="num_workers=0"):
        WorkerPool(faulty.good, seconds=1, num_workers=0)


def test_a_grade_is_correct_from_one_on():
    # A verifier of reasoning_gym gives 0.01 to some wrong answers; only 1 is right.
    assert [verdict(Reply("done", x)).outcome for x in (1, 1.0, 0.99, 0.01, True, False)] == [
        "correct", "correct", "wrong", "wrong", "correct", "wrong"]  # fmt: skip
    told = verdict(Reply("done", {"correct": True, "score": 0.4, "message": "acc"}))
    assert (told.outcome, told.score, told.message) == ("correct", 0.4, "acc")
    assert verdict(Reply("done", {"correct": "yes"})).outcome == "error"


needs_walls = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not kernel.landlock_version(), reason="no Landlock here"
)


@needs_walls
def test_a_sealed_worker_only_computes(pool_of, tmp_path, monkeypatch):
    """Should a parser run an answer, it runs there, as it did in nine of reasoning_gym's scorers."""
    (tmp_path / "secret").touch()
    monkeypatch.setenv("HARDWON_TEST_KEY", "4711")
    call = [(str(tmp_path), "")]
    (open_one,) = pool_of(faulty.reaches_out).run(call)
    (sealed,) = pool_of(faulty.reaches_out, sealed=True).run(call)
    everything = "write, read, connect, run, signal, look at its parent, find a key, compute"
    assert (open_one.value["message"], sealed.value["message"]) == (everything, "compute")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how Linux chooses")
def test_a_worker_dies_before_the_run_where_memory_is_short(pool_of):
    """A user's reward has no limit of its own: a leak ends its worker, which is `error`, and not the run."""
    (reply,) = pool_of(faulty.order_of_dying, memory_bytes=None).run([("", "")])
    assert reply == Reply("done", True)
