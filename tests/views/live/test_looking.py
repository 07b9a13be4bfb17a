"""Tests of what the live page reads, and when: sources, summaries, changes on disk, and an agent's view."""

import json
import time

import pytest
from serving import books, run_in, standing

from topdp.agents.ledger.ledger import Ledger
from topdp.errors import InputError
from topdp.views.live import disk_watch, live_sources
from topdp.views.live.agent_page import PUBLISHED_FACTS, agent_view, published
from topdp.views.live.disk_watch import AnswerCache, DiskWatch


def kinds(paths):
    return [(one.kind, one.name) for one in live_sources.find_sources(paths)[0]]


def test_runs_and_agents_are_found_below_the_named_folders(tmp_path):
    for place in ("a", "sweep/x/seed-0", ".hidden"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "run.json").write_text("{}")
    books(tmp_path / "demo" / "agents" / "ada" / "state")
    wanted = [("run", "a"), ("agent", "demo/agents/ada/state"), ("run", "sweep/x/seed-0")]
    assert kinds([tmp_path]) == wanted
    assert kinds([tmp_path / "a", tmp_path / "a"]) == [("run", "a")]


def test_links_are_not_followed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "run.json").write_text("{}")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    assert kinds([tmp_path / "inside"]) == []


def test_the_number_of_shown_sources_is_limited(tmp_path, monkeypatch):
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "run.json").write_text("{}")
    assert not live_sources.find_sources([tmp_path])[1]
    monkeypatch.setattr(live_sources, "MAX_SOURCES", 3)
    found, cut = live_sources.find_sources([tmp_path])
    assert len(found) == 3 and cut


def test_a_wrong_path_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for path, words in ((tmp_path / "none", "it does not exist"), (tmp_path / "file", "got a file")):
        with pytest.raises(InputError, match=words):
            live_sources.expect_folders([path])


def test_the_summary_of_a_run_contains_state_rounds_and_score(tmp_path):
    run_in(tmp_path / "one")
    (source,) = live_sources.find_sources([tmp_path])[0]
    found = disk_watch.summary(source)
    assert (found["state"], found["round"], found["rounds"], found["agents"]) == ("done", 6, 6, 4)
    assert found["score"].startswith("accuracy ") and found["problem"] is None
    assert str(tmp_path) not in json.dumps(found)


@pytest.mark.parametrize("text", ["{}", "[]", "not json", '{"format": 1}', ""])
def test_a_run_that_cannot_be_read_is_listed_with_the_problem(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    found = disk_watch.summary(live_sources.LiveSource("run", tmp_path, "x"))
    assert found["state"] == "cannot be read" and "Expected a run" in found["problem"]


def test_a_damaged_ledger_is_listed_with_the_problem(tmp_path):
    (tmp_path / "ledger.sqlite").write_text("nothing of the kind, and long enough to be looked at " * 50)
    found = disk_watch.summary(live_sources.LiveSource("agent", tmp_path, "x"))
    assert found["state"] == "cannot be read" and "damaged" in found["problem"]


def test_the_last_line_of_a_file_is_read(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"round": n, "x": "y" * 50}) + "\n" for n in range(1000)))
    assert disk_watch.last_line(file)["round"] == 999
    for text in ("", "\n", "{", "[1]\n", '{"round": "x"}\n'):
        file.write_text(text)
        assert disk_watch.last_line(file) is None
    assert disk_watch.last_line(tmp_path / "none") is None


def test_only_changed_sources_are_read_again(tmp_path, monkeypatch):
    books(tmp_path / "ada")
    books(tmp_path / "bob", "bob")
    read = []
    monkeypatch.setattr(disk_watch, "REST_FACTOR", 0)
    monkeypatch.setattr(disk_watch, "summary", lambda source: read.append(source.name) or {"id": source.id})
    watch = DiskWatch([tmp_path])
    assert [kind for kind, _ in watch.scan()] == ["agent", "agent"]
    assert watch.scan() == [] and read == ["ada", "bob"]
    standing(tmp_path / "bob")
    assert len(watch.scan()) == 1 and read == ["ada", "bob", "bob"]
    (tmp_path / "ada" / "ledger.sqlite").unlink()
    assert [kind for kind, _ in watch.scan()] == ["gone"]
    books(tmp_path / "cat", "cat")
    assert len(watch.scan()) == 1 and read[-1] == "cat"


