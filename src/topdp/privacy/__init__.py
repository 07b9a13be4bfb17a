"""How private is a plan? Read from the plan itself, before the first record is.

`account` gives the answers, `calibrate` the least noise that keeps a budget, `spending` what an owner
has spent after each release. Beneath them are three rooms: `basics`, single Gaussian releases and what one
record can change; `observers`, what somebody who reads rows learns (`adaptive`, `view`, `coalitions`,
`worst_case`, `outsider`);
`published`, what the literature asks and claims (`CALIBRATIONS`, `side_by_side`).

Nothing is estimated where no analysis covers a question: that is refused by name, as `NotCovered`.
"""

from topdp.privacy.account import Account, account
from topdp.privacy.answers import ANSWERS, GUARANTEES, Answer, AnswerKind, Status
from topdp.privacy.basics.exposure import Exposure, exposure
from topdp.privacy.basics.gaussian import compose, delta_of, epsilon_of, mu_of, noise_multiplier
from topdp.privacy.basics.refusals import NotCovered, PrivacyError, PrivacyWarning
from topdp.privacy.calibrate import CalibratedNoise, calibrate
from topdp.privacy.observers.adaptive import adaptive, outsider
from topdp.privacy.observers.coalitions import Coalitions, coalitions
from topdp.privacy.observers.view import View, view
from topdp.privacy.observers.worst_case import WorstCase, worst_case
from topdp.privacy.published.calibration import Calibrated, Calibration
from topdp.privacy.published.calibration_table import side_by_side
from topdp.privacy.published.calibrations import CALIBRATIONS
from topdp.privacy.published.claims import Analysis
from topdp.privacy.query import Query
from topdp.privacy.spending import Spending, spending

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
