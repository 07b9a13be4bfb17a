"""Tests of events: every listener, slow or too many listeners, and the end of the server."""

import asyncio
import json

import httpx
import pytest
from serving import PATIENCE, books, served, standing, until

from topdp.views.live import page_events
from topdp.views.live.page_events import (
    MAX_LISTENERS_PER_VISITOR,
    Events,
    EventStream,
    TooManyListeners,
    listen,
)


def parsed(text):
    """[(kind, facts)] of a piece of a stream."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.splitlines())
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_every_listener_gets_every_event_in_order():
    async def listening():
        events = Events()
        streams = [listen(events.join(str(number))) for number in range(2)]
        for stream in streams:
            await anext(stream)
        for number in range(3):
            events.publish("run", {"number": number})
        return [[parsed(await anext(stream)) for _ in range(3)] for stream in streams]

    assert asyncio.run(listening()) == [[[("run", {"number": number})] for number in range(3)]] * 2


def test_one_visitor_cannot_take_all_connections(tmp_path):
    with served([tmp_path]) as page:
        greedy = [streamed(page, {"User-Agent": "greedy"}) for _ in range(MAX_LISTENERS_PER_VISITOR)]
        for one in greedy:
            assert next(one)[0] == "beat"
        refused = page.client.get("/api/events", headers={"User-Agent": "greedy"})
        assert refused.status_code == 429 and "per visitor" in refused.json()["problem"]
        other = streamed(page, {"User-Agent": "another"})
        assert next(other)[0] == "beat"
        greedy[0].close()
        until(lambda: page.dash.events.listeners == MAX_LISTENERS_PER_VISITOR, "a free connection")
        again = streamed(page, {"User-Agent": "greedy"})
        assert next(again)[0] == "beat"
        for one in (*greedy, other, again):
            one.close()


def test_listeners_above_the_limit_are_refused_until_one_leaves(monkeypatch):
    monkeypatch.setattr(page_events, "MAX_LISTENERS", 1)

    async def trying():
        events = Events()
        first = events.join()
        with pytest.raises(TooManyListeners, match="at most 1"):
            events.join()
        events.leave(first)
        events.join()

    asyncio.run(trying())


def test_a_listener_that_does_not_read_is_dropped(monkeypatch):
    monkeypatch.setattr(page_events, "MAX_UNREAD_EVENTS", 3)

    async def trying():
        events = Events()
        slow = listen(events.join())
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
        stream = EventStream(events)

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
        listening = listen(events.join(), heartbeat=0.01)
        first, second = await anext(listening), await anext(listening)
        assert parsed(first) == [("beat", {})] and parsed(second) == [("beat", {})]

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


def test_a_change_on_disk_is_sent(tmp_path):
    state = books(tmp_path / "ada")
    with served([tmp_path]) as page:
        listening = streamed(page)
        assert next(listening)[0] == "beat"
        standing(state, round=3)
        changed = next(facts for kind, facts in listening if kind == "agent")
        assert changed["state"] == "running, waits"
        listening.close()
        until(lambda: page.dash.events.listeners == 0, "all listeners to be removed")


def test_a_server_with_listeners_ends_at_once(tmp_path):
    with served([tmp_path]) as page:
        listening = streamed(page)
        next(listening)
    # `served` has seen it end; the stream was ended in order, not cut.
    assert [one for one in listening if one[0] != "beat"] == []
