"""Why an update does not happen: every refusal has its own name and says in plain words what was seen.

TrustError       the repository
├── OldRepository      it is older than what this node has seen
│   └── TornMemory     the same, found although a power cut took this node's copies of the metadata
├── MixedRepository    its parts are from different times
├── FrozenRepository   it is no longer signed as current: nobody re-signs it, or somebody holds news back
├── WrongKey           signed by a key that has no say
├── TooFewSignatures   signed, but by fewer keys than must agree
├── TamperedTarget     a file is not the one that was signed
├── BeyondDelegation   a key signs what is not its to sign
├── UnsignedProfile    a rollout chooses a profile that the offline key never signed
├── UnusableProfile    a signed profile that this node cannot use
└── BrokenRepository   anything else that is no proper repository
Unreachable      the repository cannot be reached
└── NotRepository      something else answers in its place, as a captive portal does
FetchError       a model's bytes
├── NoSpace            the disk is too full
├── OverBudget         it would take more bytes than this way may cost
├── NoSource           nobody has them, or nobody has the right ones
└── Busy               another process fetches the same file
"""

from __future__ import annotations

from node.errors import FetchError, TrustError, Unreachable


class OldRepository(TrustError):
    pass


class TornMemory(OldRepository):
    pass


class MixedRepository(TrustError):
    pass


class FrozenRepository(TrustError):
    pass


class WrongKey(TrustError):
    pass


class TooFewSignatures(TrustError):
    pass


class TamperedTarget(TrustError):
    pass


class BeyondDelegation(TrustError):
    pass


class UnsignedProfile(TrustError):
    pass


class UnusableProfile(TrustError):
    pass


class BrokenRepository(TrustError):
    pass


class NotRepository(Unreachable):
    pass


class NoSpace(FetchError):
    pass


class OverBudget(FetchError):
    pass


class NoSource(FetchError):
    pass


class Busy(FetchError):
    pass
