"""Stop strings: one definition of a response's end, in every tokenizer, generator, batch and prefix."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tiny_models import make_policy, make_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hardwon.check import check_stop
from hardwon.data import Problem, Request, Sampling, State, Verdict
from hardwon.models.generator_hf import HFGenerator
from hardwon.models.generator_vllm import Completion, Job, VLLMGenerator, make_jobs, run_to_stop
from hardwon.models.stopping import StopStrings, cut_at_stop
from hardwon.models.tokens import decode_response
from hardwon.rollouts import Sampler, sample_groups
from hardwon.tasks import Task

CHARACTERS = make_tokenizer()
TEXTS = ["Question: 2+3\n\nAnswer: 5 €", "Die Antwort ist ü\n\nQuestion:\n", "ab ab  ab\n\n\nStop"] * 3


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2, Llama 3 and Qwen: every byte is a token, and so are frequent runs such as `\\n\\n`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def with_byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2 and Mistral: spaces belong to words, the first one is dropped, rare characters are bytes."""
    words = [
        "<eos>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁Question",
        "Question",
        ":",
        "▁a",
        "a",
    ]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


TOKENIZERS = {"characters": make_tokenizer, "bytes": byte_level, "byte_fallback": with_byte_fallback}


def first_end(tokenizer, ids, strings) -> int | None:
    """The definition itself: the fewest tokens whose text holds a stop string."""
    texts = (decode_response(tokenizer, ids[:n]) for n in range(1, len(ids) + 1))
    return next((n for n, text in enumerate(texts, 1) if any(s in text for s in strings)), None)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_end_is_where_the_text_first_holds_a_stop_string(name):
    """Found with few tokens decoded, and the same as when everything is decoded at every token."""
    tokenizer = TOKENIZERS[name]()
    rng = np.random.default_rng(0)
    choices = [["\n\n", "Question:"], ["a "], ["€"], ["ü\n", " a"], ["0=", "-"], [":\n"]]
    likely = {i for text in "€ü\n: aQ" for i in tokenizer(text, add_special_tokens=False)["input_ids"]}
    likely |= {
        tokenizer.convert_tokens_to_ids(t)
        for t in ("▁", "▁a", "▁Question", "Question")
        if t in tokenizer.vocab
    }
    pool = [*sorted(likely), *range(len(tokenizer))]
    weights = np.array([5.0] * len(likely) + [20.0 / len(tokenizer)] * len(tokenizer))
    found = 0
    for trial in range(150):
        strings = choices[trial % len(choices)]
        ids = rng.choice(pool, 60, p=weights / weights.sum()).tolist()
        expected, stops = first_end(tokenizer, ids, strings), StopStrings(tokenizer, strings)
        assert stops.end([], ids) == expected
        for written in (1, 7, 30):  # wherever a prefix ends before the stop, the end is the same
            if expected is not None and written < expected:
                assert stops.end(ids[:written], ids[written:]) == expected - written
        found += expected is not None
    assert found > 30


def test_a_stop_string_may_begin_and_end_inside_tokens():
    """`\\n\\nAn` is one token: with the stop string `\\n`, the whole token is the response's end."""
    tokenizer = byte_level()
    ids = tokenizer("5\n\nAnswer", add_special_tokens=False)["input_ids"]
    stops = StopStrings(tokenizer, ["\n"])
    assert decode_response(tokenizer, ids[: stops.end([], ids)]) == "5\n\nAn"
    assert cut_at_stop("5\n\nAn", ["\n"]) == "5"


def test_a_special_token_is_a_stop_string_though_text_does_not_show_it():
    stops = StopStrings(CHARACTERS, ["<|im_start|>"])
    start = CHARACTERS.convert_tokens_to_ids("<|im_start|>")
    assert stops.end([], [6, 7, start, 8]) == 3 and stops.token_ids == {start}


def test_text_is_cut_before_the_first_of_several():
    assert cut_at_stop("a. b; c", [";", "."]) == "a"
    assert cut_at_stop("a. b; c", ["x"]) == cut_at_stop("a. b; c", []) == "a. b; c"


# In the generators


