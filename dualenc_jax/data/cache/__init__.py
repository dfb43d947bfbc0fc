"""Token caches: written once, memory-mapped ever after."""

from dualenc_jax.data.cache.build import prepare
from dualenc_jax.data.cache.format import Cache, DamagedCache

__all__ = ['Cache', 'DamagedCache', 'prepare']
