"""Which waiting request starts next, in which slot, and what it need not compute again."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from local_engine.backend import Backend
from local_engine.request import Request
from local_engine.slots import SlotTable, leading_equal

# A request waits for another one's prompt only if that saves computing this many tokens.
WORTH_WAITING_TOKENS = 64


class Admission:
    """Moves requests from the waiting queue into slots, oldest first."""

    def __init__(self, backend: Backend, slots: SlotTable) -> None:
        self._backend = backend
        self._slots = slots

    def admit(self, waiting: deque[Request], running: list[Request], *, max_running: int) -> None:
        """Start as many waiting requests as there are slots.

        A request whose prompt begins with one that is being computed right now stays back for a step or two and then
        copies the shared part; it never waits for a request that is itself waiting.
        """
        held_back: list[Request] = []
        leaders = [request for request in running if request.num_pending > 1]
        while waiting and len(running) < max_running:
            request = waiting[0]
            tokens = request.all_tokens()
            offer = self._slots.offer(tokens, namespace=request.namespace, max_reused=request.max_reused)
            if offer is None:
                break
            waiting.popleft()
            if should_wait(request, offer.num_reused, leaders):
                held_back.append(request)
                continue
            if offer.copy_from is not None:
                self._backend.copy_prefix(offer.copy_from, offer.slot, offer.num_reused)
            self._slots.take(offer, tokens, namespace=request.namespace)
            request.admit(offer.slot, offer.num_reused)
            running.append(request)
            if request.num_pending > 1:
                leaders.append(request)
        waiting.extendleft(reversed(held_back))


def should_wait(request: Request, num_reused: int, leaders: Sequence[Request]) -> bool:
    """Whether a prompt that is being computed is about to give a much longer shared prefix than the cache has now."""
    limit = request.max_reused
    if limit < WORTH_WAITING_TOKENS:
        return False
    head = request.prompt[:WORTH_WAITING_TOKENS].tobytes()
    for leader in leaders:
        if leader.namespace != request.namespace or leader.prompt[:WORTH_WAITING_TOKENS].tobytes() != head:
            continue
        num_compared = min(len(leader.prompt), len(request.prompt))
        equal = leading_equal(leader.prompt[np.newaxis, :num_compared], request.prompt[:num_compared])
        shared = min(int(equal[0]), limit)
        # What the cache offers may be the leader's own half-computed prompt: then it is worth waiting for the rest.
        is_worth_it = shared - num_reused >= WORTH_WAITING_TOKENS or num_reused == leader.num_computed
        if is_worth_it and max(leader.num_computed, num_reused) < shared:
            return True
    return False
