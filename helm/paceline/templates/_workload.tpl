{{/* Deployments and how they roll, scale and are disrupted. */}}

{{- define "paceline.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "paceline.metadata" . | nindent 2 }}
spec:
  {{- if not (include "paceline.isScaled" .) }}
  replicas: {{ .spec.replicas }}
  {{- end }}
  revisionHistoryLimit: 5
  progressDeadlineSeconds: {{ add .spec.startup.timeoutSeconds 300 }}
  selector:
    matchLabels:
      {{- include "paceline.selectorLabels" . | nindent 6 }}
  strategy:
    {{- include "paceline.strategy" . | nindent 4 }}
  template:
    {{- include "paceline.podTemplate" . | nindent 4 }}
{{- end -}}

{{- define "paceline.isScaled" -}}
{{- if or .spec.autoscaling.enabled .spec.keda.enabled -}}true{{- end -}}
{{- end -}}

{{/*
With all GPUs of a node in use, a surge pod would be pending for ever: pods with GPUs make room
first, and a single one is recreated.
*/}}
{{- define "paceline.strategy" -}}
{{- $strategy := .spec.strategy -}}
{{- $hasGPU := gt (int (dig "gpu" "count" 0 .spec)) 0 -}}
{{- $isSingle := and (not (include "paceline.isScaled" .)) (eq (int .spec.replicas) 1) -}}
{{- $type := $strategy.type | default (ternary "Recreate" "RollingUpdate" (and $hasGPU $isSingle)) -}}
type: {{ $type }}
{{- if eq $type "RollingUpdate" }}
rollingUpdate:
  maxSurge: {{ include "paceline.orElse" (list $strategy.maxSurge (ternary 0 1 $hasGPU)) }}
  maxUnavailable: {{ include "paceline.orElse" (list $strategy.maxUnavailable (ternary 1 0 $hasGPU)) }}
{{- end }}
{{- end -}}

{{/* The first of two values unless it is the empty string; 0 counts. */}}
{{- define "paceline.orElse" -}}
{{- $given := first . -}}
{{- eq (toString $given) "" | ternary (last .) $given -}}
{{- end -}}

{{- define "paceline.disruptionBudget" -}}
{{- if .spec.pdb.enabled -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "paceline.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .spec.pdb.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "paceline.selectorLabels" . | nindent 6 }}
{{- end -}}
{{- end -}}

{{- define "paceline.scaler" -}}
{{- if .spec.autoscaling.enabled -}}
{{- include "paceline.horizontalScaler" . -}}
{{- else if .spec.keda.enabled -}}
{{- include "paceline.scaledObject" . -}}
{{- end -}}
{{- end -}}

{{- define "paceline.horizontalScaler" -}}
{{- $scaling := .spec.autoscaling -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "paceline.metadata" . | nindent 2 }}
spec:
  scaleTargetRef:
    {{- include "paceline.scaleTarget" . | nindent 4 }}
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  metrics:
    {{- if $scaling.metrics }}
    {{- toYaml $scaling.metrics | nindent 4 }}
    {{- else }}
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ $scaling.targetCPUUtilizationPercentage }}
    {{- end }}
  {{- with $scaling.behavior }}
  behavior:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "paceline.scaledObject" -}}
{{- $keda := .spec.keda -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  {{- include "paceline.metadata" . | nindent 2 }}
spec:
  scaleTargetRef:
    {{- include "paceline.scaleTarget" . | nindent 4 }}
  minReplicaCount: {{ $keda.minReplicas }}
  maxReplicaCount: {{ $keda.maxReplicas }}
  triggers:
    {{- if $keda.triggers }}
    {{- toYaml $keda.triggers | nindent 4 }}
    {{- else }}
    - type: prometheus
      metadata:
        serverAddress: {{ $keda.serverAddress }}
        query: {{ include "paceline.loadQuery" . }}
        threshold: {{ $keda.threshold | quote }}
        # No series means no pod, which is no reason to stay at zero.
        ignoreNullValues: "true"
    {{- end }}
{{- end -}}

{{- define "paceline.loadQuery" -}}
{{- $gauges := dict "gateway" "paceline_gateway_requests_running" "verifier" "paceline_requests_running|paceline_requests_waiting" "draft" "paceline_draft_sessions" -}}
sum({__name__=~"{{ get $gauges .component }}",namespace="{{ .root.Release.Namespace }}",pod=~"{{ include "paceline.componentName" . }}-.+"})
{{- end -}}

{{- define "paceline.scaleTarget" -}}
{{- if dig "multinode" "enabled" false .spec -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- else -}}
apiVersion: apps/v1
kind: Deployment
{{- end }}
name: {{ include "paceline.componentName" . }}
{{- end -}}

{{/* What the schema cannot see, since defaults and a pool's own values come together only here. */}}
{{- define "paceline.validate" -}}
{{- if and .spec.autoscaling.enabled .spec.keda.enabled -}}
{{- fail (printf "%s: autoscaling and keda exclude each other" .where) -}}
{{- end -}}
{{- $strategy := .spec.strategy -}}
{{- if and (has (toString $strategy.maxSurge) (list "0" "0%")) (has (toString $strategy.maxUnavailable) (list "0" "0%")) -}}
{{- fail (printf "%s.strategy: maxSurge and maxUnavailable are both 0, so no rollout could ever proceed" .where) -}}
{{- end -}}
{{- end -}}
