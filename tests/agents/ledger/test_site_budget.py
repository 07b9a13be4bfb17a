"""One budget for each record over all federations: found again, added up, never given back by accident."""

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
from topdp.agents.ledger.record_fingerprints import fingerprint_records
from topdp.agents.ledger.site_budget import SITE_BUDGET_FILE, BudgetRequest, SiteBudget, SiteLimit
from topdp.errors import BudgetError, TopdpError, TrustError

GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.normal(size=(40, 5)), np.arange(40) % 3


@pytest.fixture
def book(tmp_path):
    made = SiteBudget(tmp_path)
    yield made
    made.close()


def wanted(ledger_id="a", epsilon=1.0, adjacency="add-remove", delta=1e-5, **more):
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


def records(book, rows=slice(None), source="one"):
    return fingerprint_records(book.key, X[rows], Y[rows], source)


def test_runs_on_the_same_records_add_up_and_others_do_not(book):
    book.reserve(wanted("a", 1.0), records(book, slice(0, 20)), 0)
    book.reserve(wanted("b", 2.0), records(book, slice(10, 40), "two"), 0)  # ten in both
    assert book.spent()["add-remove"].epsilon == 3.0
    assert book.spent(records(book, slice(0, 10), "three"))["add-remove"].epsilon == 1.0
    assert book.spent(records(book, slice(20, 40), "three"))["add-remove"].epsilon == 2.0
    shuffled = records(book, GENERATOR.permutation(40), "three")
    assert (
        book.spent(shuffled)["add-remove"].epsilon == 3.0 and book.spent(shuffled)["add-remove"].delta == 2e-5
    )
    assert book.spent(fingerprint_records(book.key, X + 1, Y, "three")) == {}


def test_the_same_file_is_the_same_records_whatever_is_made_of_it(book, tmp_path):
    np.savez(tmp_path / "data.npz", x=X)
    book.reserve(wanted("a", 1.0), fingerprint_records(book.key, X, Y, str(tmp_path / "data.npz")), 0)
    (tmp_path / "copy.npz").write_bytes((tmp_path / "data.npz").read_bytes())
    scaled = fingerprint_records(book.key, 2 * X, Y, str(tmp_path / "copy.npz"))
    assert book.spent(scaled)["add-remove"].epsilon == 1.0


@pytest.mark.parametrize("kind", ["float64", "float32", "csv", "order"])
def test_records_are_known_again_from_another_file(book, tmp_path, kind):
    x = X.astype(np.float32)
    first = fingerprint_records(book.key, x, Y, "first")
    order = GENERATOR.permutation(40) if kind == "order" else np.arange(40)
    if kind == "csv":
        lines = [",".join([*(repr(float(v)) for v in row), str(y)]) for row, y in zip(x, Y, strict=True)]
        (tmp_path / "data.csv").write_text("\n".join(["a,b,c,d,e,label", *lines]) + "\n")
        columns = np.loadtxt(tmp_path / "data.csv", delimiter=",", skiprows=1)
        second = fingerprint_records(book.key, columns[:, :5], columns[:, 5], str(tmp_path / "data.csv"))
    else:
        place = tmp_path / "data.npz"
        inputs = x[order].astype("float64" if kind == "float64" else "float32")
        np.savez(place, train_inputs=inputs, train_labels=Y[order])
        second = fingerprint_records(book.key, *data.load(str(place)).train(), str(place))
    assert second.records == first.records and len(first.records) == 40


def test_a_limit_refuses_before_and_lets_go_on_who_is_in(book):
    book.set_limit(SiteLimit(epsilon=2.5))
    assert book.reserve(wanted("a", 1.5), records(book), 0) == 1.5
    with pytest.raises(BudgetError, match=r"within the site's 2.5, got 3: 1 earlier runs"):
        book.reserve(wanted("b", 1.5), records(book, slice(0, 5), "two"), 0)
    assert len(book.runs()) == 1
    book.reserve(wanted("b", 1.0), records(book, slice(0, 5), "two"), 0)
    book.set_limit(SiteLimit(epsilon=0.1))
    assert book.reserve(wanted("a", 1.5), records(book), 7) == 1.5  # started again: it has its reservation
    with pytest.raises(BudgetError):
        book.reserve(wanted("c", 0.2), fingerprint_records(book.key, X + 9, Y, "new"), 0)
    book.set_limit(SiteLimit(delta=2.5e-5))
    with pytest.raises(BudgetError, match="delta of all runs"):
        book.reserve(wanted("c", 0.2), records(book, slice(0, 5), "two"), 0)
    book.set_limit(SiteLimit())
    book.reserve(wanted("c", 99.0), records(book), 0)


