"""`python -m longturn` is `longturn`."""

from longturn.cli import main

if __name__ == "__main__":
    main()
