"""``python -m strandline``: the same as the command ``strandline``."""

from strandline.cli import main

if __name__ == "__main__":
    main()
