{{/*
Names, labels and images. A "component" is a dict: root, component (gateway, verifier or draft),
pool (name, or "" for the gateway) and spec (the component's values with defaults filled in).
*/}}

{{- define "paceline.fullname" -}}
{{- $name := .Values.fullnameOverride | default (include "paceline.releaseName" .) -}}
{{- if gt (len $name) 32 -}}
{{- printf "%s-%s" (trunc 25 $name | trimSuffix "-") (sha256sum $name | trunc 6) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{- define "paceline.releaseName" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}

{{- define "paceline.componentName" -}}
{{- $parts := list (include "paceline.fullname" .root) .component -}}
{{- if .pool -}}{{- $parts = append $parts .pool -}}{{- end -}}
{{- join "-" $parts -}}
{{- end -}}

{{- define "paceline.address" -}}
{{- $root := .root -}}
{{- printf "%s.%s.svc.%s:%d" (include "paceline.componentName" .) $root.Release.Namespace $root.Values.clusterDomain (int .spec.port) -}}
{{- end -}}

{{/* Labels that never change while a Deployment lives. */}}
{{- define "paceline.selectorLabels" -}}
app.kubernetes.io/name: {{ .root.Values.nameOverride | default "paceline" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- if .pool }}
paceline.dev/{{ .component }}: {{ .pool }}
{{- end }}
{{- end -}}

{{/* Labels of objects; those of pods leave out the chart, whose upgrade must restart nothing. */}}
{{- define "paceline.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "paceline.podLabels" . }}
{{- end -}}

{{- define "paceline.podLabels" -}}
{{ include "paceline.selectorLabels" . }}
app.kubernetes.io/part-of: paceline
app.kubernetes.io/version: {{ include "paceline.version" . | quote }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "paceline.version" -}}
{{- $tag := "" -}}
{{- with .spec -}}{{- with .image -}}{{- $tag = .tag -}}{{- end -}}{{- end -}}
{{- $tag | default .root.Chart.AppVersion | trunc 63 | trimSuffix "-" | trimSuffix "." -}}
{{- end -}}

{{- define "paceline.metadata" -}}
name: {{ include "paceline.componentName" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "paceline.labels" . | nindent 2 }}
{{- end -}}

{{- define "paceline.image" -}}
{{- $image := .spec.image -}}
{{- $repository := $image.repository -}}
{{- if not $repository -}}{{- $repository = include "paceline.verifierRepository" . -}}{{- end -}}
{{- $name := printf "%s:%s" $repository ($image.tag | default .root.Chart.AppVersion) -}}
{{- with $image.digest -}}{{- $name = printf "%s@%s" $repository . -}}{{- end -}}
{{- with .root.Values.global.imageRegistry -}}{{- $name = printf "%s/%s" (trimSuffix "/" .) $name -}}{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Which verifier image serves an engine: the packaged model is in an image of its own. */}}
{{- define "paceline.verifierRepository" -}}
{{- if eq .spec.engine "tensorrt-llm" -}}
paceline/verify-tensorrt-llm
{{- else if gt (int .spec.gpu.count) 0 -}}
paceline/verify-torch-cuda
{{- else if eq .root.Values.model.source "packaged" -}}
paceline/verify-demo
{{- else -}}
paceline/verify-torch-cpu
{{- end -}}
{{- end -}}

{{- define "paceline.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "paceline.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}
