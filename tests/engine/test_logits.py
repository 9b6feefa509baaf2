import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from infer.engine.logits import apply_penalties, apply_rules
from infer.engine.sampling_params import SamplingParams
from infer.engine.sampling_row import SamplingRow, compile_rules, prompt_vocabulary

VOCAB_SIZE = 60
EOS = 2
WORDS = {"one": [5], "two of": [7, 8], "a b c": [9, 10, 11]}
PLAIN = SamplingParams()


def random_logits(num_rows: int) -> Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 3


def make_row(params: SamplingParams, output: Sequence[int] = (), prompt: Sequence[int] = ()) -> SamplingRow:
    rules = compile_rules(
        params, vocab_size=VOCAB_SIZE, eos_token_ids={EOS}, encode=lambda text: WORDS.get(text.strip(), [])
    )
    return SamplingRow(params, output, 0, rules, prompt_vocabulary(params, prompt))


def barred(logits: Tensor) -> list[list[int]]:
    return [row.isneginf().nonzero().flatten().tolist() for row in logits]


def test_rules_leave_only_allowed_tokens() -> None:
    logits = random_logits(3)
    before = logits.clone()
    apply_rules(logits, [make_row(SamplingParams(allowed_token_ids=(4, 40))), make_row(PLAIN), make_row(PLAIN)])
    assert barred(logits)[0] == [token for token in range(VOCAB_SIZE) if token not in (4, 40)]
    assert torch.equal(logits[0, [4, 40]], before[0, [4, 40]])
    assert torch.equal(logits[1:], before[1:])


def test_rules_bar_ends_until_min_tokens_are_there() -> None:
    params = SamplingParams(min_tokens=2, stop_token_ids=(30,))
    logits = random_logits(3)
    expected = logits.clone()
    for row, output in zip(expected, ([], [5], [5, 6]), strict=True):
        processor = MinNewTokensLengthLogitsProcessor(1, 2, [EOS, 30], device="cpu")
        row[:] = processor(torch.tensor([[1, *output]]), row[None])[0]
    apply_rules(logits, [make_row(params, output) for output in ([], [5], [5, 6])])
    assert torch.equal(logits, expected)
    assert barred(logits) == [[EOS, 30], [EOS, 30], []]


def test_rules_bar_bad_words_at_their_last_token() -> None:
    params = SamplingParams(bad_words=("one", "two of", "a b c"))
    outputs = [[], [7], [9], [9, 10], [10], [7, 9, 10], [7, 1]]
    logits = random_logits(len(outputs))
    processor = NoBadWordsLogitsProcessor(list(WORDS.values()))
    expected = torch.cat(
        [processor(torch.tensor([[1, *output]]), row[None]) for output, row in zip(outputs, logits, strict=True)]
    )
    apply_rules(logits, [make_row(params, output) for output in outputs])
    assert torch.equal(logits, expected)
    assert barred(logits) == [[5], [5, 8], [5], [5, 11], [5], [5, 11], [5]]


def test_rules_add_biases() -> None:
    logits = random_logits(2)
    expected = logits.clone()
    expected[0, 3] += 1.5
    expected[0, 59] -= 100.0
    apply_rules(logits, [make_row(SamplingParams(logit_bias={3: 1.5, 59: -100})), make_row(PLAIN)])
    assert torch.equal(logits, expected)


def test_rules_of_several_kinds_all_hold() -> None:
    params = SamplingParams(
        allowed_token_ids=(EOS, 5, 8, 20), bad_words=("one", "two of"), min_tokens=3, logit_bias={20: 2.0, EOS: 50.0}
    )
    logits = random_logits(1)
    biased = float(logits[0, 20]) + 2.0
    apply_rules(logits, [make_row(params, [7])])
    assert barred(logits) == [[token for token in range(VOCAB_SIZE) if token != 20]]
    assert float(logits[0, 20]) == pytest.approx(biased)


def test_rules_shared_by_rows_act_as_their_own() -> None:
    params = SamplingParams(bad_words=("two of",), min_tokens=2, logit_bias={20: 2.0}, allowed_token_ids=(2, 8, 20))
    outputs = [[7], [], [1, 7], [1, 2, 3]]
    apart = random_logits(4)
    together = apart.clone()
    for index, output in enumerate(outputs):
        apply_rules(apart[index : index + 1], [make_row(params, output)])
    shared = make_row(params).rules
    apply_rules(together, [SamplingRow(params, output, 0, shared, prompt_vocabulary(params, [])) for output in outputs])
    assert torch.equal(together, apart)


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    params = SamplingParams(repetition_penalty=penalty)
    texts = [([1, 4, 4, 9], [9, 20, 20]), ([1], []), ([7, 8], [59, 0])]
    logits = random_logits(3)
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = torch.cat(
        [
            processor(torch.tensor([[*prompt, *output]]), row[None].clone())
            for (prompt, output), row in zip(texts, logits, strict=True)
        ]
    )
    apply_penalties(logits, [make_row(params, output, prompt) for prompt, output in texts])
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=0)
    assert int((logits != random_logits(3)).sum()) == 4 + 1 + 4


def test_frequency_and_presence_penalties_look_at_the_output_only() -> None:
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=-0.25)
    logits = random_logits(1)
    expected = logits.clone()
    expected[0, 20] -= 0.5 * 3 - 0.25
    expected[0, 21] -= 0.5 - 0.25
    apply_penalties(logits, [make_row(params, [20, 21, 20, 20], [4, 5, 20])])
    torch.testing.assert_close(logits, expected)


def test_repetition_penalty_comes_before_the_others() -> None:
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0)
    logits = torch.tensor([[0.5, -4.0, 4.0]])
    apply_penalties(logits, [make_row(params, [0, 1, 1])])
    assert logits.tolist() == [[0.5 / 2 - 1, -4.0 * 2 - 2, 4.0]]


def test_penalties_are_each_row_s_own() -> None:
    rows = [
        make_row(SamplingParams(repetition_penalty=1.5), [3, 4], [5]),
        make_row(PLAIN, [3, 4], [5]),
        make_row(SamplingParams(presence_penalty=1.0), [3, 3], [5]),
        make_row(SamplingParams(frequency_penalty=1.0, repetition_penalty=1.1), [], [59]),
    ]
    together = random_logits(4)
    apart = together.clone()
    apply_penalties(together, rows)
    for index, row in enumerate(rows):
        apply_penalties(apart[index : index + 1], [row])
    assert torch.equal(together, apart)
    changed = [row.nonzero().flatten().tolist() for row in together != random_logits(4)]
    assert changed == [[3, 4, 5], [], [3], [59]]


def test_penalties_keep_barred_tokens_barred() -> None:
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=2.0, presence_penalty=-2.0, bad_words=("one",))
    logits = random_logits(1)
    row = make_row(params, [5, 5], [5])
    apply_rules(logits, [row])
    apply_penalties(logits, [row])
    assert float(logits[0, 5]) == -math.inf
    assert not logits.isnan().any()
