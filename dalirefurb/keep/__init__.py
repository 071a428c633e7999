"""What is deterministic, kept for ever, once for all processes of a machine; `Kept` in `kept.py` is the way in."""
