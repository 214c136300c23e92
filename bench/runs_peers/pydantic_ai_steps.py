"""pydantic-ai: a loop of no-op tool calls, asked for by a model in this process. Prints µs of CPU per step."""

import asyncio
import json
import statistics
import sys
import time

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import UsageLimits

STEPS = int(sys.argv[1])


async def main(rounds):
    found = []
    for _ in range(rounds + 1):
        asked = 0

        def model(messages, info):
            nonlocal asked
            asked += 1
            part = ToolCallPart("noop", {}) if asked <= STEPS else TextPart("done")
            return ModelResponse(parts=[part])

        agent = Agent(FunctionModel(model))

        @agent.tool_plain
        async def noop() -> str:
            """Does nothing."""
            return ""

        start = time.process_time()
        result = await agent.run("go", usage_limits=UsageLimits(request_limit=STEPS + 2))
        found.append((time.process_time() - start) / STEPS)
        assert result.output == "done"
    return {"pydantic_ai": statistics.median(found[1:]) * 1e6}


print(json.dumps(asyncio.run(main(int(sys.argv[2])))))
