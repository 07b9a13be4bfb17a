"""How private a plan is, computed from the plan itself before any data is read.

`account` computes the answers, `calibrate` the least noise that meets a budget, and `spending` the cost of
each release. They build on four packages. `answers` has one object for each privacy answer. `observers`
computes what an observer of rows learns (`adaptive`, `view`, `coalitions`, `worst_case`, `outsider`).
`published` contains the calibrations of the literature (`CALIBRATIONS`, `side_by_side`). `basics` treats
single Gaussian releases, and how much one record can change.

If no analysis covers a plan, `NotCovered` is raised with the reason. Nothing is estimated instead.
"""

from typing import TYPE_CHECKING

from topdp.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from topdp.privacy.accounting import Account, account
    from topdp.privacy.answers import ANSWERS, GUARANTEES, Answer, AnswerKind, Status
    from topdp.privacy.basics.exposure import Exposure, exposure
    from topdp.privacy.basics.gaussian import compose, delta_of, epsilon_of, mu_of, noise_multiplier
    from topdp.privacy.basics.refusals import NotCovered, PrivacyError, PrivacyWarning
    from topdp.privacy.noise_calibration import CalibratedNoise, calibrate
    from topdp.privacy.observers.adaptive import adaptive, outsider
    from topdp.privacy.observers.coalitions import Coalitions, coalitions
    from topdp.privacy.observers.view import View, view
    from topdp.privacy.observers.worst_case import WorstCase, worst_case
    from topdp.privacy.published.calibration import Calibrated, Calibration
    from topdp.privacy.published.calibrations import CALIBRATIONS, side_by_side
    from topdp.privacy.published.claims import Analysis
    from topdp.privacy.query import Query
    from topdp.privacy.spending_curve import Spending, spending

__all__ = [
    "ANSWERS",
    "CALIBRATIONS",
    "GUARANTEES",
    "Account",
    "Analysis",
    "Answer",
    "AnswerKind",
    "Calibrated",
    "CalibratedNoise",
    "Calibration",
    "Coalitions",
    "Exposure",
    "NotCovered",
    "PrivacyError",
    "PrivacyWarning",
    "Query",
    "Spending",
    "Status",
    "View",
    "WorstCase",
    "account",
    "adaptive",
    "calibrate",
    "coalitions",
    "compose",
    "delta_of",
    "epsilon_of",
    "exposure",
    "mu_of",
    "noise_multiplier",
    "outsider",
    "side_by_side",
    "spending",
    "view",
    "worst_case",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "accounting": ["Account", "account"],
        "answers": ["ANSWERS", "Answer", "AnswerKind", "GUARANTEES", "Status"],
        "basics.exposure": ["Exposure", "exposure"],
        "basics.gaussian": ["compose", "delta_of", "epsilon_of", "mu_of", "noise_multiplier"],
        "basics.refusals": ["NotCovered", "PrivacyError", "PrivacyWarning"],
        "noise_calibration": ["CalibratedNoise", "calibrate"],
        "observers.adaptive": ["adaptive", "outsider"],
        "observers.coalitions": ["Coalitions", "coalitions"],
        "observers.view": ["View", "view"],
        "observers.worst_case": ["WorstCase", "worst_case"],
        "published.calibration": ["Calibrated", "Calibration"],
        "published.calibrations": ["CALIBRATIONS", "side_by_side"],
        "published.claims": ["Analysis"],
        "query": ["Query"],
        "spending_curve": ["Spending", "spending"],
    },
)


def __dir__() -> list[str]:
    return __all__
