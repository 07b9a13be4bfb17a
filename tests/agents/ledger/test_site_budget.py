"""Tests of the site budget: it recognises records, adds up all runs on them, and frees nothing early."""

import contextlib
import math
import random
import sqlite3
import threading
from hashlib import sha256

import numpy as np
import pytest

from topdp import data
from topdp.agents.ledger.ledger_entries import LedgerError
from topdp.agents.ledger.record_fingerprints import fingerprint_persons, fingerprint_records
from topdp.agents.ledger.site_budget import SITE_BUDGET_FILE, BudgetRequest, SiteBudget, SiteLimit
from topdp.errors import BudgetError, TopdpError, TrustError

GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.normal(size=(40, 5)), np.arange(40) % 3


@pytest.fixture
def site(tmp_path):
    made = SiteBudget(tmp_path)
    yield made
    made.close()


def request(ledger_id="a", epsilon=1.0, adjacency="add-remove", delta=1e-5, **more):
    return BudgetRequest(
        ledger_id=ledger_id,
        federation="federation",
        agent="ada",
        folder="state",
        guarantee="adaptive",
        adjacency=adjacency,
        delta=delta,
        epsilon=epsilon,
        **more,
    )


def records(site, rows=slice(None), source="one"):
    return fingerprint_records(site.key, X[rows], Y[rows], source)


def test_runs_on_the_same_records_add_up_and_others_do_not(site):
    site.reserve(request("a", 1.0), records(site, slice(0, 20)), 0)
    site.reserve(request("b", 2.0), records(site, slice(10, 40), "two"), 0)  # ten records are in both
    assert site.spent()["add-remove"].epsilon == 3.0
    assert site.spent(records(site, slice(0, 10), "three"))["add-remove"].epsilon == 1.0
    assert site.spent(records(site, slice(20, 40), "three"))["add-remove"].epsilon == 2.0
    shuffled = records(site, GENERATOR.permutation(40), "three")
    assert (
        site.spent(shuffled)["add-remove"].epsilon == 3.0 and site.spent(shuffled)["add-remove"].delta == 2e-5
    )
    assert site.spent(fingerprint_records(site.key, X + 1, Y, "three")) == {}


def test_the_same_file_counts_as_the_same_records_however_it_is_preprocessed(site, tmp_path):
    np.savez(tmp_path / "data.npz", x=X)
    site.reserve(request("a", 1.0), fingerprint_records(site.key, X, Y, str(tmp_path / "data.npz")), 0)
    (tmp_path / "copy.npz").write_bytes((tmp_path / "data.npz").read_bytes())
    scaled = fingerprint_records(site.key, 2 * X, Y, str(tmp_path / "copy.npz"))
    assert site.spent(scaled)["add-remove"].epsilon == 1.0


@pytest.mark.parametrize("kind", ["float64", "float32", "csv", "order"])
def test_records_are_recognised_in_another_file(site, tmp_path, kind):
    x = X.astype(np.float32)
    first = fingerprint_records(site.key, x, Y, "first")
    order = GENERATOR.permutation(40) if kind == "order" else np.arange(40)
    if kind == "csv":
        lines = [",".join([*(repr(float(v)) for v in row), str(y)]) for row, y in zip(x, Y, strict=True)]
        (tmp_path / "data.csv").write_text("\n".join(["a,b,c,d,e,label", *lines]) + "\n")
        columns = np.loadtxt(tmp_path / "data.csv", delimiter=",", skiprows=1)
        second = fingerprint_records(site.key, columns[:, :5], columns[:, 5], str(tmp_path / "data.csv"))
    else:
        place = tmp_path / "data.npz"
        inputs = x[order].astype("float64" if kind == "float64" else "float32")
        np.savez(place, train_inputs=inputs, train_labels=Y[order])
        second = fingerprint_records(site.key, *data.load(str(place)).train(), str(place))
    assert second.records == first.records and len(first.records) == 40


