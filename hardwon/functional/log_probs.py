"""Log-probabilities and entropy of given tokens, chunked so that logits never fill the memory.

Shapes: `N` tokens (any responses, flattened), `H` hidden size, `V` vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

MAX_LOGITS = 2**26  # ours: 256 MiB for each float32 tensor of a chunk


def token_log_probs(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    max_logits: int = MAX_LOGITS,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target under the sampling distribution, and that distribution's entropy.

    Returns `(log_probs_N, entropy_N)` in nats, float32 or wider. The entropy is a metric and
    carries no gradient. `temperature`, `top_k` and `top_p` must be those that sampled the
    targets, otherwise the ratio to the sampled log-probs is not 1 on-policy. The target itself is
    never filtered out, so the result stays finite after the policy has moved.

    At most `max_logits` elements of a (tokens, V) tensor exist at once: above that the tokens are
    taken in chunks, and each chunk is computed again in the backward pass.
    """
    _check_sampling(temperature, top_k, top_p)
    num_tokens, vocabulary = hidden_NH.shape[0], weight_VH.shape[0]

    def score(
        hidden_nH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_n: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits_nV = linear(hidden_nH, weight_VH, bias_V)
        if logits_nV.dtype in (torch.bfloat16, torch.float16):
            logits_nV = logits_nV.float()
        logits_nV = filter_logits(
            logits_nV, temperature=temperature, top_k=top_k, top_p=top_p, keep_N=targets_n
        )
        return _gather_log_probs(logits_nV, targets_n)

    if num_tokens * vocabulary <= max_logits:
        return score(hidden_NH, weight_VH, bias_V, targets_N)

    chunk = max(1, max_logits // vocabulary)
    parts = [
        checkpoint(
            score, hidden_nH, weight_VH, bias_V, targets_n, use_reentrant=False, preserve_rng_state=False
        )
        if torch.is_grad_enabled()
        else score(hidden_nH, weight_VH, bias_V, targets_n)
        for hidden_nH, targets_n in zip(
            torch.split(hidden_NH, chunk), torch.split(targets_N, chunk), strict=True
        )
    ]
    return torch.cat([log_probs_n for log_probs_n, _ in parts]), torch.cat(
        [entropy_n for _, entropy_n in parts]
    )


def filter_logits(
    logits_NV: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    keep_N: Tensor | None = None,
) -> Tensor:
    """Logits of the sampling distribution: divided by the temperature, -inf outside top-k and top-p.

    The order is temperature, top-k, then top-p over what top-k left, as in transformers and vLLM.
    Tokens that tie with the last one kept are kept as well, so the set does not depend on the
    order of a sort. `keep_N` names one token a row that stays in the set whatever the filters say.
    """
    _check_sampling(temperature, top_k, top_p)
    if temperature != 1.0:
        logits_NV = logits_NV / temperature
    vocabulary = logits_NV.shape[-1]
    use_top_k = 0 < top_k < vocabulary
    if not use_top_k and top_p >= 1.0:
        return logits_NV
    with torch.no_grad():
        sorted_NK = logits_NV.topk(top_k if use_top_k else vocabulary, dim=-1).values
        last_kept_N1 = sorted_NK[:, -1:]
        if top_p < 1.0:
            last_kept_N1 = _last_kept_by_top_p(sorted_NK, top_p)
        keep_NV = logits_NV >= last_kept_N1
        if keep_N is not None:
            keep_NV.scatter_(1, keep_N[:, None], True)
    return logits_NV.masked_fill(~keep_NV, -torch.inf)


def _last_kept_by_top_p(sorted_NK: Tensor, top_p: float) -> Tensor:
    """Smallest logit of the shortest prefix of the sorted logits whose probability reaches `top_p`."""
    probs_NK = sorted_NK.softmax(dim=-1)
    before_NK = probs_NK.cumsum(dim=-1) - probs_NK
    kept_N1 = (before_NK < top_p).sum(dim=-1, keepdim=True).clamp(min=1)
    return sorted_NK.gather(1, kept_N1 - 1)


def _gather_log_probs(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """`(log_probs_N, entropy_N)` of full logits, with one softmax for both."""
    log_probs_NV = logits_NV.log_softmax(dim=-1)
    log_probs_N = log_probs_NV.gather(1, targets_N[:, None]).squeeze(1)
    with torch.no_grad():
        probs_NV = log_probs_NV.exp()
        # A filtered token has probability 0 and log-prob -inf; its term p log p is 0, not NaN.
        finite_NV = log_probs_NV.clamp(min=torch.finfo(log_probs_NV.dtype).min)
        entropy_N = -probs_NV.mul_(finite_NV).sum(dim=-1)
    return log_probs_N, entropy_N


def _check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    if not temperature > 0:
        raise ValueError(
            f"temperature={temperature} has no log-probs to score (0 is greedy); use a value > 0, e.g. 1.0"
        )
    if top_k < 0:
        raise ValueError(f"top_k={top_k} must be 0 (off) or a number of tokens")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be in (0, 1]; 1.0 is off")
