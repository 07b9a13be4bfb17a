"""Private estimators for scikit-learn: `from topdp.sklearn import PrivateClassifier, PrivateRegressor`.

They need scikit-learn: pip install -c constraints.txt '.[sklearn]'.
"""

from topdp.integrations.private_estimators import PrivateClassifier, PrivateRegressor

__all__ = ["PrivateClassifier", "PrivateRegressor"]
