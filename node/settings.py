"""One frozen tree of settings: what can be set, its meaning and its default; a number's range stands in `ranges`.

Every key's meaning stands here as a string after it; README's table is checked against this file, and `outpost serve
--help` prints it. `layers` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
import platformdirs

from node.beyond import Cloud as Cloud
from node.beyond import Fleet as Fleet
from node.beyond import Hub as Hub
from node.beyond import Mesh as Mesh
from node.beyond import Outbox as Outbox
from node.beyond import Routes as Routes
from node.section import Section as Section


class Server(Section, frozen=True):
    host: str = "127.0.0.1"
    "address to listen on; anything but loopback needs an API key"
    port: int = 8080
    "TCP port; 0 picks a free one"
    api_keys: tuple[str, ...] = ()
    "accepted bearer keys; empty means no key is asked for"
    tls_certificate: str = ""
    "PEM file with the certificate chain; set together with tls_key to serve HTTPS"
    tls_key: str = ""
    "PEM file with the private key"
    allowed_origins: tuple[str, ...] = ("*",)
    "origins that browsers may call the API from (CORS)"
    max_body_bytes: int = 4 << 20
    "largest request body accepted"
    keepalive_s: float = 10.0
    "seconds of silence after which a waiting stream gets a comment line"
    grace_s: float = 30.0
    "seconds that running streams get to finish after SIGTERM"

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in ("127.0.0.1", "::1", "localhost")


class Model(Section, frozen=True):
    name: str = "smollm2-135m-instruct"
    "a name from `outpost models list`, or the path of a GGUF file or of a folder with an ONNX model"
    variant: str = ""
    "another form of the model's weights, served under its name; `outpost tune` sets it, empty is the model's own file"


class Engine(Section, frozen=True):
    kind: Literal["llama", "onnx", "echo"] = "llama"
    "llama (llama.cpp), onnx (ONNX Runtime) or echo (deterministic, no weights; for tests and wiring)"
    providers: tuple[Literal["auto", "tensorrt", "cuda", "qnn", "openvino", "vitisai", "cpu"], ...] = ("auto",)
    "what runs an ONNX model: the first of these that can; auto goes through all of them"
    slots: int = 8
    "requests that run at the same time; at most 127, with the echo engine 4096"
    context: int = 0
    "longest prompt + answer of one request, in tokens; 0 takes the model's own"
    kv_tokens: int = 0
    "tokens that the shared KV cache holds for all slots together; 0 takes one whole context"
    kv_type: Literal["f32", "f16", "q8_0", "q4_0"] = "f16"
    "number format of the KV cache"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    "attention without a table of scores; auto lets llama.cpp decide, a KV cache of q8_0 or q4_0 needs it"
    batch: int = 512
    "most tokens of one step"
    ubatch: int = 0
    "tokens of a step that are computed together; 0 takes engine.batch"
    threads: int = 0
    "CPU threads; 0 takes the cores this process may use"
    gpu_layers: int = -1
    "layers to put on a GPU where llama.cpp was built for one; -1 means all"
    oversize: Literal["refuse", "allow"] = "refuse"
    "what to do with a model that needs more memory than this machine has: refuse to serve it, or try"
    step_ms: float = 62.0
    "target time of one step while answers stream: bounds the gap that a new prompt can cause"
    urgent_step_ms: float = 80.0
    "the same while a critical or interactive prompt is read; where engine.step_ms is more, that"
    prefill_step_ms: float = 600.0
    "target time of one step while only prompts are read: bounds how long a newcomer or a cancel waits"
    drafts: Literal["history", "own", "off"] = "history"
    "check guessed tokens in the same step where that pays: from past answers and own text, from own text, or not"
    pooling: Literal["auto", "none", "mean", "last"] = "auto"
    "how embeddings are made from token states; auto takes the model's own, or the mean; none turns them off"
    echo_rate: float = 0.0
    "tokens a second of each answer of the echo engine, all of a step at once as a model makes them; 0 is no limit"


class SamplingDefaults(Section, frozen=True):
    temperature: float = 0.8
    "used when a request names none; 0 always takes the likeliest token"
    top_p: float = 0.95
    "used when a request names none; 1 is off"
    top_k: int = 40
    "used when a request names none; 0 is off"
    min_p: float = 0.05
    "used when a request names none; 0 is off"
    repeat_penalty: float = 1.0
    "used when a request names none; 1 is off"


class Queue(Section, frozen=True):
    max_waiting: int = 64
    "requests that may wait for a slot; beyond that clients get 429 with Retry-After"
    max_bytes: int = 64 << 20
    "memory that waiting requests may take"
    policy: Literal["levels", "fifo"] = "levels"
    "who runs next: by level and score, as the load allows, or (fifo) in order of arrival and nothing else"
    default_level: Literal["critical", "interactive", "standard", "background"] = "standard"
    "level of requests that name none, where no quota file says: critical, interactive, standard or background"
    preempt: Literal["critical", "interactive", "standard", "never"] = "interactive"
    "lowest urgent level: it and those above pause the ones below when slots are missing"
    displaces: int = 3
    "slots that each running urgent request takes from the levels below, so that it and the next one are quick"
    ageing_s: float = 30.0
    "seconds of waiting that outweigh one level"
    patience: float = 25.0
    "longest predicted wait to be let in for, in the level's longest promised waits (0.12, 0.3 and 0.8 s)"
    urgent_patience: float = 2.0
    "the same for urgent levels: one that waits too long makes the next one late; the first in line always may wait"
    sla_weight: float = 0.7
    "what waiting counts within a level; the three weights sum to 1"
    freshness_weight: float = 0.15
    "what counts that the session was active just now"
    affinity_weight: float = 0.15
    "what counts that the prompt is warm on this node"


class Limits(Section, frozen=True):
    quota_file: str = ""
    "TOML file with tenants, their keys, levels and rates; empty means that nothing is limited"


class Load(Section, frozen=True):
    gap_ms: float = 100.0
    "objective for the p95 of the time between two tokens; beyond it fewer run, and less is given"
    wait_ms: float = 1000.0
    "objective for how long critical and interactive requests wait for a slot; beyond it less is given"
    cached_answers: Literal["never", "ask"] = "never"
    "whether an overloaded node gives an identical question's recent answer to those who allow it (Outpost-Cached: 1)"


class Streams(Section, frozen=True):
    resumable: Literal["ask", "always", "never"] = "ask"
    "which generations outlive their reader and the process: those that ask with Outpost-Resumable: 1, all, or none"
    durability: Literal["process", "power", "off"] = "process"
    "what a resumable generation survives: the process's death, a power cut (an fsync a step), or neither"
    database: str = ""
    "SQLite file; empty means node-PORT.db in the data directory, and none where the port is 0"
    max_bytes: int = 256 << 20
    "bytes on disk for resumable generations; beyond that the oldest ended one is evicted"
    max_age_s: float = 86_400.0
    "seconds after which a resumable generation is evicted"
    when_ahead: Literal["refuse", "rewind"] = "refuse"
    "for a reader who has seen more than was stored (power cut): answer 409, or tell it in the stream to go back"
    reader_buffer_bytes: int = 256 << 10
    "memory that one reader who lags may cost; near it, the generation is held until the reader catches up"


class Websocket(Section, frozen=True):
    heartbeat_s: float = 15.0
    "seconds between pings; after 3 without a sign of life a connection is suspect, after 5 it is closed"
    max_message_bytes: int = 4 << 20
    "largest message accepted, unpacked; a larger one closes the connection"
    max_generations: int = 16
    "generations that may run at the same time on one connection"
    max_connections: int = 256
    "connections at the same time; beyond that the answer is 503"


class Prewarm(Section, frozen=True):
    enabled: bool = True
    "note prompts, and keep what many begin with; off erases what was kept"
    min_sessions: int = 3
    "different sessions that must have sent a beginning before it is kept; 1 keeps every prompt"
    share_between_tenants: bool = False
    "whether tenants may profit from each other's prompts"
    templates: tuple[str, ...] = ()
    "system prompts to have warm from the start, for everybody: their texts, or @ and the path of a file"
    max_age_s: float = 30 * 86_400.0
    "seconds after which what nobody asked any more is forgotten"
    history_bytes: int = 16 << 20
    "memory for the history; beyond that, what is least expected to come again is forgotten"
    answer_bytes: int = 8 << 20
    "memory for past answers that guesses come from (engine.drafts); 0 keeps none"
    short_half_life_s: float = 3600.0
    "seconds after which a prompt counts half for what will be asked soon"
    long_half_life_s: float = 86_400.0
    "the same for what is usually asked"
    memory_bytes: int = 256 << 20
    "memory for what the KV cache held of prompts, beside the KV cache itself"
    disk_bytes: int = 1 << 30
    "bytes on disk for the same; 0 stores nothing"
    folder: str = ""
    "folder for the state files; empty means prewarm-PORT in the data directory, and none where the port is 0"


class Link(Section, frozen=True):
    enabled: bool = False
    "whether clients may open links over UDP (POST /v1/link), which lose no time where packets are lost"
    port: int = 0
    "UDP port; 0 takes the number of server.port"
    public_port: int = 0
    "UDP port that clients are told, where a router maps another one to link.port; 0 tells the real one"
    max_links: int = 256
    "links at the same time; beyond that the answer is 503"
    serial: str = ""
    "device of a serial line to answer on, like /dev/ttyUSB0; whoever holds its other end may ask, without a key"
    serial_baud: int = 115_200
    "speed of the serial line, in bits a second"
    serial_mode: Literal["wired", "radio"] = "wired"
    "wired frames are checked, radio frames are corrected, too"


class Tune(Section, frozen=True):
    use: bool = True
    "serve what `outpost tune --apply`, or the node by itself, found for this model on this machine"
    auto: bool = True
    "tune once, by itself, when the node is idle, on mains and not on port 0; used from the next start on"
    idle_s: float = 600.0
    "seconds without a request before that begins; a request stops it, and the next wait is twice as long"
    budget_s: float = 300.0
    "seconds that a tuning run may take"
    max_kl: float = 0.02
    "quality gate: largest mean KL divergence from the file as shipped, in nats"
    min_agreement: float = 0.92
    "quality gate: least share of places where the likeliest token is the same"
    min_gain: float = 1.05
    "least score (mean speed-up) that is worth a variant"


class Power(Section, frozen=True):
    battery_threads: int = 0
    "most CPU threads on battery; 0 takes as many as on mains"
    hot_threads: int = 0
    "most CPU threads while this machine is so hot that it slows down, and a minute after; 0 takes as many as ever"


class Log(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    "least severe records written"


class Settings(Section, frozen=True):
    server: Server = Server()
    model: Model = Model()
    engine: Engine = Engine()
    sampling: SamplingDefaults = SamplingDefaults()
    queue: Queue = Queue()
    limits: Limits = Limits()
    load: Load = Load()
    streams: Streams = Streams()
    websocket: Websocket = Websocket()
    prewarm: Prewarm = Prewarm()
    link: Link = Link()
    fleet: Fleet = Fleet()
    outbox: Outbox = Outbox()
    hub: Hub = Hub()
    mesh: Mesh = Mesh()
    tune: Tune = Tune()
    power: Power = Power()
    routes: Routes = Routes()
    cloud: Cloud = Cloud()
    log: Log = Log()


SECTIONS: Mapping[str, type[Section]] = {field.name: field.type for field in msgspec.structs.fields(Settings)}


def home() -> Path:
    """The data directory: weights and state. `OUTPOST_HOME` overrides the platform's place."""
    configured = os.environ.get("OUTPOST_HOME")
    return Path(configured).expanduser() if configured else platformdirs.user_data_path("outpost")
