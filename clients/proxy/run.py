"""`longturn proxy`: an actor pool whose episodes are played from outside."""

from __future__ import annotations

import asyncio
import logging
import platform
from pathlib import Path

from clients.act import PoolParts, play_run, services, until_stopped
from clients.actor import Actor
from clients.assignment import PlayRules
from clients.config import ProxyConfig
from clients.group import GroupPlayers
from clients.pool import ActorPool
from clients.proxy.outside import Door, OutsideActor, OutsideAgent
from clients.proxy.server import serving_proxy
from clients.renderer import load_chat_format
from longturn.metrics import Metrics
from longturn.records import SamplingParams
from longturn.status import StatusBoard

logger = logging.getLogger(__name__)

_KEEP_S = 60.0
"""How long an ended episode still answers its agent with its end."""


def run_proxy(config: ProxyConfig, *, ready_file: Path | None) -> int:
    """Serve until the learner ends the run (exit code 0) or a signal stops it (128 + its number)."""
    return asyncio.run(_main(config, ready_file))


async def _main(config: ProxyConfig, ready_file: Path | None) -> int:
    metrics = Metrics()
    board = StatusBoard("proxy", metrics)
    pool_id = config.pool_id or f"{platform.node() or 'pool'}-proxy"
    # Agents speak freely: only they know where an answer ends.
    renderer = config.renderer.model_copy(update={"stop_at_action": False})
    chat = load_chat_format(renderer)
    door = Door()

    def make_players(pool: ActorPool, parts: PoolParts) -> GroupPlayers:
        def make_agent(sampling: SamplingParams, episode_key: str, rules: PlayRules) -> OutsideAgent:
            return OutsideAgent(
                parts.policy,
                chat,
                sampling,
                rules,
                episode_key=episode_key,
                idle_s=config.idle_s,
                metrics=metrics,
            )

        return GroupPlayers(
            actor=OutsideActor(Actor(parts.envs, metrics=metrics), door, keep_s=_KEEP_S),
            make_agent=make_agent,
            engines=parts.engines,
            capacity=asyncio.Semaphore(config.num_actors),
            submit=pool.submit,
            on_freed=pool.wants_more,
            tokenizer_hash=chat.tokenizer_hash,
            metrics=metrics,
        )

    async def serve() -> None:
        async with serving_proxy(door, port=config.port, setting="proxy.port") as server:
            logger.info("proxy listens", extra={"url": server.url})
            with services(config, metrics, board, pool_id, ready_file, table="proxy", url=server.url):
                await play_run(config, pool_id, chat, metrics, board, make_players)

    return await until_stopped(serve)