def test_only_a_final_ledger_gives_back(book):
    book.reserve(wanted("a", 3.0), records(book), 0)
    book.reserve(wanted("a", 3.0, spent=1.0), records(book), 5)  # killed and started again: once
    assert book.spent()["add-remove"].epsilon == 3.0
    assert book.finalize("a", 1.25, 9) == 1 and book.spent()["add-remove"].epsilon == 1.25
    assert book.reserve(wanted("a", 3.0, spent=1.25), records(book), 9) == 1.25  # final stays final
    book.raise_reservation("a", 1.5)
    book.raise_reservation("a", 1.0)
    assert book.spent()["add-remove"].epsilon == 1.5
    book.reserve(wanted("new state folder", 3.0), records(book), 0)
    assert book.spent()["add-remove"].epsilon == 4.5
    with pytest.raises(TrustError, match="at least 9 charges"):
        book.reserve(wanted("a", 3.0), records(book), 4)


def test_other_records_in_the_same_ledger_are_a_run_of_their_own(book):
    book.reserve(wanted("a", 3.0), records(book, slice(0, 20)), 0)
    book.reserve(wanted("a", 3.0), records(book, slice(20, 40), "two"), 3)
    assert book.spent(records(book, slice(20, 40), "three"))["add-remove"].epsilon == 3.0
    assert book.finalize("a", 2.0, 9) == 2 and book.spent()["add-remove"].epsilon == 2.0


def test_both_adjacencies_meet_in_terms_of_replacing(book):
    book.reserve(wanted("a", 1.0, "add-remove", 1e-5), records(book, slice(0, 20)), 0)
    book.reserve(wanted("b", 0.5, "replace-one", 1e-5), records(book, slice(0, 10), "two"), 0)
    spent = book.spent()
    assert spent["mixed"].epsilon == 2.5 and spent["mixed"].delta == pytest.approx(1e-5 * (2 + math.e))
    assert spent["add-remove"].epsilon == 1.0  # records that were in the first run only
    book.set_limit(SiteLimit(epsilon=2.7))
    with pytest.raises(BudgetError, match=r"got 3\.5"):  # 2·1 + 0.5 + 2·0.5
        book.reserve(wanted("c", 0.5, "add-remove"), records(book, slice(0, 1), "three"), 0)
    with pytest.raises(BudgetError, match=r"got 2\.8"):
        book.reserve(wanted("c", 0.8, "replace-one"), records(book, slice(15, 20), "three"), 0)


def test_noise_that_can_be_repeated_has_no_finite_sum(book):
    book.reserve(wanted("a", math.inf), records(book), 0)
    assert book.spent()["add-remove"].epsilon == math.inf and book.runs()[0]["epsilon"] is None
    book.set_limit(SiteLimit(epsilon=100.0))
    with pytest.raises(BudgetError, match="got inf"):
        book.reserve(wanted("b", 0.1), records(book), 0)


def test_two_at_once_do_not_both_get_the_last_of_it(tmp_path):
    first = SiteBudget(tmp_path)
    first.set_limit(SiteLimit(epsilon=1.0))
    data_set, refused, start = records(first), [], threading.Barrier(6)

    def enter(name):
        own = SiteBudget(tmp_path)
        start.wait()
        try:
            own.reserve(wanted(name, 0.4), data_set, 0)
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


def test_a_kill_while_it_is_let_in_leaves_nothing_or_all(book, monkeypatch):
    monkeypatch.setattr(book, "_expect_within_limit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        book.reserve(wanted("a", 1.0), records(book), 0)
    again = SiteBudget(book.folder)
    assert again.runs() == [] and again.spent() == {}
    again.close()


def test_a_book_of_another_version_or_none_is_said(book, tmp_path):
    with pytest.raises(LedgerError, match="there is none"):
        SiteBudget(tmp_path / "nowhere", writable=False)
    with pytest.raises(LedgerError, match="expected a finite number"):
        book.set_limit(SiteLimit(epsilon=math.nan))
    db = sqlite3.connect(tmp_path / SITE_BUDGET_FILE)
    db.execute("UPDATE meta SET value = '2' WHERE key = 'format'")
    db.commit()
    db.close()
    with pytest.raises(LedgerError, match="another version"):
        SiteBudget(tmp_path)


def test_a_set_is_named_once_however_many_records_it_has(book, monkeypatch):
    """Naming it takes as long as it is large: once for each record would be hours for a large one."""
    mine, named = records(book), []
    monkeypatch.setattr(
        "topdp.agents.ledger.record_fingerprints.hashlib.sha256",
        lambda data: named.append(data) or sha256(data),
    )
    book.reserve(wanted(), mine, 0)
    book.spent(mine)
    assert len(named) == 1


def test_a_flipped_byte_ends_in_an_error_of_ours_or_in_nothing(book, tmp_path):
    book.reserve(wanted("a", 1.0), records(book), 0)
    book.set_limit(SiteLimit(5.0, 1e-3))
    book.close()
    whole, chance, damaged = (book.folder / SITE_BUDGET_FILE).read_bytes(), random.Random(0), 0
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