def test_a_limit_refuses_new_runs_and_lets_reserved_runs_continue(site):
    site.set_limit(SiteLimit(epsilon=2.5))
    assert site.reserve(request("a", 1.5), records(site), 0) == 1.5
    with pytest.raises(BudgetError, match=r"within the site's 2.5, got 3: 1 earlier runs"):
        site.reserve(request("b", 1.5), records(site, slice(0, 5), "two"), 0)
    assert len(site.runs()) == 1
    site.reserve(request("b", 1.0), records(site, slice(0, 5), "two"), 0)
    site.set_limit(SiteLimit(epsilon=0.1))
    assert site.reserve(request("a", 1.5), records(site), 7) == 1.5  # started again: it keeps its reservation
    with pytest.raises(BudgetError):
        site.reserve(request("c", 0.2), fingerprint_records(site.key, X + 9, Y, "new"), 0)
    site.set_limit(SiteLimit(delta=2.5e-5))
    with pytest.raises(BudgetError, match="delta of all runs"):
        site.reserve(request("c", 0.2), records(site, slice(0, 5), "two"), 0)
    site.set_limit(SiteLimit())
    site.reserve(request("c", 99.0), records(site), 0)


def test_only_a_finalised_run_frees_a_part_of_its_reservation(site):
    site.reserve(request("a", 3.0), records(site), 0)
    site.reserve(request("a", 3.0, spent=1.0), records(site), 5)  # killed and started again: counted once
    assert site.spent()["add-remove"].epsilon == 3.0
    assert site.finalize("a", 1.25, 9) == 1 and site.spent()["add-remove"].epsilon == 1.25
    assert site.reserve(request("a", 3.0, spent=1.25), records(site), 9) == 1.25  # final stays final
    site.raise_reservation("a", 1.5)
    site.raise_reservation("a", 1.0)
    assert site.spent()["add-remove"].epsilon == 1.5
    site.reserve(request("new state folder", 3.0), records(site), 0)
    assert site.spent()["add-remove"].epsilon == 4.5
    with pytest.raises(TrustError, match="at least 9 charges"):
        site.reserve(request("a", 3.0), records(site), 4)


def test_other_records_in_the_same_ledger_count_as_another_run(site):
    site.reserve(request("a", 3.0), records(site, slice(0, 20)), 0)
    site.reserve(request("a", 3.0), records(site, slice(20, 40), "two"), 3)
    assert site.spent(records(site, slice(20, 40), "three"))["add-remove"].epsilon == 3.0
    assert site.finalize("a", 2.0, 9) == 2 and site.spent()["add-remove"].epsilon == 2.0


def test_runs_under_different_adjacencies_add_up_under_replace_one(site):
    site.reserve(request("a", 1.0, "add-remove", 1e-5), records(site, slice(0, 20)), 0)
    site.reserve(request("b", 0.5, "replace-one", 1e-5), records(site, slice(0, 10), "two"), 0)
    spent = site.spent()
    assert spent["mixed"].epsilon == 2.5 and spent["mixed"].delta == pytest.approx(1e-5 * (2 + math.e))
    assert spent["add-remove"].epsilon == 1.0  # records that were only in the first run
    site.set_limit(SiteLimit(epsilon=2.7))
    with pytest.raises(BudgetError, match=r"got 3\.5"):  # 2·1 + 0.5 + 2·0.5
        site.reserve(request("c", 0.5, "add-remove"), records(site, slice(0, 1), "three"), 0)
    with pytest.raises(BudgetError, match=r"got 2\.8"):
        site.reserve(request("c", 0.8, "replace-one"), records(site, slice(15, 20), "three"), 0)


def test_a_run_with_infinite_epsilon_makes_the_sum_infinite(site):
    site.reserve(request("a", math.inf), records(site), 0)
    assert site.spent()["add-remove"].epsilon == math.inf and site.runs()[0]["epsilon"] is None
    site.set_limit(SiteLimit(epsilon=100.0))
    with pytest.raises(BudgetError, match="got inf"):
        site.reserve(request("b", 0.1), records(site), 0)


