"""A meeting of the hosts of a command, which know and watch each other.

They meet at the coordinator's address before JAX does: each of the others has a
connection to the first. JAX itself aborts a process, with a trace of C++, when
a host does not come, dies or hangs; or it waits for ever.
"""

from collections.abc import Sequence
import contextlib
import os
import socket
import threading
import time
from typing import Any, NamedTuple

from dualenc_jax.errors import RUN_AGAIN, UserError
from dualenc_jax.parallel.channel import Channel, start_thread
from dualenc_jax.parallel.cluster import Cluster

# Between two signs of life, and without any before a host is given up.
_BEAT, SILENCE = 2.0, 40.0
# A host that ends by an error says so; the others may find it themselves.
_GRACE = 3.0
_HELLO_SECONDS = 5.0
# Statuses of a host that would fail again.
_ERRORS = 1, 2


class Member(NamedTuple):
  """A process that takes part."""

  number: int
  name: str
  pid: int

  def __str__(self) -> str:
    return f'host {self.number} ({self.name}, pid {self.pid})'


class Meeting:
  """All hosts of a command by index, as one of them sees it.

  `is_over` once this host has done its work; `service_port` is that of JAX's
  coordination service, on the first host.
  """

  def __init__(self, cluster: Cluster, seconds: float):
    """Returns when all have come, and starts to watch them.

    Raises:
      UserError: they have not within `seconds`, or the address is in use.
    """
    self._count = cluster.count
    self._own = Member(cluster.index, socket.gethostname(), os.getpid())
    self._channels: dict[int, Channel] = {}
    self.members = {cluster.index: self._own}
    self._gone: set[int] = set()
    self._failing = threading.Lock()
    self._news = threading.Condition()
    self._shares: dict[int, dict[int, str]] = {}
    self._shared: dict[int, list[str]] = {}
    self._asked = 0
    self.is_over = self._is_ending = False
    deadline = time.monotonic() + seconds
    if cluster.index:
      self._visit(cluster, deadline, seconds)
    else:
      self._receive_all(cluster, deadline, seconds)
    for index, channel in self._channels.items():
      start_thread(self._listen, index, channel)
    start_thread(self._watch)

  def _receive_all(
      self, cluster: Cluster, deadline: float, seconds: float
  ) -> None:
    with contextlib.closing(_listen_at(cluster.address)) as server:
      while absent := self._absent():
        server.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
          channel = Channel(server.accept()[0])
        except TimeoutError:
          missing = ', '.join(map(str, sorted(absent)))
          self._refuse(
              f'Of {self._count} hosts number {missing} did not come to'
              f' {cluster.address} within {seconds:g} s. Expected the same'
              ' command on each of them, at the same time.'
          )
        hello = channel.receive(_HELLO_SECONDS) or {}
        try:
          member, count = Member(*hello['member']), int(hello['count'])
        except (KeyError, TypeError, ValueError):
          channel.close()  # A stranger.
          continue
        self._admit(member, count, channel)
    with socket.create_server(('', 0)) as server:
      self.service_port = server.getsockname()[1]
    for channel in self._channels.values():
      channel.send(
          'welcome',
          port=self.service_port,
          members=[list(each) for each in self.members.values()],
      )

  def _admit(self, member: Member, count: int, channel: Channel) -> None:
    self._forget_ended()
    there = self.members.get(member.number)
    self._channels[-1 if there else member.number] = channel
    if count != self._count:
      self._refuse(
          f'{self._own} expects {self._count} hosts, and {member} {count}.'
          ' Expected the same --num_processes (JAX_NUM_PROCESSES) of all.'
      )
    if there:
      self._refuse(
          f'{there} and another process, {member.name}, pid {member.pid}, have'
          ' the same number. Expected a --process_id (JAX_PROCESS_ID) of each'
          ' of its own.'
      )
    self.members[member.number] = member

  def _absent(self) -> set[int]:
    self._forget_ended()
    return set(range(self._count)) - self.members.keys()

  def _forget_ended(self) -> None:
    """A host that has come, and waited, and ended may come again."""
    for index, channel in list(self._channels.items()):
      if channel.has_ended():
        channel.close()
        del self._channels[index], self.members[index]

  def _refuse(self, why: str) -> None:
    for channel in self._channels.values():
      channel.send('refused', why=why)
    raise UserError(why)

  def _visit(self, cluster: Cluster, deadline: float, seconds: float) -> None:
    where = host_and_port(cluster.address)
    while True:
      try:
        connection = socket.create_connection(where, timeout=5)
        break
      except OSError as e:
        if time.monotonic() > deadline:
          raise UserError(
              f'Host {cluster.index} of {self._count} cannot reach the first at'
              f' {cluster.address} within {seconds:g} s: {e.strerror or e}.'
              ' Expected the same command on host 0, and no firewall between.'
          ) from e
        time.sleep(0.5)
    channel = self._channels[0] = Channel(connection)
    channel.send('hello', member=list(self._own), count=self._count)
    # The first host knows whom it has waited for in vain.
    left = max(deadline - time.monotonic(), 0) + 4 * _HELLO_SECONDS
    answer = channel.receive(left) or {}
    if answer.get('kind') != 'welcome':
      raise UserError(
          answer.get('why')
          or f'The first host, at {cluster.address}, does not answer host'
          f' {cluster.index} of {self._count} within {seconds:g} s, or has'
          ' ended. Expected the same command there; it says more.'
      )
    self.service_port = answer['port']
    members = [Member(*each) for each in answer['members']]
    self.members = {member.number: member for member in members}

  def share(self, value: str) -> list[str]:
    """A text of each host, by index; all hosts must ask in the same order."""
    number, self._asked = self._asked, self._asked + 1
    with self._news:
      if self._own.number:
        self._channels[0].send('share', number=number, value=value)
        self._news.wait_for(lambda: number in self._shared)
        return self._shared.pop(number)
      there = self._shares.setdefault(number, {})
      self._news.wait_for(lambda: len(there) == self._count - 1)
      values = [value, *(text for _, text in sorted(there.items()))]
      del self._shares[number]
    self._tell('shared', number=number, values=values)
    return values

  def leave(self) -> None:
    """Says that this host has done its work; its end is as it should be."""
    if not self._is_ending:
      self.is_over = True
      self._tell('leaving', index=self._own.number)

  def end(self, why: str, status: int) -> None:
    """Says that this host ends, and that the others must, by which status.

    They can go on later unless that is of an error: 1 or 2.
    """
    self._is_ending = True
    self._tell('ended', index=self._own.number, why=why, status=status)

  def _tell(self, kind: str, but: int | None = None, **facts: Any) -> None:
    for index, channel in self._channels.items():
      if index != but:
        channel.send(kind, **facts)

  def _listen(self, index: int, channel: Channel) -> None:
    while (message := channel.receive()) is not None:
      kind = message.get('kind')
      if kind in ('share', 'shared'):
        with self._news:
          number = message['number']
          if kind == 'share':
            there = self._shares.setdefault(number, {})
            there[index] = message['value']
          else:
            self._shared[number] = message['values']
          self._news.notify_all()
      elif kind == 'leaving':
        self._gone.add(message['index'])
        if not self._own.number:
          self._tell('leaving', but=index, index=index)
      elif kind == 'ended':
        self._gone.add(message['index'])
        facts = map(message.get, ('index', 'why', 'status'))
        start_thread(self._fail, *facts, _GRACE)
    if index not in self._gone:
      self._fail(
          index,
          'has ended without a word: it was killed, or its machine has stopped',
      )

  def _watch(self) -> None:
    last = time.monotonic()
    while True:
      self._tell('beat')
      time.sleep(_BEAT)
      now = time.monotonic()
      for index, channel in list(self._channels.items()):
        if now - last > 3 * _BEAT:
          # It is this process that has stood still.
          channel.heard = now
        elif now - channel.heard > SILENCE and index not in self._gone:
          self._fail(
              index,
              f'has not answered for {SILENCE:.0f} s: it hangs, or the network'
              ' between has broken',
          )
      last = now

  def _fail(
      self, index: int, why: str, status: int = RUN_AGAIN, wait: float = 0.0
  ) -> None:
    """Ends this process for the sake of another host; tells the others."""
    with self._failing:
      if not self._own.number:
        self._tell('ended', but=index, index=index, why=why, status=status)
      time.sleep(wait)
      if self._is_ending:
        return
      lost, own = (
          f'Host{str(each)[4:]}' for each in (self.members[index], self._own)
      )
      # Whatever the main thread waits for, it may wait for ever. Checkpoints
      # and shards appear whole or not at all.
      os.write(
          2,
          f'error: {lost} {why}. {own} stops, too.'
          ' What is saved stays: run the same command again on all hosts to go'
          ' on.\n'.encode(),
      )
      os._exit(status if status in _ERRORS else RUN_AGAIN)


