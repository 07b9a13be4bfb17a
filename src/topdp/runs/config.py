"""The configuration of a run: its keys, and functions that read and check them in TOML and `--set`.

A configuration contains only values; `run_outline.py` and `resolve.py` turn them into objects.
"""

from __future__ import annotations

import difflib
import json
import secrets
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticKnownError

from topdp.base import toml_text
from topdp.errors import InputError
from topdp.plan.optimisers import OPTIMISER_KINDS
from topdp.plan.plan import ROUNDED_ROW_TYPES
from topdp.plan.robust_rules import ROBUST_RULES
from topdp.protocols.pair_secrets import Secrets
from topdp.protocols.protocol import Rematch
from topdp.runs.methods import METHODS
from topdp.topology import FAMILIES

# Larger numbers would overflow when they are multiplied by other numbers of a configuration.
Positive = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
AUTO = "auto"
Auto = Literal["auto"]  # topdp chooses a number before the run begins, and writes it to its configuration
# Checks need the whole plan, which takes half a minute and gigabytes for a million rounds.
# 0 rounds are one release with gradients (round 0) and its averaging steps.
Rounds = Annotated[int, Field(ge=0, le=1_000_000)]
LearningRate = Positive | Annotated[list[Positive], Field(min_length=1)]

# Keys that may follow the job (`job_settings.py`). `resolve` puts a number in place of "auto" before other
# code reads these keys, so type checkers see numbers.
if TYPE_CHECKING:
    JobRounds = int
    JobClip = float
    JobLearningRate = float | list[float]
else:
    JobRounds, JobClip, JobLearningRate = Rounds | Auto, Positive | Auto, LearningRate | Auto


PRESETS_FOLDER = Path(__file__).parent / "presets"
GIVEN = "given in Python"  # instead of the name of a data set, model, loss or metric


def is_auto(value: object) -> bool:
    """Return whether the value of a key is still "auto"."""
    return value == AUTO


