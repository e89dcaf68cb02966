"""The command line: words into settings, then one call. Everything else is in the modules it calls."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

from hardwon.config import non_default, parse_words, read_yaml

if TYPE_CHECKING:
    from hardwon.run import Run
    from hardwon.workbench import SharedSettings

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
console = Console()
errors = Console(stderr=True)
log = logging.getLogger("hardwon")

# What may differ when a run is resumed: where it runs, how long, and how watched, but not what it does.
MAY_CHANGE = {
    "run", "iterations", "device", "vllm_server", "vllm_gpu_memory", "eval_every", "eval_problems",
    "eval_samples", "checkpoint_every", "keep_checkpoints", "log_to", "require_critic",
}  # fmt: skip

Settings = Annotated[list[str] | None, typer.Argument(help="settings as key=value", show_default=False)]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file of settings (see recipes/)")]


@app.command()
def train(
    algorithm: Annotated[
        str | None, typer.Argument(help="da3po, dapo, grpo, ..., or direct_advantage", show_default=False)
    ] = None,
    settings: Settings = None,
    config: ConfigFile = None,
    resume: Annotated[Path | None, typer.Option(help="continue the run in this directory")] = None,
) -> None:
    """Post-train a model: `hardwon train da3po model=Qwen/Qwen3-4B-Base task=math data=problems.parquet`."""
    from hardwon.algorithms import find, resolve
    from hardwon.models.parallel import processes
    from hardwon.records import METRICS, read_config
    from hardwon.run import Run, open_together

    words = list(settings or [])
    if resume is not None and config is not None:
        raise ValueError(f"--config {config}: a run is resumed with its own settings; leave --config out")
    if resume is not None:
        words = [algorithm, *words] if algorithm else words
        stored = read_config(resume)
        resolved = resolve(str(stored.get("algorithm")), stored, parse_words(words), {"run": str(resume)})
    else:
        if algorithm is None:
            raise ValueError("name an algorithm, as in `hardwon train da3po`, or a run with --resume")
        resolved = resolve(algorithm, read_yaml(config) if config else {}, parse_words(words))
        resolved = resolved.model_copy(update={"run": resolved.run or new_run_path(algorithm)})
    path = Path(str(resolved.run))
    options: dict[str, Any] = {
        "keep_last": resolved.keep_checkpoints,
        "tensorboard": "tensorboard" in resolved.log_to,
        "wandb": "wandb" in resolved.log_to,
    }
    values = resolved.model_dump(mode="json")

    def open_run() -> Run:
        if resume is not None:
            return Run.resume(resume, values, may_change=MAY_CHANGE, **options)
        return Run.create(path, values, **options)

    with processes(resolved.device) as world:
        console.quiet = not world.is_main
        find(resolved.algorithm).check_processes(world.size)
        ours = False  # a directory that was refused is somebody else's
        try:
            with open_together(open_run) as run:
                ours = resume is None and world.is_main
                model = train_in(run, resolved, world.size)
        except (ValueError, ImportError):
            # Settings that turned out wrong once the data or the model was there: nothing ran.
            if ours and not (path / METRICS).stat().st_size:
                shutil.rmtree(path)
            raise
        if world.is_main:
            finish(path, model)


def train_in(run: Run, resolved: SharedSettings, num_processes: int) -> Path:
    """Train in an open run directory; returns the trained model's directory."""
    from hardwon.algorithms import find
    from hardwon.progress import Display, stopped_by_sigterm

    print_settings(resolved, run.path)
    with (
        stopped_by_sigterm(),
        Display(1, title=resolved.algorithm, console=console) as display,
    ):
        try:
            return find(resolved.algorithm).train(resolved, run, display)
        except KeyboardInterrupt:
            display.print(f"Stopped. Go on with:  {launcher(num_processes)} train --resume {run.path}")
            raise SystemExit(130) from None


def launcher(processes: int) -> str:
    """How this command was started, for a hint to start the next one."""
    if processes == 1:
        return "hardwon"
    return f"torchrun --nproc-per-node {os.environ['LOCAL_WORLD_SIZE']} -m hardwon"


def new_run_path(algorithm: str) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path, number = Path("runs") / f"{algorithm}-{stamp}", 2
    while path.exists():
        path, number = Path("runs") / f"{algorithm}-{stamp}-{number}", number + 1
    return str(path)


def print_settings(resolved: Any, path: Path) -> None:
    shown = {k: v for k, v in non_default(resolved).items() if k != "run"}
    words = "  ".join(f"{k}={v}" for k, v in shown.items())
    console.print(f"[bold]{resolved.algorithm}[/]  run [bold]{path}[/] (all settings in config.yaml)")
    console.print(words, style="dim", highlight=False, soft_wrap=True)


