"""Tests of events: numbers, resumption, resets, slow or too many listeners, and the end of the server."""

import asyncio
import json

import httpx
import pytest
from serving import PATIENCE, books, served, standing, until

from topdp.views.live import page_events
from topdp.views.live.page_events import MAX_LISTENERS_PER_VISITOR, Events, EventStream, TooManyListeners


def parsed(text):
    """[(id, kind, facts)] of a piece of a stream."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.splitlines())
        if "event" in fields:
            found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
    return found


def heard(events, after, count):
    """The first `count` events without heartbeats."""

    async def listening():
        found = []
        async with asyncio.timeout(PATIENCE):
            async for text in events.listen(after):
                found += [one for one in parsed(text) if one[1] != "beat"]
                if len(found) >= count:
                    return found

    return asyncio.run(listening())


def test_a_listener_that_reconnects_gets_each_missed_event_once():
    events = Events()
    for number in range(5):
        events.publish("run", {"number": number})
    assert [facts["number"] for _, _, facts in heard(events, f"{events.start}-2", 3)] == [2, 3, 4]
    assert events.missed(events.last) == []
    assert events.missed(None) == []


@pytest.mark.parametrize(
    "after", ["other-3", "", "x", "START-99", "START--1", "START-9" + "9" * 30, "START-²"]
)
def test_a_listener_with_an_unknown_event_number_gets_a_reset(after):
    events = Events()
    events.publish("run", {})
    (event,) = events.missed(after.replace("START", events.start))
    assert (event.kind, event.name) == ("reset", events.last)


def test_a_listener_that_missed_too_many_events_gets_a_reset(monkeypatch):
    monkeypatch.setattr(page_events, "MAX_STORED_EVENTS", 3)
    events = Events()
    for number in range(5):
        events.publish("run", {"number": number})
    assert [event.kind for event in events.missed(f"{events.start}-1")] == ["reset"]
    assert [event.facts["number"] for event in events.missed(f"{events.start}-2")] == [2, 3, 4]


def test_one_visitor_cannot_take_all_connections(tmp_path):
    with served([tmp_path]) as page:
        greedy = [streamed(page, {"User-Agent": "greedy"}) for _ in range(MAX_LISTENERS_PER_VISITOR)]
        for one in greedy:
            assert next(one)[1] == "beat"
        refused = page.client.get("/api/events", headers={"User-Agent": "greedy"})
        assert refused.status_code == 429 and "per visitor" in refused.json()["problem"]
        other = streamed(page, {"User-Agent": "another"})
        assert next(other)[1] == "beat"
        greedy[0].close()
        until(lambda: page.dash.events.listeners == MAX_LISTENERS_PER_VISITOR, "a free connection")
        again = streamed(page, {"User-Agent": "greedy"})
        assert next(again)[1] == "beat"
        for one in (*greedy, other, again):
            one.close()


def test_each_start_of_a_server_has_its_own_name():
    assert Events().start != Events().start


def test_listeners_above_the_limit_are_refused_until_one_leaves(monkeypatch):
    monkeypatch.setattr(page_events, "MAX_LISTENERS", 1)

    async def trying():
        events = Events()
        first = events.listen()
        await anext(first)
        with pytest.raises(TooManyListeners, match="at most 1"):
            await anext(events.listen())
        await first.aclose()
        await anext(events.listen())

    asyncio.run(trying())


def test_a_listener_that_does_not_read_is_dropped(monkeypatch):
    monkeypatch.setattr(page_events, "MAX_UNREAD_EVENTS", 3)

    async def trying():
        events = Events()
        slow = events.listen()
        await anext(slow)
        for number in range(9):
            events.publish("run", {"number": number})
        async with asyncio.timeout(5):
            rest = [text async for text in slow]
        assert len(rest) <= 9 and events.listeners == 0

    asyncio.run(trying())


def test_a_connection_that_accepts_no_data_is_closed(monkeypatch):
    monkeypatch.setattr("topdp.views.live.page_events.SEND_SECONDS", 0.05)

    async def trying():
        events = Events()
        stream = await EventStream.open(events, None)

        async def stuck(message):
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async with asyncio.timeout(PATIENCE):
            await stream({"type": "http"}, asyncio.Event().wait, stuck)
        assert events.listeners == 0

    asyncio.run(trying())


def test_a_heartbeat_is_sent_at_once_and_while_nothing_happens():
    async def trying():
        events = Events()
        listening = events.listen(heartbeat=0.01)
        first, second = await anext(listening), await anext(listening)
        assert parsed(first) == [(events.last, "beat", {})] and parsed(second) == [(None, "beat", {})]

    asyncio.run(trying())


def streamed(page, headers=None):
    """The events of a server, one after the other."""
    with httpx.stream(
        "GET", page.url + "/api/events", headers=headers, timeout=PATIENCE, trust_env=False
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = ""
        for piece in answer.iter_text():
            text += piece
            while "\n\n" in text:
                block, _, text = text.partition("\n\n")
                yield from parsed(block)


def test_a_change_on_disk_is_sent_and_can_be_resumed(tmp_path):
    state = books(tmp_path / "ada")
    with served([tmp_path]) as page:
        listening = streamed(page)
        name, kind, _ = next(listening)
        assert kind == "beat"
        standing(state, round=3)
        changed = next(one for one in listening if one[1] == "agent")
        assert changed[2]["state"] == "running, waits"
        again = streamed(page, {"Last-Event-ID": name})
        assert next(one for one in again if one[1] != "beat") == changed
        other = streamed(page, {"Last-Event-ID": "before-17"})
        assert next(one for one in other if one[1] != "beat")[1] == "reset"
        for one in (listening, again, other):
            one.close()
        until(lambda: page.dash.events.listeners == 0, "all listeners to be removed")


def test_a_server_with_listeners_ends_at_once(tmp_path):
    with served([tmp_path]) as page:
        listening = streamed(page)
        next(listening)
    # `served` checks that the server ends; the stream ended normally and was not cut.
    assert [one for one in listening if one[1] != "beat"] == []
