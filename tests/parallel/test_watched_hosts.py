"""Processes that meet and watch each other, of which one dies or hangs."""

import signal
import socket
import subprocess
import sys

import pytest

# A host of few seconds' patience, which waits for another for ever.
HOST = """
import sys
from dualenc_jax.parallel import cluster, meeting
meeting._BEAT, meeting.SILENCE = 0.2, 4.0
place = cluster.Cluster(sys.argv[1], 3, int(sys.argv[2]))
hosts = meeting.Meeting(place, 60.0)
print('met', flush=True)
if sys.stdin.readline() == 'end\\n':
  hosts.end('has stopped: no such file', 2)
elif hosts.members[0]:
  hosts.share('')
"""


@pytest.fixture
def hosts():
  """Three processes that have met."""
  with socket.create_server(('', 0)) as server:
    where = f'localhost:{server.getsockname()[1]}'
  started = [
      subprocess.Popen(
          [sys.executable, '-c', HOST, where, str(index)],
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          stderr=subprocess.PIPE,
          text=True,
      )
      for index in range(3)
  ]
  try:
    for each in started:
      assert each.stdout.readline() == 'met\n'
    yield started
  finally:
    for each in started:
      each.kill()
      each.communicate()


@pytest.mark.parametrize(
    ('lost', 'number', 'why'),
    [
        (0, signal.SIGKILL, 'has ended without a word'),
        (2, signal.SIGKILL, 'has ended without a word'),
        (0, signal.SIGSTOP, 'has not answered for 4 s'),
        (2, signal.SIGSTOP, 'has not answered for 4 s'),
    ],
)
def test_the_others_name_the_one_that_is_lost(hosts, lost, number, why):
  others = [each for i, each in enumerate(hosts) if i != lost]
  others[0].stdin.write('\n')  # One waits, the other reads.
  others[0].stdin.flush()
  hosts[lost].send_signal(number)
  for each in others:
    assert each.wait(60) == 75
    said = each.stderr.read()
    name = f'Host {lost} ({socket.gethostname()}, pid {hosts[lost].pid})'
    assert said.startswith(f'error: {name} {why}') and said.count('\n') == 1
    assert 'run the same command again on all hosts' in said


def test_one_that_ends_by_an_error_says_why(hosts):
  hosts[1].stdin.write('end\n')
  hosts[1].stdin.flush()
  assert hosts[1].wait(60) == 0
  for each in (hosts[0], hosts[2]):
    assert each.wait(60) == 2
    assert ') has stopped: no such file. Host ' in each.stderr.read()
