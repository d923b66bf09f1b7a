"""The cluster examples: what they promise exists, and KubeRay would take the manifest."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from sift_index.cli.main import cli
from sift_index.pipelines.events import KINDS
from sift_index.pipelines.metrics import DRIVER, PREFIX, WORKER

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "clusters"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
JOB = yaml.safe_load((FOLDER / "rayjob.yaml").read_text(encoding="utf-8"))
SLURM = (FOLDER / "slurm.sh").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def lines_of(text: str) -> Iterator[str]:
    """Command lines of a page's code blocks, joined and without comments."""
    for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield re.sub(r"\s#.*", "", line)


def commands() -> list[str]:
    """Every `sift-index …` of the cluster files, from the command on."""
    shell = SLURM[SLURM.index("\nsift-index build") :].splitlines()[1].removesuffix(" &")
    cluster = README[README.index("### On a cluster") :]
    cluster = cluster[: cluster.index("\n## ")]
    found = [*lines_of(PAGE), *lines_of(cluster), JOB["spec"]["entrypoint"], shell]
    starts = (line[line.index("sift-index ") :] for line in found if "sift-index " in line)
    return [line.replace('"$@"', "").strip() for line in starts]


def parse(line: str) -> click.Context:
    _, name, *arguments = shlex.split(line)
    command = cli.commands[name]
    return command.make_context(name, arguments)


def test_the_files_hold_commands() -> None:
    found = commands()
    assert len(found) >= 6
    assert {shlex.split(line)[1] for line in found} == {"build", "status"}


@pytest.mark.parametrize("line", commands())
def test_every_command_is_taken_by_the_command_line(line: str) -> None:
    assert parse(line).params["output"] in ("text", "json")


@pytest.mark.parametrize("line", ["sift-index build /c --index i", "sift-index status i --no-such"])
def test_a_wrong_command_would_be_found(line: str) -> None:
    with pytest.raises(click.UsageError):
        parse(line)


def test_files_that_are_named_exist() -> None:
    for name in re.findall(r"\]\(([^):]+)\)", PAGE):
        assert (FOLDER / name).exists(), name


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = spec["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [each for group in groups for each in group["template"]["spec"]["containers"]]


def test_the_job_has_what_kuberay_requires() -> None:
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert re.fullmatch("[a-z0-9]([-a-z0-9]{0,45}[a-z0-9])?", JOB["metadata"]["name"])
    cluster = JOB["spec"]["rayClusterSpec"]
    assert isinstance(cluster["rayVersion"], str)
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        parameters = group["rayStartParams"]
        assert all(isinstance(value, str) for value in parameters.values())
        assert group["template"]["spec"]["containers"]
    for group in cluster["workerGroupSpecs"]:
        assert group["groupName"]
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert all(each["name"] and each["image"] for each in containers(JOB["spec"]))


def test_every_pod_is_the_same_and_nothing_is_installed_per_job() -> None:
    found = containers(JOB["spec"])
    assert "runtimeEnvYAML" not in JOB["spec"]
    assert len({each["image"] for each in found}) == 1
    assert all(each["env"] == found[0]["env"] for each in found)
    assert all(each["resources"]["requests"] == each["resources"]["limits"] for each in found)


def test_workers_have_gpus_and_the_head_has_no_units() -> None:
    head, worker = containers(JOB["spec"])
    assert int(worker["resources"]["limits"]["nvidia.com/gpu"]) >= 1
    assert "nvidia.com/gpu" not in head["resources"]["limits"]
    parameters = JOB["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]
    assert (parameters["num-cpus"], parameters["num-gpus"]) == ("0", "0")


def test_corpus_and_index_lie_on_the_volume_of_every_pod() -> None:
    cluster = JOB["spec"]["rayClusterSpec"]
    params = parse(JOB["spec"]["entrypoint"]).params
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
        assert set(mounts.values()) == set(volumes)
        assert "persistentVolumeClaim" in volumes[mounts["/shared"]]
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert str(params["corpus"]).startswith("/shared/")
    assert str(params["output_folder"]).startswith("/shared/")


def test_resources_are_kubernetes_quantities() -> None:
    for each in containers(JOB["spec"]):
        for name, value in each["resources"]["limits"].items():
            assert isinstance(value, str) and re.fullmatch(r"\d+(Gi|Mi)?", value), (name, value)


def table(title: str) -> list[list[str]]:
    """Rows of the first table under a heading."""
    text = PAGE[PAGE.index(f"### {title}") :]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    end = next((n for n, line in enumerate(rows[2:], 2) if line.startswith("|---")), len(rows) + 1)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2 : end - 1]]


def raised_events() -> dict[str, set[str]]:
    """Kinds and fields of events as the code raises them."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "pipelines").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            kind = node.args[0] if node.args else None
            if node.func.id in ("BuildEvent", "spell") and isinstance(kind, ast.Constant):
                names = {keyword.arg for keyword in node.keywords if keyword.arg}
                found.setdefault(str(kind.value), set()).update(names)
    return found


def test_the_table_of_log_lines_is_what_the_code_writes() -> None:
    described = {row[0].strip("`"): set(row[1].split(", ")) for row in table("Log lines")}
    assert described == raised_events()
    assert set(described) == {"progress", *KINDS}


def test_the_table_of_metrics_is_what_the_code_records() -> None:
    described = {row[0].strip("`"): (row[1], row[2]) for row in table("Metrics")}
    known = {
        PREFIX + name: (kind.lower(), ", ".join(labels) or "–")
        for name, (kind, _, labels) in {**WORKER, **DRIVER}.items()
    }
    assert described == known
