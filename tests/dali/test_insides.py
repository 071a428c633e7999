"""DALI's insides: for each use a test, which says in a sentence what the installed version of DALI has changed."""

from __future__ import annotations

import ast
import ctypes
import inspect
import re
import sys
import time
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import nvidia.dali
import pytest
import torch
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline, pipeline_def
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from dalirefurb.dali import insides
from dalirefurb.dali.graph import ENCODED
from dalirefurb.dali.runner import REPLICA_OPTIONS, tensors_of, undecodable
from dalirefurb.dali_iterator import RefurbIterator
from tests.pictures import jpeg, picture
from tests.test_imports import MODULES, imported_by


@contextmanager
def needed(part: str, purpose: str) -> Iterator[None]:
    """Fail with a sentence if a part of DALI is gone, or does something else."""
    try:
        yield
    except Exception as error:
        pytest.fail(
            f"DALI {nvidia.dali.__version__} has changed {part}, which dalirefurb needs to {purpose}: mend "
            f"dalirefurb/dali/insides.py, or keep the bound in pyproject.toml below this version. "
            f"{type(error).__name__}: {error}"
        )


def pipeline_of(*outputs: Any, batch_size: int = 1) -> Pipeline:
    pipeline = Pipeline(batch_size=batch_size, num_threads=2, device_id=None, **REPLICA_OPTIONS)
    pipeline.set_outputs(*outputs)
    pipeline.build()
    return pipeline


def constant() -> Pipeline:
    return pipeline_of(types.Constant(np.zeros(1, np.uint8)))


def test_a_pipelines_random_operators_are_found() -> None:
    drawn = pipeline_of(fn.cast(fn.random.coin_flip(), dtype=types.DALIDataType.UINT8))
    given = pipeline_of(fn.cast(ENCODED.node(), dtype=types.DALIDataType.UINT8))
    with needed("Pipeline._ops, or the schema behind their _op", "refuse recipes whose pixels depend on the batch"):
        name = insides.random_operator(drawn)
        assert name is not None
        assert "CoinFlip" in name
        assert insides.random_operator(given) is None


def threads() -> set[str]:
    return {each.name for each in Path("/proc/self/task").iterdir()}


def test_a_pipeline_that_is_referred_to_can_be_shut_down() -> None:
    before = threads()
    pipeline = constant()
    pipeline.run()
    made = threads() - before
    assert made
    with needed("Pipeline._shutdown", "end a pipeline's threads before what it was fed goes"):
        insides.shut_down(pipeline)
        deadline = time.monotonic() + 600
        while made & threads() and time.monotonic() < deadline:  # The system may take a moment to forget them.
            time.sleep(0.01)
        assert not made & threads(), "its threads are still there"
        insides.shut_down(pipeline)


def test_dalis_threads_are_known_by_their_names() -> None:
    before = threads()
    pipeline = constant()
    pipeline.run()
    made = threads() - before
    with needed("the names of its threads", "tell what a training loop computes from what its loader does"):
        assert made
        for _ in range(500):  # A thread names itself as it begins, which takes a while where cores are busy.
            names = [Path(f"/proc/self/task/{each}/comm").read_text() for each in made]
            if all(name.startswith(insides.THREADS) for name in names):
                break
            time.sleep(0.02)
        else:
            pytest.fail(f"it calls them {names}")
    insides.shut_down(pipeline)


def test_a_forked_child_can_leave_its_parents_pipelines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with needed("Pipeline._pipes", "let a forked child end without waiting for its parent's threads"):
        monkeypatch.setattr(Pipeline, "_pipes", set())
        pipeline = constant()
        assert Pipeline._pipes == {weakref.ref(pipeline)}, "it does not hold weak references to all pipelines"
        references = sys.getrefcount(pipeline)
        insides.abandon_pipelines()
        assert Pipeline._pipes == set()
        assert sys.getrefcount(pipeline) == references + 1, "the pipeline may be shut down when it is collected"
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(pipeline))
        insides.shut_down(pipeline)


class TenSamples:
    batch_size = 4
    rows_per_epoch = 10
    with_indices = False
    drop_last = False
    views = ()
    planner = SimpleNamespace(num_samples=10, batch_size=4, padded=False, shards=1)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return iter([])

    def __len__(self) -> int:
        return 3


