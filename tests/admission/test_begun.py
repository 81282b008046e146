"""A generation that is taken from its source and handed over again: what its reader hears, and where it goes on."""

from __future__ import annotations

from node.admission.begun import Begun
from node.errors import EngineFailed
from node.generation import Event, Failed, Finished, Request, Started, Token

ASKED = Request("a", (1, 2), 9, continued=(5,), ttl_s=3.0)


def begun() -> Begun:
    return Begun(ASKED, lambda event: None)


def heard(one: Begun, *events: Event) -> list[bool]:
    return [one.heard(event) for event in events]


def test_it_goes_on_after_what_it_has_said() -> None:
    one = begun()
    assert heard(one, Started(7), Token(6, b"x"), Token(7, b"y")) == [True, True, True]
    one.away = True
    assert heard(one, Token(8, b"late"), Finished("cancelled", 2, 4)) == [True, False]
    assert one.stopped
    assert one.cancelled == Finished("cancelled", 2, 4)
    again = one.again()
    assert (again.continued, again.ttl_s, again.prompt, again.id) == ((5, 6, 7, 8), None, (1, 2), "a")
    assert (one.away, one.stopped) == (False, False)
    assert heard(one, Started(9), Token(9, b"z"), Finished("stop", 2, 5)) == [False, True, True]


def test_an_end_of_its_own_is_heard_although_it_was_to_leave() -> None:
    for end in (Finished("stop", 2, 4), Failed(EngineFailed("It broke."))):
        one = begun()
        one.away = True
        assert one.heard(end)
        assert not one.stopped


def test_one_that_nobody_took_away_is_cancelled_like_any_other() -> None:
    assert begun().heard(Finished("cancelled", 2, 1))
