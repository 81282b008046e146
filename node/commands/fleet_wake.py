"""`outpost fleet wake`: tell the nodes of a fleet to look at the repository now."""

from __future__ import annotations

import argparse
import asyncio

from node.commands.fleet_desk import add_desk, publication
from node.errors import Unreachable
from node.fleet.broker import QOS, Broker, broker_of, connection, leave, reason_of
from node.settings import Fleet

Actions = argparse._SubParsersAction


def add_parser(actions: Actions[argparse.ArgumentParser]) -> None:
    """Add `wake`."""
    waking = actions.add_parser(
        "wake",
        help="tell nodes over MQTT to look now, after the repository was copied",
        description="Publish the repository's revision, retained, at a broker. Nodes that name the same address in "
        "fleet.wake_url look at the repository within seconds; all others at their usual times.",
    )
    waking.add_argument(
        "--url", metavar="URL", required=True, help="broker and topic, like mqtts://broker.example/fleet/wake"
    )
    waking.add_argument("--login-file", metavar="FILE", default="", help="file (mode 600) with USER:PASSWORD")
    waking.add_argument("--ca-file", metavar="FILE", default="", help="PEM file of the broker's authority")
    waking.add_argument("--certificate", metavar="FILE", default="", help="PEM file with a certificate to show")
    waking.add_argument("--certificate-key", metavar="FILE", default="", help="its key, where it is not in that file")
    add_desk(waking, signs=False)
    waking.set_defaults(run=_wake)


def _wake(args: argparse.Namespace) -> int:
    revision = publication(args).version("timestamp")
    settings = Fleet(
        wake_url=args.url,
        wake_login_file=args.login_file,
        wake_ca_file=args.ca_file,
        wake_certificate=args.certificate,
        wake_key=args.certificate_key,
    )
    broker = broker_of(settings)
    asyncio.run(publish(broker, revision))
    print(f"Revision {revision} is told at {broker.name}, topic {broker.topic}.")
    return 0


async def publish(broker: Broker, revision: int) -> None:
    """Leave the revision there for all who listen, now or later; raises Unreachable."""
    import aiomqtt

    client = connection(broker, "")
    try:
        async with client:
            await client.publish(broker.topic, str(revision).encode(), QOS, retain=True)
    except (aiomqtt.MqttError, OSError, ValueError) as error:
        raise Unreachable(f"The broker {broker.name} was not told: {reason_of(error)}.") from error
    finally:
        leave(client)
