import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from node.engine import hardware

GIB = 1 << 30
XEON_FLAGS = "fpu sse4_2 fma f16c avx avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8"
PI5_FEATURES = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
ORIN_FEATURES = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimddp uscat ilrcpc flagm"


def x86_cpuinfo(cpus: int, cores: int) -> str:
    return "\n".join(
        f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Gold 6430\nphysical id\t: 0\n"
        f"core id\t\t: {cpu % cores}\nflags\t\t: {XEON_FLAGS}\nbugs\t\t:\n"
        for cpu in range(cpus)
    )


def arm_cpuinfo(parts: list[str], features: str, tail: str = "") -> str:
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


SERVER = {  # 4 cores with 2 threads each, no container
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
}
PI5 = {
    "proc/cpuinfo": arm_cpuinfo(["0xd0b"] * 4, PI5_FEATURES, "\nRevision\t: d04170\nModel\t\t: Raspberry Pi 5\n"),
    "proc/meminfo": "MemTotal:        8256400 kB\nMemFree:         6000000 kB\nMemAvailable:    7340032 kB\n",
    "proc/self/status": "Cpus_allowed_list:\t0-3\n",
    "proc/self/cgroup": "0::/user.slice\n",
    "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
    "sys/devices/system/cpu/online": "0-3\n",
    **siblings("0", "1", "2", "3"),
}
JETSON = {
    "proc/cpuinfo": arm_cpuinfo(["0xd42"] * 6, ORIN_FEATURES),
    "proc/meminfo": "MemTotal:        7802152 kB\nMemFree:         4000000 kB\nMemAvailable:    5242880 kB\n",
    "proc/self/status": "Cpus_allowed_list:\t0-5\n",
    "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
    "sys/devices/system/cpu/online": "0-3\n",  # a power mode that switches two cores off
    "dev/nvhost-gpu": "",
    "dev/nvmap": "",
    **siblings("0", "1", "2", "3", "4", "5"),
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


def plant(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_a_server_with_threads_and_cards(tmp_path: Path) -> None:
    found = hardware.inspect(tmp_path, plant(tmp_path, SERVER))
    assert (found.board, found.cpu) == ("PowerEdge R660", "Intel(R) Xeon(R) Gold 6430")
    assert found.features == ("avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx")
    assert (found.logical_cores, found.physical_cores, found.cpu_quota, found.usable_cores) == (8, 4, None, 4)
    assert found.memory == hardware.Memory(16 * GIB, 8 * GIB, None)
    assert found.nvidia_devices == ("nvidia0", "nvidia2", "nvidia10")
    assert found.disk_free


def test_a_raspberry_pi(tmp_path: Path) -> None:
    found = hardware.inspect(tmp_path, plant(tmp_path, PI5))
    assert (found.board, found.cpu) == ("Raspberry Pi 5 Model B Rev 1.0", "Cortex-A76")
    assert found.features == ("neon", "dotprod")
    assert (found.usable_cores, found.nvidia_devices) == (4, ())
    assert found.memory.available == 7 * GIB


def test_a_jetson_with_cores_switched_off(tmp_path: Path) -> None:
    found = hardware.inspect(tmp_path, plant(tmp_path, JETSON))
    assert (found.board, found.cpu) == ("NVIDIA Jetson Orin Nano Developer Kit", "Cortex-A78AE")
    assert (found.logical_cores, found.usable_cores) == (4, 4)
    assert found.nvidia_devices == ("nvhost-gpu",)


def test_a_container_under_cgroup_v2(tmp_path: Path) -> None:
    root = plant(tmp_path, CONTAINER_V2)
    assert hardware.cpu_quota(root) == 2.5
    assert hardware.usable_cores(root) == 2
    assert hardware.memory(root) == hardware.Memory(16 * GIB, 3 * GIB // 2, 2 * GIB)


def test_a_container_under_cgroup_v1(tmp_path: Path) -> None:
    root = plant(tmp_path, CONTAINER_V1)
    assert hardware.cpu_quota(root) == 0.5
    assert hardware.usable_cores(root) == 1
    assert hardware.memory(root) == hardware.Memory(16 * GIB, 3 * GIB + GIB // 4, 4 * GIB)


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    deep = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
        "sys/fs/cgroup/a/b/memory.max": f"{6 * GIB}\n",
        "sys/fs/cgroup/a/memory.max": f"{9 * GIB}\n",
    }
    root = plant(tmp_path, SERVER | deep)
    assert (hardware.cpu_quota(root), hardware.usable_cores(root)) == (3.0, 3)
    assert hardware.memory(root).limit == 6 * GIB


def test_a_group_outside_the_namespace_is_not_followed(tmp_path: Path) -> None:
    outside = {"proc/self/cgroup": "0::/../../x\n", "sys/fs/x/cpu.max": "100000 100000\n", "sys/fs/cgroup/t": ""}
    assert hardware.cpu_quota(plant(tmp_path, SERVER | outside)) is None


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"sys/fs/cgroup/cpu.max": "max 100000\n", "sys/fs/cgroup/memory.max": "max\n"}, id="v2"),
        pytest.param(
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            id="v1",
        ),
        pytest.param({"sys/fs/cgroup/memory.max": f"{64 * GIB}\n"}, id="more than the machine has"),
    ],
)
def test_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    root = plant(tmp_path, SERVER | {"proc/self/cgroup": "2:memory:/\n1:cpu:/\n0::/\n"} | files)
    assert hardware.cpu_quota(root) is None
    assert hardware.memory(root) == hardware.Memory(16 * GIB, 8 * GIB, None)


