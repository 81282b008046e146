"""Feeding the real graph: what a row gets out does not depend on who is beside it or how its prompt was cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from node.engine import onnx_folder as folders
from node.engine.onnx_session import OnnxSession
from node.errors import EngineFailed
from node.settings import Engine

pytestmark = pytest.mark.onnx

IDS = np.arange(100, 130, dtype=np.int64)[None]


@pytest.fixture(scope="module")
def session(onnx_folder: Path) -> OnnxSession:
    return OnnxSession(folders.read(onnx_folder), Engine(kind="onnx", slots=3, threads=1), 64)


def read(session: OnnxSession, row: int, *cuts: int) -> np.ndarray:
    """Logits after the prompt, fed in pieces that end at `cuts`."""
    at = 0
    for end in (*cuts, IDS.shape[1]):
        fed = session.feed(row, IDS[:, at:end], [end], False)
        at = end
    return fed.logits[0].copy()


def test_a_prompt_may_be_cut_anywhere_into_more_than_one(session: OnnxSession) -> None:
    whole = read(session, 0)
    assert np.array_equal(whole, read(session, 0, 7, 20))
    assert np.array_equal(whole, read(session, 2, 2, 28))


def test_rows_of_other_lengths_beside_it_change_nothing(session: OnnxSession) -> None:
    read(session, 1)
    alone = session.feed(1, np.array([[7]], np.int64), [31], False).logits[0].copy()
    read(session, 1)
    session.feed(0, IDS[:, :5], [5], False)
    session.feed(2, IDS[:, :9], [9], False)
    together = session.feed(0, np.array([[9], [7], [11]], np.int64), [6, 31, 10], False).logits
    assert together.shape[0] == 3
    # Not to the bit: how a product of matrices is divided among threads depends on their number and on its rows.
    assert np.allclose(alone, together[1], rtol=1e-4, atol=1e-3)
    assert alone.argmax() == together[1].argmax()


def test_moved_and_restored_rows_go_on_alike(session: OnnxSession) -> None:
    read(session, 2)
    expected = session.feed(2, np.array([[7]], np.int64), [31], False).logits[0].copy()
    read(session, 2)
    saved = session.rows.save(2, 30)
    session.rows.move(2, 0, 30)
    assert np.array_equal(session.feed(0, np.array([[7]], np.int64), [31], False).logits[0], expected)
    session.rows.restore(1, saved)
    assert np.array_equal(session.feed(1, np.array([[7]], np.int64), [31], False).logits[0], expected)


def test_states_come_only_when_asked(session: OnnxSession) -> None:
    fed = session.feed(0, IDS, [30], True)
    assert fed.states is not None
    assert fed.states.shape == (1, 30, 576)
    assert session.feed(0, IDS, [30], False).states is None


def test_a_failure_of_the_library_is_ours(session: OnnxSession, onnx_folder: Path) -> None:
    broken = OnnxSession(folders.read(onnx_folder), Engine(kind="onnx", slots=1, threads=1), 64)
    with pytest.raises(EngineFailed, match="ONNX Runtime failed"):
        broken.feed(0, IDS, [30, 30, 30], False)  # a mask of three rows for one
