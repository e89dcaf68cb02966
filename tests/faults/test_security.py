"""What no file of hardwon does, and where the secrets of the environment do not go."""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hardwon
from hardwon.config import parse_words
from hardwon.models.policy import Policy
from hardwon.verifiers.sandbox import Sandbox
from hardwon.verifiers.sandbox_layers import Limits
from hardwon.verifiers.sandbox_probe import layers

ROOT = Path(hardwon.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Pickles between a process and a worker that it started itself; never a file.
OWN_WORKERS = {
    "verifiers/worker.py": "pickle.loads",
    "verifiers/worker_pool.py": "pickle.dumps",
    # Refuses whatever has a name, and runs in a sealed worker: tests/tasks/test_layouts.py.
    "verifiers/unpickle.py": "pickle.UnpicklingError",
}
# Model text is compiled in the sandbox, and only there.
IN_THE_SANDBOX = {"verifiers/sandbox_inside/shim.py"}

NEVER = {
    "eval", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
    "marshal.loads", "marshal.load", "shelve.open", "pickle.load", "pickle.dump", "pickle.Unpickler",
    "dill.load", "dill.loads", "cloudpickle.load", "cloudpickle.loads", "joblib.load", "torch.save",
    "pd.read_pickle", "pandas.read_pickle", "yaml.load", "yaml.load_all", "yaml.unsafe_load",
    "yaml.full_load", "yaml.dump", "tempfile.mktemp",
}  # fmt: skip


def calls(path: Path):
    """(dotted name, call) of every call in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keyword(call: ast.Call, name: str):
    return next((ast.unparse(k.value) for k in call.keywords if k.arg == name), None)


def faults_of(path: Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    found = []
    for function, call in calls(path):
        unsafe_load = (
            function in ("torch.load", "np.load", "numpy.load")
            and keyword(call, "weights_only" if function == "torch.load" else "allow_pickle") != "True"
        )
        if function in ("np.load", "numpy.load"):
            unsafe_load = keyword(call, "allow_pickle") not in (None, "False")
        if (
            function in NEVER
            or unsafe_load
            or (function.startswith("pickle.") and OWN_WORKERS.get(name) != function)
            or (function in ("exec", "compile") and name not in IN_THE_SANDBOX)
            or keyword(call, "shell") not in (None, "False")
            or keyword(call, "trust_remote_code") not in (None, "False")
        ):
            found.append(f"{name}:{call.lineno}: {ast.unparse(call):.100}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_file_unpickles_evaluates_or_opens_a_shell(path):
    assert faults_of(path) == []


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(f)", "torch.load(f, weights_only=False)", "np.load(f, allow_pickle=True)", "eval(text)",
        "exec(text)", "os.system('ls')", "subprocess.run('ls', shell=True)", "pickle.loads(data)",
        "yaml.load(f)",
        "AutoModel.from_pretrained(m, trust_remote_code=True)",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(tmp_path, code):
    file = tmp_path / "code.py"
    file.write_text(code)
    assert faults_of(file)


def test_yaml_tags_make_no_objects(tmp_path):
    for tag in ("!!python/object/apply:os.getcwd []", "!!python/name:os.system", "!!python/module:os"):
        with pytest.raises(ValueError, match="not a YAML value"):
            parse_words([f"data={tag}"])


def test_a_model_that_brings_code_is_not_run(tmp_path):
    """A directory whose config names a module of its own: refused, and the module is never imported."""
    mark = tmp_path / "ran"
    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}'
    )
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nC = M = None\n")
    with pytest.raises(ValueError, match="could not be loaded"):
        Policy.load(tmp_path, device="cpu")
    assert not mark.exists()


def test_a_model_saved_as_a_pickle_runs_nothing(tmp_path):
    """pytorch_model.bin with a reduce that would touch a file."""
    import pickle

    from hardwon.models.paths import packaged_path

    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(mark),)

    model = tmp_path / "model"
    model.mkdir()
    for file in packaged_path("embedded").iterdir():
        if file.name != "model.safetensors":
            (model / file.name).write_bytes(file.read_bytes())
    (model / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Evil()}))
    with pytest.raises(ValueError, match="could not be loaded"):
        Policy.load(model, device="cpu")
    assert not mark.exists()


# --------------------------------------------------------------------------------------------- secrets

SECRET = "s3cr3t-of-the-environment-7391"
NAMES = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "MY_OWN_PASSWORD")


@pytest.fixture
def planted(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, SECRET)


@pytest.mark.faults
def test_no_secret_in_logs_or_in_the_run_directory(planted, tmp_path):
    """A whole run with report, and one that fails, by the command line."""
    words = {
        "run": tmp_path / "run", "iterations": 1, "prompts_per_iteration": 4, "group_size": 2,
        "eval_problems": 4,
        "eval_samples": 1, "task_options.train_size": 16, "max_rounds": 1,
    }  # fmt: skip
    given = [f"{k}={v}" for k, v in words.items()]
    command = [sys.executable, "-m", "hardwon", "train", "da3po", *given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    failed = subprocess.run(
        [*command, "data=nowhere.jsonl"], capture_output=True, text=True, env=environment, check=False
    )
    assert failed.returncode == 2
    files = [p for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert any(p.name == "report.html" for p in files)
    texts = [p.read_bytes() for p in files] + [
        s.encode() for r in (done, failed) for s in (r.stdout, r.stderr)
    ]
    assert not any(SECRET.encode() in text for text in texts)
    assert SECRET not in yaml.safe_dump(yaml.safe_load((tmp_path / "run/config.yaml").read_text()))


PROGRAM = """
import os, pathlib
print(sorted(os.environ))
for file in ("/proc/self/environ", "/proc/1/environ", f"/proc/{os.getppid()}/environ"):
    try:
        print(pathlib.Path(file).read_bytes())
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("name", ["N", "L"])
def test_no_secret_in_a_sandbox(planted, name):
    layer = next(found for found in layers() if found.name == name)
    if not layer.holds:
        pytest.skip(f"layer {name} does not hold here: {layer.reason}")
    run = Sandbox(name, Limits()).run_program(PROGRAM)
    assert run.exit_code == 0, run
    printed = run.stdout.decode()
    assert SECRET not in printed and not any(variable in printed for variable in NAMES)
    assert "PYTHONHASHSEED" in printed  # it did look


def test_nothing_is_logged_of_the_environment(planted, caplog):
    from hardwon.check import check

    with caplog.at_level(logging.DEBUG):
        findings = check(
            __import__("hardwon.algorithms", fromlist=["resolve"]).resolve("da3po", {"eval_problems": 4})
        )
    assert SECRET not in caplog.text and SECRET not in repr(findings)
