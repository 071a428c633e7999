"""Advice on what to set: measured costs, a model of them, and the choice among all configurations.

measure.py ─▶ costs.py ─▶ model.py ─▶ choice.py ─▶ tune.py ────────▶ report.py
the machine   seconds     images/s    what to take   is it reached?   text, code, JSON, picture
"""

from dalirefurb.engine.diagnosis import Diagnosis as Diagnosis
from dalirefurb.engine.verdict import Verdict as Verdict
