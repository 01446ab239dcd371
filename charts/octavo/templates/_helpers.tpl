{{- /* The name of the operator's objects, short enough for the suffixes that other names add to it. A release's name may
have dots, which the name of a Service may not have. */ -}}
{{- define "octavo.name" -}}
{{- $name := .Values.nameOverride | default "operator" | trunc 20 | trimSuffix "-" }}
{{- .Values.fullnameOverride | default (printf "%s-%s" (.Release.Name | trunc 42 | trimSuffix "-" | trimSuffix ".") $name) | replace "." "-" | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- /* The name of the operator's ServiceAccount. */ -}}
{{- define "octavo.serviceAccount" -}}
{{ (.Values.operator.serviceAccount | default dict).name | default (include "octavo.name" .) }}
{{- end }}

{{- /* Whether the cluster chooses the users of pods; "" means no. */ -}}
{{- define "octavo.openshift" -}}
{{- if or (eq .Values.openshift "Always") (and (eq .Values.openshift "Auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1/SecurityContextConstraints")) }}true{{ end }}
{{- end }}

{{- /* The labels by which selectors find the operator's pods; they never change. */ -}}
{{- define "octavo.selector" -}}
app.kubernetes.io/name: octavo-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* The labels that the chart itself gives to all objects of the operator. */ -}}
{{- define "octavo.ownLabels" -}}
{{ include "octavo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/component: operator
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The labels of all objects of the operator. */ -}}
{{- define "octavo.labels" -}}
{{- include "octavo.labelsAnd" (list . dict) }}
{{- end }}

{{- /* The labels of an object that has more of its own, each name once: (list $ more). These replace those of commonLabels,
and none that the chart itself sets. */ -}}
{{- define "octavo.labelsAnd" -}}
{{- $common := include "octavo.commonLabels" (first .) | fromYaml }}
{{- toYaml (merge (include "octavo.ownLabels" (first .) | fromYaml) (last . | default dict) $common) }}
{{- end }}

{{- /* commonLabels of the values, except labels that the chart sets itself, since selectors use them. */ -}}
{{- define "octavo.commonLabels" -}}
{{- range $name, $value := .Values.commonLabels }}
{{- if not (or (hasPrefix "app.kubernetes.io/" $name) (eq $name "helm.sh/chart")) }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* An image's reference: (dict "root" $ "image" .Values.operator.image). */ -}}
{{- define "octavo.image" -}}
{{- with .root.Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Whether objects of a kind of the Prometheus Operator are created, for a value Auto, Always or Never. */ -}}
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
priorityClassName: {{ . | quote }}
{{- end }}
{{- $user := ternary dict (dict "runAsUser" 10001 "runAsGroup" 10001) (eq (include "octavo.openshift" .) "true") }}
{{- $context := merge (dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault")) $user }}
securityContext:
  {{- include "octavo.override" (list $context .Values.operator.podSecurityContext) | nindent 2 }}
{{- end }}

{{- /* The topologySpreadConstraints of pods, given the template of their selector: (list $ "octavo.selector"). */ -}}
{{- define "octavo.spread" -}}
{{- $root := first . }}
topologySpreadConstraints:
{{- if $root.Values.operator.topologySpreadConstraints }}
  {{- toYaml $root.Values.operator.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include (last .) $root | nindent 8 }}
{{- end }}
{{- end }}

{{- /* The first mapping with the fields of the second, which take precedence; null removes a field. */ -}}
{{- define "octavo.override" -}}
{{- $result := deepCopy (first .) }}
{{- range $name, $value := last . }}
{{- if kindIs "invalid" $value }}{{ $_ := unset $result $name }}{{ else }}{{ $_ := set $result $name $value }}{{ end }}
{{- end }}
{{- toYaml $result }}
{{- end }}

{{- /* The image and the security context that all of the chart's containers share. */ -}}
{{- define "octavo.container" -}}
image: {{ include "octavo.image" (dict "root" . "image" .Values.operator.image) | quote }}
imagePullPolicy: {{ .Values.operator.image.pullPolicy }}
{{- $context := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) }}
securityContext:
  {{- include "octavo.override" (list $context .Values.operator.securityContext) | nindent 2 }}
{{- end }}

{{- /* The name of the metrics API's objects. */ -}}
{{- define "octavo.metricsApi.name" -}}
{{ include "octavo.name" . }}-metrics
{{- end }}

{{- /* The labels by which selectors find the metrics API's pods; they never change. */ -}}
{{- define "octavo.metricsApi.selector" -}}
app.kubernetes.io/name: octavo-metrics-api
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* The labels of all objects of the metrics API. */ -}}
{{- define "octavo.metricsApi.labels" -}}
{{ include "octavo.metricsApi.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/component: metrics-api
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- include "octavo.commonLabels" . }}
{{- end }}

{{- /* Whether to run the metrics API. It serves the whole cluster, so by default an operator that is limited to some
namespaces does not run it. */ -}}
{{- define "octavo.runsMetricsApi" -}}
{{ or (eq .Values.metricsApi.enabled "Always") (and (eq .Values.metricsApi.enabled "Auto") (not .Values.namespaces) (not .Values.autoscaling.direct)) }}
{{- end }}

{{- /* Whether to register the metrics API in the APIService of external metrics. Auto registers it only if the cluster
shows that no other server is registered (KEDA, prometheus-adapter). helm template and Argo CD cannot read the cluster,
so with them Auto never registers it. */ -}}
{{- define "octavo.registersMetricsApi" -}}
{{- $apiService := lookup "apiregistration.k8s.io/v1" "APIService" "" "v1beta1.external.metrics.k8s.io" | default dict }}
{{- $canRead := lookup "v1" "Namespace" "" "kube-system" }}
{{- $release := dig "metadata" "annotations" "meta.helm.sh/release-name" "" $apiService }}
{{- $namespace := dig "metadata" "annotations" "meta.helm.sh/release-namespace" "" $apiService }}
{{- $service := dig "spec" "service" dict $apiService | default dict }}
{{- $isOwnService := and (eq (dig "name" "" $service) (include "octavo.metricsApi.name" .)) (eq (dig "namespace" "" $service) .Release.Namespace) }}
{{- $own := or $isOwnService (and (eq $release .Release.Name) (eq $namespace .Release.Namespace)) }}
{{- $free := and $canRead (or (not $apiService) $own) }}
{{- $choice := .Values.metricsApi.apiService }}
{{- if and (eq $choice "Always") $apiService (not $own) }}
{{- $problem := "the cluster's only APIService v1beta1.external.metrics.k8s.io belongs to another server" }}
{{- fail (printf "%s (Service %s/%s): set metricsApi.apiService to Never and use KEDA or the adapter that is there, or delete that APIService first" $problem (dig "namespace" "?" $service) (dig "name" "?" $service)) }}
{{- end }}
{{- if or (eq $choice "Always") (and (eq $choice "Auto") $free) }}true{{ end }}
{{- end }}
