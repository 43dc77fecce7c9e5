"""Launchers, from which processes learn who the others are.

Those of clusters that are not at hand are replaced by what they set and answer.
"""

from __future__ import annotations

import pytest

from tests.support.fresh import Server
from tests.support.processes import free_port as port

# As they set the environment for the processes of one job on one machine.
LAUNCHERS = {
    "SLURM": {
        "SLURM_JOB_ID": "{job}",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": "{count}",
        "SLURM_PROCID": "{index}",
        "SLURM_LOCALID": "{index}",
    },
    "Open MPI": {
        "OMPI_MCA_orte_hnp_uri": "{job}0000.0;tcp://127.0.0.1:34567",
        "OMPI_COMM_WORLD_SIZE": "{count}",
        "OMPI_COMM_WORLD_RANK": "{index}",
        "OMPI_COMM_WORLD_LOCAL_RANK": "{index}",
    },
    "Kubernetes": {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "HOSTNAME": "localhost",
        "JOB_COMPLETION_INDEX": "{index}",
        "TEST_PORT": "{job}",
    },
    "Cloud TPU": {"TEST_PORT": "{job}", "TEST_INDEX": "{index}"},
    "Cloud TPU in Kubernetes": {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "127.0.0.1,localhost",
        "TPU_WORKER_ID": "{index}",
        "MEGASCALE_COORDINATOR_ADDRESS": "",
        "MEGASCALE_NUM_SLICES": "",
        "MEGASCALE_SLICE_ID": "",
        "TEST_PORT": "{job}",
    },
}
TPU = """
import os
from jax._src.clusters import cloud_tpu_cluster, cluster
cloud_tpu_cluster.running_in_cloud_tpu_vm = cluster.running_in_cloud_tpu_vm = True
assert cloud_tpu_cluster.coordinator_port in ("8476", "8482")  # of JAX 0.7 and 0.10
cloud_tpu_cluster.coordinator_port = os.environ["TEST_PORT"]
"""
# What JAX asks for over the network, by launcher.
ANSWERS = {
    "Kubernetes": """
import os, socket, sys
from types import ModuleType, SimpleNamespace as Made
from jax._src.clusters.k8s_cluster import K8sCluster
owner = Made(controller=True, kind="Job")
pod = Made(
    metadata=Made(name="pod", labels={"job-name": "job"}, owner_references=[owner]),
    spec=Made(subdomain="pods"),
)
job = Made(metadata=Made(name="job", labels={}), spec=Made(parallelism=2))
kubernetes = ModuleType("kubernetes")
kubernetes.config = Made(load_incluster_config=lambda: None)
kubernetes.client = Made(
    CoreV1Api=lambda: Made(list_namespaced_pod=lambda **_: Made(items=[pod])),
    BatchV1Api=lambda: Made(read_namespaced_job=lambda **_: job),
    exceptions=Made(ApiException=RuntimeError),
)
sys.modules["kubernetes"] = kubernetes
socket.gethostbyname = lambda name: "127.0.0.1"
K8sCluster._namespace = classmethod(lambda cls: "default")
found = K8sCluster.get_coordinator_address
def at_home(*args, **named):  # which differ from release to release
    assert found(*args, **named) == "job-0.pods:55527"
    return "127.0.0.1:" + os.environ["TEST_PORT"]
K8sCluster.get_coordinator_address = at_home
""",
    "Cloud TPU": TPU
    + """
import http.server, threading
os.environ.pop("TPU_SKIP_MDS_QUERY", None)
index = os.environ["TEST_INDEX"]
texts = {"agent-worker-number": index, "worker-network-endpoints": "a:b:127.0.0.1,c:d:localhost"}
class Metadata(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        assert self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(texts.get(self.path.rpartition("/")[2], "").encode())
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Metadata)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["GCE_METADATA_IP"] = f"127.0.0.1:{server.server_port}"
""",
    "Cloud TPU in Kubernetes": TPU,
}
JOINED = """
import sys, torch, xfunc as xf
address, count, index = sys.argv[1:] or (None, 0, 0)
xf.distributed.initialize(address, int(count) or None, int(index) if address else None)
mine = torch.tensor([xf.process_index() + 10])
everyones = xf.distributed.process_allgather(mine).flatten().tolist()
print(xf.process_index(), everyones, torch.distributed.get_world_size())
"""


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("launcher", [*LAUNCHERS, "an explicit address"])
def test_initialize_detects_launcher(fresh: Server, launcher: str) -> None:
    job, count = port(), 2
    variables = LAUNCHERS.get(launcher, {})
    given = [] if variables else [f"127.0.0.1:{job}", count]
    code, running = ANSWERS.get(launcher, "") + JOINED, []
    for i in range(count):
        env = {k: v.format(job=job, count=count, index=i) for k, v in variables.items()}
        arguments = [*given, i] if given else []
        running.append(fresh.start(code, *arguments, env={**env, "JAX_PLATFORMS": "cpu"}))
    for i, process in enumerate(running):
        done = process.wait()
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == f"{i} [10, 11] {count}"


REFUSED = """
import sys, types, xfunc as xf
def refuse(): raise RuntimeError("not inside a cluster")
sys.modules["kubernetes"] = types.SimpleNamespace(
    config=types.SimpleNamespace(load_incluster_config=refuse)
)
try:
    xf.distributed.initialize()
except RuntimeError as error:
    print(error)
"""


def test_initialize_launcher_without_answer_raises(fresh: Server) -> None:
    env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "JAX_PLATFORMS": "cpu"}
    said = fresh.run(REFUSED, env=env).stdout
    assert "cannot find out who the other processes are: RuntimeError: not inside a clus" in said
    assert "Hint: pass coordinator_address=" in said


def test_initialize_without_launcher_raises(fresh: Server) -> None:
    code = "import xfunc as xf\ntry: xf.distributed.initialize(num_processes=2)\n"
    code += "except ValueError as error: print(error)"
    said = fresh.run(code, env={"JAX_PLATFORMS": "cpu"}).stdout
    assert "was not given coordinator_address and process_id, and no launcher that it kn" in said
    assert "Hint: start the program by torchrun" in said