def test_the_size_of_an_iterator_and_its_policy_can_be_set() -> None:
    with needed("DALIGenericIterator._size", "tell the size of an epoch as DALI's iterators do"):
        iterator = RefurbIterator(TenSamples())  # type: ignore[arg-type]
        assert iterator.size == 10
        insides.describe(iterator, 11, LastBatchPolicy.DROP)
        assert iterator.size == 11
    with needed("DALIGenericIterator._last_batch_policy", "tell what becomes of a last batch"):
        plain = DALIGenericIterator([constant()], ["data"], auto_reset=True, prepare_first_batch=False)
        assert plain._last_batch_policy is LastBatchPolicy.FILL
        assert iterator._last_batch_policy is LastBatchPolicy.DROP


def test_what_our_iterator_keeps_in_itself_is_nothing_that_dalis_keeps() -> None:
    plain = DALIGenericIterator([constant()], ["data"], auto_reset=True, prepare_first_batch=False)
    (adapter,) = ast.parse(inspect.getsource(RefurbIterator)).body
    ours = {node.attr for node in ast.walk(adapter) if isinstance(node, ast.Attribute) and node.attr.startswith("_")}
    ours = {name for name in ours if not name.startswith("__")}
    assert len(ours) > 2
    with needed("DALIGenericIterator's own attributes", "keep others beside them"):
        shared = ours & {*vars(plain), *dir(plain)}
        assert not shared, f"both keep {sorted(shared)}"


ADDRESS, NUMBER = ctypes.c_uint64, ctypes.c_int32
RUN = ctypes.CFUNCTYPE(None, *[ADDRESS, ADDRESS, ADDRESS, NUMBER] * 2, NUMBER)
SET_UP = ctypes.CFUNCTYPE(None, *[ADDRESS, ADDRESS, NUMBER] * 2, NUMBER)


