"""Where partially augmented samples wait to be used again."""

from dalirefurb.store.contract import Image, Lease, Store
from dalirefurb.store.memory import MemoryStore

__all__ = ["Image", "Lease", "MemoryStore", "Store"]
