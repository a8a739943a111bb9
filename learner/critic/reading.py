"""What a value head says of a batch, without gradients. N trained tokens, J trajectories."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from learner.batch import BatchTensors
from learner.critic.estimate import Values
from learner.passes import PassOptions, hidden_of, passes_of


@torch.no_grad()
def read_values(
    body: nn.Module,
    head: nn.Module,
    kept: BatchTensors,
    passes: PassOptions,
    *,
    device: torch.device,
    on_row: Callable[[], None],
) -> Values:
    """Value before every trained token, and after the last token of each trajectory's last row that has one."""
    values_N, ends_N = torch.zeros(kept.num_tokens), torch.zeros(kept.num_tokens)
    for rows in passes_of(kept, passes):
        hidden_TD = hidden_of(body, [row.ids for row in rows.rows], device)
        values_N[rows.tokens] = head(hidden_TD[torch.tensor(rows.sources, device=device)]).float().cpu()
        ends_N[rows.last_tokens] = head(hidden_TD[torch.tensor(rows.ends, device=device)]).float().cpu()
        on_row()
    passes.ranks.add([values_N, ends_N])
    trajectory_index_N = kept.layout.trajectory_index_N
    ends_J = torch.zeros(kept.layout.num_trajectories)
    # The last token of a trajectory is the last token of a row, and tokens are numbered in the order of rows.
    num_tokens_J = torch.bincount(trajectory_index_N, minlength=kept.layout.num_trajectories)
    has_tokens_J = num_tokens_J > 0
    ends_J[has_tokens_J] = ends_N[num_tokens_J.cumsum(0)[has_tokens_J] - 1]
    return Values(values_N=values_N, ends_J=ends_J)
