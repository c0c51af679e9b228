"""Inference servers, one table each: from a server's metric names to the canonical signals.

A new server is a file with a `TABLE`, its place in `SERVERS` and its name in `settings.Server`. The
server `custom` has no table: its PromQL stands in the operator's file.
"""

from collections.abc import Mapping

from gpuscale.controller.servers import (
    llamacpp,
    nim,
    rayserve,
    sglang,
    tfserving,
    tgi,
    torchserve,
    triton,
    tritontrtllm,
    trtllmserve,
    vllm,
)
from gpuscale.controller.servertable import ServerTable
from gpuscale.settings import Server

SERVERS: Mapping[Server, ServerTable] = {
    module.TABLE.server: module.TABLE
    for module in (
        vllm,
        sglang,
        tgi,
        trtllmserve,
        nim,
        triton,
        tritontrtllm,
        torchserve,
        tfserving,
        rayserve,
        llamacpp,
    )
}
"""The table of every server that a policy may name, but `custom`."""