def array(address: int, shape: tuple[int, ...], dtype: str) -> Any:
    """View what C code points to."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype).reshape(shape)


def test_numbas_operator_takes_addresses_of_functions_and_calls_them_as_we_say() -> None:
    pytest.importorskip("numba")
    seen: dict[str, Any] = {}
    images = [np.arange(2 * columns * 3, dtype=np.uint8).reshape(2, columns, 3) for columns in (4, 5)]

    @SET_UP
    def set_up(out_shapes: int, out_ndims: int, outputs: int, shapes: int, ndims: int, inputs: int, rows: int) -> None:
        seen["set up"] = outputs, inputs, rows, array(out_ndims, (outputs,), "i4"), array(ndims, (inputs,), "i4")
        seen["shape"] = array(array(shapes, (inputs, rows), "i8")[1, 1], (3,), "i8").tolist()
        for each in array(out_shapes, (outputs, rows), "i8")[0]:
            array(each, (1,), "i8")[0] = 1

    @RUN
    def run(
        out: int, out_shapes: int, _: int, outputs: int, given: int, shapes: int, __: int, inputs: int, rows: int
    ) -> None:
        places, sides = array(given, (inputs, rows), "i8"), array(shapes, (inputs, rows), "i8")
        seen["run"] = outputs, inputs, rows
        seen["made"] = [array(each, (1,), "i8").tolist() for each in array(out_shapes, (outputs, rows), "i8")[0]]
        for row, made in enumerate(array(out, (outputs, rows), "i8")[0]):
            number, side = array(places[0, row], (1,), "i8")[0], array(sides[1, row], (3,), "i8")
            array(made, (1,), "u1")[0] = number + array(places[1, row], tuple(side), "u1").max()

    with needed("NumbaFunction._get_run_fn_cpu, _get_setup_fn_cpu or their arguments", "run compiled kernels"):
        pipeline = Pipeline(batch_size=2, num_threads=2, device_id=None, **REPLICA_OPTIONS)
        with pipeline:
            inputs = [
                fn.external_source(name="number", dtype=types.DALIDataType.INT64, ndim=1),
                fn.external_source(name="image", dtype=types.DALIDataType.UINT8, ndim=3),
            ]
            operator = insides.operator_of_addresses()(
                ctypes.cast(run, ctypes.c_void_p).value,
                [types.DALIDataType.UINT8],
                [types.DALIDataType.INT64, types.DALIDataType.UINT8],
                [1],
                [1, 3],
                setup_fn=ctypes.cast(set_up, ctypes.c_void_p).value,
                batch_processing=True,
            )
            # Called with other arguments than these, compiled code would read and write anywhere.
            assert operator._run_fn_sig(batch_processing=True) == insides.run_signature()
            assert operator._setup_fn_sig() == insides.setup_signature()
            pipeline.set_outputs(operator(*inputs))
        pipeline.build()
        pipeline.feed_input("number", [np.array([100]), np.array([200])])
        pipeline.feed_input("image", images)
        pipeline.schedule_run()
        (made,) = pipeline.share_outputs()
        assert [np.asarray(each).tolist() for each in made] == [[123], [229]]
        pipeline.release_outputs()
        outputs, inputs_seen, rows, *ndims = seen["set up"]
        assert (outputs, inputs_seen, rows) == seen["run"] == (1, 2, 2)
        assert [each.tolist() for each in ndims] == [[1], [1, 3]]
        assert (seen["shape"], seen["made"]) == ([2, 5, 3], [[1], [1]])


def dalis_words(node: Any, encoded: Sequence[bytes]) -> str:
    """Let DALI fail on samples; return what it says."""
    pipeline = pipeline_of(node, batch_size=len(encoded))
    pipeline.feed_input("sample", tensors_of([np.frombuffer(sample, np.uint8) for sample in encoded], ENCODED))
    pipeline.schedule_run()
    with pytest.raises(RuntimeError) as caught:
        pipeline.share_outputs()
    return str(caught.value)


@pytest.mark.parametrize("row", [2, 12])
def test_an_errors_text_tells_which_sample_failed_and_why(row: int) -> None:
    good = jpeg(picture(0, height=40, width=50))
    message = dalis_words(fn.decoders.image(ENCODED.node()), [*[good] * row, good[: len(good) // 2]])
    with needed("the wording of its errors", "tell users which file is broken, and why, in a line"):
        assert insides.failed_row(message) == row, message
        assert insides.reason_of(message).startswith(f"Failed to decode sample #{row} :"), message
        assert "pipeline" not in insides.reason_of(message), message
        alone = dalis_words(fn.decoders.image(ENCODED.node()), [good[: len(good) // 2]])
        assert insides.decoding_reason(insides.reason_of(alone)) == "its data are damaged, or end early", alone


def test_samples_that_cannot_be_decoded_are_found_among_others() -> None:
    good, why = jpeg(picture(0, height=40, width=50)), "its data are damaged, or end early"
    files = [good[: len(good) // 2], good, good[: len(good) // 2], good]
    assert [*undecodable([np.frombuffer(file, np.uint8) for file in files])] == [(0, why), (2, why)]


def test_what_a_traced_function_raises_is_found_with_its_lines_and_no_generated_ones() -> None:
    class OwnError(Exception):
        def __init__(self, number: int) -> None:
            super().__init__(f"no {number}")

    def raising() -> Any:
        raise OwnError(7)

    try:
        pipeline_def(enable_conditionals=True)(raising)(batch_size=1, num_threads=1, device_id=None)
    except Exception as error:
        with needed("ag_error_metadata, or where the error behind it is", "show the line of a stage that raises"):
            told = insides.traced(error, "what helps")
            text = "".join(traceback.format_exception(type(told), told, told.__traceback__))
            assert "raise OwnError(7)" in text
            assert "what helps" in text
            assert "_autograph" not in text
            if sys.version_info >= (3, 11):
                assert type(told) is OwnError
                assert str(told) == "no 7"
    else:
        pytest.fail("nothing was raised")


def test_lines_of_the_package_are_left_out_of_a_message_and_others_are_kept() -> None:
    own = f'  File "{insides.__file__}", line 3, in trace  *\n    images = 1\n'
    users = '  File "/of/a/user.py", line 4, in f\n    x\n'
    assert insides.users_lines(f"before\n\n{own}{users}") == f"before\n\n{users}"
    assert insides.users_lines("none") == "none"


def test_no_other_module_uses_what_is_private_to_somebody_else() -> None:
    used = {
        (module, ast.unparse(node))
        for module in MODULES.keys() - {"dali.insides"}
        if re.search(r"\b(nvidia|dali)\b", MODULES[module].read_text())
        and any(name.split(".")[0] in ("nvidia", "dali") for name in imported_by(module))
        for node in ast.walk(ast.parse(MODULES[module].read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and ast.unparse(node) not in ("os._exit", "sys._current_frames")  # They are documented, whatever their names.
    }
    assert not used, (
        f"modules use {sorted(used)}: what is private to DALI is used in dalirefurb.dali.insides alone, with the "
        f"reason and a test"
    )


def test_a_change_of_dalis_is_told_in_a_sentence() -> None:
    sentence = r"DALI \d\S+ has changed Pipeline._pipes, which dalirefurb needs to let go: mend .*no attribute '_gone'"
    with pytest.raises(pytest.fail.Exception, match=sentence), needed("Pipeline._pipes", "let go"):
        Pipeline._gone  # noqa: B018
