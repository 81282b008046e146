"""What the tests of this room share: a profile's text, machines as values, a model's header."""

from __future__ import annotations

from dataclasses import replace

from node.machine.gpu import Gpu
from node.machine.hardware import Hardware
from node.machine.heat import Heat
from node.machine.memory import Memory
from node.machine.npu import Npu
from node.machine.supply import Supply
from node.models.gguf import Summary
from node.models.shape import Shape

MIB = 1 << 20
TEXT = """\
name = "kiosk"
description = "A kiosk"
[minimum]
architectures = ["x86_64", "aarch64"]
features = ["avx2", "fma"]
cores = 2
memory_mib = 1000
[settings.engine]
kind = "echo"
slots = 3
[settings.queue]
max_waiting = 5
"""
MACHINE = Hardware(
    architecture="x86_64",
    board="NUC",
    cpu="Core",
    features=("avx", "avx2", "fma"),
    logical_cores=4,
    physical_cores=4,
    cpu_quota=None,
    usable_cores=4,
    memory=Memory(8192 * MIB, 4096 * MIB, None),
    jetson=None,
    gpus=(),
    npus=(),
    heat=Heat(),
    supply=Supply(),
    disk_free=None,
)
WITH_GPU = replace(MACHINE, gpus=(Gpu("nvidia0", "RTX", 2048 * MIB), Gpu("nvidia1", "RTX", 6144 * MIB)))
JETSON = replace(
    MACHINE, architecture="aarch64", features=("neon", "dotprod"), gpus=(Gpu("nvhost-gpu", "integrated", shared=True),)
)
WITH_NPU = replace(MACHINE, npus=(Npu("Intel NPU", "accel/accel0", "intel_vpu", True),))

# SmolLM2-135M as shipped.
SMALL = Summary(
    architecture="llama",
    name="Smollm2 135M",
    context_length=8192,
    vocabulary=49152,
    has_chat_template=True,
    quantization="Q4_1",
    parameters=134_515_008,
    tensors=272,
    file_bytes=98_362_432,
    shape=Shape(30, 9, 576, 1536, 11520, 96_576_768, {"Q8_0": 30_081_024, "Q4_1": 66_355_200}),
)
