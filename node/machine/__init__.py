"""What this machine is: processor, memory, board, GPUs, NPUs, heat and power supply, as the kernel tells it.

Everything is read from small files of /proc, /sys, /dev and /etc. A file that is missing, strange, huge or unreadable
means "unknown", never an exception. Every probe takes the root of the file tree, so that tests can be any machine.
The room stands below the others, so that each of them may look.
"""
