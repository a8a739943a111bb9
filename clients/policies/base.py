"""What an actor needs from a policy: token policies sample ids, text policies act on observations without tokens."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from longturn.records import EngineInfo, FinishReason, PolicySpan, SamplingParams, StepResult, is_logprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Tokens sampled in one turn, as the engine reported them: one logprob each, spans without gap or overlap."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_spans: tuple[PolicySpan, ...]
    finish_reason: FinishReason
    engine: EngineInfo
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.logprobs)} logprobs for {len(self.token_ids)} tokens")
        if not all(map(is_logprob, self.logprobs)):
            raise ValueError("a logprob is positive or not finite")


class TokenPolicy(Protocol):
    """Samples token ids from a prompt of token ids."""

    async def complete(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        episode_key: str,
        turn_index: int,
        stop_texts: Sequence[str] = (),
    ) -> Completion:
        """One turn. `sampling.seed` is the member's; `stop_texts` end it too.

        Raise PolicyError naming the episode if no engine could do it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAction:
    """What a text policy does in a turn."""

    action: str
    reasoning: str = ""
    is_trained: bool = True
    """False if the turn must not be imitated, such as a deliberate mistake."""


class TextPlayer(Protocol):
    """Plays one episode; may remember what it has seen."""

    async def act(self, result: StepResult) -> TextAction:
        """Answer the newest result."""
        ...


class TextPolicy(Protocol):
    """Makes a player per episode."""

    needs_oracle: bool
    """Whether results must carry oracle_action."""

    def begin(self, seed: int) -> TextPlayer:
        """A fresh player; equal seeds play equally."""
        ...


def derive_seed(seed: int, *parts: int) -> int:
    """A 48-bit seed for one of many draws that must differ and must repeat: of turn `parts[0]`, segment `parts[1]`."""
    packed = struct.pack(f"<{1 + len(parts)}Q", seed % 2**64, *parts)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=6).digest(), "little")
