"""LangGraph: a chain of no-op nodes, without a saver and with SQLite's. Prints µs of CPU per step as JSON."""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from typing import TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    n: int


async def step(state):
    return {"n": state["n"] + 1}


def graph(steps):
    made = StateGraph(State)
    for i in range(steps):
        made.add_node(f"t{i}", step)
        made.add_edge(f"t{i - 1}" if i else START, f"t{i}")
    made.add_edge(f"t{steps - 1}", END)
    return made


async def per_step(compiled, steps, rounds, saved):
    found = []
    for number in range(rounds + 1):
        config = {"recursion_limit": steps + 10}
        if saved:
            config["configurable"] = {"thread_id": str(number)}
        start = time.process_time()
        result = await compiled.ainvoke({"n": 0}, config)
        found.append((time.process_time() - start) / steps)
        assert result["n"] == steps
    return statistics.median(found[1:]) * 1e6


async def main(steps, rounds):
    figures = {"langgraph": await per_step(graph(steps).compile(), steps, rounds, False)}
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncSqliteSaver.from_conn_string(f"{folder}/runs.db") as saver:
            compiled = graph(steps).compile(checkpointer=saver)
            figures["langgraph_saver"] = await per_step(compiled, steps, rounds, True)
    return figures


print(json.dumps(asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))))