class ConfigError(InputError):
    """A configuration that cannot be run. The message states what was expected and given, and what to do."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _expect_known(name: str, known: tuple[str, ...]) -> str:
    """Return `name`. Raise the error of pydantic for a `Literal` if `name` is not in `known`.

    `_explain` then suggests the most similar name.
    """
    if name not in known:
        raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, known))})
    return name


def _one_of(known: Iterable[str]) -> AfterValidator:
    """Return a validator for a name in the registry `known`, so that new entries need no change here."""
    return AfterValidator(partial(_expect_known, known=tuple(known)))


class TopologyConfig(Section):
    kind: Annotated[str, _one_of(FAMILIES)] = "random"
    agents: Annotated[int, Field(ge=1)] = 30
    connection: Annotated[float, Field(gt=0, le=1)] = 0.2
    hubs: Count = 2
    attach: Literal["one", "all"] = "one"  # for "star": whether a leaf is adjacent to one hub or to all
    degree: Count = 4
    rewire: Annotated[float, Field(ge=0, le=1)] = 0.1
    path: str | None = None
    weights: Literal["refuse", "ignore"] = "refuse"  # how weights of edges in a file are treated

    @model_validator(mode="before")
    @classmethod
    def _a_path_is_a_file(cls, tree: Any) -> Any:
        """Set kind = "file" if there is a path, also if the path is the value of `kind` ("edges.txt")."""
        if not isinstance(tree, dict):
            return tree
        kind, path = tree.get("kind"), tree.get("path")
        if path is None and isinstance(kind, str) and {".", "/", "\\"} & set(kind):
            return {**tree, "kind": "file", "path": kind}
        return tree if kind is not None or path is None else {**tree, "kind": "file"}

    @model_validator(mode="after")
    def _file_has_path(self) -> TopologyConfig:
        if self.kind == "file" and self.path is None:
            raise ValueError('kind = "file" needs path = "edges.txt", an edge-list file')
        return self


class NoiseScheduleConfig(Section):
    kind: Literal["constant", "power", "curvature", "steps"] | None = None  # None: the method's own
    exponent: Annotated[float, Field(ge=-2, le=2)] = 0.5  # for "power"
    curvature: Positive | Annotated[list[Positive], Field(min_length=1)] | None = None
    factor: Annotated[float, Field(gt=0, le=1)] = 0.9  # for "steps": the noise is multiplied by `factor`
    period: Count = 1000  # for "steps": after every `period` rounds

    @model_validator(mode="after")
    def _curvature_is_stated(self) -> NoiseScheduleConfig:
        if self.kind == "curvature" and self.curvature is None:
            raise ValueError('kind = "curvature" needs curvature = a number > 0 or a list of them')
        return self


class MethodConfig(Section):
    name: Annotated[str, _one_of([AUTO, *METHODS])] = "top-dp"
    mode: Literal["sync", "async"] = "sync"
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.25
    own_share: Annotated[float, Field(ge=0, le=1)] = 1.0  # the least share of own noise in a message
    calibration: Literal["tight", "optimal", "udp", "moments", "advanced", "theorem1"] | None = None
    noise_on: Literal["gradient", "estimate"] = "gradient"
    offline: Annotated[float, Field(ge=0, lt=1)] = 0.1
    rematch: Rematch = "after-new-row"  # for "async": when two agents may be partners again
    secrets: Secrets = "regular"  # which pairs of agents have pair secrets
    secrets_degree: Count | Auto = "auto"  # for "regular": the number of partners of an agent
    pair_noise: NotNegative | Auto = "auto"  # standard deviation of a shared draw, relative to own noise
    gossip: Annotated[int, Field(ge=0)] | Auto = "auto"  # averaging steps between gradients
    chebyshev: bool = True  # whether averaging steps are accelerated
    noise_schedule: NoiseScheduleConfig = NoiseScheduleConfig()

    @model_validator(mode="after")
    def _noise_schedule_fits_its_place(self) -> MethodConfig:
        kind = self.noise_schedule.kind
        if kind in ("power", "curvature") and self.noise_on == "estimate":
            raise ValueError(
                f'noise_schedule.kind = "{kind}" needs noise on gradients; use noise_on = "gradient"'
            )
        return self


def _known_guarantee(name: str) -> str:
    from topdp.privacy.answers import GUARANTEES  # imported here so that other commands start faster

    return _expect_known(name, GUARANTEES)


def _known_answer(name: str) -> str:
    from topdp.privacy.answers import ON_REQUEST

    return _expect_known(name, ON_REQUEST)


OpenShare = Annotated[float, Field(gt=0, lt=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]


class PrivacyConfig(Section):
    epsilon: Positive | list[Positive] = 1.0
    delta: OpenShare | list[OpenShare] = 1e-5
    clip: JobClip = 4.0
    clipping: Literal["flat", "per-layer", "normalised"] = "flat"  # how norms of gradients are bounded
    guarantee: Annotated[str, AfterValidator(_known_guarantee)] = "adaptive"
    answers: list[Annotated[str, AfterValidator(_known_answer)]] = []  # besides that of the guarantee
    colluders: Annotated[int, Field(ge=0)] = 1  # the size of the coalitions to protect against
    adjacency: Literal["add-remove", "replace-one"] = "add-remove"
    sigma: NotNegative | list[NotNegative] | None = None
    # The factor of each agent's gradient. "equal": 1; "auto": less for agents whose budget is smaller.
    weights: Literal["auto", "equal"] | list[PositiveShare] = "auto"
    unit: Literal["record", "person"] = "record"  # whose data an ε protects: one record, or one person's
    sites_per_person: Count = 1  # the most agents that may hold records of one person
    allow_slow: bool = False  # also compute answers that take very long

    @model_validator(mode="after")
    def _sites_have_persons(self) -> PrivacyConfig:
        if self.sites_per_person > 1 and self.unit != "person":
            raise ValueError('sites_per_person > 1 needs unit = "person"')
        return self


class CycleBatch(Section):
    cycle: Count


class PoissonBatch(Section):
    poisson: Count


# The value of `data.name` if each agent has a file of its own.
SITES = "sites"

# The column or array of person identifiers, unless `data.person` names another.
DEFAULT_PERSON_COLUMN = "person"

with warnings.catch_warnings():
    # pydantic warns because "schema" hides one of its old functions, which topdp does not use.
    warnings.filterwarnings("ignore", 'Field name "schema"', UserWarning)

    class DataConfig(Section):
        name: str = "mnist"
        sites: Annotated[list[str], Field(min_length=1)] | None = None  # one file or folder for each agent
        test: str | None = None  # the file of the test records, if the user's own files contain the records
        schema: dict[str, Any] | None = None  # type: ignore[assignment]
        person: Annotated[str, Field(min_length=1)] | None = None  # the column or array of person identifiers
        partition: Literal["iid", "dirichlet", "label", "sizes"] = "iid"
        concentration: Positive = 0.5
        labels_per_agent: Count = 2
        sizes: list[Count] | list[Positive] | None = None  # per agent: counts, or fractions of all records
        batch: Literal["full"] | CycleBatch | PoissonBatch = "full"
        records: Count | None = None
        validation: Annotated[float, Field(gt=0, lt=1)] | None = None  # fraction held out as test records
        public_test: bool = False  # the test records are public, so that `topdp plan` may train on them
        features: Literal["none", "scattering", "given"] = "none"  # given: a Python function
        feature_groups: Count = 27  # the number of groups of channels that are normalised together
        # private: a share of the budget is spent on means and variances of the inputs before training
        standardise: Literal["none", "private"] = "none"
        standardise_share: OpenShare = 0.1  # of μ²
        standardise_norm: Positive | None = None  # the largest norm of a record's inputs; None: by a rule

        @model_validator(mode="before")
        @classmethod
        def _sites_have_a_name(cls, tree: Any) -> Any:
            return {"name": SITES, **tree} if isinstance(tree, dict) and tree.get("sites") else tree

        @model_validator(mode="after")
        def _sites_are_the_partition(self) -> DataConfig:
            if self.sites is not None and self.name != SITES:
                raise ValueError("expected either data.name or data.sites, got both: remove one")
            return self


def _known_alias(loss: Any) -> Any:
    return "cross-entropy" if loss == "cross_entropy" else loss


class ModelConfig(Section):
    name: str = "mlp"


class TrainConfig(Section):
    loss: Annotated[
        Literal["cross-entropy", "mse", "huber", "bce", "linear", "given in Python"],
        BeforeValidator(_known_alias),
    ] = "cross-entropy"
    metrics: list[str] | None = None  # None: the usual metrics for the loss
    weighting: Literal["records", "agents"] = "records"  # what counts the same in the average of all agents
    learning_rate: JobLearningRate = 0.5  # a list: one per round
    fading: Literal["none", "linear", "cosine", "sqrt-epoch", "step"] = "linear"
    fading_factor: Annotated[float, Field(gt=0, le=1)] = 0.5  # for "step": the factor on the learning rate
    fading_period: Count | None = None  # for "step": the rounds between factors; None: a third of all rounds
    warmup: Annotated[int, Field(ge=0)] = 0  # the number of rounds in which the learning rate increases
    rounds_per_epoch: Count | None = None
    optimiser: Annotated[str, _one_of(OPTIMISER_KINDS)] = "sgd"  # applied after the noise
    momentum: Share = 0.9  # of momentum and nesterov; for Adam, the decay of the first moment
    second_moment: Share = 0.999  # for Adam, the decay of the second moment
    floor: Positive = 1e-8  # for Adam, the number that is added to the root
    weight_decay: NotNegative = 0.0
    average: Share = 0.0  # weight of earlier estimates in the reported average of estimates; 0: no average
    # The number format of rows; "model": that of the model's parameters.
    rows: Annotated[str, _one_of(["model", *ROUNDED_ROW_TYPES])] = "model"
    evaluate_every: Count = 10
    checkpoint_every: Count = 100


class RobustConfig(Section):
    rule: Annotated[str, _one_of(["mean", *ROBUST_RULES])] = "mean"  # how received rows are mixed
    hostile: Count = 1  # the largest number of hostile rows among the rows that an agent mixes
    radius: Positive | Auto = "auto"  # for "clipped"; auto: from the distances of the received rows

    @model_validator(mode="after")
    def _a_radius_clips(self) -> RobustConfig:
        if self.radius != "auto" and self.rule != "clipped":
            raise ValueError(f'radius needs rule = "clipped", got rule = "{self.rule}"')
        return self


class AttackConfig(Section):
    name: Literal["none", "sign-flip", "large-norm", "drift", "label-flip", "a-little", "random"] = "none"
    share: Annotated[float, Field(ge=0, lt=1)] = 0.2  # the fraction of agents that are hostile
    strength: NotNegative | None = None  # None: the usual strength of the attack
    agents: list[Annotated[int, Field(ge=0)]] | None = None  # the hostile agents; None: chosen by the seed


class ReportConfig(Section):
    sinks: list[Literal["tensorboard", "mlflow", "wandb"]] = []  # services that receive the metrics as well


RANDOM_SEED = "random"
REDRAWABLE_NOISE = (
    "The noise of this run follows from a noise seed that its configuration states, so anyone can draw it "
    "again and subtract it. Its ε holds for a simulation only, and protects no record."
)


def _drawn_seed(seed: Any) -> Any:
    return secrets.randbelow(2**31) if seed == RANDOM_SEED else seed


Seed = Annotated[int, Field(ge=0, lt=2**63)]


class RunConfig(Section):
    """All settings of a run. The `seed` determines everything but noise and Poisson batches, and is public.

    Two runs with equal settings differ by their noise, unless they have a `noise_seed`: then they give the
    same numbers on the same device, and their ε holds for a simulation only (`redrawable_noise`).
    """

    seed: Annotated[Seed, BeforeValidator(_drawn_seed)] = 0  # "random": drawn when the configuration is read
    noise_seed: Seed | None = None  # None: the noise key is new, and secret
    rounds: JobRounds = 150
    topology: TopologyConfig = TopologyConfig()
    method: MethodConfig = MethodConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    robust: RobustConfig = RobustConfig()
    attack: AttackConfig = AttackConfig()
    report: ReportConfig = ReportConfig()

    @model_validator(mode="before")
    @classmethod
    def _sites_are_agents(cls, tree: Any) -> Any:
        """Set the number of agents to that of the sites, unless it is given or a file has the graph."""
        if not isinstance(tree, dict):
            return tree
        data, graph = tree.get("data"), tree.get("topology", {})
        sites = data.get("sites") if isinstance(data, dict) else None
        if not isinstance(sites, list) or not isinstance(graph, dict) or {"agents", "path"} & graph.keys():
            return tree
        return {**tree, "topology": {**graph, "agents": len(sites)}}

    @property
    def person_column(self) -> str | None:
        """The column or array with the person of each record; None if the unit is the record."""
        if self.privacy.unit != "person":
            return None
        return self.data.person or DEFAULT_PERSON_COLUMN

    @property
    def redrawable_noise(self) -> str | None:
        """What a noise seed means for the guarantees of the run; None if its noise is secret."""
        return None if self.noise_seed is None else REDRAWABLE_NOISE

    @property
    def started_from_python(self) -> bool:
        """Whether data and model are those of `topdp.train`, which a run folder does not contain."""
        return GIVEN in (self.data.name, self.model.name)

    def to_toml(self) -> str:
        tree = self.model_dump(exclude_none=True)
        if self.privacy.sigma is not None:
            del tree["privacy"]["epsilon"]  # it has no effect
        return tomli_w.dumps(tree)


def dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested mapping by their dotted keys, as in --set.

    >>> dotted({"rounds": 5, "data": {"batch": {"cycle": 20}}})
    {'rounds': 5, 'data.batch.cycle': 20}
    """
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return values


