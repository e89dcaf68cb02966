"""The same quantities as other engines compute them: verl 0.9 and TRL 1.16 are the oracles.

Where our definition differs on purpose, the test says how and compares what is left:

- No epsilon beside a standard deviation: degenerate groups are found by their range instead.
- reinforce_pp uses the population variance over tokens, verl the sample variance.
- gpg counts the responses of degenerate groups as those without gradient; verl counts zero rewards.
- pass_at_k is the analytical advantage of arXiv 2508.10751; verl's estimator of that name is that of
  another paper (arXiv 2503.19595) and gives only the best response an advantage: not compared.
- cispo's cap is 1 + clip_high, as in verl; TRL's epsilon_high is the cap itself.
- sequence_mean counts a fully masked response if the caller does; verl and TRL never do.
- Dr. GRPO's constant is the caller's; verl's default is the padded width of the batch.
"""

import math
from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hardwon.functional import advantages, masked, objectives
from hardwon.functional.actor_critic import gae, value_loss

LENGTHS = torch.tensor([[3, 1, 4, 2], [2, 2, 5, 1]])
REWARDS = torch.tensor([[1.0, -1.0, -1.0, 0.5], [-1.0, 1.0, 1.0, -0.25]])
MASK = (torch.arange(5) < LENGTHS[:, :, None]).reshape(8, 5).float()


@pytest.fixture(scope="module")
def verl():
    reason = "verl is not installed; see docs for the packages that its loss functions need"
    return pytest.importorskip("verl.trainer.ppo.core_algos", reason=reason, exc_type=ImportError)


@pytest.fixture(scope="module")
def trl_compute_loss():
    reason = "TRL is not installed (the extra hardwon[trl])"
    trainer = pytest.importorskip("trl.trainer.grpo_trainer", reason=reason, exc_type=ImportError)
    return trainer.GRPOTrainer._compute_loss


def batch(spread=0.6):
    """Log-probs, old log-probs and advantages (8, 5) with ratios on either side of every bound."""
    generator = torch.Generator().manual_seed(1)
    old_BT = -torch.rand(8, 5, generator=generator) * 2 - 0.1
    log_probs_BT = old_BT + spread * torch.randn(8, 5, generator=generator)
    advantages_B1 = torch.randn(8, 1, generator=generator)
    return log_probs_BT.requires_grad_(), old_BT, advantages_B1.expand(8, 5)


def assert_same_loss(ours, theirs, log_probs_BT):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad(loss, log_probs_BT)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
    assert gradients[0].abs().sum() > 0


# ---- advantages, verl ----


def verl_advantages(function, rewards_PG=REWARDS, kl_BT=None, **kwargs):
    token_rewards_BT = torch.zeros(8, 5)
    token_rewards_BT[torch.arange(8), LENGTHS.reshape(8) - 1] = rewards_PG.reshape(8)
    if kl_BT is not None:
        token_rewards_BT = token_rewards_BT - kl_BT
    index = np.repeat(["a", "b"], 4)
    return function(token_level_rewards=token_rewards_BT, response_mask=MASK, **({"index": index} | kwargs))[
        0
    ]


def our_advantages(estimator, rewards_PG=REWARDS):
    return advantages.per_token(estimator(rewards_PG, rewards_PG > 0, LENGTHS), LENGTHS).reshape(8, 5)


@pytest.mark.parametrize(
    ("name", "estimator", "kwargs"),
    [
        ("compute_grpo_outcome_advantage", partial(advantages.standardized, std="sample"), {"epsilon": 0.0}),
        (
            "compute_grpo_outcome_advantage",
            advantages.centered,
            {"norm_adv_by_std_in_grpo": False},
        ),  # Dr. GRPO
        ("compute_rloo_outcome_advantage", advantages.leave_one_out, {}),
        ("compute_opo_outcome_advantage", advantages.length_weighted, {}),
        ("compute_gpg_outcome_advantage", advantages.gpg, {}),  # no zero reward here: both alphas are 1
    ],
)
def test_verl_advantages(verl, name, estimator, kwargs):
    theirs_BT = verl_advantages(getattr(verl, name), **kwargs)
    torch.testing.assert_close(our_advantages(estimator), theirs_BT)


SAMPLE_VARIANCE = math.sqrt((20 - 1) / 20)  # 20 tokens; ours divides by n


def test_verl_reinforce_pp_baseline(verl):
    theirs_BT = verl_advantages(verl.compute_reinforce_plus_plus_baseline_outcome_advantage)
    ours_BT = our_advantages(advantages.group_then_batch_normalized) * SAMPLE_VARIANCE
    torch.testing.assert_close(ours_BT, theirs_BT)


