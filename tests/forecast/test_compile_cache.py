"""What compilers have said, kept between runs."""

import jax
import jax.numpy as jnp
import pytest

from dualenc_jax.forecast import compile_cache, slices

FIELDS = {'cycles': {str: int}}
ON = slices.Slice('v5e:2x2', slices.GENERATIONS['v5e'], (), 'libtpu 0.0.1')


def lowered(power: int) -> jax.stages.Lowered:
  return jax.jit(lambda x: x**power).lower(jnp.ones(3))


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
  monkeypatch.setenv('DUALENC_CACHE', str(tmp_path))
  return tmp_path / 'forecasts'


@pytest.mark.parametrize('content', [None, b'{"cycles": {"sco', b'\xff'])
def test_what_is_damaged_is_written_again(folder, content):
  path = compile_cache.file(lowered(2), ON, 'all')
  if content is not None:
    folder.mkdir()
    path.write_bytes(content)
  assert compile_cache.read(path, FIELDS) is None
  compile_cache.write(path, {'cycles': {'scores': 1}})
  assert compile_cache.read(path, FIELDS) == {'cycles': {'scores': 1}}
  assert [file.name for file in folder.iterdir()] == [path.name]


def test_a_file_is_of_a_program_for_a_slice_by_a_compiler(monkeypatch):
  own = compile_cache.file(lowered(2), ON, 'all')
  # Another line of code, and another function.
  again = jax.jit(lambda x: x**2).lower(jnp.ones(3))
  assert compile_cache.file(again, ON, 'all') == own
  newer = slices.dataclasses.replace(ON, compiler='libtpu 0.0.2')
  others = [
      compile_cache.file(lowered(3), ON, 'all'),
      compile_cache.file(lowered(2), ON, 'memory'),
      compile_cache.file(lowered(2), newer, 'all'),
  ]
  monkeypatch.setenv('LIBTPU_INIT_ARGS', '--xla_tpu_of_another=true')
  others.append(compile_cache.file(lowered(2), ON, 'all'))
  assert len({own, *others}) == 5
