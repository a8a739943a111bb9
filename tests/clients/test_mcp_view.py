"""An MCP agent plays an environment through `longturn mcp`, over real pipes and a real server."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("mcp", reason="mcp is not installed; run: make install")

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


@asynccontextmanager
async def _agent(address: str, environment: str) -> AsyncIterator[ClientSession]:
    arguments = ["-m", "longturn", "mcp", "--server", address, "--env", environment]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def _call(session: ClientSession, tool: str, **arguments: object) -> Any:
    result = await session.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def _error(session: ClientSession, tool: str, **arguments: object) -> str:
    result = await session.call_tool(tool, arguments)
    assert result.is_error
    return result.content[0].text  # type: ignore[union-attr]


def test_an_mcp_agent_plays_an_episode_to_its_end(address: str) -> None:
    async def main() -> None:
        async with _agent(address, "echo") as session:
            tools = {tool.name for tool in (await session.list_tools()).tools}
            assert tools == {"list_tasks", "start_episode", "step", "end_episode"}
            listed = (await _call(session, "list_tasks", split="train", limit=3))["result"]
            assert [task["task_id"] for task in listed] == [f"echo/train/{index:06d}" for index in range(3)]
            knobs = {"horizon": 3}
            seen = await _call(session, "start_episode", task_id=listed[0]["task_id"], seed=4, knobs=knobs)
            while seen["status"] == "running":
                word = seen["observation"].partition("Say ")[2].partition(".")[0]
                seen = await _call(session, "step", episode=seen["episode"], action=word)
            assert (seen["success"], seen["turn_index"], seen["score"]) == (True, 3, 1.0)
            other = await _call(session, "start_episode", task_id=listed[1]["task_id"])
            assert (await _call(session, "end_episode", episode=other["episode"]))["status"] == "aborted"

    asyncio.run(main())


def test_what_an_agent_can_mend_comes_back_as_a_tool_error(address: str) -> None:
    async def main() -> None:
        async with _agent(address, "faulty") as session:
            assert "TASK_NOT_FOUND" in await _error(session, "start_episode", task_id="faulty/train/x")
            assert "horizon" in await _error(
                session, "start_episode", task_id="faulty/train/000000", knobs={"horizom": 3}
            )
            assert "no episode '7' runs; running: none" in await _error(session, "step", episode="7", action="look")
            knobs = {"fail_at_turn": 1}
            seen = await _call(session, "start_episode", task_id="faulty/train/000000", knobs=knobs)
            broken = await _call(session, "step", episode=seen["episode"], action="amber")
            assert broken["status"] == "failed"
            assert broken["failure"].startswith("ENVIRONMENT_BROKEN")

    asyncio.run(main())
