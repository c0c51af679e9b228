"""Inference servers, one table each: from a server's metric names to the canonical signals.

A new server is a file with a `TABLE`, a line in `SERVERS` and its name in `settings.Server`.
"""

from collections.abc import Mapping

from gpuscale.controller.domain import ServerTable
from gpuscale.controller.servers.triton import TABLE as TRITON
from gpuscale.controller.servers.vllm import TABLE as VLLM
from gpuscale.settings import Server

SERVERS: Mapping[Server, ServerTable] = {"vllm": VLLM, "triton": TRITON}
"""The table of every server that a policy may name."""
