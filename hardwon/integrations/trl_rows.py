"""Between TRL's padded batches and hardwon's groups: pure conversions, no trainer state.

A *row* is one response as a dict: `prompt_ids` and `completion_ids` (int64 arrays), `finished`, `columns`
(what TRL computed for it, under TRL's names: one value per token, or a scalar), and `shown` (its line in
the table of completions).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trl.trainer.utils import pad

from hardwon.data import Group, Problem, Rollout, Sample, State, Verdict
from hardwon.functional.advantages import degenerate

Row = dict[str, Any]
REBUILT = {"prompt_ids", "prompt_mask", "completion_ids", "advantages", "num_items_in_batch"}


def rows_of(
    output: Mapping[str, Any], *, stop_ids: Collection[int], pad_id: int, scalars: Collection[str]
) -> list[Row]:
    """The rows of a padded batch as `_generate_and_score_completions` returns it.

    `stop_ids` end a finished response; `scalars` name the columns with one value per response.
    """
    foreign = [k for k, v in output.items() if k not in REBUILT and not (torch.is_tensor(v) and v.ndim == 2)]
    if foreign:
        raise ValueError(f"DA3POTrainer trains on text; this batch also has {', '.join(sorted(foreign))}")
    batch = {k: v.detach().cpu().numpy() for k, v in output.items() if torch.is_tensor(v)}
    rows = []
    for b, ids in enumerate(batch["completion_ids"]):
        # A truncated response may be masked out as a whole; its ids still end where the padding begins.
        mask = batch["completion_mask"][b]
        length = int(mask.sum()) or int(np.flatnonzero(ids != pad_id).max(initial=0)) + 1
        columns = {
            k: np.asarray(v[b, 0]) if k in scalars else v[b, :length].copy()
            for k, v in batch.items()
            if k not in REBUILT
        }
        rows.append(
            {
                "prompt_ids": batch["prompt_ids"][b][batch["prompt_mask"][b].astype(bool)],
                "completion_ids": ids[:length].astype(np.int64),
                "finished": int(ids[length - 1]) in stop_ids,
                "columns": columns,
            }
        )
    return rows


def group_of(
    problem: Problem,
    rows: Sequence[Row],
    verdicts: Sequence[Verdict],
    rewards: Sequence[float],
    iteration: int,
) -> Group:
    rollouts = []
    for row, verdict, reward in zip(rows, verdicts, rewards, strict=True):
        unknown = np.full(len(row["completion_ids"]), np.nan, dtype=np.float32)
        log_probs = row["columns"].get("old_per_token_logps", unknown)
        sample = Sample(row["completion_ids"], log_probs, row["finished"])
        rollouts.append(Rollout(sample, "", verdict, reward))
    return Group(State(problem), tuple(rows[0]["prompt_ids"].tolist()), tuple(rollouts), iteration)


def without_loss(row: Row) -> Row:
    """The row as padding: it passes through the model and adds nothing to the loss."""
    columns = {**row["columns"], "completion_mask": np.zeros_like(row["columns"]["completion_mask"])}
    return {**row, "columns": columns}


def num_loss_tokens(rows: Sequence[Row]) -> int:
    """Tokens in the loss: TRL's `num_items_in_batch`, over the rows of all ranks."""
    total = 0
    for row in rows:
        mask = row["columns"]["completion_mask"]
        total += int((mask * row["columns"].get("tool_mask", 1)).sum())
    return total


def padded(
    rows: Sequence[Row],
    advantages: Sequence[float],
    *,
    num_items: int,
    pad_id: int,
    pad_to_multiple_of: int | None,
    device: torch.device,
) -> dict[str, Tensor]:
    """The batch that TRL trains on: prompts padded on the left, all else on the right."""

    def stack(arrays: list[Any], value: int = 0, side: str = "right") -> Tensor:
        tensors = [torch.as_tensor(a) for a in arrays]
        if tensors[0].ndim == 0:
            return torch.stack(tensors)[:, None].to(device)
        return pad(tensors, value, side, pad_to_multiple_of).to(device)

    prompts = [row["prompt_ids"] for row in rows]
    batch = {
        "prompt_ids": stack(prompts, pad_id, "left"),
        "prompt_mask": stack([np.ones_like(p) for p in prompts], 0, "left"),
        "completion_ids": stack([row["completion_ids"] for row in rows], pad_id),
        "advantages": torch.tensor(advantages, dtype=torch.float32, device=device),
        "num_items_in_batch": torch.tensor(num_items, device=device),
    }
    # A tool mask is padded with 1, as TRL does; the completion mask rules there.
    for name in rows[0]["columns"]:
        values = [row["columns"][name] for row in rows]
        batch[name] = stack(values, 1 if name == "tool_mask" else 0)
    return batch


def sampled_metrics(
    groups: Sequence[Group], rewards_by_function: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """TRL's metrics of a generation, once over all that was sampled for the batch, kept or not."""
    rollouts = [r for g in groups for r in g.rollouts]
    judged = [r for r in rollouts if not r.verdict.is_error]
    lengths = np.array([r.length for r in rollouts])
    ended = lengths[[not r.truncated for r in rollouts]] if not all(r.truncated for r in rollouts) else [0]
    rewards_PG = torch.tensor([[r.reward for r in g.rollouts] for g in groups], dtype=torch.float64)
    metrics = {
        "reward": _mean([r.reward for r in rollouts]),
        "reward_std": _std([r.reward for r in rollouts]),
        "success_rate": sum(r.verdict.correct for r in judged) / len(judged) if judged else math.nan,
        "frac_reward_zero_std": float(degenerate(rewards_PG).double().mean()),
        "completions/clipped_ratio": float(np.mean([r.truncated for r in rollouts])),
        "verifier/errors": float(len(rollouts) - len(judged)),
    }
    for statistic in ("mean", "min", "max"):
        metrics[f"completions/{statistic}_length"] = float(getattr(np, statistic)(lengths))
        metrics[f"completions/{statistic}_terminated_length"] = float(getattr(np, statistic)(ended))
    for name, values in rewards_by_function.items():
        metrics[f"rewards/{name}/mean"], metrics[f"rewards/{name}/std"] = _mean(values), _std(values)
    return metrics


def merged(parts: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Metrics of several generations as one: extremes of extremes, means weighted by rows."""
    out = {}
    for name in {name for _, part in parts for name in part}:
        values = [(rows, part[name]) for rows, part in parts if name in part]
        word = name.rpartition("/")[2].partition("_")[0]
        if word in ("min", "max"):
            out[name] = float(getattr(np, word)([v for _, v in values]))
        else:
            out[name] = sum(rows * v for rows, v in values) / sum(rows for rows, _ in values)
    return out


def _mean(values: Sequence[float]) -> float:
    scored = [v for v in values if not math.isnan(v)]
    return float(np.mean(scored)) if scored else math.nan


def _std(values: Sequence[float]) -> float:
    """Sample standard deviation, as TRL logs it; NaN rows left out."""
    scored = [v for v in values if not math.isnan(v)]
    return float(np.std(scored, ddof=1)) if len(scored) > 1 else 0.0
