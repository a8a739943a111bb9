"""The decoder against transformers' own forward, float32, ragged."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from local_engine.attention import group_rows
from local_engine.backend import Backend, Segment, StepInput
from local_engine.decoder import Decoder
from local_engine.decoder_config import decoder_config
from local_engine.errors import UnsupportedModelError, WeightsError
from local_engine.transformers_backend import TransformersBackend
from tests.local_engine.tiny_models import VOCAB_SIZE, reference_logprobs, tiny_model

VARIANTS = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("qwen2", {}),
    ("qwen2", {"num_key_value_heads": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    ("qwen3", {}),
    ("qwen3", {"num_key_value_heads": 1, "tie_word_embeddings": True, "attention_bias": True}),
]


def raw_config(model: Any) -> dict[str, Any]:
    return {**model.config.to_dict(), "architectures": [type(model).__name__]}


def decoder_for(model: Any, *, num_slots: int = 6, slot_tokens: int = 128) -> Decoder:
    decoder = Decoder(
        decoder_config(raw_config(model)),
        num_slots=num_slots,
        slot_tokens=slot_tokens,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    decoder.verify(model.state_dict())
    decoder.load(model.state_dict())
    return decoder


def play_ragged(backend: Backend, sequences: dict[int, list[int]]) -> dict[int, Tensor]:
    """Logits [T, V] of every sequence by slot, computed in a random mixture of rows and segments."""
    choices = random.Random(0)
    done = dict.fromkeys(sequences, 0)
    logits: dict[int, list[Tensor]] = {slot: [] for slot in sequences}
    while open_slots := sorted(slot for slot, ids in sequences.items() if done[slot] < len(ids)):
        rows = [slot for slot in open_slots if done[slot] and choices.random() < 0.6]
        segments = [
            Segment(slot=slot, start=done[slot], token_ids=ids, num_logits=len(ids))
            for slot in open_slots
            if slot not in rows
            for ids in [sequences[slot][done[slot] : done[slot] + choices.randint(1, 20)]]
        ]
        step = StepInput(
            row_slots=rows,
            row_positions=[done[slot] for slot in rows],
            row_tokens=[sequences[slot][done[slot]] for slot in rows],
            segments=segments,
        )
        parts = backend.forward(step).split([1] * len(rows) + [segment.num_logits for segment in segments])
        for slot, part in zip([*rows, *(segment.slot for segment in segments)], parts, strict=True):
            logits[slot].append(part)
            done[slot] += len(part)
    return {slot: torch.cat(parts) for slot, parts in logits.items()}


def random_sequences() -> dict[int, list[int]]:
    draws = random.Random(1)
    return {
        slot: [draws.randrange(VOCAB_SIZE) for _ in range(size)] for slot, size in ((4, 30), (0, 90), (2, 17), (3, 51))
    }


@pytest.mark.parametrize(("family", "fields"), VARIANTS)
def test_ragged_logprobs_equal_transformers(family: str, fields: dict[str, Any]) -> None:
    model = tiny_model(family, **fields)
    sequences = random_sequences()
    for slot, logits in play_ragged(decoder_for(model), sequences).items():
        expected = reference_logprobs(model, sequences[slot])
        assert torch.allclose(logits.log_softmax(-1), expected, atol=1e-4, rtol=0)


def test_the_transformers_backend_gives_the_same_on_any_architecture() -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCAB_SIZE, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    backend = TransformersBackend(raw_config(model), num_slots=6, device=torch.device("cpu"), dtype=torch.float32)
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    backend.verify(state)
    backend.load(state)
    sequences = random_sequences()
    for slot, logits in play_ragged(backend, sequences).items():
        assert torch.allclose(logits.log_softmax(-1), reference_logprobs(model, sequences[slot]), atol=1e-4, rtol=0)
    with pytest.raises(WeightsError, match="missing"):
        backend.verify({name: tensor for name, tensor in state.items() if "h.1.mlp" not in name})


def test_a_copied_prefix_continues_like_its_source() -> None:
    model = tiny_model("qwen3")
    decoder = decoder_for(model)
    ids = random_sequences()[0]
    decoder.forward(StepInput(row_slots=[], row_positions=[], row_tokens=[], segments=[segment(1, 0, ids[:60])]))
    decoder.copy_prefix(1, 5, 40)
    logits = decoder.forward(
        StepInput(row_slots=[], row_positions=[], row_tokens=[], segments=[segment(5, 40, ids[40:])])
    )
    expected = reference_logprobs(model, ids)[40:]
    assert torch.allclose(logits.log_softmax(-1), expected, atol=1e-4, rtol=0)


def segment(slot: int, start: int, ids: list[int]) -> Segment:
    return Segment(slot=slot, start=start, token_ids=ids, num_logits=len(ids))


def test_loading_is_in_place() -> None:
    first, second = tiny_model("llama"), tiny_model("llama", seed=1)
    decoder = decoder_for(first)
    ids = random_sequences()[2]
    decoder.load(second.state_dict())
    logits = decoder.forward(StepInput(row_slots=[], row_positions=[], row_tokens=[], segments=[segment(0, 0, ids)]))
    assert torch.allclose(logits.log_softmax(-1), reference_logprobs(second, ids), atol=1e-4, rtol=0)


def test_rows_are_grouped_while_padding_costs_less_than_a_call() -> None:
    groups = group_rows([0, 1, 2, 9, 10], [100, 110, 4000, 50, 50], call_positions=500)
    assert [(group.first_row, group.last_row) for group in groups] == [(0, 2), (2, 3), (3, 5)]
    (one,) = group_rows([0, 3], [10, 10], call_positions=500)
    assert (one.first_slot, one.last_slot) == (0, 4)


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 96, "max_window_layers": 0}, "SGLang ignores"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "transformers"),
        ("llama", {"hidden_act": "gelu"}, "silu"),
    ],
)
def test_what_would_be_computed_differently_is_refused(family: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        decoder_config(raw_config(tiny_model(family, **fields)))
