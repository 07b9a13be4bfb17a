"""The fields of the planner's form, and the configuration that follows from submitted values.

Anybody who sees the page can submit values, and a configuration can make topdp read files of this machine.
Therefore only the keys that are named here can be set, and no value of theirs can name a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

import tomli_w

from topdp.data.catalogue import CATALOGUE
from topdp.errors import InputError, TopdpError
from topdp.privacy.answers import GUARANTEES
from topdp.runs import config as configs
from topdp.runs.config import RunConfig, did_you_mean, dotted
from topdp.runs.methods import METHODS
from topdp.runs.planner.plan_traffic import ROW_SIZES
from topdp.runs.planner.setting_answers import PAGE, PlannerQuestion
from topdp.topology import FAMILIES

MAX_VALUE_CHARACTERS = 200


@dataclass(frozen=True)
class Field:
    """One field of the form, for one key.

    `choices`: the possible values; empty for a number. `only`: the field is shown only if another key has one
    of the given values; None: always.
    """

    key: str
    label: str
    help: str = ""
    _: KW_ONLY
    choices: tuple[str, ...] = ()
    only: tuple[str, tuple[str, ...]] | None = None

    @property
    def id(self) -> str:
        return self.key.replace(".", "-")

    @property
    def value(self) -> str:
        """The default value, as text."""
        default = dotted(RunConfig().model_dump())[self.key]
        return "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


_PAIRWISE = tuple(name for name, method in METHODS.items() if "async" in method.modes)
_IN_STEPS = tuple(name for name, method in METHODS.items() if method.noise_kind == "steps")

# The fields of the form, in their order.
FORM_FIELDS = (
    Field("method.name", "Method", choices=tuple(METHODS)),
    Field("method.mode", "Agents act", choices=("sync", "async"), only=("method.name", _PAIRWISE)),
    Field("method.alpha", "α, weight of one's own row", "0 to 1", only=("method.name", _PAIRWISE)),
    Field("method.noise_schedule.factor", "c, noise falls by", "0 to 1", only=("method.name", _IN_STEPS)),
    Field("method.noise_schedule.period", "every so many rounds", only=("method.name", _IN_STEPS)),
    Field("topology.kind", "Graph", choices=tuple(k for k in FAMILIES if k != "file")),
    Field("topology.agents", "Agents", f"2 to {PAGE.agents}"),
    Field("topology.connection", "Share of adjacent pairs", "0 to 1", only=("topology.kind", ("random",))),
    Field("topology.degree", "Neighbours of an agent", only=("topology.kind", ("regular", "small-world"))),
    Field("rounds", "Rounds", f"1 to {PAGE.rounds}"),
    Field("privacy.epsilon", "ε, the budget", "one, or a list: [1, 2, ...]"),
    Field("privacy.delta", "δ", "one, or a list: [1e-5, 1e-6, ...]"),
    Field("privacy.guarantee", "Guarantee", choices=GUARANTEES),
    Field("privacy.colluders", "Colluders", "agents that pool what they see"),
    Field("privacy.clip", "Clip"),
    Field("data.name", "Data", choices=tuple(CATALOGUE)),
    Field("data.records", "Records of an agent", "empty: an equal share of all"),
    Field("model.name", "Model", choices=tuple(ROW_SIZES)),
)

# Keys that a recommendation sets, besides those of the form.
ADVICE_KEYS = ("method.secrets_degree", "method.gossip", "data.features", "train.learning_rate", "train.loss")

FORM_KEYS = (*(field.key for field in FORM_FIELDS), *ADVICE_KEYS)


# The origin of a configuration at the start of an error message, which the page does not need.
_ORIGIN = re.compile(r"^(changes to )?preset [\w-]+: *")


class FormError(InputError):
    """Faults in the submitted values.

    `fields` has the messages about single keys, by key. The message of the error has all others.
    """

    def __init__(self, message: str, fields: Mapping[str, str]) -> None:
        super().__init__(message)
        self.fields = dict(fields)


def question_of(values: Mapping[str, object]) -> PlannerQuestion:
    """Return the question with the submitted values. Raise TopdpError if they are wrong (see `form_error`).

    >>> question_of({"topology.agents": "4", "topology.kind": "ring", "rounds": "2"}).run.graph.agents
    4
    >>> try:
    ...     question_of({"privacy.epsilon": "-1"})
    ... except TopdpError as error:
    ...     form_error(error).fields
    {'privacy.epsilon': 'expected a number > 0 and at most 1e30, or a list with one per agent, got -1.'}
    """
    return PlannerQuestion.of(configuration(values), PAGE)


def configuration(values: Mapping[str, object]) -> RunConfig:
    """Return the default configuration with the submitted values; empty values are ignored.

    Raise FormError for an unknown key or a wrong choice, and ConfigError for another wrong value.
    """
    for key, value in values.items():
        if key not in FORM_KEYS:
            raise FormError(f"{key}: no such key.{did_you_mean(key, list(FORM_KEYS))}", {})
        if not isinstance(value, str) or len(value) > MAX_VALUE_CHARACTERS:
            raise FormError("", {key: f"expected at most {MAX_VALUE_CHARACTERS} characters of text."})
    for field in FORM_FIELDS:  # checked here, because a configuration may have paths in some of these keys
        value = str(values.get(field.key, "")).strip()
        if field.choices and value and value not in field.choices:
            raise FormError("", {field.key: f"got {value!r}.{did_you_mean(value, list(field.choices))}"})
    return configs.read(changes=[f"{key}={value}" for key, value in values.items() if str(value).strip()])


def form_error(error: TopdpError) -> FormError:
    """Return a FormError with the messages of `error` by the keys that they name; a FormError unchanged."""
    if isinstance(error, FormError):
        return error
    fields, unassigned = dict[str, str](), list[str]()
    for line in str(error).splitlines():
        line = _ORIGIN.sub("", line)
        named = re.match(r"\s*([a-z_.]+): (.+)", line)
        if named and named[1] in FORM_KEYS:
            fields[named[1]] = named[2]
        elif line:
            inside = next((key for key in FORM_KEYS if re.search(rf"\b{re.escape(key)}\b", line)), None)
            if inside is None:
                unassigned.append(line.strip())
            else:
                fields[inside] = line.strip()
    return FormError("\n".join(unassigned), fields)


def as_toml(config: RunConfig) -> str:
    """Return the content of a configuration file with the settings that differ from their defaults."""
    return tomli_w.dumps(config.model_dump(exclude_defaults=True, exclude_none=True)) or "# all defaults\n"


def as_command(values: Mapping[str, object]) -> list[str]:
    """Return the submitted values as changes `key=value` for a command line, without defaults."""
    defaults = {field.key: field.value for field in FORM_FIELDS}
    texts = {key: str(value).strip() for key, value in values.items()}
    return [f"{key}={value}" for key, value in texts.items() if value and value != defaults.get(key)]
