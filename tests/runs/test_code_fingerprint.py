"""The fingerprint of the code: it covers every source file, and different builds of one version share it."""

import sys

from topdp.runs import code_fingerprint as module
from topdp.runs.code_fingerprint import SOURCE, difference, fingerprint


def test_changed_and_new_source_files_change_the_fingerprint(tmp_path, monkeypatch):
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


def test_difference_names_the_package_and_both_versions():
    here = fingerprint()
    assert difference(here, dict(here)) == ""
    assert difference(here, {**here, "scipy": "0.1"}) == f"scipy is 0.1 there, {here['scipy']} here"
    assert "torch is missing there" in difference(here, {k: v for k, v in here.items() if k != "torch"})


def test_builds_for_different_devices_have_the_same_version(monkeypatch):
    monkeypatch.setattr(module, "version", lambda name: "2.13.0+cu126")
    assert module._version("torch") == "2.13.0"


def test_the_fingerprint_covers_the_users_modules(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "mine_of_fingerprint.py").write_text("a = 1")
    one = fingerprint(("mine_of_fingerprint",))
    (tmp_path / "mine_of_fingerprint.py").write_text("a = 2")
    two = fingerprint(("mine_of_fingerprint", "nowhere.at.all"))
    assert difference(one, two).startswith("module mine_of_fingerprint is")
    assert two["module nowhere.at.all"] == "missing"
