"""`outpost fleet ca | enrol | leave | identity`: who is one of the fleet."""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path

from node import settings
from node.commands.numbers import whole
from node.errors import EnrolmentError, SettingsError
from node.mesh import authority, identity
from node.mesh.identity import Identity

Actions = argparse._SubParsersAction


def add_parser(actions: Actions[argparse.ArgumentParser]) -> None:
    """Add the authority's actions, and those by which a node gets and loses its certificate."""
    _add_authority(actions.add_parser("ca", help="the fleet's authority: make it, vouch for nodes, deny them"))
    enrolling = actions.add_parser("enrol", help="make this node one of the fleet, or give it a new certificate")
    enrolling.add_argument("bundle", metavar="BUNDLE", nargs="?", type=Path, help="what `outpost fleet ca issue` made")
    enrolling.add_argument("--request", metavar="FILE", type=Path, help="write a request for a certificate instead")
    enrolling.add_argument("--denied", metavar="FILE", type=Path, help="take the authority's list of denied nodes")
    enrolling.set_defaults(run=_enrol)
    leaving = actions.add_parser("leave", help="forget this node's key and certificate: it is alone from then on")
    leaving.set_defaults(run=_leave)
    showing = actions.add_parser("identity", help="which fleet this node is in, as whom, and until when")
    showing.add_argument("--json", action="store_true", help="print JSON for other programs")
    showing.set_defaults(run=_show)


def _add_authority(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, help="where the authority lies (default: authority in the data directory)"
    )
    verbs = parser.add_subparsers(dest="ca", metavar="VERB", required=True)
    making = verbs.add_parser("init", help="make an authority, once; keep its folder offline and backed up")
    making.add_argument("--name", default="fleet", help="what people call the fleet; only its nodes are told")
    making.set_defaults(run=_init)
    issuing = verbs.add_parser("issue", help="vouch for a node, or go on doing so")
    issuing.add_argument("node", metavar="NODE", help="what people call it")
    issuing.add_argument("--csr", metavar="FILE", type=Path, help="its request; without one its key is made here")
    issuing.add_argument("--days", type=whole(1, 3650), default=30, help="how long the certificate lasts (default: 30)")
    issuing.add_argument("--out", metavar="FILE", type=Path, help="where to write the bundle (default: NODE.pem)")
    issuing.set_defaults(run=_issue)
    listing = verbs.add_parser("list", help="the nodes that it vouches for, and until when")
    listing.set_defaults(run=_list)
    denying = verbs.add_parser("deny", help="take that back at once: write a list that nodes pass on to each other")
    denying.add_argument("node", metavar="NODE|ID", help="a name that a certificate was issued to, or an id")
    denying.add_argument("--allow", action="store_true", help="take it off the list again")
    denying.add_argument("--out", metavar="FILE", type=Path, default=Path("denied.json"), help="(default: denied.json)")
    denying.set_defaults(run=_deny)


def _authority_folder(args: argparse.Namespace) -> Path:
    return args.folder or settings.home() / "authority"


def _init(args: argparse.Namespace) -> int:
    made = authority.create(_authority_folder(args), args.name, _now())
    print(f"{args.name} is fabric {made.fabric}; its authority lies in {made.folder}.")
    print("Whoever has authority.key can make nodes of this fleet: keep it offline, and keep a copy.")
    return 0


def _issue(args: argparse.Namespace) -> int:
    request = identity.read_bounded(args.csr) if args.csr else None
    lasts = datetime.timedelta(days=args.days)
    bundle, issued = authority.load(_authority_folder(args)).issue(args.node, request, lasts, _now())
    out: Path = args.out or Path(f"{args.node}.pem")
    identity.write_private(out, bundle)
    print(f"{issued.name} is {issued.id} until {issued.ends}: {out}")
    if request is None:
        print("It holds the node's private key: carry it there by a safe way, then remove it here.")
    print(f"On the node: outpost fleet enrol {out.name}")
    return 0


def _list(args: argparse.Namespace) -> int:
    found = authority.load(_authority_folder(args))
    denied, now = found.denied().ids, f"{_now():%Y-%m-%dT%H:%M:%SZ}"
    latest = {issued.id: issued for issued in found.issued()}
    print(f"fabric {found.fabric}: {len(latest)} nodes")
    for issued in sorted(latest.values(), key=lambda issued: issued.ends):
        state = "denied" if issued.id in denied else "over" if issued.ends <= now else "good"
        print(f"  {issued.id}  {state:<6}  until {issued.ends}  {issued.name}")
    return 0


def _deny(args: argparse.Namespace) -> int:
    denied, text = authority.load(_authority_folder(args)).deny(args.node, again_allowed=args.allow)
    identity.write_private(args.out, text)
    print(f"{len(denied.ids)} denied, list {denied.number}: {args.out}")
    print(f"On any node: outpost fleet enrol --denied {args.out.name}; its neighbours get it from there.")
    return 0


def _enrol(args: argparse.Namespace) -> int:
    if sum(given is not None for given in (args.bundle, args.request, args.denied)) != 1:
        raise SettingsError("`outpost fleet enrol` wants a BUNDLE, or --request FILE, or --denied FILE.")
    folder = identity.folder_in(settings.home())
    if args.request:
        identity.write_private(args.request, identity.make_request(folder))
        print(f"Give {args.request} to the authority: outpost fleet ca issue NAME --csr {args.request.name}")
    elif args.denied:
        denied = identity.deny(folder, identity.read_bounded(args.denied))
        print(f"List {denied.number} is taken: {len(denied.ids)} denied.")
    else:
        print(_told(identity.enrol(folder, identity.read_bounded(args.bundle), _now())))
    return 0


def _leave(args: argparse.Namespace) -> int:
    left = identity.leave(identity.folder_in(settings.home()))
    print("This node is alone from the next start on." if left else "This node was in no fleet.")
    return 0


def _show(args: argparse.Namespace) -> int:
    found = identity.load(identity.folder_in(settings.home()))
    if found is None:
        raise EnrolmentError("This node is in no fleet.", hint="Begin with `outpost fleet enrol --request FILE`.")
    if args.json:
        shown = {"fabric": found.fabric, "id": found.id, "name": found.name}
        print(json.dumps(shown | {"ends": found.ends.isoformat(), "denied": found.denied.number}, indent=2))
    else:
        print(_told(found))
    return 0 if found.begins <= _now() < found.ends else 1


def _told(found: Identity) -> str:
    state = ""
    if _now() >= found.ends:
        state = " (it is over: neighbours refuse it)"
    elif _now() < found.begins:
        state = " (not yet: is this machine's clock right?)"
    return f"{found.name} is {found.id} of fabric {found.fabric} until {found.ends:%Y-%m-%d %H:%M} UTC{state}."


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
