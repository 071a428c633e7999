"""Stores, where partially augmented samples wait to be used again."""

from dalirefurb.image_batch import Image
from dalirefurb.store.base import Contents, Store
from dalirefurb.store.device.store import DeviceStore
from dalirefurb.store.disk.store import DiskStore
from dalirefurb.store.lease import Lease
from dalirefurb.store.memory.store import MemoryStore
from dalirefurb.store.spec import StoreSpec
from dalirefurb.store.tiered.store import Tier, TieredStore

__all__ = [
    "Contents",
    "DeviceStore",
    "DiskStore",
    "Image",
    "Lease",
    "MemoryStore",
    "Store",
    "StoreSpec",
    "Tier",
    "TieredStore",
]