def test_affinity_narrows_and_siblings_count_once(tmp_path: Path) -> None:
    root = plant(tmp_path, SERVER | {"proc/self/status": "Cpus_allowed_list:\t1-2,5\n"})
    assert hardware.allowed_cpus(root) == {1, 2, 5}
    assert hardware.physical_cores(root) == 2


def test_cores_without_a_topology_folder_come_from_cpuinfo(tmp_path: Path) -> None:
    files = {name: text for name, text in SERVER.items() if "topology" not in name}
    assert hardware.physical_cores(plant(tmp_path, files)) == 4


def test_cores_without_sys_at_all(tmp_path: Path) -> None:
    assert hardware.usable_cores(plant(tmp_path, {"proc/cpuinfo": PI5["proc/cpuinfo"]})) == 4


def test_a_feature_that_one_core_lacks_is_none(tmp_path: Path) -> None:
    mixed = arm_cpuinfo(["0xd05", "0xd0b"], "fp asimd asimddp").replace("asimd asimddp", "asimd", 1)
    root = plant(tmp_path, {"proc/cpuinfo": mixed})
    assert hardware.features(root) == ("neon",)
    assert hardware.cpu_name(root) == "Cortex-A55 + Cortex-A76"


def test_an_unknown_arm_core_keeps_its_number(tmp_path: Path) -> None:
    assert hardware.cpu_name(plant(tmp_path, {"proc/cpuinfo": arm_cpuinfo(["0xfff"], "fp")})) == "ARM part 0xfff"


def test_an_empty_tree_is_an_unknown_machine(tmp_path: Path) -> None:
    found = hardware.inspect(tmp_path, tmp_path)
    assert (found.board, found.cpu, found.features, found.cpu_quota, found.nvidia_devices) == ("", "", (), None, ())
    assert found.memory == hardware.Memory(None, None, None)
    assert found.usable_cores >= 1


FILES = sorted(CONTAINER_V2 | CONTAINER_V1 | PI5)


@pytest.mark.parametrize("content", ["", "\0\0", "-1", "9" * 30, "0-", "max", "a:b:c:d\n::\n0::", "processor: x\n\n:"])
def test_strange_files_are_unknown(tmp_path: Path, content: str) -> None:
    root = plant(tmp_path, dict.fromkeys(FILES, content))
    assert hardware.inspect(tmp_path, root).usable_cores >= 1


def test_folders_in_place_of_files_are_unknown(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    assert hardware.inspect(tmp_path, tmp_path).usable_cores >= 1


@given(name=st.sampled_from(FILES), content=st.binary(max_size=60))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
def test_any_bytes_in_a_file_are_survived(tmp_path: Path, name: str, content: bytes) -> None:
    root = plant(tmp_path, CONTAINER_V1)
    plant(root, {name: ""})
    (root / name).write_bytes(content)
    assert hardware.inspect(tmp_path, root).usable_cores >= 1


def test_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    free = hardware.disk_free(tmp_path / "a" / "b")
    assert free is not None
    assert free > 0


def test_this_machine() -> None:
    assert hardware.allowed_cpus() == os.sched_getaffinity(0)
    assert 1 <= hardware.usable_cores() <= len(os.sched_getaffinity(0))
    found = hardware.memory()
    assert found.total
    assert found.available
    assert 0 < found.available <= found.total
