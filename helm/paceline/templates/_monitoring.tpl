{{/* How Prometheus finds the pods, where the cluster knows its operator. */}}

{{- define "paceline.monitors" -}}
{{- $monitoring := .Values.monitoring -}}
{{- $kind := "" -}}
{{- if $monitoring.serviceMonitor.enabled -}}{{- $kind = "ServiceMonitor" -}}{{- end -}}
{{- if $monitoring.podMonitor.enabled -}}{{- $kind = "PodMonitor" -}}{{- end -}}
{{- if and $kind (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") -}}
{{- $monitor := ternary $monitoring.serviceMonitor $monitoring.podMonitor (eq $kind "ServiceMonitor") -}}
apiVersion: monitoring.coreos.com/v1
kind: {{ $kind }}
metadata:
  name: {{ include "paceline.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "paceline.labels" (dict "root" . "component" "monitoring" "pool" "") | nindent 4 }}
    {{- with $monitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  podTargetLabels:
    - app.kubernetes.io/component
    - paceline.dev/verifier
    - paceline.dev/draft
  selector:
    matchLabels:
      app.kubernetes.io/part-of: paceline
      app.kubernetes.io/instance: {{ .Release.Name }}
  {{ ternary "endpoints" "podMetricsEndpoints" (eq $kind "ServiceMonitor") }}:
    - port: metrics
      interval: {{ $monitor.interval }}
{{- end -}}
{{- end -}}
