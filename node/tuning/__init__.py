"""What is fastest on this machine at equal quality: variants of the model and the engine, measured, judged and kept.

A variant that the quality gate refuses never wins. One that wins is only a file and a few engine keys in `tuned.toml`,
which a node reads as a layer of its settings; deleting that file undoes everything. Imports nothing of the server.
"""
