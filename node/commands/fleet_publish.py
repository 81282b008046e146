"""`outpost fleet init | key | add | withdraw | sign`: the repository of a fleet, made and signed in a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from node.commands.fleet_desk import (
    add_desk,
    add_passphrase,
    finish,
    key_folder,
    keyring,
    passphrase,
    publication,
    repository,
)
from node.commands.models import bars
from node.commands.progress import amount
from node.errors import OperatorError
from node.fleet import chunks, durable, keys, places, profiles
from node.fleet.directive import ChunkIndex
from node.fleet.profile import Profile
from node.fleet.publish import Keyring, Publication, today
from node.fleet.trust import refuse_paths
from node.models import gguf, weights

Actions = argparse._SubParsersAction


def add_parser(actions: Actions[argparse.ArgumentParser]) -> None:
    """Add what makes and changes a repository."""
    making = actions.add_parser("init", help="make a fleet's repository and its keys, in a folder")
    making.add_argument("--folder", metavar="DIR", type=Path, default=Path(), help="(default: this one)")
    making.add_argument("--ml-dsa", action="store_true", help="one root key that withstands quantum computers")
    add_passphrase(making)
    making.set_defaults(run=_init)
    keying = actions.add_parser("key", help="put a new key in the place of one that is lost or known to others")
    keying.add_argument("role", choices=["root", "profiles", "online"], help="whose key it is")
    keying.add_argument("--old", metavar="FILE|ID", required=True, help="the key that goes: its file, or its id")
    keying.add_argument("--new", metavar="FILE", type=Path, required=True, help="where to write the one that comes")
    add_desk(keying)
    keying.set_defaults(run=_key)
    adding = actions.add_parser("add", help="sign a profile, with the model file that it names")
    adding.add_argument("profile", metavar="NAME|FILE", help="a .toml file, or one from `outpost profile list`")
    adding.add_argument("--model", metavar="FILE", type=Path, help="the model's file (default: the installed one)")
    adding.add_argument("--plain", action="store_true", help="pack no chunks: quicker here, more bytes for nodes")
    add_desk(adding)
    adding.set_defaults(run=_add)
    taking = actions.add_parser("withdraw", help="let no rollout choose a profile any more; nodes that have it keep it")
    taking.add_argument("profile", metavar="NAME|DIGITS", help="its name, or the first digits of its SHA-256")
    add_desk(taking)
    taking.set_defaults(run=_withdraw)
    signing = actions.add_parser("sign", help="sign again what is about to end; --online from a timer, every day")
    signing.add_argument("--online", action="store_true", help="only what the online key signs")
    signing.add_argument("--reset-time", action="store_true", help="tell nodes whose clock was in the future the time")
    add_desk(signing)
    signing.set_defaults(run=_sign)


def _init(args: argparse.Namespace) -> int:
    folder, secret = key_folder(args), passphrase(args)
    if (repository(args) / "metadata").exists():
        raise OperatorError(f"{repository(args)} holds a repository already.")
    root = [keys.make(folder / "root-1.pem", secret), keys.make(folder / "root-2.pem", secret)]
    root.append(keys.make(folder / "root-3.pem", secret, "ml-dsa-65" if args.ml_dsa else "ed25519"))
    offline, online = keys.make(folder / "profiles.pem", secret), keys.make(folder / "online.pem", secret)
    public = [signer.public_key for signer in root]
    made = Publication.begin(repository(args), today(), public, offline.public_key, online.public_key)
    made.commit(Keyring((*root, offline, online)))
    print(f"The repository is {repository(args)}: nodes may see all of it.")
    print(f"The keys are in {folder}, and nobody may see them:")
    print("  root-1, root-2, root-3  two of them decide who may sign; keep them apart, and off this machine")
    print("  profiles                signs profiles and model files; keep it off this machine while you do not sign")
    print("  online                  chooses among signed profiles; stays where `sign --online` runs")
    print(f"Nodes need {repository(args) / 'metadata' / '1.root.json'} as fleet.root, by a way you trust.")
    return 0


def _key(args: argparse.Namespace) -> int:
    signers, secret = keyring(args), passphrase(args)
    old = keys.read(Path(args.old), secret).public_key.keyid if Path(args.old).exists() else args.old
    changed = publication(args)
    if old not in _ids(changed, args.role):
        raise OperatorError(f"{old} is no {args.role} key. There are: {', '.join(_ids(changed, args.role))}.")
    if args.dry_run:
        print(f"{old[:16]}… would lose its say as {args.role}.")
        return 0
    fresh = keys.make(args.new, secret)
    try:
        changed.replace_key(args.role, old, fresh.public_key)
        code = finish(args, changed, Keyring((*signers.signers, fresh)))
    except OperatorError:
        args.new.unlink()  # it has no say, so nobody needs it
        raise
    print(f"{args.new} has the say of {old[:16]}… now. Destroy the old key's file.")
    return code


def _ids(changed: Publication, role: str) -> list[str]:
    if role == "profiles":
        return list(changed.signed("targets").delegations.roles["profiles"].keyids)
    return list(changed.signed("root").roles["root" if role == "root" else "timestamp"].keyids)


def _add(args: argparse.Namespace) -> int:
    profile, changed = profiles.find(args.profile), publication(args)
    refuse_paths(profile)
    if args.model is not None and not profile.model_sha256:
        raise OperatorError(f"The profile {profile.name} names no model_sha256, so no file can belong to it.")
    if profile.model_sha256 and not _has_index(changed, profile):
        index = _put_model(args, profile)
        changed.put_index(index.sha256, msgspec.json.encode(index))
        packed = sum(chunk.packed or chunk.length for chunk in index.chunks)
        print(f"{amount(index.size)} in {len(index.chunks)} chunks, {amount(packed)} for a node that has none of them")
    digest = changed.put_profile(profile)
    print(f"{profile.name} is {digest}")
    return finish(args, changed, keyring(args))


def _withdraw(args: argparse.Namespace) -> int:
    changed = publication(args)
    named = {
        target
        for target, digest in changed.profiles().items()
        if digest.startswith(args.profile) or target.rpartition("-")[0] == f"profiles/{args.profile}"
    }
    if len(named) != 1:
        raise OperatorError(f"{len(named)} signed profiles are called {args.profile}.", hint="Name it by its digits.")
    target = named.pop()
    for rollout in changed.drop_profile(target):
        print(f"The rollout {rollout}, which chose it, goes with it.")
    print(f"{target} is withdrawn: the online key cannot choose it any more.")
    return finish(args, changed, keyring(args))


def _has_index(changed: Publication, profile: Profile) -> bool:
    return places.index_target(profile.model_sha256) in changed.signed("profiles").targets


def _put_model(args: argparse.Namespace, profile: Profile) -> ChunkIndex:
    """Cut, pack and copy the file; with --dry-run it is only looked at."""
    source: Path = args.model or weights.locate(profile.settings.model.name)
    gguf.read(source)
    top = repository(args)

    def keep(sha256: str, packed: bytes) -> None:
        if not args.dry_run:
            durable.make_folder(top / "chunks")
            durable.write(top / places.chunk_file(sha256), packed)

    try:
        with bars() as report:
            index = chunks.index(source, report, None if args.plain else keep)
            if index.sha256 != profile.model_sha256:
                raise OperatorError(
                    f"{source} is not the file that the profile {profile.name} names.\n"
                    f"  promised {profile.model_sha256}\n  found    {index.sha256}"
                )
            if not args.dry_run:
                chunks.copy(source, top / places.model_file(index.sha256), index, report)
    except OSError as error:
        raise OperatorError(f"Cannot copy {source}: {error.strerror or error}.") from error
    return index


def _sign(args: argparse.Namespace) -> int:
    changed = publication(args)
    changed.renew("timestamp", *changed.aged("snapshot", "rollouts"))
    if not args.online:
        changed.renew(*changed.aged("root", "targets", "profiles"))
    if args.reset_time:
        changed.reset_time()
    return finish(args, changed, keyring(args))
