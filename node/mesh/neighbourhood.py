"""What the rest of the node may ask about its neighbours; `mesh.neighbours` is the real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import aiohttp

from node.mesh.peers import Neighbour
from node.mesh.sight import Sight


class Neighbourhood(Protocol):
    """Who is there, and how to talk to them. Belongs to the event loop's thread."""

    @property
    def id(self) -> str:
        """This node's own id in its fleet; "" for a node that is alone."""

    def candidates(self) -> Sequence[Neighbour]:
        """Who may be given something to do now, in no order; asking keeps what is known of them fresh.

        Neither who is suspect nor who is draining is among them. A lone node has none.
        """

    def session(self, node_id: str) -> aiohttp.ClientSession:
        """A session whose requests reach that node and nobody else, with paths like "/mesh/status"; raises Unavailable.

        It is shared and kept alive: use it, never close it. It has no total timeout; give one to each request.
        """

    def doubt(self, node_id: str, reason: str) -> None:
        """That node failed a request: it is no candidate until a probe has found it well."""

    def warm_tokens(self, prompt: Sequence[int], tenant: str) -> Callable[[Sight], int]:
        """What tells about how many tokens of this prompt, asked by this tenant, are warm at a neighbour.

        The prompt is hashed once, here; each neighbour costs microseconds then.
        """
