"""`python -m kafkalite.cli`: the same as `kafkalite`.                                     [IO]"""

from kafkalite.cli import main

main()
