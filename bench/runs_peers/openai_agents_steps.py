"""openai-agents: a loop of no-op tool calls, asked for by a model in this process. Prints µs of CPU per step."""

import asyncio
import json
import os
import statistics
import sys
import time

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool

STEPS = int(sys.argv[1])


class Scripted(Model):
    def __init__(self):
        self.n = 0

    async def get_response(self, *args, **kwargs):
        self.n += 1
        if self.n <= STEPS:
            out = ResponseFunctionToolCall(
                id=f"f{self.n}", call_id=f"c{self.n}", type="function_call", name="noop", arguments="{}"
            )
        else:
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            out = ResponseOutputMessage(id="m", type="message", role="assistant", content=[text], status="completed")
        return ModelResponse(output=[out], usage=Usage(), response_id=None)

    async def stream_response(self, *args, **kwargs):
        raise NotImplementedError
        yield


@function_tool
async def noop() -> str:
    """Does nothing."""
    return ""


async def main(rounds):
    found = []
    for _ in range(rounds + 1):
        agent = Agent(name="a", model=Scripted(), tools=[noop])
        start = time.process_time()
        result = await Runner.run(agent, "go", max_turns=STEPS + 2)
        found.append((time.process_time() - start) / STEPS)
        assert result.final_output == "done"
    return {"openai_agents": statistics.median(found[1:]) * 1e6}


print(json.dumps(asyncio.run(main(int(sys.argv[2])))))