def presets() -> list[str]:
    """Return the names of the configurations that ship with topdp."""
    return sorted(file.stem for file in PRESETS_FOLDER.glob("*.toml"))


def read(path: Path | None = None, preset: str | None = None, changes: list[str] | None = None) -> RunConfig:
    """Return the configuration in a file or a preset (`default` if neither), with `key=value` changes.

    Raise ConfigError for a configuration that cannot be read or is wrong.
    """
    if path is not None and preset is not None:
        raise ConfigError("Expected either a configuration file or --preset, got both. Remove one.")
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8-sig")  # some editors write a byte-order mark first
        except OSError as error:
            raise ConfigError(f"Expected a TOML file, could not read {path}: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"Expected TOML in UTF-8 in {path}, got other bytes: {error}. Save the file as UTF-8."
            ) from error
        origin = str(path)
    else:
        name = "default" if preset is None else preset
        if name not in presets():
            raise ConfigError(f"Expected a preset, got {name!r}.{did_you_mean(name, presets())}")
        text = (PRESETS_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
        origin = f"preset {name}"
    try:
        tree = toml_text.parse_toml(text)
    except ValueError as error:  # also for a number with thousands of digits
        raise ConfigError(f"Expected TOML in {origin}, could not read it: {error}.") from error
    _expect_budget_or_noise(tree.get("privacy"), origin)
    _apply_all(tree, changes or [])
    _read_schema_file(tree)
    return parse(tree, origin, changes or [])


def changed(text: str, changes: list[str]) -> RunConfig:
    """Return the configuration in a TOML text, with `key=value` changes."""
    tree = toml_text.parse_toml(text)
    _apply_all(tree, changes)
    return parse(tree, ", ".join(changes))


def parse(tree: dict[str, Any], origin: str = "configuration", changes: Sequence[str] = ()) -> RunConfig:
    """Return the configuration with the values in `tree`. Raise one ConfigError that names all faults.

    `origin` and `changes`: where the values come from, for the message; `changes` are applied already.
    """
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        faults = dict.fromkeys(_explain(fault, tree) for fault in error.errors())
        set_keys = [change.partition("=")[0].strip() for change in changes]
        if all(_is_set(fault["loc"], set_keys) for fault in error.errors()):
            origin = f"changes to {origin}"
        lines = "".join(f"\n  {fault}" for fault in faults) if len(faults) > 1 else f" {next(iter(faults))}"
        raise ConfigError(f"{origin}:{lines}") from None


def _is_set(parts: Sequence[str | int], set_keys: Sequence[str]) -> bool:
    """Return whether one of `set_keys` is the key with these parts, or a section of it, or a key in it."""
    key = ".".join(map(str, parts))
    return any(f"{key}.".startswith(f"{each}.") or f"{each}.".startswith(f"{key}.") for each in set_keys)


# Keys and sections of earlier versions, and their present names.
MOVED_KEYS = {
    "method.decay": "method.noise_schedule",
    "method.decays": "method.noise_schedule.kind",
    "method.noise_along": "method.noise_schedule",
    "privacy.patient": "privacy.allow_slow",
}
MOVED_VALUES = {"method.decays": {True: "steps", False: "constant"}}


def parse_stored(tree: dict[str, Any], origin: str) -> RunConfig:
    """Return the configuration in a file that topdp wrote, with the meaning that it had when it was written.

    `MOVED_KEYS` get their present names. A key that is missing because it is newer gets the value that has
    the former effect.
    """
    tree = {name: dict(part) if isinstance(part, dict) else part for name, part in tree.items()}
    for old, new in MOVED_KEYS.items():
        section, key = old.split(".")
        part = tree.get(section)
        if isinstance(part, dict) and key in part:
            value = part.pop(key)
            value = MOVED_VALUES[old].get(value, value) if old in MOVED_VALUES else value
            _merge(tree, new.split("."), value)
    method = tree.get("method")
    if isinstance(method, dict) and method.get("mode") == "async":
        method.setdefault("rematch", "next-round")
    if isinstance(train := tree.setdefault("train", {}), dict) and "weighting" not in train:
        train["weighting"] = "agents"
        if isinstance(privacy := tree.setdefault("privacy", {}), dict):
            privacy.setdefault("weights", "equal")
    return parse(tree, origin)


def with_former_keys(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a dump of a configuration with the keys of version 0.1.

    Stored digests of configurations are digests of such dumps.
    """
    tree = {name: dict(part) if isinstance(part, dict) else part for name, part in tree.items()}
    if noise := tree.get("method", {}).pop("noise_schedule", None):
        decay = {key: noise[key] for key in ("factor", "period") if key in noise}
        along = {key: value for key, value in noise.items() if key not in decay}
        tree["method"] |= ({"decay": decay} if decay else {}) | ({"noise_along": along} if along else {})
    if "allow_slow" in tree.get("privacy", {}):
        tree["privacy"]["patient"] = tree["privacy"].pop("allow_slow")
    # What version 0.1 did had no key.
    for section, key, value in (
        ("train", "weighting", "agents"),
        ("privacy", "weights", "equal"),
        ("privacy", "unit", "record"),
        ("privacy", "sites_per_person", 1),
    ):
        if tree.get(section, {}).get(key) == value:
            del tree[section][key]
    return {name: part for name, part in tree.items() if part != {}}


def _merge(tree: dict[str, Any], path: list[str], value: Any) -> None:
    *sections, last = path
    for section in sections:
        tree[section] = tree = dict(tree.get(section, {}))
    tree[last] = {**tree.get(last, {}), **value} if isinstance(value, dict) else value


def _moved_to(key: str) -> str:
    """Return the present name of a moved key, with its new values if they differ; empty for other keys."""
    for old, new in MOVED_KEYS.items():
        if f"{key}.".startswith(f"{old}."):
            renamed = new + key.removeprefix(old)
            values = [f"{json.dumps(a)}: {json.dumps(b)}" for a, b in MOVED_VALUES.get(old, {}).items()]
            return renamed + (f" ({', '.join(values)})" if values else "")
    return ""


def _read_schema_file(tree: dict[str, Any]) -> None:
    """Replace the path of a schema by its content, so that run folders and manifests contain the schema."""
    data = tree.get("data")
    if isinstance(data, dict) and isinstance(data.get("schema"), str):
        from topdp.data.readers.table_schema import read_schema_keys

        data["schema"] = read_schema_keys(data["schema"])


def did_you_mean(word: str, known: list[str]) -> str:
    """Return ' Did you mean x?' if a known name x is similar to `word`, and otherwise ' Known: ...'."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known)}."


BUDGET_AND_NOISE = (
    "{origin}: expected either {epsilon}, to which noise is calibrated, or {sigma}, the noise itself, got "
    "both. Remove one."
)


def _expect_budget_or_noise(privacy: Any, origin: str) -> None:
    """Raise ConfigError if keys that one source sets, in the section `privacy`, contain budget and noise."""
    if isinstance(privacy, dict) and {"epsilon", "sigma"} <= privacy.keys():
        keys = {"epsilon": "privacy.epsilon", "sigma": "privacy.sigma"}
        raise ConfigError(BUDGET_AND_NOISE.format(origin=origin, **keys))


def expect_budget_or_noise(changes: Sequence[str], origin: str) -> None:
    """Raise ConfigError if `key=value` changes set both the budget and the noise."""
    keys = [change.partition("=")[0].strip() for change in changes]
    named = [key.removeprefix("privacy.") for key in keys if key.startswith("privacy.")]
    _expect_budget_or_noise(dict.fromkeys(named), origin)


def _apply_all(tree: dict[str, Any], changes: Sequence[str]) -> None:
    """Apply `key=value` changes. A budget replaces the noise in `tree`, and noise replaces the budget."""
    changed_keys: dict[str, Any] = {}
    for change in changes:
        _apply(changed_keys, change)
        _apply(tree, change)
    changed_privacy, privacy = changed_keys.get("privacy"), tree.get("privacy")
    _expect_budget_or_noise(changed_privacy, "--set")
    if isinstance(changed_privacy, dict) and isinstance(privacy, dict):
        if "sigma" in changed_privacy:
            privacy.pop("epsilon", None)
        if "epsilon" in changed_privacy:
            privacy.pop("sigma", None)


def _apply(tree: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"Expected --set key=value, for example privacy.epsilon=2, got {change!r}.")
    try:
        value = toml_text.parse_toml(f"value = {text}")["value"]
    except ValueError:  # not TOML, a number with thousands of digits, or thousands of brackets
        value = text.strip()  # a bare word is a string: --set method.name=plain
    *sections, last = key.strip().split(".")
    for section in sections:
        inner = tree.setdefault(section, {})
        if not isinstance(inner, dict):
            inner = tree[section] = {}
        tree = inner
    tree[last] = value


# Keys with values of several forms, as text, because pydantic reports one error for each form.
KEYS_WITH_FORMS = {
    "seed": 'a whole number from 0 to 2^63 - 1, or "random"',
    "data.batch": '"full", { cycle = 20 } or { poisson = 20 }',
    "rounds": 'a whole number from 0 to 1000000, or "auto"',
    "privacy.clip": 'a number > 0 and at most 1e30, or "auto"',
    "method.secrets_degree": 'a whole number >= 1, or "auto"',
    "method.pair_noise": 'a number from 0 to 1e30, or "auto"',
    "method.gossip": 'a whole number >= 0, or "auto"',
    "robust.radius": 'a number > 0 and at most 1e30, or "auto"',
    "data.sizes": "a list with one number per agent: whole numbers >= 1, or fractions of all records",
    "method.noise_schedule.curvature": "a number > 0 and at most 1e30, or a list of them",
    "train.learning_rate": 'a number > 0 and at most 1e30, a list of them, one for each round, or "auto"',
    "privacy.epsilon": "a number > 0 and at most 1e30, or a list with one per agent",
    "privacy.delta": "a number > 0 and < 1, or a list with one per agent",
    "privacy.sigma": "a number from 0 to 1e30, or a list with one per agent",
    "privacy.weights": '"auto", "equal", or a list with one number > 0 and <= 1 per agent',
}


def _explain(fault: Any, tree: dict[str, Any]) -> str:
    path = [str(part) for part in fault["loc"]]
    key = ".".join(path)
    for union, expected in KEYS_WITH_FORMS.items():
        if f"{key}.".startswith(f"{union}."):  # the rest of `key` names the form that did not fit
            return f"{union}: expected {expected}, got {_shortened(_value_at(tree, union))}."
    if fault["type"] == "extra_forbidden":
        from topdp.runs.other_words import key_hint  # imported here, because only mistakes need it

        path = [*path, *_only_keys(fault["input"])]
        if new := _moved_to(".".join(path)):
            return f"{'.'.join(path)}: this key has moved. Use {new}."
        return f"{'.'.join(path)}: no such key.{key_hint(path[-1]) or _nearest_key(path)}"
    if fault["type"] == "literal_error":
        known = [word.strip(" '") for word in fault["ctx"]["expected"].replace(" or ", ", ").split(",")]
        return f"{key}: got {_shortened(fault['input'])}.{did_you_mean(str(fault['input']), known)}"
    if fault["type"] == "model_type":
        keys = _known_keys(path)
        got = _shortened(fault["input"])
        return f"{key}: expected its keys ({', '.join(keys)}), as {key}.{keys[0]}=..., got {got}."
    message = fault["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    got = "" if fault["type"] == "value_error" else f", got {_shortened(fault['input'])}"
    return f"{key}: {message}{got}."


def _shortened(value: Any) -> str:
    """Return a value as a user would type it, shortened if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with thousands of digits, or deeply nested lists
        text = f"a {type(value).__name__} too long to print"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _value_at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def _only_keys(value: Any) -> list[str]:
    """Return the further parts of a key such as decay.factor, of which pydantic reports only the first."""
    keys = []
    while isinstance(value, dict) and len(value) == 1:
        ((key, value),) = value.items()
        keys.append(str(key))
    return keys


def _nearest_key(path: list[str]) -> str:
    """Return a hint for a wrong key: a similar key of the same section, or of another section, or all keys of
    the section.
    """
    key, every = ".".join(path), _all_keys()
    here = _known_keys(path[:-1])
    if difflib.get_close_matches(path[-1], here, n=1, cutoff=0.6):
        return did_you_mean(path[-1], here)
    elsewhere = (
        [known for known in every if f".{known}".endswith(f".{key}")]
        or (difflib.get_close_matches(key, every, n=1, cutoff=0.8) if not here else [])
        or [known for known in every if known.split(".")[-1] == path[-1]]
    )
    if elsewhere:
        return f" Did you mean {' or '.join(map(repr, elsewhere))}?"
    depth = next(depth for depth in reversed(range(len(path))) if _known_keys(path[:depth]))
    return did_you_mean(path[depth], _known_keys(path[:depth]))


def _all_keys(section: Any = None, before: str = "") -> list[str]:
    """Return every key that has a value instead of further keys, as a dotted name."""
    keys: list[str] = []
    for name, field in (section or RunConfig).model_fields.items():
        inner = _section_of(field.annotation) if f"{before}{name}" not in KEYS_WITH_FORMS else None
        keys += _all_keys(inner, f"{before}{name}.") if inner else [before + name]
    return keys


def _known_keys(path: list[str]) -> list[str]:
    """Return the keys and sections in the section `path`; empty if `path` is not a section."""
    depth, every = len(path), [key.split(".") for key in _all_keys()]
    return list(dict.fromkeys(key[depth] for key in every if key[:depth] == path and len(key) > depth))


def _section_of(annotation: Any) -> Any:
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, Section)), None)
