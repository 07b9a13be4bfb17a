"""Tests of the routes of the planner, without a browser."""

import asyncio
import json
import threading
import time
import tomllib

import httpx
import pytest
from starlette.applications import Starlette

from builders import CountingCache, plan_answers
from topdp.runs import config
from topdp.runs.planner.planner_form import FORM_FIELDS, FORM_KEYS, as_command, as_toml, configuration
from topdp.views.live import planner_page
from topdp.views.terminal.gains_table import gain_rows
from topdp.views.terminal.planned_table import lines

FEW = {"topology.agents": "5", "topology.kind": "ring", "rounds": "3"}


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(planner_page, "PLANNER", planner_page.PlannerService())
    transport = httpx.ASGITransport(Starlette(routes=planner_page.planner_routes))

    def send(method="POST", **more):
        async def once():
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as sender:
                return await sender.request(method, "/api/plan", **more)

        return asyncio.run(once())

    return send


def ask(client, values, name="a page"):
    answer = client(json={"client": name, "values": values})
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.text.splitlines()]


def test_settings_that_take_minutes_to_check_are_refused_at_once(client):
    """Finding the best noise for so many averaging steps takes minutes and cannot be interrupted."""
    values = {"method.name": "correlated", "method.gossip": "100000", "topology.agents": "100"}
    (answer,) = ask(client, values)
    assert "at most 32 steps" in answer["problem"] + str(answer["fields"])


@pytest.mark.parametrize("method", ["top", "correlated"])
def test_the_page_gets_what_the_command_prints(client, method, monkeypatch):
    monkeypatch.setattr(planner_page.PLANNER, "memory", CountingCache())
    values = {**FEW, "method.name": method, "privacy.epsilon": "2"}
    answer = ask(client, values)
    assert answer[-1] == {"done": True}
    last = [one for one in answer if "lines" in one][-1]
    made = plan_answers(config.read(changes=[f"{key}={value}" for key, value in values.items()]))
    assert last["lines"] == [[name, *cells] for name, cells in lines([made])]
    assert last["gains"]["rows"] == gain_rows(made["gains"]) != []
    assert last["pending"] == [] and sum("recommended" in one for one in answer) == 1
    # Another budget uses stored results, and still agrees with the command.
    again = [one for one in ask(client, {**values, "privacy.epsilon": "3"}) if "lines" in one][-1]
    made = plan_answers(
        config.read(changes=[f"{k}={v}" for k, v in {**values, "privacy.epsilon": "3"}.items()])
    )
    assert again["lines"] == [[name, *cells] for name, cells in lines([made])]
    assert planner_page.PLANNER.memory.hits > 0


def test_the_toml_and_the_command_to_copy_give_the_same_setting(client, tmp_path):
    values = {**FEW, "method.name": "dsgd", "privacy.delta": "1e-06"}
    first = ask(client, values)[0]
    (tmp_path / "plan.toml").write_text(first["toml"])
    made = configuration(values)
    assert config.read(tmp_path / "plan.toml") == made
    words = first["command"].split()
    changes = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    assert config.read(changes=changes) == made
    assert as_command({field.key: field.value for field in FORM_FIELDS}) == []
    assert config.parse(tomllib.loads(as_toml(configuration({})))) == config.read()


@pytest.mark.parametrize(
    ("values", "field", "said"),
    [
        ({"privacy.epsilon": "0"}, "privacy.epsilon", "expected a number > 0"),
        ({"privacy.epsilon": "much"}, "privacy.epsilon", "expected a number > 0"),
        ({"topology.agents": "1000000"}, "topology.agents", "expected at most 100 to plan here"),
        ({"rounds": "1000000"}, "rounds", "expected at most 5000 to plan here"),
        ({"privacy.colluders": "5"}, "privacy.colluders", "from 0 to 4"),
        ({"method.alpha": "2"}, "method.alpha", "less than or equal to 1"),
        ({"topology.kind": "/etc/passwd"}, "topology.kind", "got '/etc/passwd'"),
        ({"data.name": "../secret.npz"}, "data.name", "got '../secret.npz'"),
        ({"model.name": "os:abort"}, "model.name", "got 'os:abort'"),
        ({"topology.kind": "file"}, "topology.kind", "got 'file'"),
        ({"privacy.epsilon": "9" * 300}, "privacy.epsilon", "at most 200 characters"),
        (
            {"privacy.epsilon": "[1, 2]"},
            "privacy.epsilon",
            "expected one number, or a list of 5 numbers, one per agent, got a list of 2",
        ),
    ],
    ids=str,
)
def test_errors_are_reported_for_their_field(client, values, field, said):
    answer = ask(client, {**FEW, **values})[-1]
    assert said in answer["fields"][field] and len(answer["fields"]) == 1


