{{/* All objects of one draft pool; nothing else of a release depends on them. */}}

{{- define "paceline.draftPool" -}}
---
{{ include "paceline.settingsConfigMap" . }}
---
{{ include "paceline.headlessService" . }}
---
{{ include "paceline.deployment" . }}
{{- range $part := list "paceline.disruptionBudget" "paceline.scaler" "paceline.networkPolicy" }}
{{- with include $part $ }}
---
{{ . }}
{{- end }}
{{- end }}
{{ end -}}

{{/* Drafters of the image itself; others come from other distributions. */}}
{{- define "paceline.ownDrafters" -}}
[ngram, suffix, onnx, composite]
{{- end -}}

{{/* A model and a drafter that do not belong together: the pods could only crash, or ignore it. */}}
{{- define "paceline.validateDraft" -}}
{{- $spec := .spec -}}
{{- $model := $spec.model -}}
{{- $members := get $spec.settings "composite_members" | default (list "suffix" "onnx") -}}
{{- if kindIs "string" $members -}}{{- $members = splitList "," (nospace $members) -}}{{- end -}}
{{- $needs := or (eq $spec.engine "onnx") (and (eq $spec.engine "composite") (has "onnx" $members)) -}}
{{- if and $needs (eq $model.source "none") -}}
{{- fail (printf "%s.engine %s needs %s.model (source image, claim or hub)" .where $spec.engine .where) -}}
{{- end -}}
{{- if and (has $spec.engine (list "ngram" "suffix")) (ne $model.source "none") -}}
{{- fail (printf "%s.model: engine %s reads no model; take engine onnx or composite, or source none" .where $spec.engine) -}}
{{- end -}}
{{- if and (eq $model.source "none") (or $model.path $model.claimName $model.hub.repository) -}}
{{- fail (printf "%s.model.source is none, so that path, claimName and hub would be ignored; choose image, claim or hub" .where) -}}
{{- end -}}
{{- end -}}
