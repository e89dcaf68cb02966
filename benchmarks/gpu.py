"""One GPU, checked and measured with a model of half a billion random weights; a few minutes, no download.

    python benchmarks/gpu.py                       # one GPU; writes gpu.json and prints a table
    python benchmarks/gpu.py --device cpu --small  # the same script on a small shape, within a minute
    python benchmarks/gpu.py --only agreement,resume

Parts, each on its own: one that fails is reported, the others go on, and the exit code is 1.

    agreement   log-probs, loss and gradients in float32 and bfloat16 against float32 on the CPU
    logits      memory and time of chunked log-probs against full logits, forward and backward
    training    da3po through hardwon's own loop: rollout and update tokens/s, MFU, peak memory
    fsdp        one rank in shards under torchrun: the loss and gradients of the whole model
    resume      N iterations at once against k, a stop, and the rest
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# cuBLAS reads it when it starts; without it the deterministic half of `resume` cannot be.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from hardwon.algorithms import find, resolve
from hardwon.data import Sampling, TokenBatch
from hardwon.functional.log_probs import token_log_probs
from hardwon.hardware import this_machine
from hardwon.models.parallel import gathered, shard
from hardwon.models.policy import Policy
from hardwon.models.tokens import collate, load_tokenizer
from hardwon.progress import Display
from hardwon.records import read_metrics
from hardwon.run import Run

# What a result may differ by from float32 on the CPU (ours): log-probs in nats, the others relative.
TOLERANCES = {
    "float32": {"log_probs": 1e-3, "loss": 1e-4, "gradients": 1e-3},
    "bfloat16": {"log_probs": 0.2, "loss": 1e-2, "gradients": 0.1},
}
# Few tokens of a random model have a text: a reward that the text's length decides varies within a group.
REWARD = "def odd(completions, **columns):\n    return [float(len(str(c)) % 2) for c in completions]\n"


@dataclass(frozen=True)
class Shape:
    """The model and the load; the defaults are Qwen2.5-0.5B's shape and a GPU's load."""

    hidden: int = 896
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    intermediate: int = 4864
    vocabulary: int = 151_936
    iterations: int = 4
    prompts: int = 32
    new_tokens: int = 256
    rows: int = 4  # of the batch that is compared
    scored_tokens: int = 4096  # whose logits are taken in chunks and at once
    chunk: int = 2**26
    resume_layers: int = 4


SMALL = Shape(
    hidden=56, layers=2, heads=14, intermediate=112, vocabulary=1000, prompts=4, new_tokens=16,
    scored_tokens=512, chunk=2**16, resume_layers=2, iterations=3,
)  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """`folder` holds the model, its tokenizer and the runs."""

    shape: Shape
    device: str
    folder: Path

    @property
    def is_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.is_gpu else "float32"

    def model(self, layers: int | None = None) -> Path:
        """A directory with random weights, written on first use."""
        layers = layers or self.shape.layers
        path = self.folder / f"model-{layers}"
        if not path.exists():
            torch.manual_seed(0)
            shape = self.shape
            config = Qwen2Config(
                vocab_size=shape.vocabulary, hidden_size=shape.hidden, num_hidden_layers=layers,
                num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
                intermediate_size=shape.intermediate, tie_word_embeddings=True, max_position_embeddings=4096,
                bos_token_id=1, eos_token_id=2, pad_token_id=0,
                initializer_range=0.6 * shape.hidden**-0.5,  # Qwen's 0.02 at its own width
            )  # fmt: skip
            model = Qwen2ForCausalLM(config)
            with torch.no_grad():  # the tokens that have a text are drawn now and then, see REWARD
                model.get_input_embeddings().weight[3:100] *= 4
            model.save_pretrained(path)
            load_tokenizer("embedded").save_pretrained(path)
        return path


# ------------------------------------------------------------------------------------------ measuring


class LiveBytes(TorchDispatchMode):
    """Most bytes that results of operations hold at one time; what a kernel has within itself is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in self.known:
                storage = tensor.untyped_storage()
                self.known.add(storage)
                weakref.finalize(storage, self.release, storage.nbytes())
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
        return out

    def release(self, size: int) -> None:
        self.now -= size


