"""Play episodes of a training run with a Pydantic AI agent; first: longturn proxy, beside longturn learn and serve.

pip install 'pydantic-ai-slim[openai]' && python examples/train_pydantic_ai.py http://127.0.0.1:PORT

The agent knows nothing of training: its model is an OpenAI-compatible address, and what it is given there becomes the
record of its episode.
"""

import json
import sys
import urllib.error
import urllib.request
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

INSTRUCTIONS = "You play a text game. Think if you must; the last line of your answer is your action."


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """A request of the proxy's own."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def play(proxy: str, episode: dict[str, Any]) -> dict[str, Any]:
    """Play one episode to its end."""
    provider = OpenAIProvider(base_url=episode["base_url"], api_key=episode["key"])
    agent = Agent(OpenAIChatModel("policy", provider=provider), instructions=INSTRUCTIONS)
    history: list[ModelMessage] = []
    seen = episode
    while seen["status"] == "RUNNING":
        answer = agent.run_sync(seen["observation"], message_history=history)
        history = answer.all_messages()
        action = (answer.output.strip().splitlines() or [""])[-1]
        seen = post(f"{proxy}/episodes/{episode['key']}/step", {"action": action})
    return seen


def main(proxy: str) -> None:
    """Play until the run is over."""
    while True:
        try:
            episode = post(f"{proxy}/episodes?wait_s=60", {})
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            continue  # nothing to play at the moment
        except (urllib.error.URLError, ConnectionError):
            print("the proxy is gone: the run is over")
            return
        seen = play(proxy, episode)
        print(f"{episode['task_id']}: {'won' if seen['success'] else 'lost'} after {seen['turn_index']} turns")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))
