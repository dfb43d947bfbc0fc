"""What a command sets up before it computes."""

import jax
import pytest

from dualenc_jax.cli import flags, runtime
from dualenc_jax.utils.errors import UserError


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


@pytest.mark.parametrize(
    'environ, refused',
    [
        # The shell of `salloc --ntasks=4`, and the script of `sbatch`.
        ({'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'}, None),
        # salloc's own step, and srun's.
        ({'SLURM_NTASKS': '4', 'SLURM_STEP_NUM_TASKS': '1'}, None),
        ({'SLURM_STEP_NUM_TASKS': '4'}, 'STEP_NUM_TASKS=4: srun has started'),
        ({'OMPI_COMM_WORLD_SIZE': '2'}, 'mpirun has started others'),
        ({'TPU_WORKER_HOSTNAMES': 'localhost'}, None),
        ({'TPU_WORKER_HOSTNAMES': 'a,b'}, 'names 2 hosts of one TPU slice'),
    ],
)
def test_one_of_several_processes_that_are_not_to_join(
    monkeypatch, environ, refused
):
  for name, value in environ.items():
    monkeypatch.setenv(name, value)
  parser = flags.Parser('train', 'Trains.')
  runtime.add_flags(parser)
  for args, advice in (
      (parser.parse_args([]), 'Give --multihost'),
      (None, 'This command takes one host'),
  ):
    if refused is None:
      runtime.start(args)
    else:
      with pytest.raises(UserError, match=f'{refused}.*{advice}.*; or unset'):
        runtime.start(args)