def test_sources_that_are_slow_to_read_are_read_less_often(tmp_path, monkeypatch):
    books(tmp_path / "ada")
    clock = [100.0]

    def slow(source):
        clock[0] += 1.0
        return {"id": source.id}

    monkeypatch.setattr(disk_watch.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(disk_watch, "summary", slow)
    watch = DiskWatch([tmp_path])
    watch.scan()
    standing(tmp_path / "ada")
    clock[0] = 100.0 + disk_watch.REST_FACTOR - 0.5
    assert watch.scan() == []
    clock[0] = 100.0 + disk_watch.REST_FACTOR + 0.5
    assert len(watch.scan()) == 1


def test_the_death_of_a_process_changes_the_version_of_its_source(tmp_path):
    books(tmp_path / "ada")
    standing(tmp_path / "ada")
    (source,) = live_sources.find_sources([tmp_path])[0]
    before = disk_watch.version_of(source)
    assert disk_watch.version_of(source) == before
    standing(tmp_path / "ada", begun="a process of another start", written=time.time() - 3600)
    assert disk_watch.version_of(source)[1] == "not running" != before[1]


def test_answers_are_kept_until_something_changes(tmp_path):
    books(tmp_path / "ada")
    (source,) = live_sources.find_sources([tmp_path])[0]
    asked = []
    answers = AnswerCache(lambda one: {"asked": len(asked.append(one) or asked)})
    assert answers.get(source) == answers.get(source) == b'{"asked": 1}'
    standing(tmp_path / "ada")
    assert answers.get(source) == b'{"asked": 2}'


def test_values_that_json_cannot_contain_are_reported_as_a_problem(tmp_path):
    books(tmp_path / "ada")
    (source,) = live_sources.find_sources([tmp_path])[0]
    answer = json.loads(AnswerCache(lambda one: {"loss": float("nan")}).get(source))
    assert "but cannot show them" in answer["problem"]


# An agent's own view, and the part that it publishes


def test_an_agents_view_has_its_links_and_its_ledger(tmp_path):
    state = books(tmp_path / "ada", peers=("bob", "cat", "dan"), releases=5)
    now = time.time()
    standing(state, heard={"bob": now, "cat": now - 500}, waits_for={"bob": now - 1, "dan": now - 7})
    view = agent_view(state)
    assert {peer: link["state"] for peer, link in view["links"].items()} == {
        "bob": "heard", "cat": "silent", "dan": "waited for"
    }  # fmt: skip
    assert [one["round"] for one in view["charges"]] == [0, 1, 2, 3, 4]
    assert view["charges"][-1]["total"] == view["epsilon"] == 0.625
    assert view["links"]["bob"]["sent"] == 4 and view["links"]["bob"]["received"] == 0


def test_the_charges_of_a_long_ledger_are_thinned_but_keep_both_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("topdp.views.live.agent_page.MAX_SHOWN_CHARGES", 10)
    state = books(tmp_path / "ada", releases=38)
    rounds = [one["round"] for one in agent_view(state)["charges"]]
    assert rounds[0] == 0 and rounds[-1] == 37 and len(rounds) <= 11


def test_the_links_of_an_agent_that_does_not_run_are_unknown(tmp_path):
    state = books(tmp_path / "ada")
    standing(state, state="ended", code=0)
    view = agent_view(state)
    assert view["process"] == "not running" and view["links"]["bob"]["state"] == "unknown"


def test_neither_parameters_nor_scores_are_published(tmp_path):
    state = books(tmp_path / "ada")
    standing(
        state, scores={"round": 2, "on": "test", "records": 9, "loss": 1.0, "metrics": {"accuracy": 0.75}}
    )
    view = agent_view(state)
    assert view["scores"]["metrics"] == {"accuracy": 0.75}  # the agent's owner sees them
    shown = published(view)
    assert set(shown) == {*PUBLISHED_FACTS, "links"}
    assert "0.75" not in json.dumps(shown) and "parameters" not in json.dumps(view)
    ledger = Ledger(state, writable=False)
    digests = [digest for entry in ledger.entries() for digest in entry.digests.values()]
    ledger.close()
    assert digests and not any(digest in json.dumps(view) for digest in digests)


def test_a_reader_does_not_stop_an_agent_from_writing(tmp_path):
    """A ledger that is being read can be written, and a view shows one moment."""
    ledger = Ledger(tmp_path / "ada", "federation", "ada")
    try:
        from topdp.agents.ledger.ledger_entries import ReleaseCost

        reader = Ledger(tmp_path / "ada", writable=False)
        ledger.release(0, ReleaseCost(0.5, 0.5, 0.1), {"bob": b"row"}, b"state")
        reader.close()
        assert agent_view(tmp_path / "ada")["epsilon"] == 0.5
    finally:
        ledger.close()