def test_verl_reinforce_pp_with_kl_in_the_reward(verl):
    kl_BT = torch.rand(8, 5, generator=torch.Generator().manual_seed(2)) * MASK
    theirs_BT = verl_advantages(
        verl.compute_reinforce_plus_plus_outcome_advantage,
        kl_BT=0.1 * kl_BT,
        config=SimpleNamespace(gamma=1.0),
        index=None,
    )
    ours_PGT = advantages.batch_normalized(
        REWARDS, REWARDS > 0, LENGTHS, kl_PGT=kl_BT.view(2, 4, 5), kl_coef=0.1
    )
    torch.testing.assert_close(ours_PGT.reshape(8, 5) * SAMPLE_VARIANCE, theirs_BT)


def test_verl_gae(verl):
    generator = torch.Generator().manual_seed(3)
    rewards_BT, values_BT = (torch.randn(8, 5, generator=generator) * MASK for _ in range(2))
    theirs_BT, their_returns_BT = verl.compute_gae_advantage_return(rewards_BT, values_BT, MASK, 0.9, 0.8)
    ours_BT, returns_BT = gae(rewards_BT, values_BT, MASK, gamma=0.9, lam=0.8)
    torch.testing.assert_close(returns_BT, their_returns_BT * MASK)
    alive = MASK.bool()  # verl whitens its advantages as well
    whitened = (ours_BT[alive] - ours_BT[alive].mean()) / ours_BT[alive].std()
    torch.testing.assert_close(whitened, theirs_BT[alive])


# ---- losses, verl ----


def verl_config(**kwargs):
    from verl.workers.config import ActorConfig

    return ActorConfig(strategy="fsdp", rollout_n=4, use_dynamic_bsz=True, **kwargs)


def verl_loss(verl, name, mode, **config):
    log_probs_BT, old_BT, advantages_BT = batch()
    function = verl.get_policy_loss_fn(name)
    loss, metrics = function(old_BT, log_probs_BT, advantages_BT, MASK, mode, verl_config(**config))
    return log_probs_BT, loss, metrics


def our_loss(log_probs_BT, objective, mean, **kwargs):
    _, old_BT, advantages_BT = batch()
    losses_BT, stats = objective(log_probs_BT, old_BT, advantages_BT, MASK, **kwargs)
    return mean(losses_BT, MASK), stats


def token_mean(losses_BT, mask_BT):
    return masked.token_mean(losses_BT, mask_BT, mask_BT.sum())


def sequence_mean(losses_BT, mask_BT):
    return masked.sequence_mean(losses_BT, mask_BT, len(mask_BT))


@pytest.mark.parametrize("dual_clip", [1.3, 10.0])
def test_verl_clipped(verl, dual_clip):
    log_probs_BT, theirs, metrics = verl_loss(
        verl, "vanilla", "token-mean", clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=dual_clip
    )
    ours, stats = our_loss(
        log_probs_BT, objectives.clipped, token_mean, clip_low=0.2, clip_high=0.28, dual_clip=dual_clip
    )
    assert_same_loss(ours, theirs, log_probs_BT)
    clipped = (stats["clip_ratio/low_mean"] + stats["clip_ratio/high_mean"]) / MASK.sum()
    assert clipped.item() == pytest.approx(metrics["actor/pg_clipfrac"])
    assert clipped > 0.2
    dual = stats["clip_ratio/dual_mean"] / MASK.sum()
    assert dual.item() == pytest.approx(metrics["actor/pg_clipfrac_lower"])
    assert (dual > 0) == (dual_clip == 1.3)


@pytest.mark.parametrize(
    ("name", "objective", "mode", "mean", "low", "high"),
    [
        ("gspo", objectives.gspo, "seq-mean-token-mean", sequence_mean, 0.1, 0.2),
        ("gspo", objectives.gspo, "token-mean", token_mean, 0.1, 0.2),
        ("geo_mean", objectives.gmpo, "seq-mean-token-mean", sequence_mean, 0.4, 0.4),
        ("cispo", objectives.cispo, "token-mean", token_mean, 0.2, 0.28),
        ("cispo", objectives.cispo, "token-mean", token_mean, 1.0, 0.5),
        ("sapo", objectives.sapo, "seq-mean-token-mean", sequence_mean, 0.2, 0.2),
        ("gpg", objectives.gpg, "token-mean", token_mean, 0.2, 0.2),
    ],
)
def test_verl_losses(verl, name, objective, mode, mean, low, high):
    log_probs_BT, theirs, _ = verl_loss(verl, name, mode, clip_ratio_low=low, clip_ratio_high=high)
    ours, _ = our_loss(log_probs_BT, objective, mean, clip_low=low, clip_high=high)
    assert_same_loss(ours, theirs, log_probs_BT)