def peak_and_seconds(bench: Bench, work: Callable[[], Any]) -> dict[str, float]:
    """MiB at the peak, above what there was, and seconds of the better of two runs."""
    if bench.is_gpu:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        peak = torch.cuda.max_memory_allocated() - before
    else:
        with LiveBytes() as live:
            work()
        peak = live.peak
    times = []
    for _ in range(2):
        started = time.perf_counter()
        work()
        if bench.is_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return {"peak_mib": peak / 2**20, "seconds": min(times)}


def peak_memory_mib(bench: Bench) -> float:
    """Of the GPU since its counter was set back; on the CPU the most that this process ever had."""
    if bench.is_gpu:
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ---------------------------------------------------------------------------------------------- parts


def batch_of(shape: Shape) -> TokenBatch:
    """Rows of unequal length with random tokens."""
    random = np.random.default_rng(0)
    rows = []
    for b in range(shape.rows):
        prompt, response = (random.integers(3, shape.vocabulary, size=n) for n in (8 + b, 24 + 5 * b))
        zeros = np.zeros(len(response), np.float32)
        rows.append((tuple(prompt.tolist()), response, zeros, zeros))
    return collate(rows, 0)


def scored(policy: Policy, batch: TokenBatch) -> dict[str, Any]:
    """Log-probs, their negated mean as a loss, and its gradients, all on the CPU."""
    policy.model.zero_grad(set_to_none=True)
    log_probs_BT, _ = policy.log_probs(batch, Sampling(1))
    mask_BT = batch.response_mask_BT.bool()
    loss = -log_probs_BT.sum() / mask_BT.sum().item()
    loss.backward()
    gradients = {n: gathered(p.grad).cpu() for n, p in policy.model.named_parameters() if p.grad is not None}
    log_probs = log_probs_BT.detach().cpu()[mask_BT]
    return {"log_probs": log_probs, "loss": loss.item(), "gradients": gradients}