def test_concurrent_reservations_stay_within_the_limit(tmp_path):
    first = SiteBudget(tmp_path)
    first.set_limit(SiteLimit(epsilon=1.0))
    data_set, refused, start = records(first), [], threading.Barrier(6)

    def enter(name):
        own = SiteBudget(tmp_path)
        start.wait()
        try:
            own.reserve(request(name, 0.4), data_set, 0)
        except BudgetError:
            refused.append(name)
        own.close()

    threads = [threading.Thread(target=enter, args=(str(i),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 4 and first.spent()["add-remove"].epsilon == 0.8
    first.close()


def test_a_crash_during_a_reservation_leaves_no_entry(site, monkeypatch):
    monkeypatch.setattr(site, "_expect_within_limit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        site.reserve(request("a", 1.0), records(site), 0)
    again = SiteBudget(site.folder)
    assert again.runs() == [] and again.spent() == {}
    again.close()


def test_missing_budgets_invalid_limits_and_other_versions_are_reported(site, tmp_path):
    with pytest.raises(LedgerError, match="there is none"):
        SiteBudget(tmp_path / "nowhere", writable=False)
    with pytest.raises(LedgerError, match="expected a finite number"):
        site.set_limit(SiteLimit(epsilon=math.nan))
    db = sqlite3.connect(tmp_path / SITE_BUDGET_FILE)
    db.execute("UPDATE meta SET value = '3' WHERE key = 'format'")
    db.commit()
    db.close()
    with pytest.raises(LedgerError, match="another version"):
        SiteBudget(tmp_path)


def test_a_data_set_is_hashed_once_however_many_records_it_has(site, monkeypatch):
    """The hash takes time in proportion to the size: one for each record of a large set would take hours."""
    mine, named = records(site), []
    monkeypatch.setattr(
        "topdp.agents.ledger.record_fingerprints.hashlib.sha256",
        lambda data: named.append(data) or sha256(data),
    )
    site.reserve(request(), mine, 0)
    site.spent(mine)
    assert len(named) == 1


def test_a_flipped_byte_raises_an_error_of_topdp_or_leaves_the_file_readable(site, tmp_path):
    site.reserve(request("a", 1.0), records(site), 0)
    site.set_limit(SiteLimit(5.0, 1e-3))
    site.close()
    whole, chance, damaged = (site.folder / SITE_BUDGET_FILE).read_bytes(), random.Random(0), 0
    one = tmp_path / "one"
    one.mkdir()
    for place in chance.sample([k for k, byte in enumerate(whole) if byte], 300):
        changed = bytearray(whole)
        changed[place] ^= 0x80
        (one / SITE_BUDGET_FILE).write_bytes(changed)
        try:
            with contextlib.closing(SiteBudget(one, writable=False)) as found:
                assert found.runs() and found.spent() is not None and found.limit is not None
        except TopdpError:
            damaged += 1
    assert damaged > 30


# Persons

PERSONS = np.array(["ann", "bob", "ann", "cem"], object)


def test_a_person_is_recognised_whatever_the_records_are(site):
    site.reserve(request("a", 1.0), fingerprint_persons(site.key, PERSONS, "one"), 0)
    site.reserve(request("b", 2.0), fingerprint_persons(site.key, PERSONS[1:2], "two"), 0)
    assert site.unit == "person" and site.spent()["add-remove"].epsilon == 3.0
    alone = {
        name: site.spent(fingerprint_persons(site.key, np.array([name], object), "three"))
        for name in ("ann", "bob", "dan")
    }
    assert alone["ann"]["add-remove"].epsilon == 1.0 and alone["bob"]["add-remove"].epsilon == 3.0
    assert alone["dan"] == {}
    assert [run["records"] for run in site.runs()] == [3, 1]


def test_the_file_contains_no_identifier(site, tmp_path):
    site.reserve(request("a", 1.0), fingerprint_persons(site.key, PERSONS, "one"), 0)
    assert not any(name.encode() in (tmp_path / SITE_BUDGET_FILE).read_bytes() for name in ("ann", "bob"))


@pytest.mark.parametrize("first", ["record", "person"])
def test_runs_with_different_units_are_refused(site, tmp_path, first):
    of_unit = {"record": records(site), "person": fingerprint_persons(site.key, PERSONS, "one")}
    (other,) = set(of_unit) - {first}
    site.reserve(request("a", 1.0), of_unit[first], 0)
    with pytest.raises(LedgerError, match=f'Expected privacy.unit = "{first}".*got "{other}"'):
        site.reserve(request("b", 1.0), of_unit[other], 0)
    assert len(site.runs()) == 1 and SiteBudget(tmp_path, writable=False).unit == first
