"""Takes this node from profile to profile, as the fleet's rollouts or an operator say.

What may follow on what stands in `rollout`; here is what is done in each state. Every step is on disk before the next
thing is done.

    check      get the profile; is it one, does this machine have what it asks for
    fetch      have the model's file in place; what a bad network does is no failure, only its time runs out
    verify     read the file from end to end
    staged     wait for the window, and for room or a quiet moment
    switch     load, examine, put in charge; until the last moment nothing has changed
    probation  serve and watch; a start in here serves the new profile, if the node has not died too often
    commit     the pointer moves: from here on a start serves the new profile
    rollback   the old profile serves again
    report     somebody is told how it ended

A node without a manager has a loop that sleeps until an operator activates something. Times are seconds of the wall
clock as trust sees it, which never goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from node.errors import Conflict, EngineFailed, NodeError, OperatorError, SettingsError, Unfit
from node.fleet import rollout as machine
from node.fleet.apply import Applier, Damaged
from node.fleet.choice import choose
from node.fleet.directive import Rollout
from node.fleet.examine import Figures
from node.fleet.installed import Ledger, Memory, after
from node.fleet.membership import ALONE, Clock, Manager, Membership, Report
from node.fleet.pauses import Pauses, taken
from node.fleet.profile import Profile
from node.fleet.refusal import UnsignedProfile, UnusableProfile
from node.fleet.rollout import LOCAL, State, Update, Word, step, takes_part, window_open
from node.fleet.slots import Slots, digest_of

log = logging.getLogger(__name__)

_PATIENCE_S = 10.0  # of an operator, while the fleet's repository is looked at
_FRESH_S = 60.0  # for how long it need not be asked again whether a switch is still wanted
_LEAST_FETCH_S = 60.0  # before a fetch is interrupted to look whether it is still wanted

Answer = tuple[Word, str, Mapping[str, str]]


class Updater:
    """`start` it, `stop` it in good order; `activate` is for operators. All is called on the event loop."""

    def __init__(
        self,
        ledger: Ledger,
        slots: Slots,
        applier: Applier,
        clock: Clock,
        former: Callable[[], Profile | None],
        membership: Membership = ALONE,
        manager: Manager | None = None,
        report: Report | None = None,
        fits: Callable[[Profile], None] = lambda profile: None,
        powered: Callable[[], bool] = lambda: True,
    ) -> None:
        """`former` is what a start would serve, were there no update. `fits` raises NodeError where this machine is not
        what a profile asks for; `powered` is no on battery.
        """
        self._ledger, self._slots, self._applier, self._clock = ledger, slots, applier, clock
        self._membership, self._manager, self._report = membership, manager, report
        self._former, self._fits, self._powered = former, fits, powered
        self._looked_at = -math.inf
        self._memory = Memory()
        self._figures = Figures()
        self._served_since = 0.0  # the uptime since which the update's good time is not yet in it
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._waits_for = ""
        self._pauses = Pauses(clock)
        self._has_switched = False  # and could not write it down yet
        self._last: dict[str, object] = {}
        self._do: Mapping[State, Callable[[Update], Awaitable[Answer | None]]] = {
            "check": self._check,
            "fetch": self._fetch,
            "verify": self._verify,
            "staged": self._staged,
            "switch": self._switch,
            "probation": self._probation,
            "commit": self._commit,
            "rollback": self._rollback,
            "report": self._reporting,
        }

    async def start(self) -> None:
        """Take up what a former life left; raises StoreFailed."""
        await self.load()
        self._task = asyncio.create_task(self._run(), name="updater")
        self._task.add_done_callback(_ended)

    async def load(self) -> None:
        """Know what a former life left; raises StoreFailed."""
        self._memory = await self._ledger.load()
        self._served_since = self._clock.uptime()

    async def stop(self) -> None:
        """End in good order: the next start is then no sign of a crash."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        update = self._memory.update
        if update is not None and update.state in ("switch", "probation"):
            try:
                await self._write(replace(self._with_served(update), clean=True))
            except NodeError as error:  # the next start then takes this one for a crash, which it survives
                log.warning("a clean end cannot be noted", extra={"reason": error.message})

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """The profile that serves, and how far an update has come."""
        serving, update = self._applier.serving, self._memory.update
        told: dict[str, Any] = {"profile": serving.name if serving else "none", "state": "idle"}
        if update is not None:
            told |= machine.status_of(update)
            told |= {"waits_for": self._waits_for} if self._waits_for else {}
        if restart := self._applier.needs_restart:
            told["needs_restart_for"] = " ".join(restart)
        return {"update": told | ({"last": self._last} if self._last else {})}

    def wake(self) -> None:
        """Look now: something may have changed. Whoever calls this says nothing else, so anybody may."""
        self._looked_at = -math.inf  # what is under way may be stopped
        self._wake.set()

    async def activate(self, profile: Profile, probation_s: float) -> Mapping[str, Any]:
        """Switch to a profile by an operator's word; raises Conflict while another update is on its way."""
        self._refuse_second()
        async with taken(self._busy, _PATIENCE_S):
            self._refuse_second()
            digest = self._slots.put(profile)
            known = max(self._memory.ended.get(LOCAL, 0), self._memory.denied.get(digest, 0))
            chosen = machine.local(profile.name, digest, known + 1, probation_s)
            await self._write(Update(chosen, "local", self._clock.now()))
        log.info("an operator activates a profile", extra={"profile": profile.name})
        self.wake()
        return self.status()["update"]

    def _refuse_second(self) -> None:
        if self._memory.update is not None:
            state = self._memory.update.state
            raise Conflict(f"An update is on its way ({state}); wait for its end.", retry_after=5)

    async def activate_named(self, model: str, profile: str, probation_s: float) -> Mapping[str, Any]:
        """The same for a model or a profile by its name; see `choice`."""
        chosen = await asyncio.to_thread(choose, model, profile, self._applier.serving, self._applier.terms)
        return await self.activate(chosen, probation_s)

    async def turn(self) -> float:
        """One step of the update on its way, or one look for a new one; gives the seconds until the next."""
        async with self._busy:
            await self._follow_clock()
            update = self._memory.update
            if update is None:
                return await self._look()
            answer = await self._early_end(update)
            if answer is None:
                answer = await self._do[update.state](update)
            if answer is None:
                return self._pauses.within(self._memory.update or update)
            await self._move(update, *answer)
        return 0.0

    # From here on: the loop.

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause = await self.turn()
                self._pauses.smooth()
            except (NodeError, OSError) as error:
                reason = error.message if isinstance(error, NodeError) else str(error)
                log.warning("an update waits", extra={"reason": reason})
                self._waits_for, pause = reason, self._pauses.after_trouble(self._memory.update)
            if pause:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()

    async def _follow_clock(self) -> None:
        """A clock that is set (a machine without one learns the time) makes no update older than it is."""
        set_by, update = self._pauses.set_by(), self._memory.update
        if set_by and update is not None:
            await self._write(replace(update, began=update.began + set_by))

    async def _look(self) -> float:
        """Ask the manager, and begin what this node is to do and has not done."""
        poll_s = self._pauses.jittered(self._membership.poll_s)
        if self._manager is None:
            return poll_s
        found = await self._manager.refresh()
        self._looked_at = self._clock.uptime()
        for rollout in sorted(found.rollouts, key=lambda one: -one.revision):
            if self._wants(rollout):
                await self._write(Update(rollout, "fleet", self._clock.now()))
                log.info("a rollout begins here", extra={"rollout": rollout.name, "revision": rollout.revision})
                return 0.0
        await self._mend(found.rollouts)
        return poll_s

    def _wants(self, rollout: Rollout) -> bool:
        due = self._takes_part(rollout) and rollout.start <= self._clock.now()
        news = rollout.profile_sha256 != self._slots.current
        return due and news and self._memory.wants(rollout)

    async def _mend(self, rollouts: Sequence[Rollout]) -> None:
        """What is committed should serve; where its file was damaged at the start, something else does."""
        committed = self._slots.get(self._slots.current) if self._slots.current else None
        if committed is None and self._manager is not None:
            for rollout in rollouts:
                if rollout.profile_sha256 == self._slots.current:
                    committed = await self._manager.profile(rollout)
                    self._slots.put(committed)
                    break
        if committed is None or self._manager is None or self._applier.is_serving(committed):
            return
        await self._manager.fetch(committed)
        await self._applier.switch(committed)
        log.info("the committed profile serves again", extra={"profile": committed.name})

    async def _early_end(self, update: Update) -> Answer | None:
        """An update that has not touched anything yet ends when its time is over, or when it is not wanted any more."""
        if not update.may_be_dropped:
            return None
        age = self._clock.now() - update.began
        if age > update.rollout.timeout_s:
            return "timed out", f"it was in {update.state} after {age:.0f} s", {"waits_for": self._waits_for}
        return await self._dropped(update, self._membership.poll_s)

    async def _dropped(self, update: Update, fresh_s: float) -> Answer | None:
        """Whether it is not wanted any more, by a look that is no older than that."""
        if update.source != "fleet" or self._manager is None or self._clock.uptime() - self._looked_at < fresh_s:
            return None
        with contextlib.suppress(NodeError):  # the repository cannot be reached: what was wanted still is
            self._looked_at = self._clock.uptime()
            found = await self._manager.refresh()
            if not any(machine.is_same(one, update.rollout) and self._takes_part(one) for one in found.rollouts):
                return "dropped", "the fleet's manager stopped or replaced the rollout", {}
        return None

    def _takes_part(self, rollout: Rollout) -> bool:
        return not rollout.stopped and takes_part(rollout, self._membership.node, self._membership.ring)

    async def _check(self, update: Update) -> Answer | None:
        try:
            profile = await self._profile(update)
        except (UnsignedProfile, UnusableProfile) as error:  # whatever else is wrong may be right at the next try
            return "refused", error.message, {}
        try:
            self._fits(profile)
            await self._applier.settings(profile)
        except SettingsError as error:
            return "refused", error.message, {}
        return "accepted", "", {}

    async def _profile(self, update: Update) -> Profile:
        """From the slots, or else from the manager into them; raises UnusableProfile where it is nobody's."""
        digest = update.rollout.profile_sha256
        if (kept := self._slots.get(digest)) is not None:
            return kept
        if self._manager is None:
            raise UnusableProfile(f"The profile {update.rollout.profile} is not on this node any more.")
        profile = await self._manager.profile(update.rollout)
        if digest_of(profile) != digest:
            raise UnusableProfile(f"The profile {profile.name} is not the one that the rollout chose.")
        self._slots.put(profile)
        return profile

    async def _fetch(self, update: Update) -> Answer | None:
        """Not for longer than until the next look: somebody may drip bytes, and the manager may have stopped it."""
        profile = await self._profile(update)
        if update.source == "fleet" and self._manager is not None:
            left = update.rollout.timeout_s - (self._clock.now() - update.began)
            try:
                async with asyncio.timeout(max(_LEAST_FETCH_S, min(self._membership.poll_s, left))):
                    await self._manager.fetch(profile)
            except TimeoutError:
                self._waits_for = "the rest of its model file"
                return None
        return "fetched", "", {}

    async def _verify(self, update: Update) -> Answer | None:
        profile = await self._profile(update)
        try:
            await self._applier.verify(profile)
        except Damaged as error:
            return "damaged", error.message, {}
        return "verified", "", {}

    async def _staged(self, update: Update) -> Answer | None:
        profile = await self._profile(update)
        self._waits_for = await self._applier.may_switch(profile) if update.source == "fleet" else ""
        if update.source == "fleet" and not window_open(update.rollout, self._clock.minute()):
            self._waits_for = "the maintenance window"
        if update.source == "fleet" and not self._powered():
            self._waits_for = "mains power"
        if self._waits_for:
            return None
        return await self._dropped(update, _FRESH_S) or ("ready", "", {})

    async def _switch(self, update: Update) -> Answer | None:
        profile = await self._profile(update)
        try:
            if not self._has_switched:
                self._figures = await self._applier.switch(profile)
        except Damaged as error:
            return "damaged", error.message, {}
        except Unfit as error:
            return "failed", error.message, error.evidence
        except NodeError as error:
            if error.retryable and error.status == 503:
                self._waits_for = error.message
                return None
            return "broken", error.message, {}
        self._has_switched = True
        self._served_since = self._clock.uptime()
        return "switched", "", self._figures.evidence

    async def _probation(self, update: Update) -> Answer | None:
        """Watch it; where this process has not switched to it by itself, it was started with it."""
        if self._applier.broken:
            return "broken", "the engine failed several steps in a row", {}
        try:
            self._figures = self._figures.best(await self._applier.measure())
        except (OperatorError, EngineFailed) as error:
            return "failed", error.message, self._figures.evidence
        except NodeError as error:  # too many others ask; what was measured before counts
            self._waits_for = error.message
        if self._with_served(update).served_s < update.rollout.probation_s:
            return None
        profile = self._applier.serving
        if profile is not None and (problem := self._figures.below(profile.floor)):
            return "failed", problem, self._figures.evidence
        return "passed", "", self._figures.evidence

    async def _commit(self, update: Update) -> Answer:
        await asyncio.to_thread(self._slots.point, update.rollout.profile_sha256)
        if self._manager is not None:
            named = filter(None, (self._slots.current, self._slots.previous))
            await self._manager.tidy([kept for digest in named if (kept := self._slots.get(digest)) is not None])
        return "committed", "", {}

    async def _rollback(self, update: Update) -> Answer:
        former = self._former()
        try:
            await self._applier.restore(former)
        except Damaged:  # or removed, since another one was served
            if former is None or self._manager is None:
                raise
            await self._manager.refresh()
            await self._manager.fetch(former)
            await self._applier.restore(former)
        return "restored", "", {}

    async def _reporting(self, update: Update) -> Answer:
        told = machine.report_of(update, self._membership.node)
        if self._report is not None and update.source == "fleet":
            await self._report(told)
        self._last = {key: told[key] for key in ("rollout", "revision", "profile", "outcome", "reason")}
        return "reported", "", {}

    async def _move(self, update: Update, word: Word, reason: str, evidence: Mapping[str, str]) -> None:
        was, update = update.state, step(self._with_served(update), word, reason, evidence)
        await self._write(update)
        self._waits_for, self._has_switched = "", False
        level = logging.WARNING if word in ("failed", "broken", "damaged", "timed out", "refused") else logging.INFO
        told = {"rollout": update.rollout.name, "from": was, "to": update.state, "reason": reason}
        log.log(level, "an update goes on: %s", word, extra=told)

    async def _write(self, update: Update) -> None:
        await self._ledger.write(update)
        self._memory = after(self._memory, update)

    def _with_served(self, update: Update) -> Update:
        """The good time in probation, up to now."""
        now, since = self._clock.uptime(), self._served_since
        self._served_since = now
        if update.state != "probation":
            return update
        update = replace(update, served_s=update.served_s + now - since)
        self._memory = Memory(update, self._memory.ended, self._memory.denied)  # which the disk need not know yet
        return update


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("this node follows its fleet no more until it is started again", exc_info=error)
