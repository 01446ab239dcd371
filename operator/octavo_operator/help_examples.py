"""The examples at the end of `--help` of each command of `octavo-operator` and `kubectl octavo`.

A line may end with a comment, after two spaces or more.
"""

from __future__ import annotations

OPERATOR_EXAMPLES = {
    "run": """
  octavo-operator run                                        with KUBECONFIG; in a cluster the chart runs it
  octavo-operator run --namespace team-a --scale-directly    one namespace, without the metrics API
""",
    "metrics-api": """
  octavo-operator metrics-api --service octavo-system/octavo-operator-metrics --register
""",
    "render": """
  octavo-operator render service.yaml                        what the operator would apply
  octavo-operator render service.yaml --with-kind ServiceMonitor
""",
    "check": """
  octavo-operator check service.yaml                         exit code 2 if the API server would refuse it
  octavo-operator check manifests/samples/*.yaml
""",
    "convert": """
  octavo-operator convert vllm.yaml > service.yaml           what has no counterpart is reported on stderr
  octavo-operator convert models.yaml                        KubeAI's Models, as kubectl get -o yaml writes them
  octavo-operator convert -                                  what another program writes, such as helm template
""",
    "crd": """
  octavo-operator crd > llmservices.yaml                     to be applied without the chart
""",
    "dashboard": """
  octavo-operator dashboard service > service.json           to be imported into Grafana
""",
    "local": """
  octavo-operator local manifests/samples/smollm2.yaml       until Ctrl-C, on http://127.0.0.1:8000
  octavo-operator local service.yaml --volume weights=./model --volume api-keys=./keys
""",
}
KUBECTL_EXAMPLES = {
    "status": """
  kubectl octavo status                 the LLMServices of this namespace
  kubectl octavo status -A              those of all namespaces
  kubectl octavo status llama-8b        one of them
""",
    "top": """
  kubectl octavo top                    measured for 5 seconds
  kubectl octavo top llama-8b           one LLMService
  kubectl octavo top -A --seconds 30    all namespaces, for longer
""",
    "why": """
  kubectl octavo why llama-8b           exit code 1 if something keeps it from serving or scaling
""",
    "logs": """
  kubectl octavo logs llama-8b -f       until Ctrl-C
  kubectl octavo logs llama-8b --previous --tail -1
""",
    "chat": """
  kubectl octavo chat smollm2 --temperature 0.2
  kubectl octavo chat llama-8b --api-key-secret llama-8b-keys
""",
    "run": """
  kubectl octavo run smollm2            the demo model, without a GPU
  kubectl octavo run Qwen/Qwen3-8B      on one GPU, as the LLMService qwen3-8b
  kubectl octavo run Qwen/Qwen3-32B --gpus 2 --name big --prompt "Write a haiku."
""",
}
