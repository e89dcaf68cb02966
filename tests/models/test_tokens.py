from __future__ import annotations

import numpy as np
import pytest
from tiny_models import make_tokenizer
from transformers import GenerationConfig

from hardwon.models.tokens import (
    collate,
    decode_response,
    eos_ids,
    pad_id,
)


def test_eos_ids_come_from_tokenizer_configs_and_template():
    # <eos> = 2 from the tokenizer, 7 and 9 from a list, 5 from an int, <|im_end|> = 4 from the template.
    tokenizer = make_tokenizer()
    assert eos_ids(tokenizer) == {2, 4}
    configs = GenerationConfig(eos_token_id=[7, 9]), GenerationConfig(eos_token_id=5)
    assert eos_ids(tokenizer, *configs) == {2, 4, 5, 7, 9}
    assert eos_ids(make_tokenizer(chat_template=None)) == {2}
    with pytest.raises(ValueError, match="eos_token_id"):
        eos_ids(make_tokenizer(chat_template=None, pad_token="<pad>"))


def test_tokenizer_without_pad_pads_with_eos_and_masks_tell_them_apart():
    tokenizer = make_tokenizer(eos_token="<eos>")
    pad = pad_id(tokenizer)
    assert pad == tokenizer.eos_token_id == 2
    batch = collate([((1, 8), (9, 2), (-1, -2), (1, 1)), ((1,), (8,), (-3,), (1,))], pad)
    assert batch.input_ids_BL.tolist() == [[1, 8, 9, 2], [1, 8, 2, 2]]
    assert batch.attention_mask_BL.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.response_mask_BT.tolist() == [
        [0, 1, 1],
        [1, 0, 0],
    ]  # sampled EOS counts


def test_collate_puts_each_value_one_column_before_its_token():
    # Prompt of 2, response of 3: token j of the response is input column 2 + j, judged by column 1 + j.
    batch = collate([((5, 6), (7, 8, 9), (-0.1, -0.2, -0.3), (1.0, 2.0, 3.0))], pad_id=0)
    assert batch.input_ids_BL.tolist() == [[5, 6, 7, 8, 9]]
    np.testing.assert_allclose(batch.old_log_probs_BT, [[0, -0.1, -0.2, -0.3]], rtol=1e-6)
    np.testing.assert_allclose(batch.advantages_BT, [[0, 1, 2, 3]])


def test_nothing_after_the_first_eos_is_trained_on():
    batch = collate([((5,), (7, 2, 8, 2), (-1, -2, -3, -4), (1, 1, 1, 1))], pad_id=0, eos=frozenset({2}))
    assert batch.input_ids_BL.tolist() == [[5, 7, 2]]
    assert batch.old_log_probs_BT.tolist() == [[-1, -2]]


def test_collate_refuses_values_that_do_not_match_tokens():
    with pytest.raises(ValueError, match="2 response tokens with 1 log-probs"):
        collate([((5,), (7, 8), (-1,), (1, 1))], pad_id=0)
    with pytest.raises(ValueError, match="at least one prompt token"):
        collate([((), (7,), (-1,), (1,))], pad_id=0)


def test_decoding_leaves_special_tokens_out():
    assert decode_response(make_tokenizer(), np.array([9, 12, 15, 4])) == "369"
