"""Hosts that meet, over real connections, and watch each other; and relays."""

import concurrent.futures
import signal
import socket
import subprocess
import sys

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.parallel import meeting
from dualenc_jax.parallel.cluster import Cluster


def address() -> str:
  with socket.create_server(('', 0)) as server:
    return f'localhost:{server.getsockname()[1]}'


def meet(hosts, seconds=20.0):
  """The meetings of (count, index), or their errors."""
  where = address()
  with concurrent.futures.ThreadPoolExecutor(len(hosts)) as pool:
    asked = [
        pool.submit(meeting.Meeting, Cluster(where, count, index), seconds)
        for count, index in hosts
    ]
    return [each.exception() or each.result() for each in asked]


def test_all_know_all_and_hear_what_each_says():
  hosts = meet([(3, 2), (3, 0), (3, 1)])
  try:
    for each in hosts:
      assert sorted(each.members) == [0, 1, 2]
      assert each.members[1].name == socket.gethostname()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
      for turn in range(3):
        said = list(
            pool.map(lambda x: x[1].share(f'{turn} {x[0]}'), enumerate(hosts))
        )
        # By number of the host, not as they came.
        assert said == [[f'{turn} {i}' for i in (1, 2, 0)]] * 3
  finally:
    for each in hosts:
      each.leave()


def test_who_does_not_come_is_named_in_time():
  (first,) = meet([(3, 0)], 0.5)
  assert isinstance(first, UserError)
  assert 'Of 3 hosts number 1, 2 did not come' in str(first)
  (second,) = meet([(3, 1)], 0.5)
  assert isinstance(second, UserError)
  assert 'Host 1 of 3 cannot reach the first at localhost' in str(second)
  assert 'within 0.5 s: Connection refused' in str(second)


def test_hosts_of_one_number_or_told_of_other_counts_are_refused_on_all():
  for hosts, said in (
      ([(3, 0), (3, 1), (3, 1)], 'have the same number. Expected a --process_'),
      ([(2, 0), (3, 1)], 'expects 2 hosts, and host 1 .* 3. Expected'),
  ):
    for each in meet(hosts):
      with pytest.raises(UserError, match=said):
        raise each


# A host of few seconds' patience, which waits for another for ever.
HOST = """
import sys
from dualenc_jax.parallel import cluster, meeting
meeting._BEAT, meeting.SILENCE = 0.2, 4.0
place = cluster.Cluster(sys.argv[1], 3, int(sys.argv[2]))
hosts = meeting.Meeting(place, 60.0)
print('met', flush=True)
sys.stdin.readline()
hosts.share('')
"""


@pytest.fixture
def hosts():
  """Three processes that have met."""
  where = address()
  started = [
      subprocess.Popen(
          [sys.executable, '-c', HOST, where, str(index)], text=True,
          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
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
