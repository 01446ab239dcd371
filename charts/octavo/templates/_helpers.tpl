{{- define "octavo.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}-operator
{{- end }}

{{- define "octavo.selector" -}}
app.kubernetes.io/name: octavo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "octavo.labels" -}}
{{ include "octavo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/component: operator
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* What the operator may do, and nothing else. */ -}}
{{- define "octavo.rules" -}}
- apiGroups: [octavo.dev]
  resources: [llmservices]
  verbs: [get, list, watch]
- apiGroups: [octavo.dev]
  resources: [llmservices/status]
  verbs: [patch]
# Needed to own children where the API server enforces who may block an owner's deletion.
- apiGroups: [octavo.dev]
  resources: [llmservices/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- end }}
