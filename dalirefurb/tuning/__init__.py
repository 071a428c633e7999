"""Advice on what to set: measured costs, a model of them, and the choice among all configurations.

measure.py ─▶ costs.py ─▶ model.py ─▶ choice.py ─▶ report.py, picture.py
the machine   seconds     images/s    what to take   text, code, JSON        verify.py: is it reached?
"""

from dalirefurb.engine.diagnosis import Diagnosis as Diagnosis
from dalirefurb.engine.verdict import Verdict as Verdict
