"""Machines as the files that their kernels show: an x86 server, an x86 mini PC, a Jetson, a Raspberry Pi, an RK3588.

Names, formats and values are what those kernels write; tests/data/README.md says where they were seen. Repetition is
made by small builders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

GIB = 1 << 30
XEON_FLAGS = "fpu sse4_2 fma f16c avx avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8"
CORE_FLAGS = "fpu vme de pse tsc msr sse4_1 sse4_2 fma f16c avx avx2 avx_vnni sha_ni"
PI5_FEATURES = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
ORIN_FEATURES = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimddp uscat ilrcpc flagm"


def plant(root: Path, files: Mapping[str, str]) -> Path:
    """Make the files below `root`."""
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root


def x86_cpuinfo(cpus: int, cores: int, model: str = "Intel(R) Xeon(R) Gold 6430", flags: str = XEON_FLAGS) -> str:
    return "\n".join(
        f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: {model}\nphysical id\t: 0\n"
        f"core id\t\t: {cpu % cores}\nflags\t\t: {flags}\nbugs\t\t:\n"
        for cpu in range(cpus)
    )


def arm_cpuinfo(parts: Sequence[str], features: str, tail: str = "") -> str:
    blocks = (
        f"processor\t: {cpu}\nBogoMIPS\t: 108.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\n"
        f"CPU architecture: 8\nCPU variant\t: 0x4\nCPU part\t: {part}\nCPU revision\t: 1\n"
        for cpu, part in enumerate(parts)
    )
    return "\n".join(blocks) + tail


def siblings(*groups: str) -> dict[str, str]:
    """The topology files for groups of CPUs that share a core, each written as the kernel writes a list."""
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": group + "\n"
        for group in groups
        for cpu in group.split(",")
    }


def zone(number: int, kind: str, millidegrees: int | str, *trips: tuple[str, int]) -> dict[str, str]:
    """A thermal zone with its trip points, each as (type, millidegrees)."""
    folder = f"sys/class/thermal/thermal_zone{number}"
    files = {f"{folder}/type": f"{kind}\n", f"{folder}/temp": f"{millidegrees}\n", f"{folder}/policy": "step_wise\n"}
    for index, (name, mark) in enumerate(trips):
        files |= {f"{folder}/trip_point_{index}_type": f"{name}\n", f"{folder}/trip_point_{index}_temp": f"{mark}\n"}
    return files


def cooler(number: int, kind: str, state: int, most: int) -> dict[str, str]:
    """A cooling device: a fan, or something that slows a processor."""
    folder = f"sys/class/thermal/cooling_device{number}"
    return {f"{folder}/type": f"{kind}\n", f"{folder}/cur_state": f"{state}\n", f"{folder}/max_state": f"{most}\n"}


def clock(policy: int, cpus: str, now: int, most: int) -> dict[str, str]:
    """A cpufreq policy, in kHz."""
    folder = f"sys/devices/system/cpu/cpufreq/policy{policy}"
    return {
        f"{folder}/related_cpus": f"{cpus}\n",
        f"{folder}/scaling_max_freq": f"{now}\n",
        f"{folder}/cpuinfo_max_freq": f"{most}\n",
    }


def supply(name: str, **attributes: str) -> dict[str, str]:
    """A battery or an adapter."""
    return {f"sys/class/power_supply/{name}/{key}": f"{value}\n" for key, value in attributes.items()}


SERVER = {  # 4 cores with 2 threads each, no container, two NVIDIA cards
    "proc/sys/kernel/arch": "x86_64\n",
    "proc/cpuinfo": x86_cpuinfo(8, 4),
    "proc/meminfo": "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n",
    "proc/self/status": "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n",
    "proc/self/cgroup": "0::/user.slice/session-1.scope\n",
    "sys/devices/system/cpu/online": "0-7\n",
    "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
    "sys/fs/cgroup/user.slice/memory.max": "max\n",
    "sys/class/dmi/id/product_name": "PowerEdge R660\n",
    "dev/nvidia0": "",
    "dev/nvidia10": "",
    "dev/nvidia2": "",
    "dev/nvidiactl": "",
    "dev/nvidia-uvm": "",
    **siblings("0,4", "1,5", "2,6", "3,7"),
    **zone(0, "x86_pkg_temp", 51000, ("passive", -274000), ("passive", 0)),
    **cooler(0, "Processor", 0, 10),
    **cooler(1, "intel_powerclamp", -1, 50),
    **cooler(2, "TCC Offset", 3, 63),  # a setting, not heat
    **clock(0, "0", 3400000, 3400000),
}
MINI_PC = {  # a fanless x86 box with an NPU, as in a kiosk; its battery is a mouse's
    "proc/sys/kernel/arch": "x86_64\n",
    "proc/cpuinfo": x86_cpuinfo(4, 4, "Intel(R) Core(TM) Ultra 5 125H", CORE_FLAGS),
    "proc/meminfo": "MemTotal:        7962240 kB\nMemFree:         2097152 kB\nMemAvailable:    6291456 kB\n",
    "proc/self/status": "Cpus_allowed_list:\t0-3\n",
    "proc/self/cgroup": "0::/system.slice/outpost.service\n",
    "sys/devices/system/cpu/online": "0-3\n",
    "sys/class/dmi/id/product_name": "NUC14RVK\n",
    "sys/class/accel/accel0/device/uevent": "DRIVER=intel_vpu\nPCI_CLASS=120000\nPCI_ID=8086:7D1D\n",
    "dev/accel/accel0": "",
    **siblings("0", "1", "2", "3"),
    **zone(0, "acpitz", 27800, ("critical", 105000)),
    **zone(1, "x86_pkg_temp", 68000, ("passive", -274000)),
    **supply("hidpp_battery_0", type="Battery", scope="Device", status="Discharging", capacity="5", present="1"),
    **clock(0, "0 1 2 3", 4500000, 4500000),
}
PI5 = {
    "proc/sys/kernel/arch": "aarch64\n",
    "proc/cpuinfo": arm_cpuinfo(["0xd0b"] * 4, PI5_FEATURES, "\nRevision\t: d04170\nModel\t\t: Raspberry Pi 5\n"),
    "proc/meminfo": "MemTotal:        8256400 kB\nMemFree:         6000000 kB\nMemAvailable:    7340032 kB\n",
    "proc/self/status": "Cpus_allowed_list:\t0-3\n",
    "proc/self/cgroup": "0::/user.slice\n",
    "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
    "proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0",
    "sys/devices/system/cpu/online": "0-3\n",
    "sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled": "0\n",
    "sys/class/hwmon/hwmon0/name": "cpu_thermal\n",
    "sys/class/hwmon/hwmon1/name": "rp1_adc\n",
    "sys/class/hwmon/hwmon2/name": "rpi_volt\n",
    "sys/class/hwmon/hwmon2/in0_lcrit_alarm": "0\n",
    **siblings("0", "1", "2", "3"),
    **zone(0, "cpu-thermal", 54850, ("critical", 110000), ("active", 50000), ("active", 60000)),
    **cooler(0, "pwm-fan", 1, 4),
    **clock(0, "0 1 2 3", 2400000, 2400000),
}
NVPMODEL = """\
# Copyright (c) 2023-2024, NVIDIA CORPORATION.
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /sys/devices/system/cpu/cpu0/online
# < POWER_MODEL ID=9 NAME=COMMENT >
< POWER_MODEL ID=0 NAME=15W >
CPU_ONLINE CORE_0 1
< POWER_MODEL ID=1 NAME=25W >
< POWER_MODEL ID=2 NAME=MAXN_SUPER >
CPU_A78_0 MAX_FREQ -1
< PM_CONFIG DEFAULT=0 >
"""
JETSON = {  # Orin Nano
    "proc/sys/kernel/arch": "aarch64\n",
    "proc/cpuinfo": arm_cpuinfo(["0xd42"] * 6, ORIN_FEATURES),
    "proc/meminfo": "MemTotal:        7802152 kB\nMemFree:         4000000 kB\nMemAvailable:    5242880 kB\n",
    "proc/self/status": "Cpus_allowed_list:\t0-5\n",
    "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
    "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,p3767-0005\0nvidia,tegra234\0",
    "etc/nv_tegra_release": "# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64, "
    "DATE: Thu Sep 18 22:54:44 UTC 2025\n# KERNEL_VARIANT: oot\n",
    "etc/nvpmodel.conf": NVPMODEL,
    "var/lib/nvpmodel/status": "pmode:0000",
    "sys/devices/system/cpu/online": "0-3\n",  # a power mode that switches two cores off
    "dev/nvhost-gpu": "",
    "dev/nvmap": "",
    **siblings("0", "1", "2", "3", "4", "5"),
    **zone(0, "cpu-thermal", 52500, ("passive", 99000), ("critical", 104500)),
    **zone(1, "gpu-thermal", 53093, ("passive", 99000), ("critical", 104500)),
    **zone(2, "cv0-thermal", -256000),  # off
    **zone(8, "tj-thermal", 53406, ("passive", 99000), ("active", 54000), ("critical", 104500)),
    **cooler(0, "cpu-throttle-alert", 0, 1),
    **cooler(1, "pwm-fan", 2, 3),
    **clock(0, "0 1 2 3", 1510400, 1728000),
    **clock(4, "4 5", 1510400, 1728000),
}
RK3588 = {  # 4 small cores and 4 large ones in two clusters
    "proc/sys/kernel/arch": "aarch64\n",
    "proc/cpuinfo": arm_cpuinfo(["0xd05"] * 4 + ["0xd0b"] * 4, PI5_FEATURES, "\nSerial\t\t: 0\n"),
    "proc/meminfo": "MemTotal:       16214624 kB\nMemFree:        12000000 kB\nMemAvailable:   15000000 kB\n",
    "proc/self/status": "Cpus_allowed_list:\t0-7\n",
    "proc/self/cgroup": "0::/user.slice\n",
    "proc/device-tree/model": "Radxa ROCK 5B\0",
    "proc/device-tree/compatible": "radxa,rock-5b\0rockchip,rk3588\0",
    "sys/devices/system/cpu/online": "0-7\n",
    "sys/class/devfreq/fb000000.gpu/governor": "simple_ondemand\n",
    "sys/class/devfreq/fdab0000.npu/governor": "rknpu_ondemand\n",
    "sys/kernel/debug/rknpu/version": "RKNPU driver: v0.9.8\n",
    "dev/dri/renderD128": "",
    "dev/dri/renderD129": "",
    "dev/dri/by-path/platform-fb000000.gpu-render": "",
    "dev/dri/by-path/platform-fdab0000.npu-render": "",
    **siblings(*map(str, range(8))),
    **zone(0, "soc-thermal", 44384, ("passive", 75000), ("passive", 85000), ("critical", 115000)),
    **zone(1, "bigcore0-thermal", 45307, ("passive", 85000), ("critical", 115000)),
    **zone(6, "npu-thermal", 43461, ("critical", 115000)),
    **cooler(0, "thermal-cpufreq-0", 0, 7),
    **cooler(1, "thermal-cpufreq-1", 0, 9),
    **cooler(3, "thermal-devfreq-0", 0, 7),
    **clock(0, "0 1 2 3", 1800000, 1800000),
    **clock(4, "4 5", 2400000, 2400000),
    **clock(6, "6 7", 2400000, 2400000),
}
CONTAINER_V2 = SERVER | {  # docker run --cpus 2.5 --memory 2g, in its own cgroup namespace
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/cpu.max": "250000 100000\n",
    "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
    "sys/fs/cgroup/memory.current": f"{GIB}\n",
    "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB // 2}\nactive_file 7\n",
}
CONTAINER_V1 = SERVER | {  # the host's paths, which the container does not see
    "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/docker/abc\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
    "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 4}\n",
}
MACHINES = {"server": SERVER, "mini pc": MINI_PC, "pi 5": PI5, "jetson": JETSON, "rk3588": RK3588}
