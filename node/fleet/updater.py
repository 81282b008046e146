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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from node.errors import Conflict, EngineFailed, NodeError, OperatorError, Unfit
from node.fleet.apply import Applier, Damaged
from node.fleet.choice import choose
from node.fleet.directive import Rollout
from node.fleet.examine import Figures
from node.fleet.installed import Ledger, Memory, after
from node.fleet.membership import ALONE, Clock, Manager, Membership, Report
from node.fleet.profile import Profile
from node.fleet.rollout import State, Update, Word, report_of, step, takes_part, window_open
from node.fleet.slots import Slots, digest_of

log = logging.getLogger(__name__)

_AGAIN_S = 30.0  # after what did not work
_STAGED_S = 5.0  # between two looks whether it may begin
_MOST_WATCH_S = 15.0  # between two looks at a model in probation
_LOOKS = 4  # in a short probation
LOCAL: Final = "local"

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
            await self._write(replace(self._with_served(update), clean=True))

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """The profile that serves, and how far an update has come."""
        serving, update = self._applier.serving, self._memory.update
        told: dict[str, Any] = {"profile": serving.name if serving else "none", "state": "idle"}
        if update is not None:
            rollout = update.rollout
            told |= {"state": update.state, "to": rollout.profile, "rollout": rollout.name}
            told |= {"revision": rollout.revision, "step": update.steps}
            told |= {"waits_for": self._waits_for} if self._waits_for else {}
        if restart := self._applier.terms.needs_restart(serving):
            told["needs_restart_for"] = " ".join(restart)
        return {"update": told | ({"last": self._last} if self._last else {})}

    def wake(self) -> None:
        """Look now: something may have changed. Whoever calls this says nothing else, so anybody may."""
        self._wake.set()

    async def activate(self, profile: Profile, probation_s: float) -> Mapping[str, Any]:
        """Switch to a profile by an operator's word; raises Conflict while another update is on its way."""
        async with self._busy:
            if self._memory.update is not None:
                state = self._memory.update.state
                raise Conflict(f"An update is on its way ({state}); wait for its end.", retry_after=5)
            digest = self._slots.put(profile)
            known = max(self._memory.ended.get(LOCAL, 0), self._memory.denied.get(digest, 0))
            rollout = Rollout(
                name=LOCAL,
                revision=known + 1,
                profile=profile.name,
                profile_sha256=digest,
                timeout_s=3600.0,
                probation_s=probation_s,
            )
            await self._write(Update(rollout, "local", self._clock.now()))
        log.info("an operator activates a profile", extra={"profile": profile.name})
        self.wake()
        return self.status()["update"]

    async def activate_named(self, model: str, profile: str, probation_s: float) -> Mapping[str, Any]:
        """The same for a model or a profile by its name; see `choice`."""
        chosen = await asyncio.to_thread(choose, model, profile, self._applier.serving, self._applier.terms)
        return await self.activate(chosen, probation_s)

    async def turn(self) -> float:
        """One step of the update on its way, or one look for a new one; gives the seconds until the next."""
        async with self._busy:
            update = self._memory.update
            if update is None:
                return await self._look()
            answer = await self._early_end(update)
            if answer is None:
                answer = await self._do[update.state](update)
            if answer is None:
                return self._pause(update.state)
            await self._move(update, *answer)
        return 0.0

    # From here on: the loop.

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause = await self.turn()
            except NodeError as error:
                log.warning("an update waits", extra={"reason": error.message})
                self._waits_for, pause = error.message, self._jittered(_AGAIN_S)
            if pause:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()

    async def _look(self) -> float:
        """Ask the manager, and begin what this node is to do and has not done."""
        poll_s = self._jittered(self._membership.poll_s)
        if self._manager is None:
            return poll_s
        found = await self._manager.refresh()
        self._looked_at = self._clock.uptime()
        for rollout in sorted(found.rollouts, key=lambda one: -one.revision):
            if self._wants(rollout):
                await self._write(Update(rollout, "fleet", self._clock.now()))
                log.info("a rollout begins here", extra={"rollout": rollout.name, "revision": rollout.revision})
                return 0.0
        await self._mend()
        return poll_s

    def _wants(self, rollout: Rollout) -> bool:
        takes = takes_part(rollout, self._membership.node, self._membership.ring)
        due = not rollout.stopped and rollout.start <= self._clock.now()
        news = rollout.profile_sha256 != self._slots.current
        return takes and due and news and self._memory.wants(rollout)

    async def _mend(self) -> None:
        """What is committed should serve; where its file was damaged at the start, something else does."""
        committed = self._slots.get(self._slots.current) if self._slots.current else None
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
        if update.source == "fleet" and self._manager is not None and self._is_time_to_look():
            with contextlib.suppress(NodeError):  # the repository cannot be reached: what was wanted still is
                self._looked_at = self._clock.uptime()
                found = await self._manager.refresh()
                if not any(self._is_still_wanted(one, update.rollout) for one in found.rollouts):
                    return "dropped", "the fleet's manager stopped or replaced the rollout", {}
        return None

    def _is_time_to_look(self) -> bool:
        return self._clock.uptime() - self._looked_at >= self._membership.poll_s

    def _is_still_wanted(self, now: Rollout, then: Rollout) -> bool:
        same = (now.name, now.profile_sha256) == (then.name, then.profile_sha256)
        return same and not now.stopped and takes_part(now, self._membership.node, self._membership.ring)

    async def _check(self, update: Update) -> Answer | None:
        try:
            profile = await self._profile(update)
            if profile is None:
                return None
            self._fits(profile)
            self._applier.terms.hot(profile)
        except OperatorError as error:
            return "refused", error.message, {}
        return "accepted", "", {}

    async def _profile(self, update: Update) -> Profile | None:
        """From the slots, or else from the manager into them; None where it must be somebody's and is nobody's."""
        digest = update.rollout.profile_sha256
        if (kept := self._slots.get(digest)) is not None:
            return kept
        if self._manager is None:
            raise OperatorError(f"The profile {update.rollout.profile} is not on this node any more.")
        profile = await self._manager.profile(update.rollout)
        if digest_of(profile) != digest:
            raise OperatorError(f"The profile {profile.name} is not the one that the rollout chose.")
        self._slots.put(profile)
        return profile

    async def _fetch(self, update: Update) -> Answer | None:
        profile = await self._profile(update)
        if profile is not None and update.source == "fleet" and self._manager is not None:
            await self._manager.fetch(profile)
        return "fetched", "", {}

    async def _verify(self, update: Update) -> Answer | None:
        profile = await self._profile(update)
        assert profile is not None, "it was checked"
        try:
            await self._applier.verify(profile)
        except Damaged as error:
            return "damaged", error.message, {}
        return "verified", "", {}

    async def _staged(self, update: Update) -> Answer | None:
        profile = await self._profile(update)
        assert profile is not None, "it was checked"
        self._waits_for = self._applier.may_switch(profile) if update.source == "fleet" else ""
        if update.source == "fleet" and not window_open(update.rollout, self._clock.minute()):
            self._waits_for = "the maintenance window"
        if update.source == "fleet" and not self._powered():
            self._waits_for = "mains power"
        return None if self._waits_for else ("ready", "", {})

    async def _switch(self, update: Update) -> Answer | None:
        profile = await self._profile(update)
        assert profile is not None, "it was checked"
        try:
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
        return "committed", "", {}

    async def _rollback(self, update: Update) -> Answer:
        await self._applier.restore(self._former())
        return "restored", "", {}

    async def _reporting(self, update: Update) -> Answer:
        told = report_of(update, self._membership.node)
        if self._report is not None and update.source == "fleet":
            await self._report(told)
        self._last = {key: told[key] for key in ("rollout", "revision", "profile", "outcome", "reason")}
        return "reported", "", {}

    async def _move(self, update: Update, word: Word, reason: str, evidence: Mapping[str, str]) -> None:
        was, update = update.state, step(self._with_served(update), word, reason, evidence)
        await self._write(update)
        self._waits_for = ""
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

    def _pause(self, state: State) -> float:
        if state == "probation" and self._memory.update is not None:
            probation_s = self._memory.update.rollout.probation_s
            left = probation_s - self._memory.update.served_s
            return max(0.01, min(_MOST_WATCH_S, probation_s / _LOOKS, left))
        return self._jittered(_STAGED_S if state == "staged" else _AGAIN_S)

    def _jittered(self, seconds: float) -> float:
        return seconds * (0.75 + 0.5 * self._clock.dice())