def differences(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """Largest of the log-probs; of loss and gradients (over all of them) the relative difference."""
    pairs = [(found["gradients"][n].double(), g.double()) for n, g in expected["gradients"].items()]
    apart = sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5
    size = sum(float(b.square().sum()) for _, b in pairs) ** 0.5
    return {
        "log_probs": float((found["log_probs"] - expected["log_probs"]).abs().max()),
        "loss": abs(found["loss"] - expected["loss"]) / abs(expected["loss"]),
        "gradients": apart / size,
    }


def check(found: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The differences by dtype, with what is over its tolerance."""
    over = [
        f"{dtype} {name}: {value:.3g} > {TOLERANCES[dtype][name]:g}"
        for dtype, values in found.items()
        for name, value in values.items()
        if not value <= TOLERANCES[dtype][name]
    ]
    return {"differences": found, "tolerances": TOLERANCES, "over_tolerance": over}


def agreement(bench: Bench) -> dict[str, Any]:
    batch, found = batch_of(bench.shape), {}
    expected = scored(Policy.load(bench.model(), device="cpu"), batch)
    for dtype in TOLERANCES:
        found[dtype] = differences(
            scored(Policy.load(bench.model(), dtype=dtype, device=bench.device), batch), expected
        )
    return check(found)


def logits(bench: Bench) -> dict[str, Any]:
    shape = bench.shape
    torch.manual_seed(0)
    kind = {"device": bench.device, "requires_grad": True}
    hidden_NH = torch.randn(shape.scored_tokens, shape.hidden, **kind)
    weight_VH = torch.randn(shape.vocabulary, shape.hidden, **kind)
    targets_N = torch.randint(shape.vocabulary, (shape.scored_tokens,), device=bench.device)
    sums: dict[str, float] = {}

    def work(name: str, max_logits: int) -> None:
        hidden_NH.grad = weight_VH.grad = None
        half = torch.autocast(torch.device(bench.device).type, torch.bfloat16, enabled=bench.is_gpu)
        with half:
            log_probs_N, _ = token_log_probs(hidden_NH, weight_VH, None, targets_N, max_logits=max_logits)
        log_probs_N.mean().backward()
        sums[name] = float(log_probs_N.detach().double().mean())

    limits = {"chunked": shape.chunk, "full": shape.scored_tokens * shape.vocabulary}
    out = {name: peak_and_seconds(bench, lambda n=name, m=m: work(n, m)) for name, m in limits.items()}
    apart = abs(sums["chunked"] - sums["full"]) / abs(sums["full"])
    over = [f"chunked and full log-probs differ by {apart:.3g}"] if apart > 1e-4 else []
    if out["chunked"]["peak_mib"] >= out["full"]["peak_mib"]:
        over.append("chunks take no less memory than full logits")
    return {**out, "tokens": shape.scored_tokens, "relative_difference": apart, "over_tolerance": over}


def settings(bench: Bench, run: Path, layers: int, iterations: int, **more: Any) -> Any:
    values = {
        "model": str(bench.model(layers)), "run": str(run), "device": bench.device, "dtype": bench.dtype,
        "task": "chain_arithmetic", "task_options": {"train_size": 512}, "reward": "odd_reward:odd",
        "iterations": iterations, "prompts_per_iteration": bench.shape.prompts, "group_size": 8,
        "updates_per_iteration": 2, "max_prompt_tokens": 128, "max_new_tokens": bench.shape.new_tokens,
        "overlong": "none", "eval_every": 0, "eval_problems": 2, "eval_samples": 1, "warmup_iterations": 0,
        "learning_rate": 1e-5, "checkpoint_every": 10**6,
    }  # fmt: skip
    return resolve("da3po", values, more)


def train(config: Any) -> Path:
    """hardwon's own loop, in a run directory that is made or gone on with."""
    path, stored = Path(config.run), config.model_dump(mode="json")
    exists = (path / "config.yaml").exists()
    with Run.resume(path, stored, may_change=["iterations"]) if exists else Run.create(path, stored) as run:
        model: Path = find(config.algorithm).train(
            config, run, Display(1, console=Console(file=io.StringIO()))
        )
    return model


def training(bench: Bench) -> dict[str, Any]:
    shape, run = bench.shape, bench.folder / "training"
    if bench.is_gpu:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    train(settings(bench, run, shape.layers, shape.iterations))
    seconds = time.perf_counter() - started
    rows = [m for m in read_metrics(run) if m["iteration"] > 1 and m["groups_trained"]]  # the first warms up
    tokens = [m["groups_trained"] * 8 * m["completions/mean_length"] for m in rows]
    update = statistics.median(t / m["update_seconds"] for t, m in zip(tokens, rows, strict=True))
    parameters = sum(t.numel() for t in load_file(bench.model() / "model.safetensors").values())
    peak = this_machine(bench.device).peak(bench.dtype)
    return {
        "parameters": parameters,
        "iterations": len(rows),
        "rollout_tokens_per_second": statistics.median(m["tokens_per_second"] for m in rows),
        "update_tokens_per_second": update,  # of responses; prompts are computed as well and not counted
        "update_mfu": 6 * parameters * update / peak if bench.is_gpu and peak else None,
        "iteration_seconds": statistics.median(m["iteration_seconds"] for m in rows),
        "seconds_with_loading_and_saving": seconds,
        "peak_memory_mib": peak_memory_mib(bench),
        "over_tolerance": [] if rows else ["no iteration had a group to train on"],
    }


def fsdp(bench: Bench) -> dict[str, Any]:
    out = bench.folder / "fsdp.json"
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", __file__,
             "--device", bench.device, "--fsdp-of", str(bench.model()), "--out", str(out)]  # fmt: skip
    words += ["--small"] if bench.shape == SMALL else []
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(out.read_text())
    return check(found)


def fsdp_rank(bench: Bench, model: str) -> dict[str, Any]:
    """What torchrun starts: the same batch through the whole model and through the one in shards."""
    if bench.is_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if bench.is_gpu else "gloo")
    batch, found = batch_of(bench.shape), {}
    for dtype in TOLERANCES:
        whole, divided = (Policy.load(model, dtype=dtype, device=bench.device) for _ in range(2))
        shard(divided, dtype)
        found[dtype] = differences(scored(divided, batch), scored(whole, batch))
    dist.destroy_process_group()
    return found


