{{/* Who may talk to whom. Everything that no rule names is refused. */}}

{{- define "paceline.networkPolicy" -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- if $policy.enabled -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "paceline.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "paceline.selectorLabels" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  {{- if ne .component "test" }}
  ingress:
    {{- include (printf "paceline.%sIngress" .component) . | nindent 4 }}
    {{- with $policy.monitoring }}
    - from:
        {{- toYaml . | nindent 8 }}
      ports:
        - port: metrics
          protocol: TCP
    {{- end }}
  {{- end }}
  egress:
    - to:
        {{- toYaml $policy.dns | nindent 8 }}
      ports:
        - {port: 53, protocol: UDP}
        - {port: 53, protocol: TCP}
    {{- with include (printf "paceline.%sEgress" .component) . }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- if and (ne .component "test") .root.Values.tracing.otlpEndpoint }}
    - to:
        {{- toYaml $policy.collector | nindent 8 }}
      ports:
        - {port: {{ include "paceline.collectorPort" .root }}, protocol: TCP}
    {{- end }}
    {{- if and (ne .component "test") (eq (include "paceline.model" . | fromYaml).source "hub") }}
    - to:
        {{- toYaml $policy.hub | nindent 8 }}
      ports:
        - {port: 443, protocol: TCP}
    {{- end }}
{{- end -}}
{{- end -}}

{{- define "paceline.gatewayIngress" -}}
- ports:
    - port: grpc
      protocol: TCP
  {{- with .root.Values.networkPolicy.applications }}
  from:
    - podSelector:
        matchLabels:
          {{- include "paceline.peerLabels" (list $.root.Release.Name "test") | nindent 10 }}
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "paceline.gatewayEgress" -}}
- to:
    - podSelector:
        matchLabels:
          {{- include "paceline.peerLabels" (list .root.Release.Name "verifier") | nindent 10 }}
{{- end -}}

{{- define "paceline.verifierIngress" -}}
- from:
    - podSelector:
        matchLabels:
          {{- include "paceline.peerLabels" (list .root.Release.Name "gateway") | nindent 10 }}
  ports:
    - port: grpc
      protocol: TCP
{{- if .spec.multinode.enabled }}
- from:
    - podSelector:
        matchLabels:
          {{- include "paceline.selectorLabels" . | nindent 10 }}
{{- end }}
{{- end -}}

{{/* Draft pools may belong to another release, so any release's are reachable. */}}
{{- define "paceline.verifierEgress" -}}
- to:
    - podSelector:
        matchLabels:
          app.kubernetes.io/part-of: paceline
          app.kubernetes.io/component: draft
{{- if .spec.multinode.enabled }}
- to:
    - podSelector:
        matchLabels:
          {{- include "paceline.selectorLabels" . | nindent 10 }}
{{- end }}
{{- end -}}

{{- define "paceline.draftIngress" -}}
- from:
    - podSelector:
        matchLabels:
          {{- include "paceline.peerLabels" (list .verifierRelease "verifier") | nindent 10 }}
  ports:
    - port: grpc
      protocol: TCP
{{- end -}}

{{- define "paceline.draftEgress" -}}
{{- end -}}

{{- define "paceline.testEgress" -}}
- to:
    - podSelector:
        matchLabels:
          {{- include "paceline.peerLabels" (list .root.Release.Name "gateway") | nindent 10 }}
{{- end -}}

{{- define "paceline.peerLabels" -}}
app.kubernetes.io/part-of: paceline
app.kubernetes.io/instance: {{ first . }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}