def test_errors_that_belong_to_no_field_are_reported(client):
    answer = ask(client, {**FEW, "method.name": "top", "method.alpha": "0"})
    assert "No amount of noise" in answer[-1]["problem"] and not answer[-1].get("fields")
    (answer,) = ask(client, {"data.schema": "x"})
    assert "data.schema: no such key" in answer["problem"]
    (answer,) = ask(client, {**FEW, "topology.kind": "regular", "topology.degree": "9"})
    assert answer["problem"] or answer["fields"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"client": "a", "values": []}', 400),
        (b'{"client": "", "values": {}}', 400),
        (b"[" * 15_000, 400),
        (b" " * 30_000, 413),
    ],
    ids=["no json", "a list", "no values", "no name", "deep", "long"],
)
def test_invalid_requests_are_refused(client, body, status):
    assert client(content=body).status_code == status
    assert client("GET").status_code == 405


def test_a_form_has_a_field_for_each_key_and_no_file_can_be_named():
    assert len(set(FORM_KEYS)) == len(FORM_KEYS)
    assert not {"data.schema", "data.sites", "data.test", "topology.path"} & set(FORM_KEYS)
    for field in FORM_FIELDS:
        assert field.value in field.choices or not field.choices


def make_answers_slow(monkeypatch, seconds):
    """Makes answers take `seconds`, and report progress all the time."""
    ended = []

    def slow(question, quick, progress, memory):
        try:
            for step in range(int(seconds / 0.01)):
                time.sleep(0.01)
                progress("accounting", step, 100)
            yield from ()
        finally:
            ended.append(threading.current_thread().name)

    monkeypatch.setattr(planner_page, "stages", slow)
    return ended


def test_a_newer_request_of_a_page_ends_the_older_one(monkeypatch):
    ended = make_answers_slow(monkeypatch, 30)
    desk = planner_page.PlannerService()

    async def both():
        first = desk.answers("one page", FEW)
        assert "toml" in json.loads(await anext(first))
        second = desk.answers("one page", FEW)
        assert "toml" in json.loads(await anext(second))
        rest = [line async for line in first]  # ends without an answer
        other = desk.answers("another page", FEW)
        assert "toml" in json.loads(await anext(other))  # does not disturb the others
        await second.aclose()  # the page was closed
        await other.aclose()
        return rest

    began = time.monotonic()
    rest = asyncio.run(both())
    assert not any("done" in json.loads(line) or "problem" in json.loads(line) for line in rest)
    desk.threads.shutdown(wait=True)
    assert len(ended) == 3 and time.monotonic() - began < 10 and desk.current == {}


def test_an_answer_that_takes_too_long_ends_with_a_reason(client, monkeypatch):
    make_answers_slow(monkeypatch, 30)
    monkeypatch.setattr(planner_page, "MAX_ANSWER_SECONDS", 0.2)
    assert "takes longer than the 0 s" in ask(client, FEW)[-1]["problem"]


def test_requests_above_the_limit_are_refused(monkeypatch):
    make_answers_slow(monkeypatch, 30)
    monkeypatch.setattr(planner_page, "MAX_PLAN_REQUESTS", 1)
    desk = planner_page.PlannerService()

    async def crowd():
        first = desk.answers("one", FEW)
        await anext(first)
        answer = [json.loads(line) async for line in desk.answers("two", FEW)]
        await first.aclose()
        return answer

    (answer,) = asyncio.run(crowd())
    assert "too many" in answer["problem"]


def test_an_internal_error_is_reported(client, monkeypatch):
    monkeypatch.setattr(planner_page, "stages", lambda *given: 1 / 0)
    assert ask(client, FEW)[-1]["problem"] == "Internal error: ZeroDivisionError."
