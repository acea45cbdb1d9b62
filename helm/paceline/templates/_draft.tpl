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
