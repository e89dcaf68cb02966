"""How rows of public data sets become problems: one table of layouts for answers, one for programs."""
