"""`sampling_params` of a request: checked field by field, refused where this engine would sample differently."""

from collections.abc import Mapping
from typing import Any  # free-form JSON, checked here

from local_engine.errors import BadRequestError
from local_engine.request import SamplingParams

# Fields of SGLang that this engine knows only at the value that changes nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1, None),
    "top_k": (-1, None),
    "min_p": (0, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "repetition_penalty": (1, None),
    "logit_bias": (None, {}),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
    "stop_regex": (None, "", []),
    "beam_width": (None, 1),
    "custom_params": (None, {}),
}
# Concern streaming or text only.
WITHOUT_EFFECT = frozenset({"stream_interval", "spaces_between_special_tokens"})
FIELDS = frozenset(SamplingParams.__dataclass_fields__)
GREEDY_BELOW = 1e-6  # SGLang samples greedily below this temperature


def sampling_params(value: object) -> SamplingParams:
    """Parse and check; raise `BadRequestError` naming the field."""
    if not isinstance(value, dict):
        raise BadRequestError("sampling_params must be an object")
    for name, given in value.items():
        if name in NEUTRAL and given not in NEUTRAL[name]:
            raise BadRequestError(
                f"sampling_params.{name} = {given!r} is not done here, since the logprobs would not be those of the "
                f"distribution sampled from; leave it at {NEUTRAL[name][0]!r}"
            )
        if name not in FIELDS and name not in NEUTRAL and name not in WITHOUT_EFFECT:
            allowed = ", ".join(sorted(FIELDS | NEUTRAL.keys() | WITHOUT_EFFECT))
            raise BadRequestError(f"sampling_params.{name} is unknown; allowed: {allowed}")
    temperature = number(value, "temperature", 1.0)
    params = SamplingParams(
        max_new_tokens=whole(value, "max_new_tokens", 128),
        min_new_tokens=whole(value, "min_new_tokens", 0),
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        stop_token_ids=frozenset(whole_list(value, "stop_token_ids")),
        stop=stop_strings(value.get("stop")),
        ignore_eos=bool(value.get("ignore_eos", False)),
        no_stop_trim=bool(value.get("no_stop_trim", False)),
        skip_special_tokens=bool(value.get("skip_special_tokens", True)),
        n=whole(value, "n", 1, least=1),
        sampling_seed=None if value.get("sampling_seed") is None else whole(value, "sampling_seed", 0, least=None),
    )
    if params.min_new_tokens > params.max_new_tokens:
        raise BadRequestError("sampling_params.min_new_tokens exceeds max_new_tokens")
    return params


def whole(fields: Mapping[str, Any], name: str, default: int, *, least: int | None = 0) -> int:
    """A whole number, or the default where the field is absent or null."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise BadRequestError(f"sampling_params.{name} must be a whole number{bound}, got {value!r}")
    return value


def number(fields: Mapping[str, Any], name: str, default: float) -> float:
    """A finite number not below zero."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value < float("inf"):
        raise BadRequestError(f"sampling_params.{name} must be a number of at least 0, got {value!r}")
    return float(value)


def whole_list(fields: Mapping[str, Any], name: str) -> list[int]:
    """A list of whole numbers; absent, null and a single number are accepted."""
    value = fields.get(name)
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    if any(not isinstance(item, int) or isinstance(item, bool) for item in items):
        raise BadRequestError(f"sampling_params.{name} must be a list of token ids, got {value!r}")
    return items


def stop_strings(value: object) -> tuple[str, ...]:
    """Stop strings: a string, a list of strings, or nothing."""
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    if any(not isinstance(item, str) or not item for item in items):
        raise BadRequestError("sampling_params.stop must be a string or a list of strings, none empty")
    return tuple(str(item) for item in items)
