"""The fingerprint of the code: it covers every source file, and different builds of one version share it."""

import sys

from topdp.runs import code_fingerprint as module
from topdp.runs.code_fingerprint import SOURCE, difference, fingerprint


def test_every_file_of_the_source_counts(tmp_path, monkeypatch):
    (tmp_path / "privacy").mkdir()
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "privacy" / "account.py").write_text("epsilon = 1")
    monkeypatch.setattr(module.topdp, "__file__", str(tmp_path / "__init__.py"))
    made = []
    for change in (None, ("privacy/accounting.py", "epsilon = 2"), ("privacy/more.py", "")):
        if change:
            (tmp_path / change[0]).write_text(change[1])
        made.append(fingerprint()[SOURCE])
    assert len(set(made)) == 3


def test_what_differs_is_named():
    here = fingerprint()
    assert difference(here, dict(here)) == ""
    assert difference(here, {**here, "scipy": "0.1"}) == f"scipy is 0.1 there, {here['scipy']} here"
    assert "torch is missing there" in difference(here, {k: v for k, v in here.items() if k != "torch"})


def test_builds_for_another_device_are_the_same(monkeypatch):
    monkeypatch.setattr(module, "version", lambda name: "2.13.0+cu126")
    assert module._version("torch") == "2.13.0"


def test_a_users_own_module_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "mine_of_fingerprint.py").write_text("a = 1")
    one = fingerprint(("mine_of_fingerprint",))
    (tmp_path / "mine_of_fingerprint.py").write_text("a = 2")
    two = fingerprint(("mine_of_fingerprint", "nowhere.at.all"))
    assert difference(one, two).startswith("module mine_of_fingerprint is")
    assert two["module nowhere.at.all"] == "missing"
