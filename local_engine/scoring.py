"""Which logits of a step belong to whom: prompt logprobs of scored requests, and the last position of each prompt."""

from collections.abc import Sequence

import torch
from torch import Tensor

from local_engine.backend import Segment
from local_engine.request import Request
from local_engine.sampling import top_alternatives


@torch.inference_mode()
def record_input_logprobs(logits: Tensor, chunks: Sequence[tuple[Request, Segment]]) -> None:
    """Append prompt logprobs (before temperature, as SGLang) of every chunk that belongs to a scored request.

    `logits` holds the rows of the chunks one after another, `num_logits` each.
    """
    first = 0
    for request, segment in chunks:
        rows = logits[first : first + segment.num_logits]
        first += segment.num_logits
        if not request.wants_input_logprobs or segment.num_logits == 0:
            continue
        end = segment.start + len(segment.token_ids)
        # The last prompt position predicts the first output token, not a prompt token.
        targets = request.prompt[end - segment.num_logits + 1 : end + 1].tolist()
        logprobs = rows[: len(targets)].log_softmax(-1)
        index = torch.tensor(targets, device=logits.device, dtype=torch.long)[:, None]
        request.input_logprobs += logprobs.gather(1, index)[:, 0].tolist()
        if request.num_top_logprobs:
            request.input_top += [top_alternatives(row, request.num_top_logprobs) for row in logprobs]


def segment_logits(logits: Tensor, num_rows: int, chunks: Sequence[tuple[Request, Segment]]) -> Tensor:
    """Logits of the single-token rows followed by the last position of each chunk that completes its prompt."""
    if all(segment.num_logits == int(request.num_pending == 0) for request, segment in chunks):
        return logits
    wanted = list(range(num_rows))
    last = num_rows - 1
    for request, segment in chunks:
        last += segment.num_logits
        if request.num_pending == 0:
            wanted.append(last)
    return logits[wanted]
