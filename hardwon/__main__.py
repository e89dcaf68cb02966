"""`python -m hardwon`, as torchrun starts it."""

from hardwon.cli import main

if __name__ == "__main__":
    main()
