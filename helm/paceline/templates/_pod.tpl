{{/* The pod template that all three services share. */}}

{{- define "paceline.podTemplate" -}}
metadata:
  labels:
    {{- include "paceline.podLabels" . | nindent 4 }}
    {{- with .spec.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: {{ .component }}
    checksum/config: {{ include "paceline.settings" . | sha256sum }}
    {{- with .spec.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "paceline.podSecurity" .root | nindent 2 }}
  {{- include "paceline.scheduling" . | trim | nindent 2 }}
  terminationGracePeriodSeconds: {{ include "paceline.gracePeriod" . }}
  {{- with include "paceline.modelInit" . }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - {{ include "paceline.container" . | indent 6 | trim }}
  volumes:
    {{- include "paceline.volumes" . | nindent 4 }}
{{- end -}}

{{/* What the restricted pod security standard asks of a pod; ids are the cluster's on OpenShift. */}}
{{- define "paceline.podSecurity" -}}
serviceAccountName: {{ include "paceline.serviceAccountName" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- if not .Values.openshift.enabled }}
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "paceline.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: {{ .spec.readOnlyRootFilesystem }}
  capabilities:
    drop: [ALL]
{{- end -}}

{{- define "paceline.scheduling" -}}
{{- $spec := .spec -}}
{{- range $key := list "priorityClassName" "runtimeClassName" "nodeSelector" "tolerations" "affinity" -}}
{{- with get $spec $key }}
{{ $key }}: {{- kindIs "string" . | ternary (printf " %s" .) (toYaml . | nindent 2) }}
{{- end }}
{{- end }}
topologySpreadConstraints:
{{- if $spec.topologySpreadConstraints }}
  {{- toYaml $spec.topologySpreadConstraints | nindent 2 }}
{{- else }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "paceline.selectorLabels" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Propagation delay, then drain, then a margin for the process to end. */}}
{{- define "paceline.gracePeriod" -}}
{{- $settings := .spec.settings -}}
{{- $delay := dig "propagation_delay_seconds" 0 $settings | float64 | ceil -}}
{{- add (int $delay) (dig "drain_seconds" 30 $settings | float64 | ceil | int) 10 -}}
{{- end -}}

{{- define "paceline.container" -}}
{{- $module := dict "gateway" "gateway" "verifier" "verify_service" "draft" "draft_service" -}}
name: {{ .component }}
image: {{ include "paceline.image" . }}
imagePullPolicy: {{ .spec.image.pullPolicy }}
command: [python, -m, {{ get $module .component }}]
args:
  - --config=/etc/paceline/config/settings.yaml
  {{- range .spec.extraArgs }}
  - {{ . | quote }}
  {{- end }}
env:
  {{- include "paceline.cacheEnv" . | trim | nindent 2 }}
  {{- include "paceline.modelEnv" . | nindent 2 }}
  {{- with include "paceline.tracingEnv" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .spec.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .spec.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - name: grpc
    containerPort: {{ .spec.port }}
  - name: metrics
    containerPort: {{ .root.Values.monitoring.port }}
{{ include "paceline.probes" . }}
resources:
  {{- include "paceline.resources" . | nindent 2 }}
{{ include "paceline.containerSecurity" . }}
volumeMounts:
  {{- include "paceline.volumeMounts" . | nindent 2 }}
{{- end -}}

{{/*
Startup and readiness ask whether it can serve, liveness only whether the process answers: a slow
engine must not be killed. A gateway waits for verifiers, so its start is over when it answers.
The kubelet speaks gRPC in plaintext only, so TLS needs the admin port.
*/}}
{{- define "paceline.probes" -}}
{{- $period := 5 -}}
startupProbe:
  {{- include "paceline.probe" (dict "context" . "name" (eq .component "gateway" | ternary "liveness" "readiness")) | nindent 2 }}
  periodSeconds: {{ $period }}
  timeoutSeconds: 5
  failureThreshold: {{ divf .spec.startup.timeoutSeconds $period | ceil | int }}
readinessProbe:
  {{- include "paceline.probe" (dict "context" . "name" "readiness") | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
livenessProbe:
  {{- include "paceline.probe" (dict "context" . "name" "liveness") | nindent 2 }}
  periodSeconds: 15
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{- define "paceline.probe" -}}
{{- $spec := .context.spec -}}
{{- if $spec.tls.existingSecret -}}
httpGet:
  path: /{{ .name }}
  port: metrics
{{- else -}}
grpc:
  port: {{ $spec.port }}
  service: {{ .name }}
{{- end -}}
{{- end -}}

{{- define "paceline.resources" -}}
{{- $resources := deepCopy .spec.resources -}}
{{- with .spec.gpu -}}
{{- if gt (int .count) 0 -}}
{{- $gpu := dict .resourceName (int .count) -}}
{{- $resources = mergeOverwrite $resources (dict "limits" $gpu) (dict "requests" (deepCopy $gpu)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
