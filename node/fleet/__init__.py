"""What a fleet's manager says a node should be, and whether this machine can be it.

A profile is one TOML file: a head, the least hardware, and settings with the very names that node.toml has. It is
checked completely before it is used, and every mistake in it is told with its line. The profile in use is a copy in the
data directory, written durably, so that neither an update of the program nor a lost file changes a node by itself.
"""
