"""The policy in training: any Hugging Face causal language model, read up to its last hidden states.

T tokens of one pass, D hidden size, V vocabulary. Rows go through the body one at a time with plain causal attention,
without padding or mask, and with the same arithmetic whatever else is in the batch; or packed (`learner.passes`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from learner.batch import BatchTensors
from learner.head import HeadOutput, TokenLoss, onepass, recompute
from learner.lora import Adapter
from learner.passes import ONE_BY_ONE, Pass, PassOptions, can_recompute, hidden_of, passes_of, recomputing
from learner.ranks import Ranks
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

    def __init__(self, model: nn.Module, folder: Path, passes: PassOptions = ONE_BY_ONE) -> None:
        """`folder` is where the model came from; its tokenizer files travel with the weights."""
        self.module = model
        self._folder = folder
        self._passes = passes
        self.adapter: Adapter | None = None
        """What is trained beside frozen weights; None: the weights themselves are."""
        # Read now: a checkpoint that the model was resumed from is pruned long before the last weights are written.
        self._tokenizer_files = {
            name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()
        }
        self._head: nn.Linear = model.get_output_embeddings()  # type: ignore[operator]  # every causal LM has it
        self._body: nn.Module = model.get_decoder()  # type: ignore[operator]
        self._refuse_what_the_head_cannot_do()
        if passes.recompute_layers and not can_recompute(self._body):
            raise ConfigError("learner.model.recompute_layers: the layers of this model cannot be computed again")

    @classmethod
    def load(cls, folder: Path, *, device: str = "cpu", passes: PassOptions = ONE_BY_ONE) -> PolicyModel:
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
        return cls(nn.Module.to(model, torch.device(device)).eval(), folder, passes)

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

    def adopt(self, adapter: Adapter) -> None:
        """Train an adapter that was put into the module. `save` then writes weights with the adapter in them."""
        self.adapter = adapter

    @property
    def body(self) -> nn.Module:
        """What turns ids into hidden states."""
        return self._body

    @property
    def hidden_size(self) -> int:
        """Columns of the head."""
        return self._head.weight.shape[1]

    @property
    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters that an optimizer moves, with their names."""
        return [(name, each) for name, each in self.module.named_parameters() if each.requires_grad]

    @property
    def ranks(self) -> Ranks:
        """Who shares the rows."""
        return self._passes.ranks

    def passes(self, tensors: BatchTensors) -> list[Pass]:
        """This process's passes over a batch."""
        return passes_of(tensors, self._passes)

    def hidden(self, ids: Sequence[int]) -> Tensor:
        """Last hidden states of one sequence, T x D."""
        return hidden_of(self._body, [ids], self.device)

    def hidden_before(self, rows: Pass) -> Tensor:
        """Last hidden states that predict the trained tokens of a pass, one per token."""
        hidden_TD = hidden_of(self._body, [row.ids for row in rows.rows], self.device)
        return hidden_TD[torch.tensor(rows.sources, device=self.device)]

    @torch.no_grad()
    def score(self, rows: Pass, *, temperature: float) -> tuple[Tensor, Tensor]:
        """Logprob and entropy of the trained tokens of a pass at the current weights, without gradients."""
        return recompute(self.hidden_before(rows), self._head.weight, self._targets(rows), temperature=temperature)

    def loss(self, rows: Pass, token_loss: TokenLoss, *, temperature: float) -> tuple[HeadOutput, Tensor]:
        """The summed loss of a pass, ready to be sent backward, and the hidden states before its trained tokens."""
        with recomputing(self._body, is_on=self._passes.recompute_layers):
            hidden_nD = self.hidden_before(rows)
        output = onepass(hidden_nD, self._head.weight, self._targets(rows), token_loss, temperature=temperature)
        return output, hidden_nD

    def _targets(self, rows: Pass) -> Tensor:
        return torch.tensor(rows.targets, device=self.device)

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), config and tokenizer files."""
        merged = None if self.adapter is None else self.adapter.merged_weights()
        self.module.save_pretrained(folder, safe_serialization=True, state_dict=merged)  # type: ignore[operator]
        for name, content in self._tokenizer_files.items():
            if not (folder / name).exists():
                (folder / name).write_bytes(content)