def requests(samples: int = 12) -> list[Request]:
    prefixes = [(1, 8, 9, 10), (1, 11), (1, 12, 13, 14, 15, 16, 17, 18, 19), (1,)]
    return [Request(p, tuple(1000 * i + g for g in range(samples))) for i, p in enumerate(prefixes)]


# Pairs of characters that this random model writes, and one of its special tokens.
STOP = ("8d", "+4", "3h", "e", "<|im_start|>")


def test_a_stopped_response_is_the_beginning_of_the_one_without_stop():
    policy = make_policy()
    whole = HFGenerator(policy).generate(requests(), Sampling(40))
    stops = StopStrings(policy.tokenizer, STOP)
    num_stopped = 0
    for rows, workers in ((512, 1), (3, 1), (7, 2)):
        generator = HFGenerator(policy, max_batch_rows=rows, workers=workers)
        results = generator.generate(requests(), Sampling(40, stop=STOP))
        for full, short in zip(whole, results, strict=True):
            for a, b in zip(full, short, strict=True):
                end = stops.end([], a.ids.tolist())
                assert b.ids.tolist() == a.ids[:end].tolist()
                np.testing.assert_allclose(b.log_probs, a.log_probs[:end], atol=2e-5)
                assert b.finished == (end is not None or a.finished)
                num_stopped += end is not None and end < len(a.ids)
    assert num_stopped > 30


def test_a_stop_string_that_begins_in_the_prefix_ends_at_the_same_token():
    """From any state of a stopped response its rest is found to end where the whole did."""
    policy = make_policy()
    generator, sampling = (
        HFGenerator(policy),
        Sampling(30, temperature=0.0, stop=("8d", "+4", "3h", "0.", "==")),
    )
    for prefix in [(1, i) for i in range(6, 31)]:
        ((whole,),) = generator.generate([Request(prefix, (0,))], sampling)
        states = [Request(prefix + tuple(whole.ids[:n].tolist()), (0,), n) for n in range(1, len(whole.ids))]
        for n, (rest,) in enumerate(generator.generate(states, sampling), 1):
            assert rest.ids[: len(whole.ids) - n].tolist() == whole.ids[n:].tolist()
            assert rest.finished or not whole.finished
            if whole.finished:
                assert len(rest.ids) == len(whole.ids) - n
    # A stop string that only the prompt and the response have together is none.
    prompt = (1, CHARACTERS.convert_tokens_to_ids("8"))
    eager = Sampling(1, stop=("8d",))
    (samples,) = generator.generate([Request(prompt, tuple(range(200)))], eager)
    (spanning,) = generator.generate([Request(prompt, tuple(range(200)), 1)], eager)
    d = CHARACTERS.convert_tokens_to_ids("d")
    assert [s.finished for s in samples] == [s.ids[0] in policy.eos_ids for s in samples]
    assert [s.finished for s in spanning] == [s.ids[0] in policy.eos_ids or s.ids[0] == d for s in samples]
    assert sum(s.ids[0] == d for s in samples) > 0


class LikeVLLM:
    """Samples with the embedded generator, and ends as vLLM does: by the new text alone.

    `early` ends a response once more, where vLLM's text has a string that the response's own has not.
    """

    max_length = 256

    def __init__(self, policy, early: str = "") -> None:
        self.policy, self.early, self.asked = policy, early, []

    def run(self, jobs):
        self.asked.append(len(jobs))
        return [self.complete(job) for job in jobs]

    def complete(self, job: Job) -> Completion:
        settings = job.settings
        sampling = Sampling(settings["max_tokens"], settings["temperature"])
        ((sample,),) = HFGenerator(self.policy).generate(
            [Request(job.prefix_ids, (settings["seed"],))], sampling
        )
        ids = sample.ids.tolist()
        ends = [
            first_end(self.policy.tokenizer, ids, [*settings["stop"], *([self.early] * bool(self.early))])
        ]
        ends += [n for n, i in enumerate(ids, 1) if i in settings["stop_token_ids"]]
        end = min((n for n in ends if n), default=None)
        return Completion(ids[:end], sample.log_probs[:end].tolist())


def with_vllm(policy, engine) -> VLLMGenerator:
    generator = VLLMGenerator.__new__(VLLMGenerator)
    generator.policy, generator.engine = policy, engine
    return generator


