"""One request to an engine's HTTP interface, for those who drive engines: learner and launcher."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

NO_ANSWER = (OSError, http.client.HTTPException)
"""What `exchange` raises where no whole answer came."""
_MOST_WORDS_BYTES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine answered."""

    status: int
    body: bytes

    @property
    def is_refusal(self) -> bool:
        """Whether the engine did not do what it was asked."""
        return self.status >= 300

    @property
    def words(self) -> str:
        """The beginning of the body as text."""
        return self.body[:_MOST_WORDS_BYTES].decode(errors="replace")


def exchange(url: str, path: str, body: Mapping[str, object] | None, *, api_key: str, timeout_s: float) -> Answer:
    """A POST, or a GET without a body; the answer whatever its status. Raises NO_ANSWER if none comes."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}{path}", data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return Answer(status=response.status, body=response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(status=error.code, body=error.read())
