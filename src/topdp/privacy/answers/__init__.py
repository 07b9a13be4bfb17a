"""The privacy answers: one object for each answer, in one ordered collection.

    ANSWERS["worst_case"].against(colluders=1)

Configurations use names (`worst-case`), and JSON uses keys (`worst_case`). `answer_kind` accepts both.
"""

from __future__ import annotations

from collections.abc import Collection

from topdp.privacy.answers._adaptive import ADAPTIVE
from topdp.privacy.answers._claimed import CLAIMED
from topdp.privacy.answers._outsider import OUTSIDER
from topdp.privacy.answers._view import VIEW
from topdp.privacy.answers._worst_case import WORST_CASE
from topdp.privacy.answers.answer_kind import NOT_ASKED, Answer, AnswerKind, Status
from topdp.privacy.basics.refusals import PrivacyError

# All answers by JSON key, in the order of JSON and tables.
ANSWERS: dict[str, AnswerKind] = {kind.key: kind for kind in (CLAIMED, VIEW, ADAPTIVE, OUTSIDER, WORST_CASE)}

# The names of the answers that can be a guarantee.
GUARANTEES = tuple(kind.name for kind in ANSWERS.values() if kind.takes_budget)

# The names of the answers that are computed only on request.
ON_REQUEST = tuple(kind.name for kind in ANSWERS.values() if kind.on_request)

# The answers by reliability, the most reliable one first.
BY_RANK = tuple(sorted(ANSWERS.values(), key=lambda kind: kind.rank))

_BY_NAME = {kind.name: kind for kind in ANSWERS.values()}


def answer_kind(name: str) -> AnswerKind:
    """Return the answer with the given name (`worst-case`) or JSON key (`worst_case`).

    Raise PrivacyError if there is none.
    """
    try:
        return ANSWERS.get(name) or _BY_NAME[name]
    except KeyError:
        raise PrivacyError(f"Expected an answer among {', '.join(_BY_NAME)}, got {name!r}.") from None


def proved_kind(kind: AnswerKind | None) -> AnswerKind:
    """Return the answer on which a statement relies: `kind` if it is proved, and otherwise the worst case."""
    return kind if kind is not None and kind.proved else WORST_CASE


def guarantee_kind(name: str) -> AnswerKind:
    """Return the answer with this name; raise PrivacyError unless it can be a guarantee."""
    if name not in GUARANTEES:
        raise PrivacyError(f"Expected guarantee to be one of {', '.join(GUARANTEES)}, got {name!r}.")
    return _BY_NAME[name]


def expect_on_request(names: Collection[str]) -> None:
    """Raise PrivacyError unless all `names` are answers that are computed on request."""
    always = [kind.key for kind in ANSWERS.values() if not kind.on_request]
    for name in names:
        if name not in ON_REQUEST:
            raise PrivacyError(
                f"Expected answers among {', '.join(ON_REQUEST)}, got {name!r}. {' and '.join(always)} are "
                "always computed; remove them."
            )


__all__ = [
    "ADAPTIVE",
    "ANSWERS",
    "BY_RANK",
    "CLAIMED",
    "GUARANTEES",
    "NOT_ASKED",
    "ON_REQUEST",
    "OUTSIDER",
    "VIEW",
    "WORST_CASE",
    "Answer",
    "AnswerKind",
    "Status",
    "answer_kind",
    "expect_on_request",
    "guarantee_kind",
    "proved_kind",
]
