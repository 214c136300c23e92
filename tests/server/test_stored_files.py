"""The files of an answer, after a restart."""

import pytest
from tests.server.serving import serving

from failsoft.runs.agents import Agent
from failsoft.runs.answer import Answer, Artifact
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner
from failsoft.stores.sqlite import SqliteStore
from failsoft.tools.python import tool

pytestmark = pytest.mark.realtime

PICTURE = bytes(range(256)) * 500


@tool
async def nothing() -> None:
    """Does nothing."""


def drawer() -> Agent:
    def drawn(parts) -> Answer:
        many = 3 if parts.request.input == "large" else 1
        return Answer("![drawn](a.png)", tuple(Artifact(f"{n}.png", "image/png", PICTURE, "n") for n in "abc"[:many]))

    plan = Plan(tasks=(TaskSpec(id="t", tool="nothing"),))
    return Agent("drawer", "Draws.", [nothing], [StaticPlanner(plan)], answer=drawn)


async def test_files_survive_a_restart_up_to_a_bound_and_are_in_no_view(tmp_path):
    asked = {}
    for life in (1, 2):
        async with serving(store=SqliteStore(tmp_path / "runs.db"), agents=[drawer()]) as served:
            for size in ("small", "large"):
                if life == 1:
                    _, _, body = await served.post({"input": size, "agent": "drawer"}, idempotency_key=size)
                    asked[size] = body["run_id"]
                status, _, view = await served.get(f"/v1/runs/{asked[size]}")
                assert (status, view["artifacts"][0]["bytes"], "files" in view) == (200, len(PICTURE), False)
                url = f"{served.server.address}/v1/runs/{asked[size]}/artifacts/a.png"
                async with served.client.get(url) as response:
                    if life == 2 and size == "large":
                        assert response.status == 404
                        continue
                    assert (response.status, response.content_type) == (200, "image/png")
                    assert response.headers["content-security-policy"] == "sandbox"
                    assert await response.read() == PICTURE
            status, _, page = await served.get("/v1/runs")
            assert status == 200
            assert "files" not in str(page)
            if life == 2:  # the same key gives the same run, with its file if that was kept
                status, _, again = await served.post({"input": "small", "agent": "drawer"}, idempotency_key="small")
                assert (again["run_id"], again["provenance"]["failures"]) == (asked["small"], [])
                status, _, again = await served.post({"input": "large", "agent": "drawer"}, idempotency_key="large")
                assert again["provenance"]["failures"][0]["part"] == "artifacts"
