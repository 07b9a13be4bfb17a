"""Configurations: presets, files, changes by `--set`, errors, and keys with former names."""

import re
import tomllib

import pytest
import tomli_w
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import strategies
from topdp.errors import InputError
from topdp.runs import config
from topdp.runs.config import ConfigError, RunConfig, Section


def test_every_preset_is_valid_and_unchanged_by_toml():
    assert {"default", "paper-mnist-sync", "paper-mnist-async"} < set(config.presets())
    assert {"paper-cifar10-sync", "paper-cifar10-async"} < set(config.presets())
    for name in config.presets():
        read = config.read(preset=name)
        assert config.parse(tomllib.loads(read.to_toml())) == read


def test_changes_are_toml_values_or_bare_words():
    read = config.read(changes=["method.name=plain", "rounds=7", "data.batch={poisson=5}", 'data.name="x=y"'])
    assert (read.method.name, read.rounds, read.data.batch.poisson, read.data.name) == ("plain", 7, 5, "x=y")


def test_changes_override_a_file(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text("rounds = 3\n[method]\nalpha = 0.5\n")
    assert config.read(file, changes=["method.alpha=0.75"]).method.alpha == 0.75
    assert config.read(file).rounds == 3


def test_the_error_states_whether_the_file_or_a_change_is_wrong(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text("rounds = -1\n[method]\nalpha = 0.5\n")
    with pytest.raises(InputError, match=r"^changes to preset default: rounds: "):
        config.read(changes=["rounds=-1"])
    with pytest.raises(InputError, match=f"^{re.escape(str(file))}: rounds: "):
        config.read(file, changes=["method.alpha=0.75"])
    with pytest.raises(InputError, match=f"^{re.escape(str(file))}:\n  rounds: .*\n  method.alpha: "):
        config.read(file, changes=["method.alpha=2"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("method.nam=plain", "Did you mean 'name'?"),
        ("metod.name=plain", "metod.name: no such key. Did you mean 'method.name'?"),
        ("method.name=toop", "Did you mean 'top'?"),
        ("method.alpha=1.5", "less than or equal to 1, got 1.5"),
        ("method.alpha=nan", "method.alpha"),
        ("method.own_share=1.5", "method.own_share: input should be less than or equal to 1, got 1.5"),
        ("method.own_share=-1", "method.own_share: input should be greater than or equal to 0, got -1"),
        (
            "method.noise_schedule={factr=0.5}",
            "method.noise_schedule.factr: no such key. Did you mean 'factor'?",
        ),
        (
            "method.noise_schedule.factor=2",
            "method.noise_schedule.factor: input should be less than or equal to 1, got 2",
        ),
        ("topology.connection=0", "greater than 0, got 0"),
        ("topology.connection=1.01", "topology.connection"),
        ("topology.kind=file", "edge-list"),
        ("rounds=-1", "rounds"),
        ("rounds=2.5", "rounds"),
        ("rounds=" + "9" * 5000, "rounds"),
        ("data.batch=half", "{ cycle = 20 }"),
        ("privacy.sigma=-1", "privacy.sigma"),
        ("privacy.sigma=inf", "privacy.sigma"),
        ("privacy.sigma=1e300", "privacy.sigma"),
        ("privacy.epsilon=0", "privacy.epsilon"),
        ("privacy.delta=1", "privacy.delta"),
        ("privacy.clip=0", "privacy.clip"),
        ("data.sizes=[3, 0]", "data.sizes"),
        (f"seed={2**63}", "seed"),
        ("method.noise_schedule.kind=pwer", "method.noise_schedule.kind: got 'pwer'. Did you mean 'power'?"),
        ("method.noise_schedule.exponent=3", "method.noise_schedule.exponent"),
        ("method.noise_schedule.kind=curvature", 'kind = "curvature" needs curvature = a number > 0'),
        ("method.noise_schedule.curvature=-1", "method.noise_schedule.curvature: expected a number > 0"),
        ("method.noise_schedule.curvature=[]", "method.noise_schedule.curvature: expected a number > 0"),
        (
            "method.decay.period=9",
            "method.decay.period: this key has moved. Use method.noise_schedule.period.",
        ),
        (
            "method.decay={factor=0.8, period=9}",
            "method.decay: this key has moved. Use method.noise_schedule.",
        ),
        ("method.noise_along.kind=power", "Use method.noise_schedule.kind."),
        ("method.decays=true", 'Use method.noise_schedule.kind (true: "steps", false: "constant").'),
        ("privacy.patient=true", "privacy.patient: this key has moved. Use privacy.allow_slow."),
        ("method={noise_schedule={kind='power'}, noise_on='estimate'}", 'use noise_on = "gradient"'),
        ("nonsense", "key=value"),
        ("=3", "key=value"),
    ],
)
def test_errors_for_invalid_settings_state_what_was_expected(change, says):
    with pytest.raises(ConfigError) as error:
        config.read(changes=[change])
    assert says in str(error.value)


def test_all_invalid_settings_are_reported_at_once():
    with pytest.raises(ConfigError) as error:
        config.read(changes=["method.alpha=2", "rounds=-1"])
    assert "method.alpha" in str(error.value) and "rounds" in str(error.value)


def test_unreadable_files_and_unknown_presets_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        config.read(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        config.read(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="Did you mean 'paper-mnist-sync'"):
        config.read(preset="paper-mnist-sink")
    with pytest.raises(ConfigError, match="both"):
        config.read(tmp_path / "bad.toml", preset="default")


def test_budget_and_noise_in_one_source_are_refused_and_the_later_source_counts(tmp_path):
    both = ["privacy.sigma=0.1", "privacy.epsilon=2"]
    with pytest.raises(ConfigError, match=r"--set: expected either privacy\.epsilon.*got both"):
        config.read(changes=both)
    file = tmp_path / "job.toml"
    file.write_text("[privacy]\nsigma = 0.1\nepsilon = 2.0\n")
    with pytest.raises(ConfigError, match=r"job\.toml: expected either .*got both"):
        config.read(file)
    file.write_text("[privacy]\nsigma = 0.1\n")
    assert config.read(file, changes=["privacy.epsilon=2"]).privacy.sigma is None
    file.write_text("[privacy]\nepsilon = 2.0\n")
    read = config.read(file, changes=["privacy.sigma=0.1"])
    assert read.privacy.sigma == 0.1 and "epsilon" not in tomllib.loads(read.to_toml())["privacy"]
    assert config.changed(read.to_toml(), ["privacy.epsilon=3"]).privacy.sigma is None


def test_a_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().rounds = 3


def keys(section, *path):
    """Dotted keys of a section and its subsections, as lists of names."""
    for name, field in section.model_fields.items():
        yield (*path, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from keys(field.annotation, *path, name)


def as_changes(section, *path):
    """The arguments of `--set` that are equivalent to this section."""
    for name, value in section:
        if type(value) is type(section).model_fields[name].annotation and isinstance(value, Section):
            yield from as_changes(value, *path, name)
        elif value is not None and not (name == "epsilon" and section.sigma is not None):
            text = tomli_w.dumps({"x": value.model_dump() if isinstance(value, Section) else value})
            text = "{" + text.removeprefix("[x]").strip() + "}" if text.startswith("[x]") else text[4:]
            yield f"{'.'.join((*path, name))}={text}"


@settings(max_examples=100)
@given(strategies.configurations)
def test_any_configuration_is_unchanged_by_toml(wanted):
    assert config.parse(tomllib.loads(wanted.to_toml())) == wanted


@settings(max_examples=100)
@given(strategies.configurations, st.randoms())
def test_setting_every_key_equals_reading_the_file(wanted, order):
    changes = list(as_changes(wanted))
    assert len(changes) > len(RunConfig.model_fields)
    order.shuffle(changes)
    assert config.read(changes=changes) == wanted


@settings(max_examples=100)
@given(st.sampled_from(list(keys(RunConfig))), st.data())
def test_the_error_for_an_unknown_key_suggests_the_nearest_key(path, data):
    """Keys with one letter more, less or changed, and a word that resembles no key."""
    *sections, name = path
    place, letter = data.draw(st.integers(0, len(name) - 1)), data.draw(st.sampled_from("aeknsxz_"))
    before, at, after = name[:place], name[place], name[place + 1 :]
    near = [before + letter + at + after, before + letter + after, before + after]
    wrong = data.draw(st.sampled_from([*near, "qqqq"]))
    known = [key[-1] for key in keys(RunConfig) if list(key[:-1]) == sections]
    assume(wrong not in known)
    with pytest.raises(InputError) as error:
        config.read(changes=[".".join([*sections, wrong]) + "=1"])
    told, _, meant = str(error.value).removeprefix("changes to preset default: ").partition(": no such key. ")
    assert told == ".".join([*sections, wrong])
    if wrong == "qqqq":
        assert meant == f"Known: {', '.join(known)}."
    else:
        assert meant in [f"Did you mean {key!r}?" for key in known]


@given(st.text(), st.text())
def test_any_change_gives_a_configuration_or_an_input_error(key, value):
    for change in (
        value,
        f"{key}={value}",
        f"data.name={value}",
        f"rounds={value}",
        f"privacy.epsilon={value}",
    ):
        try:
            assert isinstance(config.read(changes=[change]), RunConfig)
        except InputError as error:
            assert str(error)


OLD = {
    "method": {"name": "plain", "decay": {"period": 9}, "noise_along": {"exponent": 0.25}, "decays": True},
    "privacy": {"patient": True},
}


def test_a_stored_configuration_with_former_keys_is_read():
    stored = config.parse_stored(OLD, "config.toml")
    noise = {"kind": "steps", "exponent": 0.25, "period": 9}
    assert stored == config.parse(
        {
            "method": {"name": "plain", "noise_schedule": noise},
            "privacy": {"allow_slow": True, "weights": "equal"},
            "train": {"weighting": "agents"},  # as it was when files had no such key
        }
    )
    assert OLD["method"]["decays"] is True  # the argument is not changed


def test_with_former_keys_renames_every_moved_key():
    stored = config.parse_stored(OLD, "config.toml")
    former = config.with_former_keys(stored.model_dump(exclude_defaults=True))
    along = {"kind": "steps", "exponent": 0.25}
    assert former["method"] == {"name": "plain", "decay": {"period": 9}, "noise_along": along}
    assert former["privacy"] == {"patient": True} and "train" not in former


def test_moved_keys_do_not_exist_and_their_new_names_do():
    known = set(map(".".join, keys(RunConfig)))
    assert not known & set(config.MOVED_KEYS) and set(config.MOVED_KEYS.values()) <= known
