# Octavo and one model by Terraform, with the providers helm and kubernetes. Both find the cluster by KUBE_CONFIG_PATH, and do
# not read KUBECONFIG. `kubernetes_manifest` asks the cluster for the CRD while it plans, so apply the release first:
#   export KUBE_CONFIG_PATH=~/.kube/config
#   terraform init
#   terraform apply -target=helm_release.octavo && terraform apply
# No test applies this file: the tests check the values and the LLMService.
terraform {
  required_providers {
    helm       = { source = "hashicorp/helm", version = ">= 2.12" }
    kubernetes = { source = "hashicorp/kubernetes", version = ">= 2.30" }
  }
}

resource "helm_release" "octavo" {
  name             = "octavo"
  chart            = "${path.module}/../../charts/octavo"
  namespace        = "octavo-system"
  create_namespace = true
  values           = [file("${path.module}/octavo-values.yaml")]
}

resource "kubernetes_manifest" "model" {
  depends_on = [helm_release.octavo]
  manifest   = yamldecode(file("${path.module}/llmservice.yaml"))

  wait {
    condition {
      type   = "Ready"
      status = "True"
    }
  }
  timeouts {
    create = "30m" # a large model loads for minutes
    update = "30m"
  }
}
