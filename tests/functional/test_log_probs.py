import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hardwon.functional.log_probs import filter_logits, token_log_probs


def make_inputs(num_tokens=37, hidden=8, vocabulary=11, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden_NH = torch.randn(num_tokens, hidden, generator=generator, dtype=dtype).requires_grad_()
    weight_VH = torch.randn(vocabulary, hidden, generator=generator, dtype=dtype).requires_grad_()
    bias_V = torch.randn(vocabulary, generator=generator, dtype=dtype).requires_grad_()
    return hidden_NH, weight_VH, bias_V, torch.randint(vocabulary, (num_tokens,), generator=generator)


class LargestTensor(TorchDispatchMode):
    """Records the element count of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


def test_two_token_vocabulary_by_hand():
    # Logits (log 3, 0) -> probabilities (3/4, 1/4); entropy = log 4 - 3/4 log 3.
    hidden_NH = torch.tensor([[math.log(3.0)], [math.log(3.0)]])
    weight_VH = torch.tensor([[1.0], [0.0]])
    log_probs_N, entropy_N = token_log_probs(hidden_NH, weight_VH, None, torch.tensor([0, 1]))
    torch.testing.assert_close(log_probs_N.exp(), torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(entropy_N, torch.full((2,), math.log(4) - 0.75 * math.log(3)))


@pytest.mark.parametrize("max_logits", [1, 50, 10_000])  # one token a chunk, a ragged last chunk, one chunk
@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.6}, {"top_k": 4}, {"top_p": 0.8}, {"temperature": 1.3, "top_k": 6, "top_p": 0.7}],
)
def test_agrees_with_full_logits_and_so_do_gradients(sampling, max_logits):
    inputs = make_inputs()
    hidden_NH, weight_VH, bias_V, targets_N = inputs
    logits_NV = filter_logits(hidden_NH @ weight_VH.T + bias_V, **sampling, keep_N=targets_N)
    reference = torch.distributions.Categorical(logits=logits_NV)
    weights_N = torch.linspace(-1, 1, len(targets_N), dtype=torch.float64)
    expected_grads = torch.autograd.grad((reference.log_prob(targets_N) * weights_N).sum(), inputs[:3])

    log_probs_N, entropy_N = token_log_probs(*inputs, **sampling, max_logits=max_logits)
    grads = torch.autograd.grad((log_probs_N * weights_N).sum(), inputs[:3])

    torch.testing.assert_close(log_probs_N, reference.log_prob(targets_N), rtol=0, atol=1e-6)
    torch.testing.assert_close(entropy_N, reference.entropy(), rtol=0, atol=1e-6)
    torch.testing.assert_close(grads, expected_grads, rtol=0, atol=1e-6)
    assert not entropy_N.requires_grad


def test_half_precision_logits_are_scored_in_float32():
    hidden_NH, weight_VH, bias_V, targets_N = make_inputs(dtype=torch.bfloat16)
    log_probs_N, entropy_N = token_log_probs(hidden_NH, weight_VH, bias_V, targets_N, max_logits=50)
    assert log_probs_N.dtype == entropy_N.dtype == torch.float32


def test_memory_does_not_grow_with_the_number_of_tokens():
    """V = 1000 and max_logits = 20,000: chunks of 20 tokens, forward and backward."""
    peaks = []
    for num_tokens in (100, 400):
        hidden_NH, weight_VH, _, targets_N = make_inputs(
            num_tokens, hidden=4, vocabulary=1000, dtype=torch.float32
        )
        with LargestTensor() as largest:
            log_probs_N, _ = token_log_probs(hidden_NH, weight_VH, None, targets_N, max_logits=20_000)
            log_probs_N.sum().backward()
        peaks.append(largest.elements)
    assert peaks == [20_000, 20_000]


def test_logits_are_not_kept_for_the_backward_pass():
    """Chunks bound each tensor; only recomputing bounds what is saved between forward and backward."""
    saved = []
    inputs = make_inputs(num_tokens=400, hidden=4, vocabulary=1000, dtype=torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x.numel()), x)[1], lambda x: x):
        token_log_probs(*inputs, max_logits=20_000)
    assert max(saved, default=0) <= 4000  # the weight, V * H; a chunk of logits has 20,000


def test_no_tokens_is_fine():
    hidden_NH, weight_VH, bias_V, targets_N = make_inputs(num_tokens=0)
    log_probs_N, entropy_N = token_log_probs(hidden_NH, weight_VH, bias_V, targets_N)
    assert log_probs_N.shape == entropy_N.shape == (0,)


# Probabilities 1/2, 1/4, 1/8, 1/8.
LOGITS = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({}, [1, 1, 1, 1]),
        ({"top_k": 2}, [1, 1, 0, 0]),
        ({"top_k": 3}, [1, 1, 1, 1]),  # the fourth ties with the third
        ({"top_k": 9}, [1, 1, 1, 1]),
        ({"top_p": 0.5}, [1, 0, 0, 0]),  # 1/2 reaches it
        ({"top_p": 0.6}, [1, 1, 0, 0]),  # 1/2 does not, 3/4 does
        ({"top_p": 0.01}, [1, 0, 0, 0]),  # never empty
        # top-k first: over (2/3, 1/3) the first token reaches 0.6; over all four it would not
        ({"top_k": 2, "top_p": 0.6}, [1, 0, 0, 0]),
        # temperature first: squared and normalised 16/22, 4/22, 1/22, 1/22, so the first reaches 0.7
        ({"temperature": 0.5, "top_p": 0.7}, [1, 0, 0, 0]),
    ],
)
def test_filter_keeps(sampling, kept):
    assert filter_logits(LOGITS, **sampling).isfinite().int().tolist() == [kept]


def test_scored_target_outside_the_filter_stays_finite():
    # top_k = 1 keeps token 0 (1/2); target 1 (1/4) is kept too: 1/4 / (1/2 + 1/4) = 1/3.
    logits_NV = filter_logits(LOGITS, top_k=1, keep_N=torch.tensor([1]))
    torch.testing.assert_close(logits_NV.softmax(-1), torch.tensor([[2 / 3, 1 / 3, 0, 0]]))


def test_ratio_is_one_on_policy_only_with_the_sampling_temperature():
    """Known fault: scoring at temperature 1 what was sampled at 0.5 gives ratios far from 1."""
    inputs = make_inputs()
    sampled_N, _ = token_log_probs(*inputs, temperature=0.5)
    same_N, _ = token_log_probs(*inputs, temperature=0.5, max_logits=50)
    other_N, _ = token_log_probs(*inputs)
    torch.testing.assert_close((same_N - sampled_N).exp(), torch.ones_like(same_N))
    assert (other_N - sampled_N).abs().max() > 0.5


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.0), ("top_k", -1), ("top_p", 0.0), ("top_p", 1.5)]
)
def test_bad_sampling_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        token_log_probs(*make_inputs(), **{name: value})
