"""Where partially augmented samples wait to be used again."""

from dalirefurb.images import Image
from dalirefurb.store.contract import Lease, Store
from dalirefurb.store.device import DeviceStore
from dalirefurb.store.disk import DiskStore
from dalirefurb.store.memory import MemoryStore
from dalirefurb.store.tiered import Tier, TieredStore

__all__ = ["DeviceStore", "DiskStore", "Image", "Lease", "MemoryStore", "Store", "Tier", "TieredStore"]
