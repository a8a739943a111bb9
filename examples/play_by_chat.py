"""Play one episode with any model behind an OpenAI-compatible API; first: longturn serve --env echo.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=... python examples/play_by_chat.py 127.0.0.1:50051 echo MODEL
"""

import json
import os
import sys
import urllib.request

from clients.config import EnvClientConfig
from clients.sync_environment import SyncEnvClient

BASE_URL = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1").rstrip("/")
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"}
KEPT_MESSAGES = 40  # beside the first, so that a long episode stays within the model's context


def ask(model: str, messages: list[dict[str, str]]) -> str:
    """The model's next message."""
    kept = messages[:1] + messages[1:][-KEPT_MESSAGES:]
    body = json.dumps({"model": model, "messages": kept, "temperature": 0.0, "max_tokens": 256}).encode()
    request = urllib.request.Request(f"{BASE_URL}/chat/completions", body, HEADERS)
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)["choices"][0]["message"]["content"] or ""


def main(address: str, environment: str, model: str) -> None:
    """Play the first training task and say how it ended."""
    with SyncEnvClient(EnvClientConfig(address=address)) as envs:
        info = next(info for info in envs.list_environments() if info.name == environment)
        rules = (
            f"{info.description}\n{info.action_format}\nThink if you must; the last line of your answer is the action."
        )
        messages = [{"role": "system", "content": rules}]
        episode = envs.start(envs.list_tasks(environment, "train", limit=1)[0].task)
        while not episode.last.status.is_final:
            messages.append({"role": "user", "content": episode.last.observation})
            answer = ask(model, messages)
            messages.append({"role": "assistant", "content": answer})
            action = (answer.strip().splitlines() or [""])[-1]
            print(f"{episode.last.observation}\n> {action}")
            episode.step(action)
        last = episode.last
        print(
            f"{last.observation}\n{'won' if last.success else 'lost'} after {last.turn_index} turns: {last.status.name}"
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
