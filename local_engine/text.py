"""Tokenizer of a model folder: text in, text out, and stop strings."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from local_engine.errors import StartError
from local_engine.request import SamplingParams

# A stop string of n bytes spans at most n tokens; special tokens in between decode to nothing.
TAIL_MARGIN_TOKENS = 8


class TextCodec:
    """Encodes prompts and decodes completions."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def from_folder(cls, folder: Path) -> "TextCodec":
        """Read `tokenizer.json`; raise `StartError` if it is not there or damaged."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise StartError(
                f"no tokenizer.json in {folder}; put one there, or set engine.skip_tokenizer_init = true to serve "
                "token ids only"
            )
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise StartError(f"{path} is no tokenizer.json of the tokenizers library: {error}; restore it") from error

    @property
    def vocab_size(self) -> int:
        """Number of ids the tokenizer knows, added tokens included."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Token ids with the tokenizer's own special tokens."""
        return self._tokenizer.encode(text).ids

    def decode(self, token_ids: Sequence[int], params: SamplingParams) -> str:
        """Text of a completion; a stop token or stop string is cut off unless `no_stop_trim`."""
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=params.skip_special_tokens)
        if params.no_stop_trim:
            return text
        cuts = [text.find(stop) for stop in params.stop if stop in text]
        return text[: min(cuts)] if cuts else text

    def matched_stop(self, token_ids: Sequence[int], params: SamplingParams) -> str | None:
        """The stop string that the newest tokens complete, if any."""
        num_tail = max(len(stop.encode()) for stop in params.stop) + TAIL_MARGIN_TOKENS
        tail = self._tokenizer.decode(list(token_ids[-num_tail:]), skip_special_tokens=params.skip_special_tokens)
        return next((stop for stop in params.stop if stop in tail), None)
