"""What holds this machine back: heat, clocks, the power supply; and what accelerators it has."""

from __future__ import annotations

from collections.abc import Iterator

from node.commands.doctor_table import Check
from node.machine.board import Jetson
from node.machine.hardware import Hardware
from node.machine.heat import Heat
from node.machine.npu import Npu
from node.machine.supply import Supply

_NEAR = 5.0  # °C below the point where the machine slows
_LOW_BATTERY = 20
_COOL = "Give it air, a larger heat sink or a fan; with power.hot_threads a node makes less heat by itself."


def check_machine(machine: Hardware) -> Iterator[Check]:
    """Everything that this machine says of itself; what it does not have gets no line."""
    yield check_heat(machine.heat)
    if machine.heat.caps:
        yield check_clocks(machine.heat, machine.jetson)
    for gpu in machine.gpus:
        if gpu.slowed:
            yield Check("GPU clock", "warn", f"{gpu.node} is slowed: {', '.join(gpu.slowed)}", _COOL)
    if machine.supply != Supply():
        yield check_supply(machine.supply)
    if machine.jetson:
        yield check_power_mode(machine.jetson)
    yield from map(check_npu, machine.npus)


def check_heat(heat: Heat) -> Check:
    """Is it too hot?"""
    if heat.slowed:
        return Check("heat", "warn", f"{'; '.join(heat.slowed)}{_hottest(heat)}", _COOL)
    if not heat.zones:
        return Check("heat", "ok", "no sensor")
    near = [zone for zone in heat.zones if zone.slows_at is not None and zone.celsius >= zone.slows_at - _NEAR]
    if near:
        zone = near[0]
        found = f"{zone.name} is at {zone.celsius:.0f} °C; the machine slows at {zone.slows_at:.0f}"
        return Check("heat", "warn", found, _COOL)
    hottest = heat.zones[0]
    mark = "" if hottest.slows_at is None else f"; the machine slows at {hottest.slows_at:.0f}"
    return Check("heat", "ok", f"{hottest.name} is the hottest, {hottest.celsius:.0f} °C{mark}")


def _hottest(heat: Heat) -> str:
    return f"; {heat.zones[0].name} is at {heat.zones[0].celsius:.0f} °C" if heat.zones else ""


def check_clocks(heat: Heat, jetson: Jetson | None) -> Check:
    """May the cores run as fast as they can?"""
    caps = ", ".join(f"CPU {cap.cpus} at {cap.now:.1f} of {cap.most:.1f} GHz" for cap in heat.caps)
    if heat.slowed:
        return Check("clock rate", "warn", f"held down while it is hot: {caps}")
    if jetson:
        return Check("clock rate", "ok", f"limited by the power mode: {caps}")
    remedy = "If nobody meant that: sudo cpupower frequency-set --max 100GHz"
    return Check("clock rate", "warn", f"limited by a setting: {caps}", remedy)


def check_supply(supply: Supply) -> Check:
    """Is there enough power?"""
    left = "" if supply.percent is None else f", {supply.percent} % left"
    if supply.undervoltage:
        remedy = "Use the power supply that the board's maker sells (5 V, 5 A for a Raspberry Pi 5) and a short cable."
        return Check("power", "warn", "the voltage was too low since the start, so the machine slows", remedy)
    if supply.on_battery:
        low = supply.percent is not None and supply.percent < _LOW_BATTERY
        remedy = "Plug it in." if low else "Plug it in, or let power.battery_threads make it last longer."
        return Check("power", "warn", f"on battery{left}", remedy)
    return Check("power", "ok", f"mains{left}" if supply.on_battery is not None else f"battery{left}")


def check_power_mode(jetson: Jetson) -> Check:
    """Which power mode is a Jetson in? A lower one may be meant, so it is only said."""
    release = f"L4T {jetson.l4t}" if jetson.l4t else "L4T of unknown release"
    if not jetson.mode:
        return Check("Jetson", "ok", f"{release}, power mode unknown")
    most = next((name for name in jetson.modes if name.startswith("MAXN")), None)
    if most is None or jetson.mode == most:
        return Check("Jetson", "ok", f"{release}, power mode {jetson.mode}")
    remedy = f"For full speed, where cooling and supply allow it: sudo nvpmodel -m {jetson.modes[most]}  ({most})"
    return Check("Jetson", "ok", f"{release}, power mode {jetson.mode}", remedy)


def check_npu(npu: Npu) -> Check:
    """Could an engine use it?"""
    what = " ".join(filter(None, (npu.kind, f"({', '.join(filter(None, (npu.node, npu.driver)))})")))
    if not npu.provider:
        return Check("NPU", "ok", f"{what}: no engine here can use it")
    if not npu.open:
        remedy = "Let this user open it, for example: sudo usermod -aG render $USER, then log in again."
        return Check("NPU", "warn", f"{what}: this user may not open it", remedy)
    return Check("NPU", "ok", f"{what}: for ONNX Runtime with its {npu.provider} provider")
