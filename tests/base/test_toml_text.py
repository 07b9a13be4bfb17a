"""Every reader of TOML quickly rejects text that would keep the parser busy for minutes."""

import pytest

from topdp.agents.agreement import identity_card, manifest
from topdp.base import toml_text
from topdp.base.toml_text import MAX_KEY_PARTS, TomlError, parse_toml
from topdp.data.readers.table_schema import read_schema_keys
from topdp.errors import TopdpError

DEEP = "a" + ".a" * 50_000


@pytest.mark.parametrize(
    "text",
    [
        f"{DEEP} = 1",
        f"x = 1\n[{DEEP}]",
        f"[[ {DEEP} ]]",
        f"x = {{ y = 1, {DEEP} = 2 }}",
        f"{DEEP.replace('.', ' . ')} = 1",
        DEEP.replace("a", '"a"') + " = 1",
        DEEP.replace("a", "'a'") + " = 1",
        DEEP.replace("a", r'"\""') + " = 1",
    ],
)
def test_a_key_of_thousands_of_parts_is_refused_before_it_is_parsed(text, monkeypatch):
    monkeypatch.setattr(toml_text.tomllib, "loads", lambda text: pytest.fail("it was parsed"))
    with pytest.raises(TomlError, match=f"at most {MAX_KEY_PARTS} parts"):
        parse_toml(text)


def test_a_text_that_is_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(toml_text, "MAX_TOML_CHARACTERS", 10)
    with pytest.raises(TomlError, match="at most 10 characters, got 11"):
        parse_toml("# 345678901")


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * MAX_KEY_PARTS) + " = 1",
        "rates = [" + ", ".join(["0.125"] * 5000) + "]",
        'words = "' + "A sentence. " * 5000 + '"',
        'path = "' + "/a.b" * 5000 + '"',
        "word = '" + "a" * 500_000 + "'",
        'quotes = "' + r"\"" * 100_000 + '"',
        "# " + "'" * 100_000,
    ],
)
def test_ordinary_texts_are_parsed(text):
    assert isinstance(parse_toml(text), dict)


@pytest.mark.parametrize("bracket", ["[", "{ a = "])
def test_brackets_nested_too_deep_are_refused(bracket):
    with pytest.raises(TomlError, match="too deep"):
        parse_toml("a = " + bracket * 5000)


def test_every_reader_refuses_keys_that_are_too_deep(tmp_path, topdp):
    file = tmp_path / "deep.toml"
    file.write_text(f"{DEEP} = 1\n")
    for read in (identity_card.read_card, manifest.read_manifest, read_schema_keys):
        with pytest.raises(TopdpError, match=f"deep.toml.*[Ee]xpected keys of at most {MAX_KEY_PARTS} parts"):
            read(file)
    done = topdp("run", file)
    assert done.code == 2 and done.err.count("\n") == 1 and f"at most {MAX_KEY_PARTS} parts" in done.err
