"""Neighbours and the cloud: who is there, whether to trust it, and who answers a request.

What is announced on the network is a hint; only a certificate of the fleet's own authority makes a neighbour. A node
that was never enrolled in a fleet is alone: it announces nothing, and accepts nobody.
"""
