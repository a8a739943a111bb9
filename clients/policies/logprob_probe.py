"""Finds out what an engine's logprobs mean, by asking: SGLang does not say, and a variable of its process changes it.

A temperature of T divides the distance between two logprobs by T. Where the distance stays the same, the engine reports
the values before temperature.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from clients.policies.engines import Engine
from longturn.json_text import parse_json
from longturn.records import LogprobConvention

_TEMPERATURE = 4.0
_NUM_TOP = 16
_SMALLEST_DISTANCE = 0.02
"""Nats; a distribution that is flatter looks the same at every temperature."""


async def probe_convention(engine: Engine, session: aiohttp.ClientSession) -> LogprobConvention:
    """Ask for one token at two temperatures, as patiently as the session is: a weight update may freeze the engine.

    ValueError if the answers tell nothing, aiohttp's errors if none comes.
    """
    plain = await _distance(engine, session, temperature=1.0)
    tempered = await _distance(engine, session, temperature=_TEMPERATURE)
    if plain < _SMALLEST_DISTANCE:
        raise ValueError(f"its best and {_NUM_TOP}th best token differ by {plain:.3g} nats only")
    is_after = tempered / plain < (1.0 + 1.0 / _TEMPERATURE) / 2.0
    return LogprobConvention.AFTER_TEMPERATURE if is_after else LogprobConvention.BEFORE_TEMPERATURE


async def _distance(engine: Engine, session: aiohttp.ClientSession, *, temperature: float) -> float:
    body = {
        "input_ids": [0],
        "sampling_params": {"max_new_tokens": 1, "temperature": temperature, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": _NUM_TOP,
    }
    async with session.post(f"{engine.url}/generate", data=json.dumps(body), headers=engine.headers) as response:
        response.raise_for_status()
        return _spread(parse_json(await response.read()))


def _spread(reply: Any) -> float:  # Any: JSON
    try:
        best = [float(item[0]) for item in reply["meta_info"]["output_top_logprobs"][0]]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"its reply lists no top logprobs: {error!r}") from error
    return max(best) - min(best)
