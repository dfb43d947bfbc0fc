"""Two hosts, and a network between them that can be cut."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import pathlib
import socket
import subprocess
import threading
from typing import NamedTuple

import two_hosts


class Network(NamedTuple):
  """Where two hosts run, as `two_hosts.start` takes it, and how to part them.

  Attributes:
    environs: of each.
    within: a command that runs a command there.
    names: of the hosts.
    cut: parts them; nothing arrives any more, and nobody is told.
  """

  environs: two_hosts.Environs
  within: Sequence[Sequence[str]]
  names: Sequence[str]
  cut: Callable[[], None]


class Proxy:
  """Passes connections on to a port until it is cut, and then nothing more.

  Attributes:
    address: to connect to.
  """

  def __init__(self, port: int):
    self._port, self._is_cut = port, False
    self._ends = []
    self._server = socket.create_server(('localhost', 0))
    self.address = f'localhost:{self._server.getsockname()[1]}'
    _start(self._accept)

  def cut(self) -> None:
    self._is_cut = True

  def _accept(self) -> None:
    while True:
      near, _ = self._server.accept()
      try:
        far = socket.create_connection(('localhost', self._port))
      except OSError:
        near.close()
        continue
      # Kept, since a connection without an owner ends.
      self._ends += near, far
      _start(self._pass_on, near, far)
      _start(self._pass_on, far, near)

  def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
      while (data := source.recv(1 << 16)) and not self._is_cut:
        sink.sendall(data)
      if not self._is_cut:
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def between(folder: pathlib.Path) -> Iterator[Network]:
  """A cable between two namespaces of Linux.

  Where a user may not make them, all but what JAX itself sends between the
  hosts goes through a proxy.

  Args:
    folder: for files of the hosts.
  """
  if not _may_make_namespaces():
    port = two_hosts.free_port()
    proxy = Proxy(port)
    environs = two_hosts.by_jax(f'localhost:{port}', proxy.address)
    yield Network(environs, ((), ()), [socket.gethostname()] * 2, proxy.cut)
    return
  names, addresses = ('left', 'right'), ('10.231.0.1', '10.231.0.2')
  hosts = folder / 'hosts'
  lines = [f'{a} {n}\n' for n, a in zip(names, addresses)]
  hosts.write_text('127.0.0.1 localhost\n' + ''.join(lines))
  # The namespaces live as long as a process does.
  keepers = [
      subprocess.Popen(
          [
              *_NAMESPACES, 'sh', '-ec', 'hostname "$1"; ip link set lo up;'
              ' mount --bind "$2" /etc/hosts; echo; exec sleep infinity',
              'sh', name, str(hosts),
          ],
          stdout=subprocess.PIPE,
      )
      for name in names
  ]
  try:
    for each in keepers:
      assert each.stdout.read(1) == b'\n'
    within = [
        ['nsenter', f'--target={each.pid}', '--net', '--mount', '--uts']
        for each in keepers
    ]
    left, right = (str(each.pid) for each in keepers)
    _run(
        'ip', 'link', 'add', 'cable', 'netns', left, 'type', 'veth', 'peer',
        'cable', 'netns', right,
    )
    for inside, address in zip(within, addresses):
      _run(*inside, 'ip', 'address', 'add', f'{address}/24', 'dev', 'cable')
      _run(*inside, 'ip', 'link', 'set', 'cable', 'up')
    yield Network(
        two_hosts.by_jax(*['left:8476'] * 2), within, names,
        lambda: _run(*within[1], 'ip', 'link', 'set', 'cable', 'down'),
    )
  finally:
    for each in keepers:
      each.kill()
      each.wait()


_NAMESPACES = 'unshare', '--net', '--mount', '--uts'


def _may_make_namespaces() -> bool:
  with contextlib.suppress(OSError):
    return not subprocess.run(
        [
            *_NAMESPACES, 'sh', '-ec', 'hostname x; ip link add cable type veth'
            ' peer other; mount --bind /etc/hosts /etc/hosts',
        ],
        capture_output=True,
    ).returncode
  return False


def _run(*argv: str) -> None:
  subprocess.run(argv, check=True)


def _start(target: Callable[..., None], *args: socket.socket) -> None:
  threading.Thread(target=target, args=args, daemon=True).start()
