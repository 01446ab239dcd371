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

{{- /* An image's reference: (dict "root" $ "image" .Values.operator.image). */ -}}
{{- define "octavo.image" -}}
{{- with .root.Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Whether a value of Auto, Always or Never means yes for a kind of the Prometheus Operator. */ -}}
{{- define "octavo.monitors" -}}
{{ or (eq .choice "Always") (and (eq .choice "Auto") (.root.Capabilities.APIVersions.Has (print "monitoring.coreos.com/v1/" .kind))) }}
{{- end }}

{{- /* The fields of a pod's spec that all of the chart's pods share: scheduling and security context. */ -}}
{{- define "octavo.pod" -}}
enableServiceLinks: false
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "octavo.container" -}}
image: {{ include "octavo.image" (dict "root" . "image" .Values.operator.image) | quote }}
imagePullPolicy: {{ .Values.operator.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
  readOnlyRootFilesystem: true
{{- end }}

{{- define "octavo.metrics" -}}
{{ include "octavo.name" . }}-metrics
{{- end }}

{{- define "octavo.metrics.selector" -}}
app.kubernetes.io/name: octavo-metrics-api
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "octavo.metrics.labels" -}}
{{ include "octavo.metrics.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/component: metrics-api
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Whether to run the metrics API. It serves the whole cluster, so by default an operator that is limited to some
namespaces does not run it. */ -}}
{{- define "octavo.answersMetrics" -}}
{{ or (eq .Values.metricsApi.enabled "Always") (and (eq .Values.metricsApi.enabled "Auto") (not .Values.namespaces)) }}
{{- end }}

{{- /* Whether to register the metrics API in the APIService of external metrics. Auto registers it only if the cluster
shows that no other server is registered (KEDA, prometheus-adapter). helm template and Argo CD cannot read the cluster,
so with them Auto never registers it. */ -}}
{{- define "octavo.isAsked" -}}
{{- $known := lookup "apiregistration.k8s.io/v1" "APIService" "" "v1beta1.external.metrics.k8s.io" | default dict }}
{{- $seen := lookup "v1" "Namespace" "" "kube-system" }}
{{- $release := dig "metadata" "annotations" "meta.helm.sh/release-name" "" $known }}
{{- $namespace := dig "metadata" "annotations" "meta.helm.sh/release-namespace" "" $known }}
{{- $own := and (eq $release .Release.Name) (eq $namespace .Release.Namespace) }}
{{- $free := and $seen (or (not $known) $own) }}
{{- $choice := .Values.metricsApi.apiService }}
{{- if or (eq $choice "Always") (and (eq $choice "Auto") $free) }}true{{ end }}
{{- end }}
