"""Records of a file's slots: what is on the disk is what is in memory."""

from pathlib import Path

import numpy as np
import pytest

from dalirefurb.store.disk.layout import RECORD, RECORD_BYTES, Table, believable, read_table

START, SEED = 4096, 7


@pytest.mark.parametrize("slots", [[5], [900, 1, 301, 0, 300], [0, 256, 513, 514, 999], [998, 999]])
def test_records_near_each_other_and_far_apart_are_written_and_cleared(tmp_path: Path, slots: list[int]) -> None:
    chosen, numbers = np.array(slots), np.arange(len(slots))
    with (tmp_path / "table").open("w+b") as file:
        table = Table(file.fileno(), START, SEED, np.zeros(1000, RECORD))
        table.write()
        shapes = np.stack([numbers + 1, numbers + 2, numbers + 3], axis=1)
        table.set(chosen, (numbers, 2 * numbers), 4096 * numbers, numbers.astype(np.uint64), shapes)
        written = read_table(file.fileno(), START, 1000)
        np.testing.assert_array_equal(written, table.records)
        assert np.flatnonzero(believable(written, SEED)).tolist() == sorted(slots)
        assert not believable(written, SEED + 1).any()
        changed = written[np.full(RECORD_BYTES, chosen[0])]
        np.einsum("ii->i", changed.view(np.uint8).reshape(RECORD_BYTES, RECORD_BYTES))[:] ^= 1  # of each another byte
        assert not believable(changed, SEED).any()
        assert written["version"][chosen].tolist() == (2 * numbers).tolist()
        assert written["shape"][chosen].tolist() == shapes.tolist()
        table.clear(chosen[::2])
        written = read_table(file.fileno(), START, 1000)
        np.testing.assert_array_equal(written, table.records)
        assert np.flatnonzero(believable(written, SEED)).tolist() == sorted(slots[1::2])
