"""Log lines about clients: each thing once per client, since a line per episode would bury the rest."""

from __future__ import annotations

import logging
from collections import OrderedDict

logger = logging.getLogger(__name__)

REMEMBERED = 4096


class RequestLog:
    """Says what a client does when it does it first."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(self, client_id: str, event: str, **fields: object) -> None:
        """Log the event, unless this client is known for it."""
        if (client_id, event) in self._seen:
            self._seen.move_to_end((client_id, event))
            return
        self._seen[client_id, event] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        logger.info(event, extra={"client_id": client_id, **fields})
