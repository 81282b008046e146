"""`outpost fleet`: nodes that belong together. What can be done stands in modules of its own, `fleet_*.py`.

Each of them has `add_parser(actions)`, which adds its actions; an action sets `run`, as a verb does.
"""

from __future__ import annotations

import argparse
import importlib

MODULES = ("fleet_ca", "fleet_validate", "fleet_publish", "fleet_rollout", "fleet_wake", "fleet_wipe")

_ABOUT = """\
Nodes that belong together: who may be one of them, and what they run.

A fleet has an authority, which is made once and kept offline. It gives every node a certificate; only by that do nodes
trust each other. A node without one is alone: it announces nothing, and accepts nobody.
"""
_EXAMPLES = """\
examples, on the machine that keeps the authority (A) and on a node (N):
  A  outpost fleet ca init                          once
  N  outpost fleet enrol --request kiosk-7.csr      the node's key never leaves it
  A  outpost fleet ca issue kiosk-7 --csr kiosk-7.csr
  N  outpost fleet enrol kiosk-7.pem                from the next start on it is one of the fleet
  A  outpost fleet ca deny kiosk-7                  for a node that was stolen

what they run, on the manager's machine:
  outpost fleet init                                a folder to upload, and the keys that sign it
  outpost fleet add kiosk.toml                      sign a profile and its model file
  outpost fleet rollout spring --profile kiosk --percent 10
  outpost fleet sign --online                       every day, from a timer
  outpost fleet watch --hub URL                     stops rollouts where nodes report trouble
  outpost fleet wake --url mqtts://broker/topic     nodes look at once, not at their usual times
"""

Actions = argparse._SubParsersAction  # the type that add_subparsers returns; argparse has no public name for it


def register(verbs: Actions[argparse.ArgumentParser]) -> None:
    """Add `fleet` and the actions of its modules to the command line."""
    parser = verbs.add_parser(
        "fleet",
        help="who belongs together, and what they run: an authority, signed profiles, rollouts",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for module in MODULES:
        importlib.import_module(f"node.commands.{module}").add_parser(actions)
