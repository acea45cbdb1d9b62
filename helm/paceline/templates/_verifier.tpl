{{/* What only verifiers have: a claim for models, a Job that fills it, groups of pods. */}}

{{- define "paceline.cacheClaim" -}}
{{- if eq .spec.cache.type "claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ include "paceline.cacheClaimName" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "paceline.labels" . | nindent 4 }}
  annotations:
    helm.sh/resource-policy: keep
spec:
  accessModes:
    {{- toYaml .spec.cache.accessModes | nindent 4 }}
  {{- with .spec.cache.storageClassName }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .spec.cache.size }}
{{- end -}}
{{- end -}}

{{/* The name holds a hash of what is fetched: a Job cannot change, but another can be created. */}}
{{- define "paceline.prefetchJob" -}}
{{- if and (eq .root.Values.model.source "hub") .root.Values.model.hub.prefetchJob (has .spec.cache.type (list "claim" "existingClaim")) -}}
{{- $init := include "paceline.hubContainer" . -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ printf "%s-%s" (include "paceline.componentName" . | trunc 52 | trimSuffix "-") (sha256sum $init | trunc 10) }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "paceline.labels" (merge (dict "component" "prefetch" "pool" "") .) | nindent 4 }}
spec:
  backoffLimit: 6
  ttlSecondsAfterFinished: 86400
  template:
    metadata:
      labels:
        {{- include "paceline.podLabels" (merge (dict "component" "prefetch" "pool" "") .) | nindent 8 }}
    spec:
      {{- include "paceline.podSecurity" .root | nindent 6 }}
      restartPolicy: OnFailure
      containers:
        - {{ $init | indent 10 | trim }}
      volumes:
        - name: tmp
          emptyDir:
            sizeLimit: 1Gi
        - name: cache
          {{- include "paceline.cacheVolume" . | nindent 10 }}
{{- end -}}
{{- end -}}

{{- define "paceline.leaderWorkerSet" -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  {{- include "paceline.metadata" . | nindent 2 }}
spec:
  {{- if not (include "paceline.isScaled" .) }}
  replicas: {{ .spec.replicas }}
  {{- end }}
  startupPolicy: LeaderCreated
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration:
      maxSurge: 0
      maxUnavailable: 1
  leaderWorkerTemplate:
    size: {{ .spec.multinode.size }}
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      {{- include "paceline.podTemplate" . | nindent 6 }}
    workerTemplate:
      {{- include "paceline.workerTemplate" . | nindent 6 }}
{{- end -}}

{{/* The leader's pod with another command; only leaders are probed and called. */}}
{{- define "paceline.workerTemplate" -}}
{{- $template := include "paceline.podTemplate" . | fromYaml -}}
{{- $container := first $template.spec.containers -}}
{{- $worker := omit $container "args" "ports" "startupProbe" "readinessProbe" "livenessProbe" -}}
{{- $_ := set $worker "command" .spec.multinode.workerCommand -}}
{{- $_ := set $template.spec "containers" (list $worker) -}}
{{- toYaml $template -}}
{{- end -}}
