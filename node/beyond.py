"""Settings of what is beyond this node: its fleet, its hub, its neighbours and the cloud. `settings` has the tree."""

from __future__ import annotations

from typing import Literal

from node.section import Section


class Fleet(Section, frozen=True):
    url: str = ""
    "the fleet's repository: an https: address, or a folder by its path (a USB stick); empty means no fleet"
    root: str = ""
    "root.json that came with this node by a safe way; empty means fleet/root.json in the data directory"
    mirror: str = ""
    "a copy of the repository on this site, asked for model files before fleet.url"
    ca_file: str = ""
    "PEM file with the authorities that sign fleet.url's certificate; empty means those of the system"
    allow_http: bool = False
    "whether fleet.url may be plain http: to another machine; signatures are checked all the same"
    ring: str = ""
    "the ring of the fleet that this node is in, for rollouts that name rings"
    poll_s: float = 3600.0
    "seconds between two looks at the repository, give or take a quarter"
    wake_url: str = ""
    "MQTT broker and topic that say when to look at once, like mqtts://broker.example/fleet/wake; empty is none"
    wake_login_file: str = ""
    "file with USER:PASSWORD for that broker, which only its owner may read"
    wake_ca_file: str = ""
    "PEM file with the authorities that sign the broker's certificate; empty means those of the system"
    wake_certificate: str = ""
    "PEM file with a certificate that this node shows the broker"
    wake_key: str = ""
    "PEM file with its key; empty means that it is in the same file"
    wake_least_s: float = 30.0
    "least seconds between two looks that the broker causes, however many messages come"
    metered: bool = False
    "whether the way to fleet.url is paid by the byte"
    metered_bytes: int = 16 << 20
    "most bytes that one model file may take from fleet.url over a metered way; what needs more is refused"
    unmetered_bytes: int = 0
    "the same over a way that is not metered; 0 is no limit"
    rate_bytes: int = 0
    "most bytes a second from fleet.url; 0 is no limit"
    lan_rate_bytes: int = 0
    "most bytes a second from neighbours and fleet.mirror; 0 is no limit"
    stall_s: float = 60.0
    "seconds without a byte after which a source is left"


class Outbox(Section, frozen=True):
    database: str = ""
    "SQLite file for what waits for the network; empty means outbox-PORT.db in the data directory, none if PORT is 0"
    max_bytes: int = 64 << 20
    "bytes on disk for it; beyond that figures and logs are dropped, the oldest first, and anything else is refused"
    max_age_s: float = 7 * 86_400.0
    "seconds after which what still waits, or an answer that nobody fetched, is dropped"
    later: Literal["ask", "background", "never"] = "ask"
    "what may wait when nobody can answer: requests that ask (Prefer: respond-async), all background ones too, or none"
    later_at_a_time: int = 2
    "deferred requests that run at the same time once somebody can answer"
    later_waiting: int = 1000
    "deferred requests that may wait; beyond that clients get 429"
    callbacks: tuple[str, ...] = ()
    "URLs below which deferred answers may be sent (Outpost-Callback); none means that nobody is called back"
    callback_secret_file: str = ""
    "file with the secret that callbacks are signed with"


class Hub(Section, frozen=True):
    role: Literal["node", "hub"] = "node"
    "hub: also receive the outboxes of other nodes, and show them in `outpost status`"
    url: str = ""
    "where the outbox is delivered: the address of a hub; https, or this machine"
    node: str = ""
    "instead of hub.url: id of the neighbour that is the hub; delivered over the fleet's certificates, without a key"
    key: str = ""
    "API key for the hub"
    key_file: str = ""
    "file with that key, instead of hub.key; read at each attempt"
    ca_file: str = ""
    "PEM file of the authority that signed the hub's certificate; empty takes this machine's authorities"
    telemetry_s: float = 0.0
    "seconds between records of this node's figures for the hub (no prompts, no answers); 0 makes none"
    batch_bytes: int = 256 << 10
    "most bytes delivered at a time"
    bytes_per_s: int = 256 << 10
    "most bytes a second that deliveries may take; 0 is no limit"
    node_bytes: int = 16 << 20
    "as a hub: bytes on disk that each node may fill; beyond that its oldest figures are dropped"


class Mesh(Section, frozen=True):
    enabled: bool = True
    "once this node is in a fleet (`outpost fleet enrol`): answer its neighbours, and know who is there"
    port: int = 8470
    "TCP port for neighbours; 0 picks a free one"
    discover: bool = True
    "announce this node on the local network, and find others there (mDNS)"
    interfaces: tuple[str, ...] = ()
    "names of the network interfaces to do that on; empty means all"
    peers: tuple[str, ...] = ()
    "HOST:PORT of neighbours that multicast does not reach; naming each other on one side is enough"


class Routes(Section, frozen=True):
    neighbour_s: float = 0.1
    "seconds of waiting that asking a neighbour must save"
    power_s: float = 0.5
    "seconds of waiting that it is worth to spare a battery, or a machine that is too hot"
    share: float = 0.5
    "part of the slots that neighbours may take here; 0 answers for none"
    hops: int = 1
    "how many nodes may pass a request on, one to the next"
    silence_s: float = 1.0
    "silence of a neighbour after which its answer goes on elsewhere"
    hedge_share: float = 0.05
    "part of the requests that a second node may be asked, where the first is later than usual; 0 is none"


class Cloud(Section, frozen=True):
    url: str = ""
    "base URL of an OpenAI-compatible API, like https://example.com/v1, for what is too slow here; empty is none"
    model: str = ""
    "model to ask for there; empty names none"
    api_key_file: str = ""
    "file with the API key"
    api_key_env: str = ""
    "environment variable with the API key, where there is no file"
    policy: Literal["never", "ask", "redacted", "always"] = "never"
    "what may go there: never anything, ask for what its caller allows (Outpost-Cloud: allow), redacted or always all"
    redact: tuple[str, ...] = ("email", "phone", "card", "iban", "ip")
    "what is taken out (policy redacted): these names, or regular expressions with bounded, possessive repeats"
    continues: bool = True
    "whether it goes on from a begun answer (continue_final_message, as vLLM and Outpost do); else none is moved there"
    handicap_s: float = 2.0
    "seconds of waiting that asking the cloud must save, for its price"
    metered: bool = False
    "the way there costs by the byte: ask only where nobody else can answer"
    first_s: float = 20.0
    "longest wait for its first word"
    silence_s: float = 10.0
    "longest silence after that; then the answer goes on elsewhere"
