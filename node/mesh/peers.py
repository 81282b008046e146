"""The table of neighbours: who may be where, who has been heard, who is silent. Pure; the shell is `mesh.neighbours`.

    hinted   somebody may be there (announced, configured, or has called); nobody has proved it yet, or not any more
    alive    proved who it is, and answers
    suspect  did not answer, or broke the connection: not chosen for what is new
    (gone)   was suspect for long: hinted again, or forgotten

Two kinds of question keep it up to date. A *watch* is always open at every neighbour that is alive: it is answered
after a long while, so that it costs next to nothing, and breaks at once when that process dies. A *probe* is answered
at once: every second while neighbours are in use, which finds those, too, that vanished without a word. Who cannot be
reached is asked again and again, at growing, jittered distances.

Nothing that was only announced can push out who has proved itself, and the table has a bounded size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from node.mesh.sight import Sight

State = Literal["hinted", "alive", "suspect"]
Source = Literal["announced", "configured", "called"]
Change = Literal["found", "back", "suspect", "gone"]

MOST: Final = 64
_IN_USE_S = 10.0  # after the last question who there is
_PROBE_S = 1.0
_PROBES_PER_S = 16.0  # with many neighbours each is asked less often
_FRESH_S = 1.5  # what was heard so lately needs no probe when use begins
_SUSPECT_PROBE_S = 1.0
_GONE_S = 10.0  # of silence
_LEAST_BACKOFF_S, _MOST_BACKOFF_S = 1.0, 30.0
_LEAST_WATCH_S, _MOST_WATCH_S, _WATCH_S_EACH = 20.0, 240.0, 12.0
_ADDRESSES = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where somebody may be. `id` is who is expected there; "" takes any node of the fleet."""

    addresses: tuple[str, ...]
    port: int
    id: str = ""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One that may be asked to do something. `age_s` is how long ago it said what `sight` says."""

    id: str
    url: str
    sight: Sight
    age_s: float
    state: State
    round_trip_s: float


@dataclass(slots=True)
class _Entry:
    key: str
    place: Place
    source: Source
    added: float
    next_probe: float
    state: State = "hinted"
    id: str = ""
    sight: Sight | None = None
    heard: float = -math.inf
    failures: int = 0
    asked: float = -math.inf
    urgent: bool = False
    probing: bool = False
    watching: bool = False
    withdrawn: bool = False
    round_trip_s: float = 0.0
    reason: str = ""


class Table:
    """Belongs to one thread. `draw` gives numbers in [0, 1) for jitter; all times are monotonic seconds."""

    def __init__(self, own_id: str, draw: Callable[[], float], most: int = MOST) -> None:
        self._own_id = own_id
        self._draw = draw
        self._most = most
        self._entries: dict[str, _Entry] = {}
        self._used = -math.inf

    def __len__(self) -> int:
        return len(self._entries)

    def hint(self, key: str, place: Place, source: Source, now: float) -> bool:
        """Somebody may be there; False if there is no room for one more. Says nothing about who is alive."""
        if place.id and place.id == self._own_id:
            return True
        entry = self._entries.get(key)
        if entry is None:
            if not self._make_room(source):
                return False
            self._entries[key] = _Entry(key, place, source, now, next_probe=now)
            return True
        entry.withdrawn = False
        if source == "configured":
            entry.source = source
        new = [address for address in place.addresses if address not in entry.place.addresses]
        if new or place.port != entry.place.port:
            kept = entry.place.addresses[: _ADDRESSES // 2] if entry.state == "alive" else ()
            more = [address for address in place.addresses if address not in kept]
            entry.place = Place((*kept, *more)[:_ADDRESSES], place.port, place.id)
            self._probe_soon(entry, now)
        elif source == "called" and entry.state != "alive":
            self._probe_soon(entry, now)
        return True

    def withdraw(self, key: str, now: float) -> None:
        """It says goodbye, which anybody may have said: it is asked at once, and forgotten if it does not answer."""
        entry = self._entries.get(key)
        if entry is None or entry.source == "configured":
            return
        entry.withdrawn = True
        if entry.state == "hinted":
            del self._entries[key]
        else:
            self._probe_soon(entry, now)

    def forget(self, node_id: str) -> None:
        """Drop a node that is denied."""
        for key in [key for key, entry in self._entries.items() if node_id in (key, entry.id)]:
            del self._entries[key]

    def stir(self, now: float) -> None:
        """The network has changed: everybody is asked at once."""
        for entry in self._entries.values():
            self._probe_soon(entry, now)

    def use(self, now: float) -> bool:
        """Neighbours are being chosen from; what is known of them should be fresh. Whether they were not in use."""
        begins = now - self._used > _IN_USE_S
        if begins:
            for entry in self._entries.values():
                if entry.state == "alive" and now - entry.heard > _FRESH_S:
                    self._probe_soon(entry, now)
        self._used = now
        return begins

    def due(self, now: float) -> list[tuple[str, Place]]:
        """Whom to probe now. Each that is given has to be told of by `heard` or `failed`."""
        found, doubles = [], self._doubles()
        for entry in self._entries.values():
            if not entry.probing and self._when(entry) <= now and entry.key not in doubles:
                entry.probing, entry.asked = True, now
                found.append((entry.key, entry.place))
        return found

    def watches(self) -> list[tuple[str, Place, float]]:
        """Whom to begin to watch, and how long it may be silent. Each that is given ends in `unwatched`."""
        alive = sum(entry.state == "alive" for entry in self._entries.values())
        wait_s = min(max(_LEAST_WATCH_S, alive * _WATCH_S_EACH), _MOST_WATCH_S)
        found, doubles = [], self._doubles()
        for entry in self._entries.values():
            if entry.state == "alive" and not entry.watching and entry.key not in doubles:
                entry.watching = True
                found.append((entry.key, entry.place, wait_s * (0.75 + 0.25 * self._draw())))
        return found

    def next_time(self) -> float:
        """When `due` or `silent` may give something; infinity for never."""
        doubles = self._doubles()
        times = [self._when(e) for e in self._entries.values() if not e.probing and e.key not in doubles]
        times += [entry.heard + _GONE_S for entry in self._entries.values() if entry.state == "suspect"]
        return min(times, default=math.inf)

    def heard(
        self, key: str, node_id: str, sight: Sight, now: float, round_trip_s: float | None = None
    ) -> Change | None:
        """It answered, and proved to be `node_id`. With a round trip it was a probe, else a watch."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if node_id == self._own_id:  # a configured address of this node itself
            entry.probing, entry.urgent, entry.reason = False, False, "it is this node"
            entry.next_probe = now + _MOST_BACKOFF_S
            return None
        before, known = entry.state, entry.sight is not None
        entry.state, entry.id, entry.sight, entry.heard = "alive", node_id, sight, now
        entry.failures, entry.reason, entry.withdrawn, entry.urgent = 0, "", False, False
        if round_trip_s is not None:
            entry.probing = False
            entry.next_probe = now + self._pace()
            smoothed = entry.round_trip_s * 0.8 + round_trip_s * 0.2
            entry.round_trip_s = smoothed if entry.round_trip_s else round_trip_s
        if before == "alive":
            return None
        return "back" if known else "found"

    def failed(self, key: str, now: float, reason: str) -> Change | None:
        """A probe was not answered as it should be."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.probing, entry.urgent, entry.reason = False, False, reason
        entry.failures += 1
        change = self._suspect(entry)
        if entry.state == "suspect":
            entry.next_probe = now + _SUSPECT_PROBE_S * (0.5 + 0.5 * self._draw())
        else:
            backoff = min(_LEAST_BACKOFF_S * 2 ** min(entry.failures - 1, 8), _MOST_BACKOFF_S)
            entry.next_probe = now + backoff * (0.75 + 0.5 * self._draw())
        return change

    def unwatched(self, key: str, now: float, *, broken: str = "") -> Change | None:
        """A watch has ended: it was answered (see `heard`), or it is `broken`, and a probe asks what is wrong."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.watching = False
        return self.doubt(entry.id, now, broken) if broken and entry.state == "alive" else None

    def doubt(self, node_id: str, now: float, reason: str) -> Change | None:
        """It failed somebody who asked it for something: it is suspect until a probe says otherwise."""
        change: Change | None = None
        for entry in self._entries.values():
            if entry.id == node_id and entry.state == "alive":
                entry.reason = reason
                change = self._suspect(entry)
                self._probe_soon(entry, now)
        return change

    def silent(self, now: float) -> list[str]:
        """Whoever has been suspect for long is gone now; gives their ids."""
        gone = []
        for entry in list(self._entries.values()):
            if entry.state == "suspect" and now - entry.heard >= _GONE_S:
                gone.append(entry.id)
                entry.state, entry.failures = "hinted", 1
                if entry.withdrawn or entry.source == "called":
                    del self._entries[entry.key]
        return gone

    def candidates(self, now: float) -> list[Neighbour]:
        """Who may be asked to do something, each once; the caller says `use` besides."""
        found = [neighbour for neighbour in self.known(now) if neighbour.state == "alive"]
        return [neighbour for neighbour in found if not neighbour.sight.draining]

    def known(self, now: float) -> list[Neighbour]:
        """Everybody that has proved itself and is not gone."""
        doubles = self._doubles()
        there = [entry for entry in self._entries.values() if entry.state != "hinted" and entry.key not in doubles]
        return [self._shown(entry, now) for entry in there]

    def unreached(self) -> list[tuple[str, str]]:
        """Places where nobody answers as a neighbour must, and why; those that were not asked yet are left out."""
        return [
            (entry.key, entry.reason) for entry in self._entries.values() if entry.state == "hinted" and entry.reason
        ]

    def key_of(self, node_id: str) -> str | None:
        """Under which key a node is that has proved itself and is not gone."""
        keys = [entry.key for entry in self._entries.values() if entry.id == node_id and entry.state != "hinted"]
        return min(keys, default=None)

    def place(self, key: str) -> Place | None:
        """Where it may be."""
        entry = self._entries.get(key)
        return entry.place if entry else None

    def _shown(self, entry: _Entry, now: float) -> Neighbour:
        assert entry.sight is not None, "only who was heard is shown"
        url = f"https://{entry.id}.mesh:{entry.place.port}"
        return Neighbour(entry.id, url, entry.sight, now - entry.heard, entry.state, entry.round_trip_s)

    def _when(self, entry: _Entry) -> float:
        """When it is to be probed: one that is alive only while neighbours are in use, or when that was asked for."""
        if entry.state == "alive" and not entry.urgent and entry.next_probe > self._used + _IN_USE_S:
            return math.inf
        return entry.next_probe

    def _pace(self) -> float:
        return max(_PROBE_S, len(self._entries) / _PROBES_PER_S) * (0.85 + 0.15 * self._draw())

    def _probe_soon(self, entry: _Entry, now: float) -> None:
        """Now; but who was just asked in vain is not asked more than once a second, whatever is announced."""
        entry.failures, entry.urgent = min(entry.failures, 1), True
        entry.next_probe = now if entry.state == "alive" else max(now, entry.asked + _LEAST_BACKOFF_S)

    def _suspect(self, entry: _Entry) -> Change | None:
        if entry.state != "alive":
            return None
        entry.state = "suspect"
        return "suspect"

    def _doubles(self) -> set[str]:
        """Keys of places whose node is known to be at another place already, which counts."""
        first: dict[str, str] = {}
        for entry in self._entries.values():
            if entry.state == "alive":
                first[entry.id] = min(entry.key, first.get(entry.id, entry.key))
        everybody = self._entries.values()
        return {e.key for e in everybody if first.get(e.id or e.place.id, e.key) != e.key}

    def _make_room(self, source: Source) -> bool:
        if len(self._entries) < self._most:
            return True
        idle = [e for e in self._entries.values() if e.state == "hinted" and e.source == "announced" and not e.probing]
        oldest = min(idle, key=lambda entry: entry.added, default=None)
        if oldest is None or (source == "announced" and oldest.failures == 0):
            return False
        del self._entries[oldest.key]
        return True
