"""What a command sets up before it computes, and says after it."""

import types

import jax
import pytest

from dualenc_jax.cli import runtime, train
from dualenc_jax.data import readers


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


@pytest.mark.parametrize('given, more', [
    ({'train': 'a.jsonl'}, ['--split=train']),
    ({'train': 'a.jsonl', 'validation': 'b.jsonl'}, []),
])
def test_a_run_without_other_data_is_measured_on_its_own(given, more):
  run = types.SimpleNamespace(
      model_dir='m', task=readers.Pairs(**given),
      objective=types.SimpleNamespace(outputs='embeddings'),
  )
  words = ['dualenc', 'evaluate', '--model_dir=m', *more]
  assert train.next_command(run) == words


def test_a_stage_of_a_recipe_leaves_the_next_step_to_it(monkeypatch, capsys):
  runtime.next_step('one')
  monkeypatch.setenv(runtime.STAGE, '1')
  runtime.next_step('two')
  assert capsys.readouterr().out == 'one\n'
