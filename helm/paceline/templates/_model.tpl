{{/* Where a model comes from, and what a pod does to have it before it starts. */}}

{{/* The model of a component: drafts have their own, gateways and verifiers share the release's. */}}
{{- define "paceline.model" -}}
{{- ternary .spec.model .root.Values.model (eq .component "draft") | toYaml -}}
{{- end -}}

{{/* The folder that the service is told to load; empty where a drafter needs no model. */}}
{{- define "paceline.modelFolder" -}}
{{- $model := include "paceline.model" . | fromYaml -}}
{{- if eq $model.source "packaged" -}}
/cache/models/packaged
{{- else if eq $model.source "image" -}}
{{- required "model.source image needs model.path" $model.path -}}
{{- else if eq $model.source "claim" -}}
{{- printf "/models/%s" (trimPrefix "/" $model.path) | trimSuffix "/" -}}
{{- else if eq $model.source "hub" -}}
{{- $pool := hasKey .root.Values "pool" | ternary "pool" (printf "drafts.%s" .pool) -}}
{{- $what := eq .component "draft" | ternary (printf "%s.model" $pool) "model" -}}
{{- $_ := required (printf "%s.hub.repository: name the model, OWNER/NAME on the hub" $what) $model.hub.repository -}}
{{- $_ := required (printf "%s.hub.revision: name the commit; a branch would change under running pods" $what) $model.hub.revision -}}
/cache/models/{{ printf "%s@%s" $model.hub.repository $model.hub.revision | sha256sum | trunc 16 }}
{{- end -}}
{{- end -}}

{{- define "paceline.modelEnv" -}}
- name: HF_HUB_OFFLINE
  value: "1"
{{- if and (eq .component "draft") (not (has .spec.engine (include "paceline.ownDrafters" . | fromYamlArray))) (include "paceline.modelFolder" .) }}
- name: DRAFT_MODEL
  value: {{ include "paceline.modelFolder" . }}
{{- end }}
{{- end -}}

{{- define "paceline.modelInit" -}}
{{- $model := include "paceline.model" . | fromYaml -}}
{{- if eq $model.source "hub" -}}
- {{ include "paceline.hubContainer" . | indent 2 | trim }}
{{- else if eq $model.source "packaged" -}}
- {{ include "paceline.packagedContainer" . | indent 2 | trim }}
{{- end -}}
{{- end -}}

{{/* Downloads once; a second pod on the same volume finds the files there. */}}
{{- define "paceline.hubContainer" -}}
{{- $hub := (include "paceline.model" . | fromYaml).hub -}}
name: model
image: {{ include "paceline.image" . }}
imagePullPolicy: {{ .spec.image.pullPolicy }}
command: [hf, download]
args:
  - {{ $hub.repository }}
  - --revision={{ $hub.revision }}
  - --local-dir={{ include "paceline.modelFolder" . }}
  {{- if eq .component "gateway" }}
  - --include=*.json
  - --include=*.jinja
  - --exclude=*.index.json
  {{- end }}
env:
  {{- include "paceline.cacheEnv" . | trim | nindent 2 }}
  {{- with $hub.endpoint }}
  - name: HF_ENDPOINT
    value: {{ . | quote }}
  {{- end }}
  {{- if $hub.tokenSecret.name }}
  - name: HF_TOKEN
    valueFrom:
      secretKeyRef:
        name: {{ $hub.tokenSecret.name }}
        key: {{ $hub.tokenSecret.key }}
  {{- end }}
{{ include "paceline.initTail" . }}
{{- end -}}

{{/* Converts the packaged model with the verifier's image; a gateway keeps only its tokenizer. */}}
{{- define "paceline.packagedContainer" -}}
{{- $component := . -}}
{{- if eq .component "gateway" -}}
{{- $component = include "paceline.packagedSource" .root | fromYaml -}}
{{- $_ := set $component "root" .root -}}
{{- end -}}
name: model
image: {{ include "paceline.image" $component }}
imagePullPolicy: {{ $component.spec.image.pullPolicy }}
command: [/bin/sh, -ec]
args:
  - |
    mkdir -p /cache/models
    folder=$(python -m verify_service.convert --packaged {{ .root.Values.model.packaged }})
    ln -sfn "$folder" /cache/models/packaged
    {{- if eq .component "gateway" }}
    find /cache -type f \( -name '*.safetensors' -o -name '*.gguf' \) -delete
    {{- end }}
env:
  {{- include "paceline.cacheEnv" . | trim | nindent 2 }}
{{ include "paceline.initTail" . }}
{{- end -}}

{{/* A verifier component whose image holds the packaged model. */}}
{{- define "paceline.packagedSource" -}}
{{- $pools := include "paceline.verifierPools" . | fromYaml -}}
{{- $first := keys $pools | sortAlpha | first -}}
{{- dict "component" "verifier" "pool" $first "spec" (get $pools $first) | toYaml -}}
{{- end -}}

{{- define "paceline.initTail" -}}
resources:
  {{- toYaml .spec.resources | nindent 2 }}
{{ include "paceline.containerSecurity" . }}
volumeMounts:
  {{- include "paceline.writableMounts" . | nindent 2 }}
{{- end -}}
