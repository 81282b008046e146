from __future__ import annotations

import threading
from pathlib import Path

import pytest

from node.models.lock import held


def never() -> None:
    raise AssertionError("nobody else holds it")


def test_it_goes_when_it_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with held(path, never):
        assert path.exists()
    assert not path.exists()
    with held(path, never):
        pass


def test_it_goes_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with pytest.raises(KeyError), held(path, never):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_a_dead_process_left_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    path.touch()
    with held(path, never):
        pass


def test_whoever_waits_may_give_up(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"

    def give_up() -> None:
        raise TimeoutError

    with held(path, never):
        with pytest.raises(TimeoutError), held(path, give_up):
            pass
        assert path.exists()


def test_only_one_holds_it_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            with held(tmp_path / "a.lock", lambda: None):
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (200, 1)
    assert list(tmp_path.iterdir()) == []


def test_where_no_file_can_be_made_it_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), held(tmp_path / "missing" / "a.lock", never):
        pass
