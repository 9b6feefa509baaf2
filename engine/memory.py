"""How many bytes this process may still take: the machine's, the container's or the GPU's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int:
    """Free memory of a GPU; on a CPU the least of what the machine has available and the cgroup limits leave."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    limits = [room for folder in _cgroup_folders() if (room := cgroup_room(folder)) is not None]
    return min([int(psutil.virtual_memory().available), *limits])


def cgroup_room(folder: Path) -> int | None:
    """Bytes left under the limit of the cgroup at `folder` (v2 or v1), page cache that can be dropped counted as left.
    None where there is no limit."""
    for limit_name, usage_name, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = (folder / limit_name).read_text().strip()
            usage = int((folder / usage_name).read_text())
            stat = (folder / "memory.stat").read_text()
        except (OSError, ValueError):
            continue
        # v1 writes "no limit" as a number close to 2^63.
        if limit == "max" or int(limit) >= 1 << 60:
            return None
        reclaimable = next((int(line.split()[1]) for line in stat.splitlines() if line.split()[0] == cache_key), 0)
        return max(0, int(limit) - usage + reclaimable)
    return None


def _cgroup_folders() -> list[Path]:
    """Folders of the cgroups this process is in, with their parents: a limit may be set at any level."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = _CGROUP_ROOT / "memory" if controllers else _CGROUP_ROOT
        own = Path(path.lstrip("/"))
        # Inside a container the path is often not visible, and the root is the container's own cgroup.
        folders.extend(root / part for part in (own, *own.parents) if (root / part).is_dir())
    return folders
