{{/* Where traces go and what their spans say of the pod; nothing without an endpoint. */}}

{{- define "paceline.tracingEnv" -}}
{{- if .root.Values.tracing.otlpEndpoint -}}
{{- $own := dict "service.namespace" .root.Release.Name "k8s.namespace.name" .root.Release.Namespace "k8s.pod.name" "$(POD_NAME)" -}}
{{- with .pool }}{{- $_ := set $own "paceline.pool" . -}}{{- end -}}
{{- $pairs := list -}}
{{- range $name, $value := mergeOverwrite $own .root.Values.tracing.resourceAttributes -}}
{{- $pairs = append $pairs (printf "%s=%s" $name $value) -}}
{{- end -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: OTEL_RESOURCE_ATTRIBUTES
  value: {{ join "," $pairs | quote }}
{{- end -}}
{{- end -}}

{{- define "paceline.collectorPort" -}}
{{- $url := urlParse .Values.tracing.otlpEndpoint -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- $port | default (eq $url.scheme "https" | ternary "443" "80") -}}
{{- end -}}