def finish(path: Path, model: Path) -> None:
    """Say where the model lies and what changed, and write the report; its failure is not the run's."""
    from hardwon.report import before_after, form_before_after, write_report

    try:
        console.print(f"model    {model}", highlight=False)
        report = write_report([path])
        console.print(before_after(path), form_before_after(path), sep="\n\n")
        console.print(f"report   {report}\nplots    {report.parent / 'plots'}", highlight=False)
    except Exception as error:  # of many kinds: the disk, fonts, damaged files
        text = "%s is trained, but its report could not be written: %s. Write it with: hardwon report %s"
        log.warning(text, model, error, path)


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="a model, a run directory, `embedded` or `embedded_code`")],
    settings: Settings = None,
    config: ConfigFile = None,
    out: Annotated[Path | None, typer.Option(help="write per-problem results as JSON")] = None,
) -> None:
    """Accuracy on held-out problems with 95 % intervals: mean@k, pass@k, majority@k, and greedy."""
    from hardwon.commands import evaluate_command

    given = {**(read_yaml(config) if config else {}), **parse_words(settings or [])}
    evaluate_command(model, given, out, console)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="evaluation files or run directories, separated by commas")],
    b: Annotated[str, typer.Argument(help="the same for the other side; several are seeds of one recipe")],
    allow_different_sampling: Annotated[
        bool, typer.Option("--allow-different-sampling", help="compare, and say what differs")
    ] = False,
) -> None:
    """B minus A over the same problems: difference, 95 % interval and p-value."""
    from hardwon.commands import compare_command

    compare_command(a.split(","), b.split(","), console, allow_different_sampling=allow_different_sampling)


@app.command()
def check(
    algorithm: Annotated[str, typer.Argument(help="the algorithm to plan for")] = "da3po",
    settings: Settings = None,
    config: ConfigFile = None,
    hardware: Annotated[str | None, typer.Option(help="e.g. 8xH100-80GB; default this machine")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="memory and time, without data or weights")
    ] = False,
    assume: Annotated[
        list[str] | None, typer.Option(help="with --dry-run: name=value or a file of measured rates")
    ] = None,
) -> None:
    """Data, gold answers, tokens, memory and disk, before anything runs."""
    from hardwon.commands import check_command, dry_run_command
    from hardwon.hardware import parse_hardware

    if "=" in algorithm:  # data can be checked before an algorithm is chosen
        algorithm, settings = "da3po", [algorithm, *(settings or [])]
    given = [read_yaml(config) if config else {}, parse_words(settings or [])]
    machine = parse_hardware(hardware) if hardware else None
    if assume and not dry_run:
        raise ValueError(f"--assume {assume[0]}: what is assumed matters with --dry-run only; add it")
    if dry_run:
        # Sizes of a hub's model lie beside the recipe that names it.
        models = config.parent / "models" if config else None
        passed = dry_run_command(
            algorithm, given, console, hardware=machine, assume=assume or [], models=models
        )
    else:
        passed = check_command(algorithm, given, console, machine)
    if not passed:
        raise SystemExit(1)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="run directory")],
    iteration: Annotated[int | None, typer.Option(help="only this iteration; default the last")] = None,
    problem: Annotated[str | None, typer.Option(help="only this problem id")] = None,
    min_success: Annotated[float | None, typer.Option(help="lowest success rate of the group")] = None,
    max_success: Annotated[float | None, typer.Option(help="highest success rate of the group")] = None,
    outcome: Annotated[str | None, typer.Option(help="correct, wrong, timeout or error")] = None,
    limit: Annotated[int, typer.Option(help="how many groups at most; with --steps, solutions")] = 10,
    steps: Annotated[bool, typer.Option("--steps", help="solutions with the value of each step")] = False,
) -> None:
    """Read rollouts: prompt, response, verdict, reward and advantage."""
    from hardwon.records import read_config

    read_config(run)  # a directory that is no run says so
    if steps:
        from hardwon.steps.show import show_steps as print_chosen
    else:
        from hardwon.show import show as print_chosen
    print_chosen(
        run, iteration=iteration, problem=problem, min_success=min_success, max_success=max_success,
        outcome=outcome, limit=limit,
    )  # fmt: skip


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="one run directory, or several to lay over one another")],
    out: Annotated[Path | None, typer.Option(help="where to write; default the first run")] = None,
) -> None:
    """Plots and report.html of a run or of several."""
    from hardwon.report import write_report

    console.print(str(write_report(runs, out)), highlight=False)


def main(run: Callable[[], Any] = app) -> None:
    """Entry point: a user's mistake is one clear message and exit code 2, not a traceback."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=errors)])
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        run()
    except (ValueError, ImportError, OSError, FloatingPointError, RuntimeError) as error:
        if os.environ.get("HARDWON_TRACEBACK"):
            raise
        rank = f" (rank {os.environ['RANK']})" if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        errors.print(f"[red bold]error{rank}:[/] ", end="")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
