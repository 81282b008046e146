"""Prompts that come again: what was asked, which beginnings are worth having warm, and where.

`tree` ● knows what was asked and by how many, `demand` ● how often it will be, `plan` ● what to hold in memory and on
disk under two budgets; `history` feeds them and keeps on disk what may be kept. `keeper` stands on every request's way,
`warmer` does what the plan wants in idle moments, `stock` moves states between engine, memory and the `shelf` of
`states` files. Three invariants:

- A beginning is offered for warming, and is stored, only if it is part of a configured template or was seen from
  `prewarm.min_sessions` different sessions of its tenant. What fewer said stays in memory and dies with the process.
- Tenants have trees of their own, unless `prewarm.share_between_tenants` says otherwise.
- A state is used only where its tokens are the prompt's, one by one, and its fingerprint is this engine's. With any
  doubt the prompt is read in full.
"""
