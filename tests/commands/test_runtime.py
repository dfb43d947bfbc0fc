"""What a command sets up before it computes."""

import logging

import jax

from dualenc_jax.commands import runtime


def test_devices_of_a_cpu_keep_programs_only_where_they_are_told(
    monkeypatch, tmp_path
):
  jax.config.update('jax_compilation_cache_dir', None)
  monkeypatch.setenv('DUALENC_CACHE', str(tmp_path))
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR')
  runtime.use_compilation_cache()
  assert jax.config.jax_compilation_cache_dir is None
  monkeypatch.setattr(jax, 'device_count', lambda: 1)
  runtime.use_compilation_cache()
  assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'compiled')
  monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', str(tmp_path / 'mine'))
  runtime.use_compilation_cache()
  assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'mine')


def test_what_orbax_raises_is_not_logged_with_tracebacks(capsys):
  runtime.start_logging()
  log = logging.getLogger('absl')
  try:
    raise ValueError('no space')
  except ValueError:
    log.exception('a thread failed')
  log.warning('something else')
  said = capsys.readouterr().err
  assert 'something else' in said and 'Traceback' not in said
