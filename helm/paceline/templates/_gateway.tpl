{{/* What only the gateway has: a route for applications outside the cluster. */}}

{{- define "paceline.grpcRoute" -}}
{{- $route := .spec.grpcRoute -}}
{{- if and $route.enabled (.root.Capabilities.APIVersions.Has "gateway.networking.k8s.io/v1") -}}
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata:
  {{- include "paceline.metadata" . | nindent 2 }}
spec:
  parentRefs:
    {{- toYaml $route.parentRefs | nindent 4 }}
  {{- with $route.hostnames }}
  hostnames:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  rules:
    - matches:
        - method:
            service: paceline.v1.GenerationService
      backendRefs:
        - name: {{ include "paceline.componentName" . }}
          port: {{ .spec.port }}
          weight: {{ $route.weight }}
        {{- with $route.extraBackendRefs }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}
{{- end -}}
