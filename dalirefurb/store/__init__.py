"""Stores, where partially augmented samples wait to be used again."""

from dalirefurb.image_batch import Image as Image
from dalirefurb.store.base import Contents as Contents
from dalirefurb.store.base import Lease as Lease
from dalirefurb.store.base import Store as Store
from dalirefurb.store.compressed import Compressed as Compressed
from dalirefurb.store.device.store import DeviceStore as DeviceStore
from dalirefurb.store.disk.store import DiskStore as DiskStore
from dalirefurb.store.memory import MemoryStore as MemoryStore
from dalirefurb.store.spec import StoreSpec as StoreSpec
from dalirefurb.store.tiered import Tier as Tier
from dalirefurb.store.tiered import TieredStore as TieredStore