def test_both_generators_end_at_the_same_token():
    policy = make_policy()
    sampling = Sampling(40, stop=STOP)
    asked = [*requests(4), *(Request((1, 8, 14), (g,), 1) for g in range(40))]  # the last: 8 is written
    expected = HFGenerator(policy).generate(asked, sampling)
    found = with_vllm(policy, LikeVLLM(policy)).generate(asked, sampling)
    for a, b in zip(expected, found, strict=True):
        assert [s.ids.tolist() for s in a] == [s.ids.tolist() for s in b]
        assert [s.finished for s in a] == [s.finished for s in b]
        assert all(len(s.ids) == len(s.log_probs) for s in b)


def test_a_response_that_vllm_ended_for_another_reason_goes_on():
    """Greedy, so that its rest is the same: what the server took for a stop string changes nothing."""
    policy = make_policy()
    sampling = Sampling(20, temperature=0.0, stop=("8d",))
    stops = StopStrings(policy.tokenizer, sampling.stop)
    for request in requests(1):
        ((expected,),) = HFGenerator(policy).generate([request], sampling)
        text = decode_response(policy.tokenizer, expected.ids)
        engine = LikeVLLM(policy, early=text[2:4])
        (job,) = make_jobs([request], sampling, policy.eos_ids, 256)
        (completion,) = run_to_stop(engine, [job], policy.eos_ids, stops)
        assert completion.ids == expected.ids.tolist() and len(completion.log_probs) == len(completion.ids)
        assert len(engine.asked) > 1


def test_verifiers_see_no_stop_string_and_the_length_limit_did_not_cut():
    policy = make_policy()
    seen = []

    def verify(pairs):
        seen.extend(text for _, text in pairs)
        return [Verdict("wrong") for _ in pairs]

    task = Task("t", problems=lambda split: [], verify=verify, gold=lambda problem: "")
    sampler = Sampler(HFGenerator(policy), task, policy.tokenizer, lambda problem: (1, 8), seed=0)
    groups = sample_groups(
        [State(Problem("p", "", ""), prefix) for prefix in ((), (8, 9))],
        sampler=sampler,
        sampling=Sampling(60, stop=("8d", "+")),
        num_samples=40,
        iteration=1,
    )
    rollouts = [(g.state.prefix_ids, r) for g in groups for r in g.rollouts]
    assert seen == [r.text for _, r in rollouts]
    stopped = 0
    for prefix, rollout in rollouts:
        whole = decode_response(policy.tokenizer, (*prefix, *rollout.sample.ids))
        assert not any(s in rollout.text for s in ("8d", "+"))
        if whole != rollout.text:
            stopped += 1
            assert whole.endswith(("8d", "+")) and not rollout.truncated
    assert stopped > 10


def test_the_in_process_engine_reads_text_only_for_stop_strings(monkeypatch):
    """Without stop strings it is opened as before: no tokenizer, nothing decoded."""
    from hardwon.models import vllm_engine

    made = []

    def fake_engine(llm_class, directory, policy, max_length, memory, reads_text):
        made.append(reads_text)
        return SimpleNamespace(apply_model=lambda f: None, reset_prefix_cache=lambda: True)

    monkeypatch.setattr(vllm_engine, "_make", fake_engine)
    monkeypatch.setattr(vllm_engine, "import_vllm", lambda: None)
    for reads_text in (False, True):
        VLLMGenerator(make_policy("llama"), reads_text=reads_text)
    assert made == [False, True]


def test_check_warns_where_a_gold_answer_holds_a_stop_string():
    """Of two gold answers one holds the line break, and it is named with its stop string."""
    problems = [Problem("a", "", "1"), Problem("b", "", "2\n3")]
    task = Task(
        "t", problems=lambda split: problems, verify=lambda pairs: [], gold=lambda problem: problem.answer
    )
    (found,) = check_stop(task, problems, ["Q:", "\n"])
    assert found.status == "warning"
    assert "1 of 2 gold answers hold a stop string; the first is b: '\\n'" in found.text
    (found,) = check_stop(task, problems, ["Q:"])
    assert found.status == "ok" and "'Q:'" in found.text
