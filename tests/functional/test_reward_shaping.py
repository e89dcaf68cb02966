import pytest
import torch

from hardwon.functional.reward_shaping import soft_overlong_punishment


def test_published_setting():
    # 20480 - 4096 = 16384 tokens are free; then -1/4096 a token.
    lengths = torch.tensor([1, 16384, 17408, 18432, 20480, 20481])
    expected = torch.tensor([0, 0, -0.25, -0.5, -1, -1])
    assert torch.equal(soft_overlong_punishment(lengths, max_length=20480, buffer=4096), expected)


@pytest.mark.parametrize("buffer", [0, 20])
def test_buffer_must_fit(buffer):
    with pytest.raises(ValueError, match=f"buffer={buffer}"):
        soft_overlong_punishment(torch.tensor([1]), max_length=10, buffer=buffer)
