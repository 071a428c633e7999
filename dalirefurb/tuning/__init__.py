"""Advice on what to set: one wing measures what loading costs, the other decides by these costs alone.

turns.py ─▶ measure.py ─▶ costs.py ─▶ model.py ─▶ choice.py ──▶ report.py
loaders     the machine   seconds     images/s    what to take  text, code, JSON, picture

tune.py has one do its work after the other, and loaders that are to be recommended take turns.
"""

from dalirefurb.engine.diagnosis import Diagnosis as Diagnosis
from dalirefurb.engine.stats import Verdict as Verdict
