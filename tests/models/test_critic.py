from __future__ import annotations

import pytest
import torch
from tiny_models import make_policy
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModelForSequenceClassification

from hardwon.models.critic import Critic
from hardwon.models.policy import Policy

STATES = [(1, 8, 9, 10), (1, 8), (1, 8, 9, 2, 2)]  # the last ends with EOS, which may also be the pad token


def trained_head(critic: Critic) -> Critic:
    torch.manual_seed(1)
    torch.nn.init.normal_(critic.model.score.weight)
    return critic


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral_sliding"])
def test_a_new_critic_says_one_half_and_shares_nothing_with_the_policy(name):
    policy = make_policy(name)
    critic = Critic.from_policy(policy)
    assert critic.values(STATES).tolist() == [0.5, 0.5, 0.5]
    for key, tensor in policy.causal_lm.base_model.state_dict().items():
        copied = critic.model.base_model.state_dict()[key]
        assert torch.equal(tensor, copied) and tensor.data_ptr() != copied.data_ptr()


def test_value_is_read_at_the_last_token_whatever_stands_beside_it():
    critic = trained_head(Critic.from_policy(make_policy()))
    together = critic.logits(STATES)
    alone = torch.cat([critic.logits([state]) for state in STATES])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(critic.values(STATES), together.sigmoid())
    hidden = critic.model.base_model(torch.tensor([STATES[1]]))[0][0, -1]
    torch.testing.assert_close(together[1], hidden @ critic.model.score.weight[0], atol=1e-5, rtol=1e-5)


def test_bce_gradient_reaches_head_and_transformer_and_the_loss_falls():
    # Fault 27: a value detached from the graph never learns.
    critic = trained_head(Critic.from_policy(make_policy()))
    targets = torch.tensor([0.375, 0.0, 1.0])  # 3 of 8, 0 of 8, 8 of 8
    optimizer = torch.optim.Adam(critic.model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(critic.logits(STATES), targets)
        loss.backward()
        assert all(p.grad is not None for p in critic.model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_saved_critic_round_trips_and_any_transformers_user_can_read_it(tmp_path):
    critic = trained_head(Critic.from_policy(make_policy()))
    critic.save(tmp_path)
    expected = critic.logits(STATES)
    assert torch.equal(Critic.load(tmp_path, device="cpu").logits(STATES), expected)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    logit = plain(torch.tensor([STATES[0]])).logits
    torch.testing.assert_close(logit[0, 0], expected[0])


def test_critic_from_a_saved_language_model_or_lora_policy(tmp_path):
    policy = make_policy()
    policy.save(tmp_path)
    critic = Critic.load(tmp_path, device="cpu")
    assert critic.values(STATES).tolist() == [0.5, 0.5, 0.5]
    adapted = Policy.load(tmp_path, device="cpu", lora_rank=2)
    copied = Critic.from_policy(adapted).model.base_model.state_dict()
    for name, tensor in policy.model.model.state_dict().items():
        assert torch.equal(copied[name], tensor)


def test_a_state_without_tokens_is_refused():
    critic = Critic.from_policy(make_policy())
    with pytest.raises(ValueError, match="at least one token"):
        critic.values([(1, 8), ()])
