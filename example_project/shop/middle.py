"""Where the demo and the chaos run strike: a handler that has written, and has not ended yet.

Without the variables of the environment that they set this does nothing.

SHOP_MIDDLE           a folder: while a handler is in the middle, a file of it lies there, named
                      after its process; a file ``hold`` in it keeps all handlers there
SHOP_MIDDLE_SECONDS   the longest stay, in seconds; the length of each is left to chance
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path


def stay() -> None:
    """Say that this handler is in the middle, stay a while, and say that it goes on."""
    folder = os.environ.get("SHOP_MIDDLE")
    if not folder:
        return
    mark = Path(folder) / f"{os.getpid()}-{threading.get_ident()}"
    mark.touch()
    time.sleep(random.random() * float(os.environ.get("SHOP_MIDDLE_SECONDS", "0")))
    while (Path(folder) / "hold").exists():
        time.sleep(0.01)
    mark.unlink()


def there(folder: Path, pid: int) -> list[Path]:
    """Return the marks of a process: of a dead one, the handlers that died in the middle."""
    return list(folder.glob(f"{pid}-*"))
