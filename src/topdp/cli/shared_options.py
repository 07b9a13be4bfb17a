"""Options and helpers that several commands share.

The name of an option is that of the function parameter, unless the option declares another name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from topdp.errors import Interrupted
from topdp.runs import config
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.other_words import OPTION_KEYS

ConfigFile = Annotated[Path | None, typer.Argument(metavar="CONFIG", help="A TOML file.", show_default=False)]
Target = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG|RUN", help="A TOML file, or the folder of a run.", show_default=False),
]
Preset = Annotated[
    str | None, typer.Option("--preset", help="A shipped configuration; `topdp run --help` lists them.")
]
Lens = Annotated[
    str | None,
    typer.Option(
        "--lens",
        help="With a paper-* preset: the run of the paper's figures under the lens printed, same or honest.",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one key, for example privacy.sigma=0.1. Repeatable."
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="The folder to write; new by default.")
]
Seeds = Annotated[
    int, typer.Option("--seeds", min=1, help="Number of seeds, starting with the configuration's.")
]
START_AGAIN = "the same command, which starts from the beginning, because nothing was stored."
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]


@dataclass(frozen=True, kw_only=True)
class Shortcuts:
    """The values of options that stand for one key each (`OPTION_KEYS`); None: not given."""

    epsilon: float | None
    method: str | None
    data: str | None
    schema: str | None
    model: str | None
    agents: int | None
    topology: str | None
    rounds: int | None
    seed: int | None

    def changes(self, changes: list[str] | None) -> list[str]:
        """Return these values and `changes` as changes of a configuration.

        Raise ConfigError if both set the same key.
        """
        set_keys = {change.partition("=")[0].strip() for change in changes or []}
        values = {name: value for name, value in asdict(self).items() if value is not None}
        for name in values:
            if OPTION_KEYS[name] in set_keys:
                raise ConfigError(
                    f"{OPTION_KEYS[name]}: expected one value, got one from --{name} and one from --set. "
                    "Remove one."
                )
        texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
        shortcuts = [f"{OPTION_KEYS[name]}={text}" for name, text in texts.items()]
        return [*shortcuts, *(changes or [])]


def read_config(
    file: Path | None, preset: str | None, changes: list[str] | None, lens: str | None
) -> RunConfig:
    """Return the configuration in a file or a preset, with changes and the settings of a lens, if any."""
    if lens is None:
        return config.read(file, preset, changes)
    from topdp.experiments.lenses import lens_run

    if file is not None or preset is None:
        raise ConfigError(
            f"--lens: expected a preset of the paper's setting with it, got {file or 'none'}. Use for "
            f"example --preset paper-mnist-sync --lens {lens}."
        )
    return lens_run(preset, lens, changes or [])


@contextmanager
def continue_with(command: str) -> Iterator[None]:
    """If the body is interrupted, raise Interrupted with a message that names the `command` to continue."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as interruption:
        reason = str(interruption).partition(" Continue with")[0] or "Interrupted."
        raise Interrupted(f"{reason} Continue with: {command}") from None


def new_folder(parent: str, config: RunConfig) -> Path:
    """Return a path in `parent` that does not exist. Its name has the data, method, mode and time, and a
    number if that path exists.
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{config.data.name.replace('/', '_')}-{config.method.name}-{config.method.mode}-{stamp}"
    folders = (Path(parent) / f"{name}{f'-{k}' if k > 1 else ''}" for k in count(1))
    return next(folder for folder in folders if not folder.exists())


def expect_new_file(path: Path) -> None:
    """Raise ConfigError if the file of --out exists, because agents may use it."""
    if path.exists():
        raise ConfigError(
            f"--out: expected a new file, but {path} exists, and agents may use it. Name another file."
        )


def expect_nothing_else(option: str, source: str, *others: object) -> None:
    """Raise ConfigError if any of `others` is set with `option`, which takes all settings from `source`."""
    if any(others):
        raise ConfigError(f"{option} takes all settings from the {source}. Remove the other options.")
