"""Token caches: written once, memory-mapped ever after."""

from dualenc_jax.data.cache.format import Cache, DamagedCache
from dualenc_jax.data.cache.prepare import prepare

__all__ = ['Cache', 'DamagedCache', 'prepare']
