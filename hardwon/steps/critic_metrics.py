"""How good a critic is, judged on labelled states of problems that it was not fitted on.

Shapes: `S` states, each with a predicted value and `correct_S` of `judged_S` completions right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
EPSILON = 1e-7
BINS = 10


def critic_report(
    values_S: npt.ArrayLike, correct_S: npt.ArrayLike, judged_S: npt.ArrayLike, depths_S: Sequence[int]
) -> dict[str, Any]:
    """All figures of a critic; `bce_constant` is that of the best constant in hindsight, the bar to beat."""
    values, correct, judged = (np.asarray(x, dtype=float) for x in (values_S, correct_S, judged_S))
    labels = correct / judged
    return {
        "states": len(values),
        "bce": bce(values, labels),
        "bce_constant": bce(np.full_like(labels, labels.mean()), labels),
        "bce_floor": bce(labels, labels),
        "brier": brier(values, labels),
        "brier_constant": brier(np.full_like(labels, labels.mean()), labels),
        "auc": auc(values, correct, judged),
        "correlation": correlation(values, labels),
        "calibration": calibration(values, labels),
        "by_depth": errors_by_depth(values, labels, np.asarray(depths_S)),
    }


def bce(values_S: Floats, labels_S: Floats) -> float:
    """Mean cross-entropy of soft labels, in nats a state. It is least, but not 0, at values = labels."""
    v = np.clip(values_S, EPSILON, 1 - EPSILON)
    return float(-(labels_S * np.log(v) + (1 - labels_S) * np.log(1 - v)).mean())


def brier(values_S: Floats, labels_S: Floats) -> float:
    """Mean over states of E[(value - outcome)^2], the outcome being 1 with the label's frequency."""
    return float((labels_S * (1 - values_S) ** 2 + (1 - labels_S) * values_S**2).mean())


def auc(values_S: Floats, correct_S: Floats, judged_S: Floats) -> float:
    """The chance that a right completion comes from a higher value than a wrong one, ties counting half.

    1 needs states that always or never succeed: a state at 1/2 has both kinds at one value.
    NaN without both kinds.
    """
    values, inverse = np.unique(values_S, return_inverse=True)
    right = np.bincount(inverse, weights=correct_S, minlength=len(values))
    wrong = np.bincount(inverse, weights=judged_S - correct_S, minlength=len(values))
    below = np.cumsum(wrong) - wrong
    pairs = right.sum() * wrong.sum()
    return float((right * (below + wrong / 2)).sum() / pairs) if pairs else float("nan")


def correlation(x_S: Floats, y_S: Floats) -> float:
    """Pearson's; NaN where either is constant."""
    if len(x_S) < 2 or np.ptp(x_S) == 0 or np.ptp(y_S) == 0:
        return float("nan")
    return float(np.corrcoef(x_S, y_S)[0, 1])


def calibration(values_S: Floats, labels_S: Floats) -> list[dict[str, float]]:
    """Mean value, mean label and number of states in each tenth of the value range that has any."""
    bins_S = np.minimum((values_S * BINS).astype(int), BINS - 1)
    return [
        {
            "value": float(values_S[bins_S == b].mean()),
            "label": float(labels_S[bins_S == b].mean()),
            "states": int((bins_S == b).sum()),
        }
        for b in range(BINS)
        if (bins_S == b).any()
    ]


def errors_by_depth(
    values_S: Floats, labels_S: Floats, depths_S: npt.NDArray[np.int_]
) -> list[dict[str, float]]:
    """Mean absolute error, bias and mean label of the states after so many steps."""
    return [
        {
            "depth": int(d),
            "states": int((depths_S == d).sum()),
            "error": float(np.abs(values_S - labels_S)[depths_S == d].mean()),
            "bias": float((values_S - labels_S)[depths_S == d].mean()),
            "label": float(labels_S[depths_S == d].mean()),
        }
        for d in np.unique(depths_S)
    ]
