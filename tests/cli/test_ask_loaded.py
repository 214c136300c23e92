"""``failsoft ask --load``: agents of one's own, and the person whom they ask."""

import json
import os
import re
import subprocess
import sys

import pytest

from failsoft.cli.main import execute

pytestmark = pytest.mark.timeout(60)

TICKETS = "failsoft.examples.tickets.agent:tickets"


def test_a_loaded_agent_answers(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TICKETS_FILE", str(tmp_path / "tickets.json"))
    code = execute(["ask", "--json", "--load", TICKETS, "Find tickets about the printer"])
    body = json.loads(capsys.readouterr().out)
    assert (code, body["agent"], body["answer"]) == (0, "tickets", "There are no such tickets.")


def test_an_agent_that_is_not_loaded_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TICKETS_FILE", str(tmp_path / "tickets.json"))
    code = execute(["ask", "--load", TICKETS, "--agent", "other", "Find tickets about the printer"])
    assert code == 2
    assert "there is no agent 'other'; there are: tickets" in capsys.readouterr().err


def test_what_nobody_could_ever_approve_is_refused_instead_of_waited_for(capsys, tmp_path, monkeypatch):
    """No terminal, and a store that no other process sees: the command that it printed could not work."""
    monkeypatch.setenv("TICKETS_FILE", str(tmp_path / "tickets.json"))
    monkeypatch.chdir(tmp_path)
    code = execute(["ask", "--load", TICKETS, "Open a ticket: no light (high)"])
    said = capsys.readouterr().err
    assert code == 2
    assert "create_ticket(title='no light', priority='high')" in said
    assert "store.path" in said
    assert not (tmp_path / "tickets.json").exists()


@pytest.mark.deep
def test_the_person_is_asked_and_may_answer_elsewhere(tmp_path):
    desk, store = tmp_path / "tickets.json", tmp_path / "runs.db"
    command = [
        sys.executable,
        "-c",
        "from failsoft.cli import main; main()",
        "ask",
        "--json",
        "--load",
        TICKETS,
        "Open a ticket: no light (high)",
    ]
    environment = {**os.environ, "TICKETS_FILE": str(desk), "FAILSOFT_STORE__PATH": str(store)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asking:
        try:
            assert asking.stderr is not None
            said = asking.stderr.readline() + asking.stderr.readline()
            assert "create_ticket(title='no light', priority='high')" in said
            approval = re.search(r"failsoft approvals approve (\S+) --store (\S+)", said)
            assert approval is not None
            assert not desk.exists()
            assert execute(["approvals", "approve", approval[1], "--store", approval[2]]) == 0
            out, _ = asking.communicate(timeout=40)
        finally:
            asking.kill()
    body = json.loads(out)
    assert body["status"] == "completed"
    assert len(json.loads(desk.read_text())) == 1
