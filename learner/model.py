"""The policy in training: any Hugging Face causal language model, read up to its last hidden states.

T tokens of one row, D hidden size, V vocabulary. Rows go through the body one at a time with plain causal attention: no
padding, no mask, and the same arithmetic whatever else is in the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from learner.head import HeadOutput, TokenLoss, onepass, recompute
from learner.rows import Row
from longturn.disk import read_json
from longturn.errors import ConfigError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)


class PolicyModel:
    """Body and head of a causal language model."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        """`folder` is where the model came from; its tokenizer files travel with the weights."""
        self.module = model
        self._folder = folder
        # Read now: a checkpoint that the model was resumed from is pruned long before the last weights are written.
        self._tokenizer_files = {
            name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()
        }
        self._head: nn.Linear = model.get_output_embeddings()  # type: ignore[operator]  # every causal LM has it
        self._body: nn.Module = model.get_decoder()  # type: ignore[operator]
        self._refuse_what_the_head_cannot_do()

    @classmethod
    def load(cls, folder: Path, *, device: str = "cpu") -> PolicyModel:
        """Read a Hugging Face folder in float32; ConfigError if it is none or its logits are not hidden @ head.T."""
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"learner.model.path: {folder} is no model folder (no config.json); make one with `longturn warmstart`"
            )
        # Bars of a library do not belong into a daemon's log.
        transformers_logging.disable_progress_bar()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, use_safetensors=True
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"learner.model.path: {folder} cannot be loaded: {error}") from error
        # Dropout would make the proximal pass differ from the update's.
        return cls(nn.Module.to(model, torch.device(device)).eval(), folder)

    def _refuse_what_the_head_cannot_do(self) -> None:
        config = self.module.config
        if getattr(self._head, "bias", None) is not None:
            raise ConfigError("learner.model.path: a head with a bias is not supported")
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(config, name, None) not in (None, 1, 1.0):
                raise ConfigError(f"learner.model.path: models with {name} are not supported")

    @property
    def folder(self) -> Path:
        """Where the model came from."""
        return self._folder

    @property
    def vocabulary_size(self) -> int:
        """Rows of the head."""
        return self._head.weight.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._head.weight.device

    @property
    def max_tokens(self) -> int | None:
        """Longest sequence the model was made for; None if it says nothing."""
        return getattr(self.module.config, "max_position_embeddings", None)

    @property
    def tokenizer_hash(self) -> str:
        """Hex digest of tokenizer.json; ConfigError if the folder has none."""
        return hashlib.sha256(self._tokenizer.read_bytes()).hexdigest()

    @property
    def _tokenizer(self) -> Path:
        path = self._folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"learner.model.path: {self._folder} has no tokenizer.json")
        return path

    def check_fits(self, max_episode_tokens: int) -> None:
        """ConfigError if the tokenizer can make ids that the model lacks, or episodes are longer than it can read."""
        content = read_json(self._tokenizer, mend="restore it, or set learner.model.path to another model folder")
        vocabulary = content.get("model", {}).get("vocab", {})
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
        ids += [token["id"] for token in content.get("added_tokens", [])]
        if ids and max(ids) >= self.vocabulary_size:
            raise ConfigError(
                f"learner.model.path: the tokenizer in {self._folder} has id {max(ids)}, the model only "
                f"{self.vocabulary_size} rows; they do not belong together"
            )
        if self.max_tokens is not None and max_episode_tokens > self.max_tokens:
            raise ConfigError(
                f"learner.play.max_episode_tokens is {max_episode_tokens}, the model reads at most {self.max_tokens}"
            )

    def hidden_before(self, row: Row) -> Tensor:
        """Last hidden states that predict the row's trained tokens, one per token."""
        return self.hidden(row.ids)[torch.tensor(row.positions, device=self.device) - 1]

    def hidden(self, ids: Sequence[int]) -> Tensor:
        """Last hidden states of one sequence, T x D."""
        ids_1T = torch.tensor([ids], device=self.device)
        return self._body(input_ids=ids_1T, use_cache=False).last_hidden_state[0]

    @torch.no_grad()
    def score(self, row: Row, *, temperature: float) -> tuple[Tensor, Tensor]:
        """Logprob and entropy of the row's trained tokens at the current weights, without gradients."""
        return recompute(self.hidden_before(row), self._head.weight, self._targets(row), temperature=temperature)

    def loss(self, row: Row, token_loss: TokenLoss, *, temperature: float) -> HeadOutput:
        """The row's summed loss, ready to be sent backward."""
        return onepass(
            self.hidden_before(row), self._head.weight, self._targets(row), token_loss, temperature=temperature
        )

    def _targets(self, row: Row) -> Tensor:
        return torch.tensor([row.ids[position] for position in row.positions], device=self.device)

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), config and tokenizer files."""
        self.module.save_pretrained(folder, safe_serialization=True)  # type: ignore[operator]
        for name, content in self._tokenizer_files.items():
            if not (folder / name).exists():
                (folder / name).write_bytes(content)
