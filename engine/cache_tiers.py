"""The tiers behind the device's cache, as the settings ask for them, and the manager that uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.engine.disk_cache import DiskCache
from infer.engine.errors import ConfigError
from infer.engine.home_dir import expand_home
from infer.engine.host_tier import HostTier
from infer.engine.kv_cache_manager import KVCacheManager
from infer.engine.kv_connector import NoTier

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.engine.config import EngineConfig
    from infer.engine.host_cache import HostCache
    from infer.engine.kv_connector import KVConnector


def make_cache_manager(
    config: EngineConfig,
    num_blocks: int,
    num_host_blocks: int,
    below_host: KVConnector | None = None,
    *,
    window: int = 0,
) -> KVCacheManager:
    """For so many blocks on the device, and so many in host memory: swap space, and a tier where that is asked for."""
    host_tier = HostTier(num_host_blocks, below_host or NoTier())
    return KVCacheManager(
        num_blocks,
        config.block_size,
        enable_prefix_caching=config.enable_prefix_caching,
        window=window,
        connector=host_tier if config.keeps_prefixes_on_host else None,
        swap_space=host_tier,
    )


def open_disk_cache(
    config: EngineConfig, identity: Callable[[], str], host: HostCache, warn: Callable[[str], None]
) -> KVConnector:
    """What `kv_cache_dir` says. `identity` names what the blocks depend on.

    Raises:
        ConfigError: the directory cannot be used.
    """
    if config.kv_cache_dir is None:
        return NoTier()
    directory, max_bytes = expand_home(config.kv_cache_dir), int(config.kv_cache_dir_size * 2**30)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"kv_cache_dir is no directory: {directory}")
    try:
        return DiskCache(directory, identity(), max_bytes, host, warn)
    except OSError as error:
        raise ConfigError(f"kv_cache_dir cannot be used: {error}") from error