def host_and_port(address: str) -> tuple[str, int]:
  """The name, or a number of IPv6 without its brackets, and the port."""
  host, _, port = address.rpartition(':')
  return host.strip('[]'), int(port)


def _listen_at(address: str) -> socket.socket:
  both = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if both else socket.AF_INET
  try:
    return socket.create_server(
        ('', host_and_port(address)[1]), family=family, dualstack_ipv6=both,
        backlog=128,
    )
  except OSError as e:
    raise UserError(
        f'Host 0 cannot listen at {address}: {e.strerror or e}. Expected a port'
        ' that is not in use.'
    ) from e


def differing(
    what: str, members: Sequence[Member], texts: Sequence[str]
) -> str | None:
  """Which host has what lines, as far as they differ; None where they agree."""
  first = texts[0]
  others = [i for i, text in enumerate(texts) if text != first]
  if not others:
    return None
  a, b = first.splitlines(), texts[others[0]].splitlines()
  said = []
  for member, own, other in (
      (members[0], a, set(b)), (members[others[0]], b, set(a))
  ):
    lines = [line.strip() for line in own if line not in other]
    more = f' and {len(lines) - 3} more' if len(lines) > 3 else ''
    few = '; '.join(lines[:3]) or 'none of what the other has'
    said.append(f'{member} has {few}{more}')
  alike = [str(members[i]) for i in others[1:] if texts[i] == texts[others[0]]]
  if alike:
    said.append(f'{", ".join(alike)} as the latter')
  return f'The hosts have different {what}: {", ".join(said)}.'
