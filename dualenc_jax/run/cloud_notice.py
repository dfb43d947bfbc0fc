"""Google Cloud's notice that it is about to stop this machine."""

import http.client
import logging
import os
import urllib.request

_HOST = 'metadata.google.internal'
_SECONDS = 5.0
_LOG = logging.getLogger(__name__)


class CloudNotice:
  """Asks the metadata server of a machine of Google Cloud, TPU VMs too.

  That of a preemptible or spot machine says so some 30 s ahead; one that
  maintenance will stop, as it does those with accelerators, an hour or less. A
  machine that is moved while it runs need not stop. `GCE_METADATA_HOST` is
  another server, as for Google's own libraries.
  """

  def __init__(self):
    host = os.environ.get('GCE_METADATA_HOST') or _HOST
    self._root = f'http://{host}/computeMetadata/v1/instance/'
    self._warned = False

  def __call__(self) -> str | None:
    """What Cloud announces; None as long as that is nothing."""
    try:
      if self._read('preempted') == 'TRUE':
        return 'Google Cloud preempts this machine'
      event = self._read('maintenance-event')
    except (OSError, ValueError, http.client.HTTPException) as e:
      if not self._warned:
        _LOG.warning(
            'WARNING: --cloud_notice: %s says nothing (%s), so that a notice'
            ' of Google Cloud would not be heard.',
            self._root,
            e,
        )
      self._warned = True
      return None
    if event.startswith('TERMINATE'):
      return f'Google Cloud stops this machine ({event})'
    return None

  def _read(self, name: str) -> str:
    request = urllib.request.Request(
        self._root + name, headers={'Metadata-Flavor': 'Google'}
    )
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
      return answer.read(1000).decode().strip()
