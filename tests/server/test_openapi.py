"""The OpenAPI document is what the server does: every operation with what the document allows and what it does not, as
one tenant beside another. No defect, no answer that the document does not have, nothing of the other tenant's.
"""

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from tests.lazy import Lazy
from tests.runs.worlds import agent, plan, task
from tests.server.serving import agent as adder
from tests.server.test_approvals_api import pay

from failsoft.app import App
from failsoft.config import Settings
from failsoft.server.asgi import openapi
from failsoft.server.serving import HttpServer, listen_on

pytestmark = pytest.mark.realtime

SECRET = "zebrafish"
KEYS: dict[str, Any] = {
    name: {"hash": "sha256:" + hashlib.sha256(f"sk-{name}".encode()).hexdigest(), "tenant": name}
    for name in ("blue", "red")
}
schemathesis = Lazy("schemathesis")
checks = Lazy("schemathesis.checks")
CHECKS = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
DEFECTS = {500, 501, 505}


def payer() -> Any:
    spec = task("pay", "pay").model_copy(update={"arguments": {"amount": 7}})
    return agent(plan(spec), tools=[pay], name="payer")


DOCUMENT = openapi(App(Settings.model_validate({"agent": "adder"}), agents=[adder(), payer()]))
METHODS = {"get", "post", "put", "delete", "patch"}
OPERATIONS = [
    f"{verb.upper()} {path}" for path, found in DOCUMENT["paths"].items() for verb in found if verb in METHODS
]


class World:
    """A server in a thread, with what tenant blue has there."""

    def __init__(self) -> None:
        self.url = ""
        self.ids: dict[str, str] = {}
        self.red = {"Authorization": "Bearer sk-red"}
        self.blue = {"Authorization": "Bearer sk-blue"}
        self._loop = asyncio.new_event_loop()
        self._server: HttpServer | None = None
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        made = Settings.model_validate(
            {
                "agent": "adder",
                "keys": KEYS,
                "run": {"budget": 1.0, "maximum_budget": 2.0},
                "gateway": {"log": "off"},
                "server": {"log": "off", "drain": 0.1},
            }
        )
        with listen_on("127.0.0.1", 0) as sock:
            async with App(made, agents=[adder(), payer()], store="memory") as app:
                server = self._server = HttpServer(app, sock, on_listening=lambda _: self._up.set())
                self.url = server.address
                await server.serve_until_stopped()

    def __enter__(self) -> "World":
        self._thread.start()
        assert self._up.wait(10)
        said = {"input": f"add {SECRET}", "session_id": f"s-{SECRET}"}
        run = requests.post(f"{self.url}/v1/runs", json=said, headers=self.blue, timeout=10).json()
        requests.post(f"{self.url}/v1/runs", json={"input": SECRET, "agent": "payer"}, headers=self.blue, timeout=10)
        page = requests.get(f"{self.url}/v1/approvals", headers=self.blue, timeout=10).json()
        self.ids = {
            "run_id": run["run_id"],
            "session_id": f"s-{SECRET}",
            "approval_id": page["approvals"][0]["id"],
            "name": "chart.png",
            "model": "agent/adder",
        }
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._server is not None
        self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(15)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture(scope="module")
def operations() -> dict[str, Any]:
    """Every operation by its label; raises for one that the document describes wrongly."""
    found = schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()
    return {one.label: one for one in (result.ok() for result in found)}


def test_every_operation_is_tried(operations):
    assert set(operations) == set(OPERATIONS)


@pytest.mark.parametrize("label", OPERATIONS)
def test_every_operation_answers_as_documented_and_tells_nothing_of_another_tenants(label, operations, world):
    operation = operations[label]
    own = requests.post(f"{world.url}/v1/runs", json={"input": "add"}, headers=world.red, timeout=10).json()["run_id"]
    ids = {"theirs": world.ids, "mine": {**world.ids, "run_id": own}, "any": {}}

    @settings(
        max_examples=4,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        derandomize=True,
    )
    @given(case=operation.as_strategy(), whose=st.sampled_from(sorted(ids)), keyed=st.integers(0, 5))
    def check(case: Any, whose: str, keyed: int) -> None:
        for name in case.path_parameters or {}:
            case.path_parameters[name] = ids[whose].get(name, case.path_parameters[name])
        if isinstance(case.body, dict) and "budget_ms" in case.body and keyed:
            case.body["input"] = "add"
        response = case.call(base_url=world.url, headers=world.red if keyed else {}, timeout=15)
        assert response.status_code not in DEFECTS, response.text
        assert response.headers.get("x-request-id") or operation.path == "/metrics"
        if response.status_code != 405:  # a value of a path that makes it another path
            case.validate_response(response, checks=[getattr(checks, name) for name in CHECKS])
        if operation.path not in ("/v1/downstreams", "/metrics") and SECRET not in json.dumps(str(case.body)):
            told = response.text.replace(f"s-{SECRET}", "")  # it may say what there is not
            assert SECRET not in told
        if whose == "theirs" and keyed and {"run_id", "session_id", "approval_id"} & set(case.path_parameters or {}):
            assert response.status_code in (400, 404, 413)

    check()
    assert requests.get(f"{world.url}/health/liveness", timeout=10).status_code == 200


def test_examples_of_the_document_are_what_it_describes():
    view = DOCUMENT["components"]["schemas"]["RunView"]
    assert set(view["examples"][0]) <= set(view["properties"])
    body = DOCUMENT["paths"]["/v1/runs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["examples"][0]) <= set(body["properties"])
    assert "HTTPValidationError" not in json.dumps(DOCUMENT)
