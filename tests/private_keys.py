"""Private key files with the mode that programs require."""

import os
from pathlib import Path

import trustme


def write_key(leaf: trustme.LeafCert, path: str | Path) -> None:
    """Write the key of a certificate, readable by its owner only, whatever the umask."""
    leaf.private_key_pem.write_to_path(os.fspath(path))
    Path(path).chmod(0o600)
