"""`python -m supervisor.console` is the `countermand` command."""

from supervisor.console.cli import main

if __name__ == "__main__":
    main()
