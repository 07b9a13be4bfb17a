"""Options that several commands share, and what they do alike. No command is here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from topdp.errors import Interrupted
from topdp.runs import config
from topdp.runs.config import RunConfig

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG]", help="A TOML file.", show_default=False)
]
Target = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG or RUN]", help="A TOML file, or the folder of a run.", show_default=False
    ),
]
Preset = Annotated[
    str | None, typer.Option("--preset", help=f"A shipped configuration: {', '.join(config.presets())}.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key, for example privacy.sigma=0.1."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where the run folder goes.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="So many seeds, from the configuration's own on.")]
BEGINS_ANEW = "the same command, which begins anew: of this one nothing is kept."
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]


@contextmanager
def going_on(how: str) -> Iterator[None]:
    """Ctrl-C inside says how to go on."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stopped:
        said = str(stopped).partition(" Continue with")[0] or "Interrupted."
        raise Interrupted(f"{said} Continue with: {how}") from None


def new_place(folder: str, wanted: RunConfig) -> Path:
    """A folder that nobody named: by data, method and time, with a number where that is not new."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{wanted.data.name.replace('/', '_')}-{wanted.method.name}-{wanted.method.mode}-{stamp}"
    places = (Path(folder) / f"{name}{f'-{k}' if k > 1 else ''}" for k in count(1))
    return next(place for place in places if not place.exists())
