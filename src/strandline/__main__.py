"""``python -m strandline`` runs the command ``strandline``."""

from strandline.cli import main

if __name__ == "__main__":
    main()
