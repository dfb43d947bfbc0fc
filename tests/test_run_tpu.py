"""run_tpu.sh, by what a gcloud that only writes down its arguments is told."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FLAGS = ['--gin_file=runs/finetune.gin', "--gin.WORDS='a b'", '--model_dir=/m']
# Runs what it is given for a host, but for an installation, in a folder.
GCLOUD = f'''#!{sys.executable}
import json, os, subprocess, sys
with open(os.environ['CALLS'], 'a') as f:
  f.write(json.dumps(sys.argv[1:]) + '\\n')
if 'describe' in sys.argv:
  print(os.environ['STATE'])
if 'ssh' in sys.argv and 'pip install' not in sys.argv[-1]:
  subprocess.run(['bash', '-c', sys.argv[-1]], cwd=os.environ['HOST'])
'''
DUALENC = f'''#!{sys.executable}
import json, signal, sys
def stop(*_):
  print('saved', flush=True)
  sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print(json.dumps(sys.argv[1:]), flush=True)
signal.pause()
'''


@pytest.fixture
def host(tmp_path):
  for path, text in (
      ('bin/gcloud', GCLOUD), ('host/dualenc_jax/.venv/bin/dualenc', DUALENC)
  ):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(0o755)
  return tmp_path


def run(host, *args, state='ACTIVE', status=0, **variables):
  """Arguments of gcloud, and the process."""
  calls = host / 'calls'
  calls.unlink(missing_ok=True)
  done = subprocess.run(
      [ROOT / 'run_tpu.sh', *args],
      env={
          'PATH': f'{host}/bin:{os.environ["PATH"]}', 'CALLS': str(calls),
          'HOST': str(host / 'host'), 'STATE': state, 'TPU_NAME': 'my-pod',
          'ZONE': 'us-west4-a', **variables,
      },
      capture_output=True, text=True, timeout=60,
  )
  assert done.returncode == status, done.stderr
  lines = calls.read_text().splitlines() if calls.exists() else []
  return [json.loads(line) for line in lines], done


def place(call):
  return call[: call.index('--zone')], call[call.index('--zone') + 1]


def test_create_asks_and_waits(host):
  (create, describe), _ = run(
      host, 'create', ACCELERATOR_TYPE='v5litepod-64', SPOT='1', PROJECT='mine'
  )
  assert place(create) == (
      'compute tpus queued-resources create my-pod --node-id my-pod'.split(),
      'us-west4-a',
  )
  assert '--accelerator-type v5litepod-64' in ' '.join(create)
  assert '--spot' in create and '--project mine' in ' '.join(create)
  assert describe[:4] == 'compute tpus queued-resources describe'.split()
  (create, _), _ = run(host, 'create')
  assert '--spot' not in create and '--project' not in create
  _, done = run(host, 'create', state='FAILED', status=1)
  assert 'my-pod is FAILED' in done.stderr


def test_install_is_on_every_host(host):
  (scp, ssh), _ = run(host, 'install')
  assert scp[:4] == 'compute tpus tpu-vm scp'.split()
  assert scp[5] == 'my-pod:dualenc_jax.tar.gz' and '--worker=all' in scp
  assert not pathlib.Path(scp[4]).exists()
  assert '--worker=all' in ssh and '.[data,tpu]' in ssh[-1]


def test_train_outlives_its_terminal_and_stop_lets_it_save(host):
  (ssh,), _ = run(host, 'train', *FLAGS)
  assert place(ssh)[0] == 'compute tpus tpu-vm ssh my-pod'.split()
  assert '--worker=all' in ssh
  log = host / 'host/dualenc_jax/train.log'
  end = time.monotonic() + 30
  while not log.read_text().endswith('\n') and time.monotonic() < end:
    time.sleep(0.02)
  assert json.loads(log.read_text()) == ['train', '--multihost', *FLAGS]
  (ssh,), _ = run(host, 'stop')
  assert '--worker=all' in ssh
  assert log.read_text().endswith('saved\n')


def test_resume_makes_all_anew(host):
  calls, done = run(host, '--dry_run', 'resume', *FLAGS)
  assert not calls
  lines = done.stdout.splitlines()
  commands = [line.split() for line in lines if line.startswith('gcloud')]
  assert [command[4] for command in commands] == [
      'delete', 'create', 'describe', 'scp', 'ssh', 'ssh'
  ]
  assert '--gin.WORDS=' in lines[-1]
