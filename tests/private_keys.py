"""Private keys on disk as programs want them."""

import os
from pathlib import Path

import trustme


def write_key(leaf: trustme.LeafCert, path: str | Path) -> None:
    """Write its key; its owner alone may read it, whatever the umask."""
    leaf.private_key_pem.write_to_path(os.fspath(path))
    Path(path).chmod(0o600)
