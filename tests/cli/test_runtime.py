"""What a command sets up before it computes."""

import jax

from dualenc_jax.cli import runtime


def test_devices_of_a_cpu_keep_programs_only_where_they_are_told(
    monkeypatch, tmp_path
):
  jax.config.update('jax_compilation_cache_dir', None)
  monkeypatch.setenv('DUALENC_CACHE', str(tmp_path))
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR')
  for count, told, wanted in (
      (8, None, None), (1, None, 'compiled'), (8, 'mine', 'mine')
  ):
    monkeypatch.setattr(jax, 'device_count', lambda count=count: count)
    if told:
      monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', str(tmp_path / told))
    runtime.use_compilation_cache()
    found = jax.config.jax_compilation_cache_dir
    assert found == (wanted and str(tmp_path / wanted))
