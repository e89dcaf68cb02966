"""Steps are cut on token ids: nothing is lost, whatever the tokenizer and the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hardwon.steps.split import StepSplitter, find_splitter, split_after, split_blank_lines
from hardwon.tasks.chain_arithmetic import load
from hardwon.tasks.task import split_lines


def byte_tokenizer(merged=()):
    """Bytes as tokens, and a few longer ones; as in byte-level BPE, a character may be several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    as_bytes = {" ": "Ġ", "\n": "Ċ", "\r": "č"}
    pieces = ["".join(as_bytes.get(c, c) for c in text) for text in merged]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *pieces, "<eos>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>"), vocabulary, pieces


TOKENIZER, VOCABULARY, PIECES = byte_tokenizer((".\n", "\n\n", ".\n\n4", "ab"))
EOS = VOCABULARY["<eos>"]


def ids_of(text, use_pieces=True):
    """Greedy longest match, a byte at least."""
    as_bytes = _byte_characters()
    coded = "".join(as_bytes[b] for b in text.encode())
    ids, place = [], 0
    while place < len(coded):
        fits = [p for p in PIECES if use_pieces and coded.startswith(p, place)]
        piece = max(fits, key=len, default=coded[place])
        ids.append(VOCABULARY[piece])
        place += len(piece)
    return tuple(ids)


def _byte_characters():
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(hidden)) for b in range(256)]


def text_of(ids):
    return TOKENIZER.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


AWKWARD = [
    "",
    "a",
    "a\n",
    "\n",
    "\n\n\n",
    "a\nb",
    "a\r\nb\r\n",
    "ü\n≈ 3½\n🙂🙂\n",
    "  \n\ta",
    "ab.\n\n4ab.\n",
]


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("split", [split_lines, split_blank_lines])
def test_joined_steps_are_the_response(text, split):
    assert "".join(split(text)) == text
    ids = (*ids_of(text), EOS)
    steps = StepSplitter(TOKENIZER, split).steps(ids)
    assert tuple(i for step in steps for i in step) == ids
    assert "".join(map(text_of, steps)) == text


@given(st.text(alphabet="ab.4\n\r ü🙂", max_size=30), st.booleans())
def test_round_trip_on_any_text(text, use_pieces):
    ids = (*ids_of(text, use_pieces), EOS)
    steps = StepSplitter(TOKENIZER, split_lines).steps(ids)
    assert tuple(i for step in steps for i in step) == ids
    assert all(steps)


def test_lines_and_the_end_token():
    # One token a character: "3\n" and "=3.<eos>"; the end token is no step of its own, even after "\n".
    splitter = StepSplitter(TOKENIZER, split_lines)
    ids = (*ids_of("3\n=3"), EOS)
    assert splitter.ends(ids) == [2, 5]
    assert splitter.ends((*ids_of("3\n"), EOS)) == [3]
    assert splitter.ends(()) == []
    assert splitter.ends((EOS,)) == [1]


def test_the_tokens_of_a_stop_string_end_the_last_step():
    """Cut before it, `3\\n=3\\n\\nQ` is `3\\n` and `=3`: the line break and Q are no steps of their own."""
    splitter = StepSplitter(TOKENIZER, split_lines, stop=["\n\n4"])
    ids = ids_of("3\n=3\n\n4", False)
    assert splitter.ends(ids) == [2, len(ids)]
    assert StepSplitter(TOKENIZER, split_lines).ends(ids)[:2] == [2, 5]
    assert splitter.ends(ids_of("\n\n4", False)) == [3]  # nothing was said before it
    # A prefix that holds its beginning is cut as ever: it may go on in another way.
    assert splitter.ends(ids_of("3\n=3\n", False)) == [2, 5]


def test_boundary_inside_a_token_moves_to_its_end():
    # "ab" ".\n\n4" "ab": the lines are "ab.\n", "\n" and "4ab". Both boundaries lie in the second token, so
    # they become one, at its end.
    ids = ids_of("ab.\n\n4ab")
    assert len(ids) == 3
    assert StepSplitter(TOKENIZER, split_lines).ends(ids) == [2, 3]


def test_a_character_of_several_tokens_stays_whole():
    ids = ids_of("½\n½")  # 2 bytes, a line break, 2 bytes
    assert StepSplitter(TOKENIZER, split_lines).ends(ids) == [3, 5]


def test_a_splitter_that_loses_text_is_refused():
    with pytest.raises(ValueError, match="changed the text"):
        StepSplitter(TOKENIZER, str.split).ends(ids_of("a b"))


def test_splitters_by_name():
    task = load(train_size=10)
    assert find_splitter("task", task) is task.split_steps
    assert find_splitter("line", task)("a\n\nb") == ["a\n", "\n", "b"]
    assert find_splitter("blank_line", task)("a\nb\n\nc") == ["a\nb\n\n", "c"]
    assert find_splitter(r"regex:\d+", task)("a1b22c") == ["a1", "b22", "c"]
    assert find_splitter("hardwon.tasks.task:split_lines", task)("a\nb") == ["a\n", "b"]
    with pytest.raises(ValueError, match="did you mean 'blank_line'"):
        find_splitter("blank_lines", task)
    with pytest.raises(ValueError, match="not a regular expression"):
        find_splitter("regex:(", task)
    with pytest.raises(ValueError, match="no_such"):
        find_splitter("hardwon.tasks.task:no_such", task)


def test_split_after_keeps_every_character():
    assert split_after(r";\s*", "a; b;c") == ["a; ", "b;", "c"]
    assert split_after(r"x*", "ab") == ["ab"]  # empty matches cut nothing
    assert split_after(r";", "") == []
