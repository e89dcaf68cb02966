from __future__ import annotations

import numpy as np
import pytest
from conftest import CHAT, make_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig

from hardwon.data import Problem
from hardwon.models.tokens import (
    collate,
    decode_response,
    encode_prompt,
    eos_ids,
    pad_id,
)

SUM = Problem("sum/1", "3+4=", "7")


def adds_bos(tokenizer):
    """A tokenizer that puts <bos> before every text, as Llama's does."""
    tokenizer._tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return tokenizer


def test_text_prompt_is_one_user_message_under_a_chat_template():
    tokenizer = make_tokenizer()
    ids = encode_prompt(tokenizer, SUM)
    assert tokenizer.decode(ids) == "<|im_start|><unk><unk>e<unk>\n3+4=<|im_end|>\n<|im_start|>a\n"
    messages = Problem("sum/1", [{"role": "user", "content": "3+4="}], "7")
    assert encode_prompt(tokenizer, messages) == ids


def test_raw_text_has_no_template():
    tokenizer = make_tokenizer(chat_template=None)
    assert tokenizer.decode(encode_prompt(tokenizer, SUM, chat_template=False)) == "3+4="


@pytest.mark.parametrize("template", [CHAT, "<bos>" + CHAT, "<bos><bos>" + CHAT])
@pytest.mark.parametrize("chat_template", [True, False])
def test_exactly_one_bos_whoever_writes_it(template, chat_template):
    tokenizer = adds_bos(make_tokenizer(template))
    ids = encode_prompt(tokenizer, SUM, chat_template=chat_template)
    assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == 1


def test_system_prompt_comes_first():
    tokenizer = make_tokenizer()
    text = tokenizer.decode(encode_prompt(tokenizer, SUM, system_prompt="add"))
    assert text.index("add") < text.index("3+4=")


def test_settings_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ValueError, match="set chat_template=false"):
        encode_prompt(make_tokenizer(chat_template=None), SUM)
    with pytest.raises(ValueError, match="chat_template=true"):
        encode_prompt(make_tokenizer(), SUM, chat_template=False, system_prompt="add")
    chat = Problem("p", [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], "")
    with pytest.raises(ValueError, match="chat_template=true"):
        encode_prompt(make_tokenizer(), chat, chat_template=False)
    with pytest.raises(ValueError, match="system_prompt"):
        encode_prompt(make_tokenizer(), chat, system_prompt="add")
    with pytest.raises(ValueError, match="no tokens"):
        encode_prompt(make_tokenizer(), Problem("p", "", ""), chat_template=False)


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
