"""Exported files: valid by the schemas that others publish, and faithful to study and plan."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML

from engine.catalog import find_gpu, list_gpus
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.simulation import SimulatedDevice, device_memory_bytes, find_simulated_spec, resolve_simulated
from workbench.report.export import FORMATS
from workbench.report.export.gpu_products import find_product
from workbench.report.export.nginx import at_least
from workbench.report.export.vllm_options import list_versions
from workbench.scenario import Scenario, ScenarioError, scenario_to_dict
from workbench.services.evaluate import run_scenario, store_run
from workbench.services.export import export
from workbench.store.studies import save_study

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
PLAN: dict[str, Any] = {
    "name": "Chat on A100s",
    "provenance": {"commit": "abc123", "has_local_changes": False},
    "instance": {"sustainable_rate_per_s": {"value": 6.1, "low": 5.5, "high": 6.6, "source": "calibrated"}},
    "replicas": {"minimum": 3, "with_headroom": 4, "n_minus_1": 4},
    "deployment": {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "gpu": "a100-80g-sxm",
        "tensor_parallel_size": 2,
        "kv_cache_dtype": "fp8",
        "engine": {"max_num_seqs": 96, "max_model_len": 32768},
        "options": {"served-model-name": "it's chat"},
        "max_replicas": 6,
        "routing": {"kind": "prefix_hash"},
        "pools": [
            {"name": "short", "max_prompt_tokens": 4000, "replicas": 2, "engine": {"max_num_seqs": 128}},
            {"name": "long"},
        ],
        "rate_limit": {"requests_per_s": 12.5, "burst": 24, "per_client": True, "queue_limit": 40},
    },
}
PLAIN = {"deployment": {"model": "meta-llama/Llama-3.1-8B-Instruct", "engine": {"max_num_seqs": 64}, "replicas": 3}}
ONE = {"deployment": {"model": "Qwen/Qwen3-8B", "engine": {"enable_prefix_caching": False}}}


def write_plan(directory: Path, plan: dict[str, Any]) -> Path:
    path = directory / "plan.yaml"
    path.write_text(json.dumps(plan), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("studies") / "chat-1234"
    directory.mkdir()
    scenario = Scenario.model_validate(
        {
            "name": "chat",
            "seed": 1,
            "model": "Qwen2.5-7B-Instruct",
            "engine": {"max_model_len": 4096},
            "target": {"kind": "simulated", "gpu": "a100-80g-sxm"},
            "workload": {
                "num_requests": 40,
                "arrivals": {"kind": "poisson", "rate": 4},
                "classes": [{"name": "c", "input_tokens": 100, "output_tokens": 20}],
            },
            "slo": {"ttft_p95": "1s"},
        }
    )
    params = {"max_num_seqs": 48, "max_num_batched_tokens": 4096}
    result = run_scenario(scenario, params)
    store_run(directory / "trial-0003", result)
    metrics = result.summary.overall.to_dict()
    save_study(
        directory,
        {
            "study": "chat-1234",
            "scenario": "chat",
            "seed": 1,
            "objective": "goodput_rps",
            "default": {"params": {"max_num_seqs": 256}, "metrics": metrics},
            "best": {"number": 3, "params": params, "metrics": metrics},
            "conclusion": "Gain over the default: +12.0% (95% interval +8.0% to +15.0%) in goodput_rps.",
            "slo": {"ttft_p95": 1.0},
            "trials": [
                {"number": 2, "state": "INFEASIBLE", "params": {}, "metrics": None, "reason": "too few blocks"},
                {"number": 3, "state": "COMPLETE", "params": params, "metrics": metrics, "run": "trial-0003"},
                {
                    "number": 4,
                    "state": "COMPLETE",
                    "params": params | {"max_num_seqs": 24},
                    "metrics": metrics,
                    "constraints": {"ttft_p95": 0.3},
                    "duplicate_of": 3,
                },
            ],
            "scenario_resolved": scenario_to_dict(scenario),
        },
    )
    return directory


@pytest.fixture(params=["pools", "plain", "one", "study"])
def source(request: pytest.FixtureRequest, tmp_path: Path, study: Path) -> Path:
    plans = {"pools": PLAN, "plain": PLAIN, "one": ONE}
    return study if request.param == "study" else write_plan(tmp_path, plans[request.param])


def documents(text: str) -> list[Any]:
    return list(YAML(typ="safe").load_all(text))


def test_start_script_passes_shellcheck(source: Path, tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(export(source, "vllm-args").text, encoding="utf-8")
    done = subprocess.run([str(SHELLCHECK), str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_kubernetes_manifests_pass_the_published_schemas(source: Path) -> None:
    kinds = []
    for document in documents(export(source, "k8s").text):
        kubernetes_validate.validate(document, "1.31", strict=True)
        kinds.append(document["kind"])
    assert {"Deployment", "Service", "HorizontalPodAutoscaler"} <= set(kinds)


def test_compose_file_passes_the_compose_specification(source: Path) -> None:
    schemas = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    (document,) = documents(export(source, "compose").text)
    Draft7Validator(json.loads(schemas.read_text(encoding="utf-8"))).validate(document)
    for service in document["services"].values():
        assert "healthcheck" in service or "nginx" in service["image"]


def test_vllm_yaml_holds_names_of_the_version(source: Path) -> None:
    (document,) = documents(export(source, "vllm-yaml").text)
    assert document["model"].startswith(("Qwen/", "meta-llama/"))
    assert all("_" not in name for name in document)


def test_environment_file_has_one_assignment_a_line(source: Path) -> None:
    lines = [line for line in export(source, "env").text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", line) for line in lines)
    assert any(line.startswith("VLLM_ARGS=--") for line in lines)


@pytest.mark.parametrize("format_name", FORMATS)
def test_study_export_tells_where_it_comes_from(format_name: str, study: Path) -> None:
    text = export(study, format_name).text
    head = [line for line in text.splitlines() if line.startswith("# ")]
    for expected in ("study: chat-1234", "trial: 3 of 3", "git commit:", "evidence: Gain over the default: +12.0%"):
        assert any(expected in line for line in head), expected
    assert "48" in text
    assert "4096" in text
    assert "num_requests_waiting" in text
    assert "/health" in text


def test_study_export_pins_what_the_run_resolved(study: Path) -> None:
    (document,) = documents(export(study, "vllm-yaml").text)
    assert document == {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "port": 8000,
        "max-model-len": 4096,
        "max-num-seqs": 48,
        "max-num-batched-tokens": 4096,
        "gpu-memory-utilization": 0.92,
        "enable-prefix-caching": True,
        "enable-chunked-prefill": True,
    }


def test_plan_with_pools_routes_by_size_and_prefix_and_refuses_beyond_the_limits(tmp_path: Path) -> None:
    manifests = documents(export(write_plan(tmp_path, PLAN), "k8s").text)
    config = next(item["data"]["nginx.conf"] for item in manifests if "nginx.conf" in item.get("data", {}))
    assert "limit_req_zone $binary_remote_addr zone=rate:10m rate=750r/m;" in config
    assert "limit_conn in_flight 472;" in config  # 2 x (128 + 40) + 1 x (96 + 40)
    assert "limit_conn_status 429;" in config
    assert config.count("hash $prefix_key consistent;") == 2
    assert config.count("{") - config.count("[0-9]{") == config.count("}") - config.count("[0-9]{")
    scales = [item["spec"] for item in manifests if item["kind"] == "HorizontalPodAutoscaler"]
    assert [(scale["minReplicas"], scale["maxReplicas"]) for scale in scales] == [(2, 6), (1, 6)]


def test_pool_chooses_the_server_that_a_script_starts(tmp_path: Path) -> None:
    path = write_plan(tmp_path, PLAN)
    assert "--max-num-seqs 128" in export(path, "vllm-args", pool="short").text
    assert "--max-num-seqs 96" in export(path, "vllm-args", pool="long").text
    with pytest.raises(ConfigError, match="one of short, long"):
        export(path, "vllm-args", pool="huge")


@pytest.mark.parametrize("number", [1, 9, 10, 400, 999, 16001, 19999])
def test_pattern_for_at_least_a_number_takes_those_and_no_others(number: int) -> None:
    pattern = re.compile(at_least(number))
    near = [*range(max(0, number - 120), number + 120), 10 * number, 10**9]
    assert [value for value in near if pattern.search(str(value))] == [value for value in near if value >= number]


@pytest.mark.parametrize(
    ("options", "version", "message"),
    [
        ({"max-num-seq": 3}, None, "has no option --max-num-seq; the nearest is --max-num-seqs"),
        ({"watermark": 0.1}, "0.9.2", "vLLM 0.32.0 has it"),
        ({"swap-space": 4}, "0.32.0", "vLLM 0.9.2, 0.11.2 has it"),
        ({}, "9.9", "no stored options. Known: 0.9.2, 0.11.2, 0.32.0"),
    ],
)
def test_option_that_the_version_lacks_is_refused(
    options: dict[str, Any], version: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        export(write_plan(tmp_path, ONE), "vllm-args", vllm_version=version, options=options)


def test_engine_parameter_that_the_version_lacks_is_refused(tmp_path: Path) -> None:
    plan = {"deployment": {"model": "m", "engine": {"max_num_partial_prefills": 2}}}
    path = write_plan(tmp_path, plan)
    assert "--max-num-partial-prefills 2" in export(path, "vllm-args", vllm_version="0.9.2").text
    with pytest.raises(ConfigError, match="max-num-partial-prefills"):
        export(path, "vllm-args", vllm_version="0.32.0")


def test_parameter_of_this_projects_engine_is_left_out_and_said(tmp_path: Path) -> None:
    plan = {"deployment": {"model": "tiny", "engine": {"threads": 2, "device_memory": "38MiB", "block_size": 8}}}
    exported = export(write_plan(tmp_path, plan), "vllm-yaml")
    (document,) = documents(exported.text)
    assert document == {"model": "tiny", "port": 8000}
    assert len(exported.warnings) == 4
    assert "# warning: threads 2" in exported.text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"deployment": {"model": "m", "replica": 2}}, "deployment.replica"),
        ({"deployment": {"model": "m", "replicas": 0}}, "deployment.replicas"),
        ({"deployment": {"model": "m", "pools": [{"name": "a", "max_prompt_tokens": 9}]}}, "exactly one"),
        ({"deployment": {"model": "m", "replicas": 3, "max_replicas": 2}}, "at least replicas"),
        ({"deployment": {"model": "m", "engine": {"max_num_sequences": 3}}}, "not an engine parameter"),
        ({"deployment": [1]}, "deployment"),
    ],
)
def test_plan_that_is_wrong_is_refused_by_key(value: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        export(write_plan(tmp_path, value), "k8s")


def test_what_is_no_study_and_no_plan_is_refused(tmp_path: Path, study: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("a: 1\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match="no section 'deployment'"):
        export(other, "env")
    with pytest.raises(ScenarioError, match="neither a study, nor a run, nor a plan"):
        export(tmp_path / "missing", "env")
    with pytest.raises(ConfigError, match="must be one of vllm-args"):
        export(study, "helm")
    lost = tmp_path / "lost"
    shutil.copytree(study, lost)
    save_study(lost, {"best": None, "conclusion": "No configuration gave a result.", "trials": []})
    with pytest.raises(ScenarioError, match="no winner to export"):
        export(lost, "env")


def test_several_named_versions_are_stored() -> None:
    assert len(list_versions()) >= 3


def test_export_of_a_study_takes_the_hardware_that_won(study: Path, tmp_path: Path) -> None:
    values = json.loads((study / "study.json").read_text())
    values["best"]["params"] |= {"gpu": "h100-80g-sxm", "tensor_parallel_size": 2, "replicas": 3, "quantization": "fp8"}
    values["confirmation"] = {"doubt": "trial 1 has no valid repeat (late)"}
    save_study(tmp_path / "won", values)
    found = export(tmp_path / "won", "k8s")
    assert "replicas: 3" in found.text
    assert "--tensor-parallel-size" in found.text
    assert "--quantization" in found.text
    assert "the repeats do not confirm this winner: trial 1 has no valid repeat (late)" in found.warnings


def test_named_trial_is_exported_with_what_speaks_against_it(study: Path) -> None:
    found = export(study, "vllm-yaml", trial=4)
    (document,) = documents(found.text)
    assert (document["max-num-seqs"], document["gpu-memory-utilization"]) == (24, 0.92)
    assert "# trial: 4 of 3, not the winner" in found.text
    assert "trial 4 misses ttft_p95" in found.warnings


@pytest.mark.parametrize(
    ("trial", "message"),
    [(2, "trial 2 gave no result \\(INFEASIBLE: too few blocks\\)"), (9, "has no trial 9, only 2 to 4")],
)
def test_trial_without_a_result_is_refused(trial: int, message: str, study: Path) -> None:
    with pytest.raises(ScenarioError, match=message):
        export(study, "env", trial=trial)


def test_stored_run_is_exported_as_it_ran(study: Path) -> None:
    found = export(study / "trial-0003", "vllm-yaml")
    (document,) = documents(found.text)
    assert (document["max-num-seqs"], document["max-num-batched-tokens"]) == (48, 4096)
    assert "# run: trial-0003, scenario chat, seed 1" in found.text
    with pytest.raises(ScenarioError, match="is not a study"):
        export(study / "trial-0003", "env", trial=3)


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_format_names_the_gpu_and_how_many(format_name: str, tmp_path: Path) -> None:
    text = export(write_plan(tmp_path, PLAN), format_name).text
    assert "GPUs: 2 x A100-SXM-80GB per replica, 3 replicas: 6 in all" in text


def test_kubernetes_selects_nodes_with_the_gpu(tmp_path: Path) -> None:
    plan = {"deployment": {"model": "Qwen/Qwen3-8B", "gpu": "H100", "tensor_parallel_size": 2}}
    manifests = documents(export(write_plan(tmp_path, plan), "k8s").text)
    pod = next(item for item in manifests if item["kind"] == "Deployment")["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_product_label_of_every_nvidia_gpu_is_known() -> None:
    assert [gpu.id for gpu in list_gpus() if gpu.vendor == "NVIDIA" and find_product(gpu.id) is None] == []


def test_compose_counts_the_gpus_of_one_server_and_deals_them_to_several(tmp_path: Path) -> None:
    def devices(plan: dict[str, Any]) -> list[dict[str, Any]]:
        (document,) = documents(export(write_plan(tmp_path, plan), "compose").text)
        servers = [service for service in document["services"].values() if "deploy" in service]
        return [server["deploy"]["resources"]["reservations"]["devices"][0] for server in servers]

    deployment = {"model": "Qwen/Qwen3-8B", "gpu": "l4", "tensor_parallel_size": 2}
    assert devices({"deployment": deployment}) == [{"driver": "nvidia", "count": 2, "capabilities": ["gpu"]}]
    both = devices({"deployment": {**deployment, "replicas": 2}})
    assert [device["device_ids"] for device in both] == [["0", "1"], ["2", "3"]]


@pytest.mark.parametrize(
    ("version", "eager", "utilization"),
    # 28 layers x 12 MiB of captured graphs on a device of 79.2 GiB
    [("0.32.0", False, 0.62), ("0.11.2", False, 0.6159), ("0.9.2", False, 0.6159), ("0.11.2", True, 0.62)],
)
def test_older_versions_get_the_utilization_of_the_same_cache(
    version: str, eager: bool, utilization: float, tmp_path: Path
) -> None:
    engine = {"gpu_memory_utilization": 0.62, "enforce_eager": eager}
    plan = {"deployment": {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "a100-80g-sxm", "engine": engine}}
    found = export(write_plan(tmp_path, plan), "vllm-yaml", vllm_version=version)
    (document,) = documents(found.text)
    assert document["gpu-memory-utilization"] == utilization
    assert any("gives the same KV cache" in warning for warning in found.warnings) == (utilization != 0.62)


def test_utilization_of_an_older_version_gives_the_same_blocks() -> None:
    spec, gpu = find_simulated_spec("Qwen2.5-7B-Instruct"), find_gpu("a100-80g-sxm")
    blocks = []
    for utilization, inside in ((0.62, True), (0.62 - 28 * 12 * 2**20 / device_memory_bytes(gpu), False)):
        config = EngineConfig.from_dict(
            {"model": "Qwen2.5-7B-Instruct", "max_model_len": 4096, "gpu_memory_utilization": utilization}
        )
        blocks.append(
            resolve_simulated(config, SimulatedDevice(gpu=gpu, budgets_graphs=inside), spec).memory.num_blocks
        )
    assert blocks[0] == pytest.approx(blocks[1], abs=1)


def test_autoscaled_fleet_is_exported_with_its_bounds(study: Path, tmp_path: Path) -> None:
    values = json.loads((study / "study.json").read_text())
    values["scenario_resolved"]["target"]["autoscaling"] = {
        "min_replicas": 2, "max_replicas": 6, "waiting_per_replica": 4.0
    }  # fmt: skip
    save_study(tmp_path / "scaled", values)
    (scale,) = (d["spec"] for d in documents(export(tmp_path / "scaled", "k8s").text) if "Autoscaler" in d["kind"])
    assert (scale["minReplicas"], scale["maxReplicas"]) == (2, 6)
    assert scale["metrics"][0]["pods"]["target"]["averageValue"] == "4"