def test_verl_aggregations(verl):
    losses_BT = torch.randn(8, 5, generator=torch.Generator().manual_seed(4))
    ours = {
        "token-mean": masked.token_mean(losses_BT, MASK, 20),
        "seq-mean-token-mean": masked.sequence_mean(losses_BT, MASK, 8),
        "seq-mean-token-sum": masked.sequence_mean_token_sum(losses_BT, MASK, 8, 1),
        "seq-mean-token-sum-norm": masked.sequence_mean_token_sum(losses_BT, MASK, 8, 12),
    }
    for mode, value in ours.items():
        torch.testing.assert_close(value, verl.agg_loss(losses_BT, MASK, mode, loss_scale_factor=12))


@pytest.mark.parametrize(("name", "ours"), [("k1", objectives.kl_k1), ("k3", objectives.kl_k3)])
def test_verl_kl(verl, name, ours):
    log_probs_BT, reference_BT, _ = batch()
    theirs_BT = verl.kl_penalty(log_probs_BT, reference_BT, name)
    torch.testing.assert_close(ours(log_probs_BT, reference_BT), theirs_BT)


def test_verl_value_loss(verl):
    values_BT, old_BT, returns_BT = batch()
    theirs, _ = verl.compute_value_loss(values_BT, returns_BT, old_BT, MASK, cliprange_value=0.2)
    ours = token_mean(value_loss(values_BT, old_BT, returns_BT, clip=0.2), MASK)
    assert_same_loss(ours, theirs, values_BT)


# ---- losses, TRL: its own method, with a trainer that only hands out our log-probs ----


def trl_loss(compute_loss, log_probs_BT, **settings):
    _, old_BT, advantages_BT = batch()
    config = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1}
    config |= {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (log_probs_BT, torch.zeros(8, 5), None),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _entropy_bonus_enabled=False,
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, gather_for_metrics=lambda x: x
        ),
        args=SimpleNamespace(**{key: settings.pop(key, value) for key, value in config.items()}),
        aux_loss_enabled=False,
        beta=settings.pop("beta", 0.0),
        current_gradient_accumulation_steps=1,
        epsilon_high=settings.pop("epsilon_high", 0.28),
        epsilon_low=0.2,
        importance_sampling_level=settings.pop("importance_sampling_level", "token"),
        loss_type=settings.pop("loss_type"),
        max_completion_length=12,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
    )
    assert not settings
    inputs = {
        "prompt_ids": torch.zeros(8, 1).long(),
        "prompt_mask": torch.ones(8, 1),
        "completion_ids": torch.zeros(8, 5).long(),
        "completion_mask": MASK,
        "advantages": advantages_BT[:, 0],
        "old_per_token_logps": old_BT,
        "ref_per_token_logps": old_BT - 0.3,
        "num_items_in_batch": MASK.sum(),
    }
    return compute_loss(trainer, None, inputs)


DR_GRPO_MEAN = partial(masked.sequence_mean_token_sum, num_sequences=8, constant=12)


@pytest.mark.parametrize(
    ("settings", "objective", "mean"),
    [
        ({"loss_type": "grpo"}, objectives.clipped, sequence_mean),
        ({"loss_type": "bnpo"}, objectives.clipped, token_mean),
        ({"loss_type": "dapo"}, objectives.clipped, token_mean),
        ({"loss_type": "dr_grpo"}, objectives.clipped, DR_GRPO_MEAN),
        ({"loss_type": "dapo", "delta": 1.3}, partial(objectives.clipped, dual_clip=1.3), token_mean),
        ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, objectives.gspo, sequence_mean),
        ({"loss_type": "cispo", "epsilon_high": 1.28}, partial(objectives.cispo, clip_low=1.0), token_mean),
        ({"loss_type": "sapo"}, objectives.sapo, sequence_mean),
    ],
)
def test_trl_losses(trl_compute_loss, settings, objective, mean):
    log_probs_BT, _, _ = batch()
    theirs = trl_loss(trl_compute_loss, log_probs_BT, **settings)
    clip_low = {} if settings["loss_type"] == "cispo" else {"clip_low": 0.2}
    ours, _ = our_loss(log_probs_BT, objective, mean, clip_high=0.28, **clip_low)
    assert_same_loss(ours, theirs, log_probs_BT)


def test_trl_kl_term(trl_compute_loss):
    log_probs_BT, old_BT, _ = batch()
    theirs = trl_loss(trl_compute_loss, log_probs_BT, loss_type="grpo", beta=0.04)
    ours, _ = our_loss(log_probs_BT, objectives.clipped, sequence_mean, clip_low=0.2, clip_high=0.28)
    ours = ours + 0.04 * sequence_mean(objectives.kl_k3(log_probs_BT, old_BT - 0.3), MASK)
    assert_same_loss(ours, theirs, log_probs_BT)
