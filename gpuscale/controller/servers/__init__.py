"""Inference servers, one table each: from a server's metric names to the canonical signals.

A new server is a file with a `TABLE`, a line in `SERVERS` and its name in `config.Server`.
"""

from collections.abc import Mapping

from gpuscale.config import Server
from gpuscale.controller.domain import ServerTable
from gpuscale.controller.servers.triton import TABLE as TRITON
from gpuscale.controller.servers.vllm import TABLE as VLLM

SERVERS: Mapping[Server, ServerTable] = {"vllm": VLLM, "triton": TRITON}
"""The table of every server that a policy may name."""
