"""Who has had enough: rates of requests and tokens by tenant, user, user and model, and session; pure.

A request must pass all four, and is counted by all or none. They are asked in that order, so that a refusal names the
broadest limit that stands in the way. What one of them may take at once (a burst) is the most that one request gets:
an answer is cut to it, a longer prompt is refused for good.

A key costs constant memory. One that has nothing to remember any more is dropped when a new one comes; where so many
sessions have something to remember that there is no room, the ones that come then share one account per user.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from node.admission.account import WINDOW_S, Account, Meter, Quantity, Rates
from node.errors import RateLimited, TooLarge
from node.generation import Caller

MOST_KEYS = 100_000

_WORDS: dict[Quantity, str] = {"requests": "requests", "prompt": "prompt tokens", "output": "output tokens"}
_SCOPES = {
    "tenant": "the tenant's",
    "user": "this key's",
    "model": "this key's and model's",
    "session": "this session's",
    "sessions": "this key's sessions'",
}
_LOOKED_AT = 4  # old keys that are looked at for each new one

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Allowance:
    """The rates that hold for one caller and model, broadest first; None where there is no limit."""

    tenant: Rates | None = None
    user: Rates | None = None
    model: Rates | None = None
    session: Rates | None = None
    most_prompt: int | None = field(init=False)
    most_output: int | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "most_prompt", self._most("prompt"))
        object.__setattr__(self, "most_output", self._most("output"))

    def _most(self, quantity: Quantity) -> int | None:
        rates = (self.tenant, self.user, self.model, self.session)
        found = (rate.most(quantity) for rate in rates if rate is not None)
        return min((most for most in found if most is not None), default=None)


class Reservation:
    """What one admitted request may use. `output` is the most tokens that its answer may have: cut it to that.

    Exactly one of `settle` and `cancel` must follow.
    """

    __slots__ = ("_accounts", "_at", "_open", "_prompt", "output")

    def __init__(self, accounts: list[Account], prompt: int, output: int, now: float) -> None:
        self._accounts, self._prompt, self._at = accounts, prompt, now
        self.output = output
        self._open = True

    def extend(self, more: int, now: float) -> int:
        """Reserve up to so many tokens more for the answer; gives how many, 0 where a limit is reached."""
        window, into = divmod(now, WINDOW_S)
        meters = []
        for account in self._accounts:
            account.advance(now, int(window))
            if account.output is not None:
                meters.append(account.output)
                more = min(more, int(account.output.remaining(account.clock, 1 - into / WINDOW_S)))
        for meter in meters:
            meter.pending += more
        self.output += more
        return more

    def settle(self, output: int, now: float) -> None:
        """The answer has ended with so many tokens, at most what was reserved."""
        for account in self._close(now):
            if account.output is not None:
                account.output.use(min(output, self.output), account.clock)

    def cancel(self, now: float) -> None:
        """It never ran: nothing was used."""
        for account in self._close(now):
            windows = account.window - int(self._at // WINDOW_S)
            for meter in account.meters:
                if meter is not account.output:
                    meter.give_back(1 if meter.quantity == "requests" else self._prompt, now - self._at, windows)

    def headers(self, now: float) -> dict[str, str]:
        """The x-ratelimit-* values of the limit that has least left."""
        return _headers(self._accounts, now)

    def _close(self, now: float) -> Sequence[Account]:
        """The accounts, come to `now`, without what was pending; none when that was done before."""
        if not self._open:
            return ()
        self._open = False
        window = int(now // WINDOW_S)
        for account in self._accounts:
            account.advance(now, window)
            if account.output is not None:
                account.output.pending -= self.output
        return self._accounts


class Limits:
    """All accounts. Requests that one of them refuses leave no trace in any."""

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self._most_keys = most_keys
        self._accounts: OrderedDict[Key, Account] = OrderedDict()
        self._new_keys = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def reserve(
        self, caller: Caller, model: str, allowance: Allowance, prompt: int, output: int, now: float
    ) -> Reservation:
        """Count a request with a prompt of so many tokens and at most so many in its answer.

        Raises RateLimited, with when to come back and the x-ratelimit-* values, and TooLarge for what never passes.
        """
        if allowance.most_prompt is not None and prompt > allowance.most_prompt:
            raise _too_large(prompt, allowance.most_prompt)
        if allowance.most_output is not None and output > allowance.most_output:
            output = allowance.most_output
        if self._new_keys:  # here, and not where they are made: those of this request are as idle until it is counted
            self.forget_idle(now, self._new_keys * _LOOKED_AT)
            self._new_keys = 0
        accounts = self._find(caller, model, allowance, now)
        window, into = divmod(now, WINDOW_S)
        number, left = int(window), 1 - into / WINDOW_S
        amounts: dict[Quantity, int] = {"requests": 1, "prompt": prompt, "output": output}
        for account in accounts:
            account.advance(now, number)
            clock = account.clock
            for meter in account.meters:
                wanted = meter.pending + amounts[meter.quantity]
                standing_s = meter.empty_at - clock if meter.empty_at > clock else 0.0
                if (
                    standing_s + wanted * meter.step > meter.room_s
                    or meter.previous * left + meter.current + wanted > meter.cap
                ):
                    raise _refusal(accounts, amounts, now)
        for account in accounts:
            for meter in account.meters:
                if meter is account.output:
                    meter.pending += output
                else:
                    meter.use(amounts[meter.quantity], account.clock)
        return Reservation(accounts, prompt, output, now)

    def forget_idle(self, now: float, most: int = 1000) -> None:
        """Drop keys that have nothing to remember, looking at the `most` that were looked at longest ago."""
        for _ in range(min(most, len(self._accounts))):
            key, account = self._accounts.popitem(last=False)
            if not account.forgettable(now):
                self._accounts[key] = account

    def _find(self, caller: Caller, model: str, allowance: Allowance, now: float) -> list[Account]:
        tenant, user = caller.tenant, caller.user
        accounts = []
        if allowance.tenant is not None:
            accounts.append(self._account(("tenant", tenant), allowance.tenant, now))
        if allowance.user is not None:
            accounts.append(self._account(("user", tenant, user), allowance.user, now))
        if allowance.model is not None:
            accounts.append(self._account(("model", tenant, user, model), allowance.model, now))
        if allowance.session is not None:
            accounts.append(self._account(("session", tenant, user, caller.session), allowance.session, now))
        return accounts

    def _account(self, key: Key, rates: Rates, now: float) -> Account:
        account = self._accounts.get(key)
        if account is None:
            self._new_keys += 1
            # Only sessions are named by clients; the other keys are as many as the operator gave out.
            if len(self._accounts) >= self._most_keys and key[0] == "session":
                key = ("sessions", *key[1:3])
                account = self._accounts.get(key)
        if account is None or (account.rates is not rates and account.rates != rates):
            account = self._accounts[key] = Account(key[0], rates, now)
        return account


def _refusal(accounts: list[Account], amounts: dict[Quantity, int], now: float) -> RateLimited:
    """Names the broadest limit that refuses; to be waited for are all of them."""
    left = 1 - now % WINDOW_S / WINDOW_S
    reasons: list[str] = []
    wait_s = 0.0
    for account in accounts:
        account.advance(now, int(now // WINDOW_S))
        for meter in account.meters:
            wait = meter.wait_s(amounts[meter.quantity], account.clock, left, account.rates.steady)
            wait_s = max(wait_s, wait)
            if wait > 0:
                reasons.append(f"{_SCOPES[account.scope]} limit of {meter.cap:g} {_WORDS[meter.quantity]} per minute")
    seconds = max(1, math.ceil(wait_s))
    return RateLimited(
        f"This request is over {reasons[0] if reasons else 'a limit'}. Try again in {seconds} s.",
        retry_after=seconds,
        headers=_headers(accounts, now),
    )


def _headers(accounts: list[Account], now: float) -> dict[str, str]:
    """OpenAI's names; "tokens" is whichever of prompt and output tokens has least left."""
    left = 1 - now % WINDOW_S / WINDOW_S
    tightest: dict[str, tuple[float, Meter, Account]] = {}
    for account in accounts:
        account.advance(now, int(now // WINDOW_S))
        for meter in account.meters:
            kind = "requests" if meter.quantity == "requests" else "tokens"
            remaining = meter.remaining(account.clock, left)
            if kind not in tightest or remaining < tightest[kind][0]:
                tightest[kind] = (remaining, meter, account)
    headers = {}
    for kind, (remaining, meter, account) in tightest.items():
        headers[f"x-ratelimit-limit-{kind}"] = f"{meter.cap:.0f}"
        headers[f"x-ratelimit-remaining-{kind}"] = str(int(remaining))
        headers[f"x-ratelimit-reset-{kind}"] = _duration(meter.reset_s(account.clock, left, account.rates.steady))
    return headers


def _duration(seconds: float) -> str:
    """As OpenAI writes it: 6m0s, 1.5s, 120ms."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 10) / 10, 60)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:g}s"


def _too_large(prompt: int, most: int) -> TooLarge:
    return TooLarge(
        f"This prompt is {prompt} tokens, and the limits of this key let at most {most} pass at once.",
        hint="Send less, or ask the operator for more.",
    )
