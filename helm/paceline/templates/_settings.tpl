{{/* Pools with their defaults filled in, and the settings file of each service. */}}

{{- define "paceline.verifierPools" -}}
{{- $defaults := .Values.verifierDefaults -}}
{{- $pools := dict -}}
{{- range $name, $given := .Values.verifiers -}}
{{- $pool := mergeOverwrite (deepCopy $defaults) ($given | default dict) -}}
{{- if $pool.enabled -}}{{- $_ := set $pools $name $pool -}}{{- end -}}
{{- end -}}
{{- toYaml $pools -}}
{{- end -}}

{{- define "paceline.draftPools" -}}
{{- $defaults := .Values.draftDefaults -}}
{{- $pools := dict -}}
{{- range $name, $given := .Values.drafts -}}
{{- $pool := mergeOverwrite (deepCopy $defaults) ($given | default dict) -}}
{{- if $pool.enabled -}}{{- $_ := set $pools $name $pool -}}{{- end -}}
{{- end -}}
{{- toYaml $pools -}}
{{- end -}}

{{/* The gateway as a component; its port is its Service's. */}}
{{- define "paceline.gateway" -}}
{{- $spec := deepCopy .Values.gateway -}}
{{- $_ := set $spec "port" .Values.gateway.service.port -}}
{{- dict "component" "gateway" "pool" "" "spec" $spec | toYaml -}}
{{- end -}}

{{- define "paceline.settings" -}}
{{- $root := .root -}}
{{- $settings := dict "listen" (printf "0.0.0.0:%d" (int .spec.port)) "admin_listen" (printf "0.0.0.0:%d" (int $root.Values.monitoring.port)) "log_level" $root.Values.global.logLevel "log_format" $root.Values.global.logFormat -}}
{{- with $root.Values.tracing.otlpEndpoint -}}
{{- $_ := set $settings "otlp_endpoint" . -}}
{{- $_ := set $settings "trace_ratio" $root.Values.tracing.ratio -}}
{{- end -}}
{{- $own := include (printf "paceline.%sSettings" .component) . | fromYaml -}}
{{- $secrets := include "paceline.secretSettings" . | fromYaml -}}
{{- toYaml (mergeOverwrite $settings $own $secrets .spec.settings) -}}
{{- end -}}

{{- define "paceline.gatewaySettings" -}}
verifiers:
  {{- range $name, $spec := include "paceline.verifierPools" .root | fromYaml }}
  - dns:{{ include "paceline.address" (dict "root" $.root "component" "verifier" "pool" $name "spec" $spec) }}
  {{- end }}
model: {{ include "paceline.modelFolder" . }}
routing: /etc/paceline/routing/routing.yaml
{{- end -}}

{{- define "paceline.verifierSettings" -}}
engine: {{ .spec.engine }}
model: {{ include "paceline.modelFolder" . }}
device: {{ gt (int .spec.gpu.count) 0 | ternary "cuda" "cpu" }}
routing: /etc/paceline/routing/routing.yaml
{{- end -}}

{{- define "paceline.draftSettings" -}}
name: {{ .pool }}
drafter: {{ .spec.engine }}
{{- if has .spec.engine (list "onnx" "composite") }}
{{- with include "paceline.modelFolder" . }}
onnx_model: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "paceline.settingsConfigMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "paceline.metadata" . | nindent 2 }}
data:
  settings.yaml: |
    {{- include "paceline.settings" . | nindent 4 }}
{{- end -}}
