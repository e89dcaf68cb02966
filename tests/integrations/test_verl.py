"""The verl plug-in against verl's own classes: estimator, losses, aggregation, settings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

core_algos = pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl and the packages it imports are not installed"
)

from verl.trainer.config import AlgoConfig  # noqa: E402

from hardwon.functional.amplification import MODES  # noqa: E402
from hardwon.functional.masked import sequence_mean, sequence_mean_token_sum, token_mean  # noqa: E402
from hardwon.functional.objectives import clipped  # noqa: E402
from hardwon.integrations.verl import ESTIMATORS, VerlSettings, estimate, load_settings, unregistered  # noqa: E402

PLAIN = VerlSettings(overlong_buffer=0, std="sample")


def batch(scores: list[float], lengths: list[int] | None = None, width: int = 4):
    """Scores on the last response token and a response mask, as verl lays them out."""
    lengths = lengths or [width] * len(scores)
    rewards_BT = torch.zeros(len(scores), max([width, *lengths]))
    mask_BT = torch.zeros_like(rewards_BT)
    for row, (score, length) in enumerate(zip(scores, lengths, strict=True)):
        mask_BT[row, :length] = 1
        rewards_BT[row, max(length - 1, 0)] = score
    return rewards_BT, mask_BT


def one_in(group_size: int, correct: int = 1) -> list[float]:
    return [1.0] * correct + [0.0] * (group_size - correct)


def uids(*sizes: int) -> np.ndarray:
    return np.array([f"uid-{p}" for p, size in enumerate(sizes) for _ in range(size)], dtype=object)


def first_column(
    mode: str, scores: list[float], index: np.ndarray, settings: VerlSettings = PLAIN, lengths=None
):
    advantages_BT, _ = estimate(*batch(scores, lengths), index=index, mode=mode, settings=settings)
    return advantages_BT[:, 0].tolist()


def test_verl_knows_every_estimator():
    assert unregistered() == []
    for name in ("da3po", *(f"da3po_{mode}" for mode in MODES if mode != "daa")):
        assert core_algos.get_adv_estimator_fn(name) is ESTIMATORS[name]


def test_one_correct_in_sixteen():
    # Sample std: A+ = 3.75, A- = -0.25; p = 1/16 < tau doubles A+.
    assert first_column("daa", one_in(16), uids(16)) == pytest.approx([7.5] + [-0.25] * 15)
    # k = 8: p = 1/2 is not below tau.
    expected = [0.968246] * 8 + [-0.968246] * 8
    assert first_column("daa", one_in(16, 8), uids(16)) == pytest.approx(expected, abs=1e-6)


def test_without_amplification_it_is_verls_grpo():
    scores = one_in(8, 1) + one_in(8, 3) + one_in(8, 6)
    rewards_BT, mask_BT = batch(scores, [1, 2, 3, 4] * 6)
    ours, _ = estimate(rewards_BT, mask_BT, index=uids(8, 8, 8), mode="none", settings=PLAIN)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(rewards_BT, mask_BT, uids(8, 8, 8))
    # verl adds 1e-6 to the standard deviation and takes rewards 0/1; ours are -1/+1 and have no epsilon.
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_groups_that_do_not_differ_have_no_advantage():
    # float32: the std of eight times 0.1 is about 8e-9, not 0.
    assert first_column("daa", [0.1] * 8, uids(8)) == [0.0] * 8
    assert first_column("daa", [1.0] * 8, uids(8)) == [0.0] * 8


def test_order_of_rows_does_not_matter():
    scores, index = one_in(4) + one_in(4, 2), uids(4, 4)
    order = [5, 0, 7, 2, 4, 1, 6, 3]
    straight = first_column("daa", scores, index)
    mixed = first_column("daa", [scores[i] for i in order], index[order])
    assert mixed == pytest.approx([straight[i] for i in order])


def test_failed_verifier_lost_response_and_padding_take_no_part():
    # Group 0: one unjudged, so 1 of 3: mean -1/3, sample std 2/sqrt(3), A+ = 2/sqrt(3), doubled.
    # Group 1 lost two of four responses: 1 of 2 is not hard, A = +-1/sqrt(2). The last row is padding.
    scores = [1.0, 0.0, math.nan, 0.0, 1.0, 0.0, 1.0]
    index = np.array(["a"] * 4 + ["b"] * 2 + ["b"], dtype=object)
    found = first_column("daa", scores, index, lengths=[4, 4, 4, 4, 4, 4, 0])
    third = 1 / math.sqrt(3)
    assert found[:4] == pytest.approx([4 * third, -third, 0.0, -third])
    assert found[4:] == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5), 0.0])


def test_a_single_response_is_refused_if_all_are_single():
    with pytest.raises(ValueError, match=r"rollout\.n=1"):
        first_column("daa", [1.0, 0.0], uids(1, 1))
    assert first_column("daa", [1.0, 0.0, 1.0], uids(2, 1))[2] == 0.0


def test_overlong_punishment_reads_lengths_from_the_mask():
    # L_max 8, buffer 4: lengths 4, 6, 8 are punished by 0, -0.5, -1. Rewards 1, 0.5, -1, -2: mean -3/8.
    settings = VerlSettings(max_response_length=8, overlong_buffer=4, amplify_by="verdict")
    found = first_column("none", [1.0, 1.0, 0.0, 0.0], uids(4), settings, lengths=[4, 6, 4, 8])
    rewards = torch.tensor([1.0, 0.5, -1.0, -2.0], dtype=torch.float64)
    expected = (rewards - rewards.mean()) / rewards.std(correction=0)
    assert found == pytest.approx(expected.tolist())
    # Length alone varies a group of right answers, whose success rate stays 1: nothing is hard.
    same = first_column("daa", [1.0, 1.0], uids(2), settings, lengths=[4, 8])
    assert same == pytest.approx([1.0, -1.0])


def test_settings_of_verl_that_hide_correctness_or_lengths_are_refused():
    rewards_BT, mask_BT = batch(one_in(4))
    with pytest.raises(ValueError, match="use_kl_in_reward"):
        estimate(rewards_BT, mask_BT, AlgoConfig(use_kl_in_reward=True), uids(4), mode="daa")
    config = {"rollout_correction": {"rollout_rs": "token_k1"}}
    with pytest.raises(ValueError, match="rollout_rs=token_k1"):
        estimate(rewards_BT, mask_BT, config, uids(4), mode="daa")
    settings = VerlSettings(max_response_length=3, overlong_buffer=1)
    with pytest.raises(ValueError, match="max_response_length=3"):
        estimate(rewards_BT, mask_BT, None, uids(4), mode="daa", settings=settings)


def test_settings_come_from_a_file(tmp_path, monkeypatch):
    path = tmp_path / "da3po.yaml"
    monkeypatch.setenv("HARDWON_VERL_CONFIG", str(path))
    path.write_text("amplification_factor: 3\nmax_response_length: 100\noverlong_buffer: 20\n")
    assert load_settings().amplification_factor == 3
    path.write_text("amplification_facto: 3\n")
    with pytest.raises(ValueError, match="did you mean 'amplification_factor'"):
        load_settings()
    path.write_text("max_response_length: 100\n")
    with pytest.raises(ValueError, match="overlong_buffer=4096 is longer than max_response_length=100"):
        load_settings()
    monkeypatch.setenv("HARDWON_VERL_CONFIG", str(tmp_path / "none.yaml"))
    with pytest.raises(ValueError, match="cannot be read"):
        load_settings()


# ------------------------------------------------------------------ verl's losses are those of functional/


def random_batch():
    generator = torch.Generator().manual_seed(0)
    old_BT = -3 * torch.rand(6, 5, generator=generator)
    log_probs_BT = old_BT + torch.randn(6, 5, generator=generator)
    advantages_BT = torch.randn(6, 1, generator=generator).expand(6, 5)
    mask_BT = (torch.arange(5) < torch.tensor([5, 1, 3, 5, 2, 4])[:, None]).float()
    return log_probs_BT, old_BT, advantages_BT, mask_BT


@pytest.mark.parametrize("dual_clip", [10.0, 1.5])
def test_clipped_is_verls_vanilla_loss(dual_clip):
    from verl.workers.config import ActorConfig

    log_probs_BT, old_BT, advantages_BT, mask_BT = random_batch()
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=2,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=dual_clip,
    )
    vanilla = core_algos.get_policy_loss_fn("vanilla")
    tokens = int(mask_BT.sum())
    theirs, _ = vanilla(old_BT, log_probs_BT, advantages_BT, mask_BT, "token-mean", config)
    losses_BT, _ = clipped(
        log_probs_BT, old_BT, advantages_BT, mask_BT, clip_low=0.2, clip_high=0.28, dual_clip=dual_clip
    )
    assert token_mean(losses_BT, mask_BT, tokens).item() == pytest.approx(theirs.item(), rel=1e-6)
    # And in two micro-batches, with the denominator of the whole step.
    config.global_batch_info.update(batch_num_tokens=tokens, dp_size=1)
    parts = [
        vanilla(old_BT[s], log_probs_BT[s], advantages_BT[s], mask_BT[s], "token-mean", config)[0]
        for s in (slice(0, 2), slice(2, 6))
    ]
    assert sum(parts).item() == pytest.approx(theirs.item(), rel=1e-6)


def test_aggregations_are_verls():
    losses_BT, *_, mask_BT = random_batch()
    agg_loss = core_algos.agg_loss
    tokens, sequences = int(mask_BT.sum()), len(mask_BT)
    assert token_mean(losses_BT, mask_BT, tokens).item() == pytest.approx(
        agg_loss(losses_BT, mask_BT, "token-mean").item()
    )
    assert sequence_mean(losses_BT, mask_BT, sequences).item() == pytest.approx(
        agg_loss(losses_BT, mask_BT, "seq-mean-token-mean").item()
    )
    assert sequence_mean_token_sum(losses_BT, mask_BT, sequences, 5.0).item() == pytest.approx(
        agg_loss(losses_BT, mask_BT, "seq-mean-token-sum-norm", loss_scale_factor=5).item()
    )
