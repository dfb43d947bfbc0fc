"""The packages of the wheel; all else is in pyproject.toml."""

import pathlib

import setuptools

GIN = [p.parts for p in pathlib.Path('gin').rglob('*') if p.is_dir()]
setuptools.setup(packages=[
    *setuptools.find_packages(include=['dualenc_jax', 'dualenc_jax.*']),
    *sorted('.'.join(('dualenc_jax', *parts)) for parts in (('gin',), *GIN)),
    'dualenc_jax.tasks',
])
