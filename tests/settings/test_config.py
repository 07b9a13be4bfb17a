import tomllib

import pytest

from topdp.settings import config
from topdp.settings.config import ConfigError, RunConfig


def test_every_preset_is_valid_and_survives_toml():
    assert {"default", "paper-mnist-sync", "paper-mnist-async"} < set(config.presets())
    assert {"paper-cifar10-sync", "paper-cifar10-async"} < set(config.presets())
    for name in config.presets():
        read = config.read(preset=name)
        assert config.parse(tomllib.loads(read.to_toml())) == read


def test_changes_are_toml_values_or_bare_words():
    read = config.read(changes=["method.name=plain", "rounds=7", "data.batch={poisson=5}", 'data.name="x=y"'])
    assert (read.method.name, read.rounds, read.data.batch.poisson, read.data.name) == ("plain", 7, 5, "x=y")


def test_a_file_is_read_and_changed(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text("rounds = 3\n[method]\nalpha = 0.5\n")
    assert config.read(file, changes=["method.alpha=0.75"]).method.alpha == 0.75
    assert config.read(file).rounds == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("method.nam=plain", "Did you mean 'name'?"),
        ("metod.name=plain", "Did you mean 'method'?"),
        ("method.name=toop", "Did you mean 'top'?"),
        ("method.alpha=1.5", "less than or equal to 1, got 1.5"),
        ("method.alpha=nan", "method.alpha"),
        ("method.decay={factr=0.5}", "method.decay"),
        ("topology.connection=0", "greater than 0, got 0"),
        ("topology.connection=1.01", "topology.connection"),
        ("topology.kind=file", "edge-list"),
        ("rounds=0", "rounds"),
        ("rounds=2.5", "rounds"),
        ("data.batch=half", "{ cycle = 20 }"),
        ("privacy.sigma=-1", "privacy.sigma"),
        ("privacy.sigma=inf", "privacy.sigma"),
        ("privacy.sigma=1e300", "privacy.sigma"),
        ("privacy.epsilon=0", "privacy.epsilon"),
        ("privacy.delta=1", "privacy.delta"),
        ("privacy.clip=0", "privacy.clip"),
        ("data.sizes=[3, 0]", "data.sizes"),
        (f"seed={2**63}", "seed"),
        ("nonsense", "key=value"),
        ("=3", "key=value"),
    ],
)
def test_bad_settings_say_what_was_expected(change, says):
    with pytest.raises(ConfigError) as error:
        config.read(changes=[change])
    assert says in str(error.value)


def test_all_faults_are_named_at_once():
    with pytest.raises(ConfigError) as error:
        config.read(changes=["method.alpha=2", "rounds=-1"])
    assert "method.alpha" in str(error.value) and "rounds" in str(error.value)


def test_unreadable_files_and_unknown_presets_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        config.read(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        config.read(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="Did you mean 'paper-mnist-sync'"):
        config.read(preset="paper-mnist-sink")
    with pytest.raises(ConfigError, match="both"):
        config.read(tmp_path / "bad.toml", preset="default")


def test_a_configuration_cannot_be_changed_after_it_was_read():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().rounds = 3
