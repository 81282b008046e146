"""Real ends over an emulated path: network namespaces with a relay between them, and what talks over it."""
