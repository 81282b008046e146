"""Where things lie in a fleet's repository, which is nothing but static files.

    metadata/N.root.json            who may sign what; N.targets.json, N.profiles.json, N.rollouts.json, N.snapshot.json
    metadata/timestamp.json         the only file that changes under its name
    targets/profiles/SHA.NAME-DIGITS.toml    a profile; the first 16 digits of its SHA-256 stand in its target's name
    targets/indexes/SHA.MODEL.json           the chunk index of the model file with that SHA-256
    targets/rollouts/SHA.NAME.json           a rollout
    models/SHA.gguf                 a model file as it is, for HTTP ranges; not signed: the index's hashes vouch for it
    chunks/SHA.zst                  a chunk in fewer bytes, where the index says that there is one

SHA before a dot is the SHA-256 of the file itself (TUF's consistent snapshots).
"""

from __future__ import annotations

import re

PROFILES, ROLLOUTS = "profiles", "rollouts"
# What each delegated role may sign for: the offline key profiles and indexes, the online key only rollouts.
PATTERNS = {PROFILES: ("profiles/*", "indexes/*"), ROLLOUTS: ("rollouts/*",)}
METADATA, TARGETS = "metadata/", "targets/"
MAX_ROLLOUTS = 256
_FOLDERS = {role: tuple(pattern.removesuffix("*") for pattern in patterns) for role, patterns in PATTERNS.items()}
_PLAIN = re.compile(r"[a-z]{1,16}/[a-z0-9][a-z0-9.-]{0,127}")


def profile_target(name: str, sha256: str) -> str:
    """The target's name of the profile with that SHA-256."""
    return f"profiles/{name}-{sha256[:16]}.toml"


def index_target(model_sha256: str) -> str:
    """The target's name of the chunk index of that model file."""
    return f"indexes/{model_sha256}.json"


def rollout_target(name: str) -> str:
    """The target's name of the rollout with that name."""
    return f"rollouts/{name}.json"


def target_file(target: str, sha256: str) -> str:
    """The target's file, from the repository's top."""
    folder, _, name = target.rpartition("/")
    return f"{TARGETS}{folder}/{sha256}.{name}"


def model_file(sha256: str) -> str:
    """The model's plain file, from the repository's top."""
    return f"models/{sha256}.gguf"


def chunk_file(sha256: str) -> str:
    """A chunk's packed form, from the repository's top."""
    return f"chunks/{sha256}.zst"


def is_plain(target: str) -> bool:
    """Whether a target's name is one folder and one file, without anything that a path could be made to say."""
    return bool(_PLAIN.fullmatch(target)) and ".." not in target


def may_sign(role: str, target: str) -> bool:
    """Whether the role has a say about that target."""
    return is_plain(target) and target.startswith(_FOLDERS[role])
