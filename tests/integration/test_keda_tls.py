"""The external scaler over TLS, as KEDA speaks it: client certificates, strangers, renewals by halves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme

from gpuscale.clock import SystemClock
from gpuscale.controller.actuators.keda import ExternalScaler
from gpuscale.controller.domain import Answer, Snapshot
from gpuscale.controller.keyfiles import KeyFiles
from gpuscale.errors import ConfigError
from gpuscale.proto import externalscaler_pb2 as pb
from gpuscale.proto.externalscaler_pb2_grpc import ExternalScalerStub
from gpuscale.settings import GrpcTlsSettings

NAME = "gpuscale-grpc.gpuscale.svc"
REFERENCE = pb.ScaledObjectRef(
    name="llama", namespace="llm", scalerMetadata={"scalerAddress": f"{NAME}:6000"}
)


class Files:
    """The files of a mounted Secret, and the CA that signs what is in them."""

    def __init__(self, folder: Path, *, mtls: bool = True) -> None:
        self.ca = trustme.CA()
        self.cert, self.key, self.client_ca = (folder / n for n in ("tls.crt", "tls.key", "ca.crt"))
        self.mtls = mtls
        self.renew(self.ca)

    def renew(self, ca: trustme.CA) -> None:
        issued = ca.issue_cert(NAME)
        self.cert.write_bytes(issued.cert_chain_pems[0].bytes())
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.client_ca.write_bytes(ca.cert_pem.bytes())

    @property
    def settings(self) -> GrpcTlsSettings:
        return GrpcTlsSettings(
            cert_file=str(self.cert),
            key_file=str(self.key),
            client_ca_file=str(self.client_ca) if self.mtls else None,
        )


@asynccontextmanager
async def serving(keys: KeyFiles) -> AsyncIterator[int]:
    scaler = ExternalScaler(SystemClock(), keys=keys)
    answer = Answer(desired=7, reason="decided at this tick", active=True)
    scaler.publish(Snapshot(number=1, at=SystemClock().wall(), answers={"llm/llama": answer}))
    _, port = await scaler.start("127.0.0.1:0")
    try:
        yield port
    finally:
        await scaler.close()


async def active(port: int, trusted: trustme.CA, client: trustme.CA | None = None) -> bool:
    """IsActive over a connection of its own, by a caller with a certificate of `client`."""
    issued = None if client is None else client.issue_cert("keda-operator")
    credentials = grpc.ssl_channel_credentials(
        trusted.cert_pem.bytes(),
        None if issued is None else issued.private_key_pem.bytes(),
        None if issued is None else issued.cert_chain_pems[0].bytes(),
    )
    options = (
        ("grpc.ssl_target_name_override", NAME),
        ("grpc.use_local_subchannel_pool", 1),
    )
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        answer = await ExternalScalerStub(channel).IsActive(REFERENCE, timeout=5)
        return bool(answer.result)


async def refused(port: int, trusted: trustme.CA, client: trustme.CA | None = None) -> bool:
    try:
        await active(port, trusted, client)
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_with_a_client_ca_only_who_it_signed_is_answered(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with serving(KeyFiles(files.settings)) as port:
        assert await active(port, files.ca, client=files.ca)
        assert await refused(port, files.ca)
        assert await refused(port, files.ca, client=trustme.CA())
        assert await refused(port, trustme.CA(), client=files.ca)


async def test_without_a_client_ca_the_server_alone_proves_who_it_is(tmp_path: Path) -> None:
    files = Files(tmp_path, mtls=False)
    async with serving(KeyFiles(files.settings)) as port:
        assert await active(port, files.ca)
        assert await refused(port, trustme.CA())


async def test_renewed_certificates_are_used_from_the_next_connection_on(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with serving(KeyFiles(files.settings)) as port:
        assert await active(port, files.ca, client=files.ca)
        other = trustme.CA()
        files.renew(other)
        assert await active(port, other, client=other)
        assert await refused(port, files.ca, client=files.ca)


async def test_a_renewal_caught_half_way_keeps_the_certificate_of_before(tmp_path: Path) -> None:
    files = Files(tmp_path)
    keys = KeyFiles(files.settings)
    async with serving(keys) as port:
        whole = files.key.read_bytes()
        files.key.write_bytes(files.ca.issue_cert(NAME).private_key_pem.bytes())
        assert await active(port, files.ca, client=files.ca)
        assert keys.problem is not None
        assert "certificate of before stays in use" in keys.problem
        files.key.write_bytes(whole)
        assert await active(port, files.ca, client=files.ca)
        assert keys.problem is None


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"x" * (1024 * 1024 + 1)])
def test_files_that_cannot_be_used_are_one_sentence_at_the_start(
    tmp_path: Path, content: bytes | None
) -> None:
    files = Files(tmp_path)
    if content is None:
        files.cert.unlink()
    else:
        files.cert.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        KeyFiles(files.settings).first()
    assert str(raised.value).startswith("grpc_tls")
    assert "\n" not in str(raised.value)