def resume(bench: Bench) -> dict[str, Any]:
    kinds = {"as shipped": False, "deterministic algorithms": True} if bench.is_gpu else {"as shipped": False}
    out: dict[str, Any] = {}
    for kind, deterministic in kinds.items():
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        started = time.perf_counter()
        try:
            out[kind] = resumed_apart(bench, bench.folder / f"resume-{int(deterministic)}")
        finally:
            torch.use_deterministic_algorithms(False)
        out[kind]["seconds"] = time.perf_counter() - started
    # On the CPU the bits are promised; on a GPU this part is there to find out.
    over = [] if bench.is_gpu or out["as shipped"]["bit_equal"] else ["resumed weights are not the same bits"]
    return {**out, "over_tolerance": over}


def resumed_apart(bench: Bench, folder: Path) -> dict[str, Any]:
    """How far apart the weights are: of 3 iterations twice at once, and of 1, a stop and 2 more."""
    layers, ends = bench.shape.resume_layers, {}
    for name, stops in {"straight": [3], "again": [3], "resumed": [1, 3]}.items():
        for iterations in stops:
            model = train(settings(bench, folder / name, layers, iterations))
        ends[name] = load_file(model / "model.safetensors")
    before = load_file(bench.model(layers) / "model.safetensors")

    def apart(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
        return max(float((a[n] - b[n]).abs().max()) for n in a)

    return {
        "bit_equal": all(torch.equal(t, ends["resumed"][n]) for n, t in ends["straight"].items()),
        "largest_difference": apart(ends["straight"], ends["resumed"]),
        "largest_difference_of_two_undisturbed": apart(ends["straight"], ends["again"]),
        "largest_change_by_training": apart(ends["straight"], before),
    }


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    part.__name__: part for part in (agreement, logits, training, fsdp, resume)
}


# --------------------------------------------------------------------------------------------- report


def run_parts(bench: Bench, names: list[str], console: Console) -> dict[str, Any]:
    results = {}
    for name in names:
        started = time.perf_counter()
        try:
            found = PARTS[name](bench)
        except Exception as error:  # a part that breaks must not cost the others
            found = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        found["ok"] = "error" not in found and not found["over_tolerance"]
        found["wall_seconds"] = time.perf_counter() - started
        results[name] = found
        console.print(f"{name}: {'ok' if found['ok'] else 'FAILED'}, {found['wall_seconds']:.1f} s")
        if "error" in found:
            console.print(found["traceback"], markup=False, highlight=False)
        if bench.is_gpu:
            torch.cuda.empty_cache()
    return results


def flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for k, v in value.items() for pair in flat(v, f"{name} {k}".strip())]
    return [(name, value)]


def table(report: dict[str, Any]) -> Table:
    shown = Table("part", "figure", "value", title=f"{report['device']}, torch {report['torch']}")
    for part, found in report["parts"].items():
        for name, value in flat({k: v for k, v in found.items() if k not in ("tolerances", "traceback")}):
            text = f"{value:,.4g}" if isinstance(value, float) else str(value)
            shown.add_row(part, name, text if value is not None else "not measured")
        shown.add_section()
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="a shape for the CPU")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--fsdp-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    disable_progress_bar()
    shape = SMALL if given.small else Shape()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU is visible: use --device cpu --small")
    if unknown := set(given.only.split(",")) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is not one of {', '.join(PARTS)}")
    if given.fsdp_of:
        given.out.write_text(json.dumps(fsdp_rank(Bench(shape, given.device, Path()), given.fsdp_of)))
        return
    console, started = Console(width=110), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "odd_reward.py").write_text(REWARD)
        sys.path.insert(0, folder)
        parts = run_parts(Bench(shape, given.device, Path(folder)), given.only.split(","), console)
    name = torch.cuda.get_device_name(0) if given.device == "cuda" else "cpu"
    report = {"device": name, "torch": torch.__version__, "shape": asdict(shape), "parts": parts}
    given.out.write_text(json.dumps(report, indent=1))
    console.print(table(report))
    console.print(f"{time.perf_counter() - started:.0f} s; {given.out}")
    sys.exit(not all(part["ok"] for part in parts.values()))


if __name__ == "__main__":
    main()
