"""The program ``strandline``, which ``python -m strandline`` also runs."""

import os
import signal
import sys


def run() -> None:
    """Run the command that the arguments of this process name.

    The kernel gives the first process of a container only the signals that it has handlers for.
    They are set here, before the slow imports, so that each command ends as it does elsewhere.
    """
    if os.getpid() == 1:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, lambda number, _: os._exit(128 + number))
    try:
        from strandline.cli import main
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # as for one during the command

    main()


if __name__ == "__main__":
    run()
