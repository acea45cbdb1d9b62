{{/* Volumes of a pod: settings, routing, one writable cache, /tmp, and what holds the model. */}}

{{- define "paceline.volumes" -}}
- name: config
  configMap:
    name: {{ include "paceline.componentName" . }}
{{- if ne .component "draft" }}
- name: routing
  configMap:
    name: {{ include "paceline.fullname" .root }}-routing
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
- name: cache
  {{- include "paceline.cacheVolume" . | nindent 2 }}
{{- $model := include "paceline.model" . | fromYaml }}
{{- if eq $model.source "claim" }}
- name: model
  persistentVolumeClaim:
    claimName: {{ $model.claimName }}
    readOnly: true
{{- end }}
{{- with .spec.shmSize }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ . }}
{{- end }}
{{- range $name, $secret := include "paceline.secrets" . | fromYaml }}
- name: {{ $name }}
  secret:
    secretName: {{ $secret }}
{{- end }}
{{- with .spec.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "paceline.volumeMounts" -}}
- name: config
  mountPath: /etc/paceline/config
  readOnly: true
{{- if ne .component "draft" }}
- name: routing
  mountPath: /etc/paceline/routing
  readOnly: true
{{- end }}
{{ include "paceline.writableMounts" . }}
{{- $model := include "paceline.model" . | fromYaml }}
{{- if eq $model.source "claim" }}
- name: model
  mountPath: /models
  readOnly: true
{{- end }}
{{- if .spec.shmSize }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- range $name, $secret := include "paceline.secrets" . | fromYaml }}
- name: {{ $name }}
  mountPath: /etc/paceline/{{ $name }}
  readOnly: true
{{- end }}
{{- with .spec.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "paceline.writableMounts" -}}
- name: tmp
  mountPath: /tmp
- name: cache
  mountPath: /cache
{{- end -}}

{{- define "paceline.cacheVolume" -}}
{{- $cache := .spec.cache -}}
{{- if eq $cache.type "emptyDir" -}}
emptyDir:
  sizeLimit: {{ $cache.size }}
{{- else if eq $cache.type "hostPath" -}}
hostPath:
  path: {{ required "cache.type hostPath needs cache.hostPath" $cache.hostPath }}
  type: DirectoryOrCreate
{{- else -}}
persistentVolumeClaim:
  claimName: {{ include "paceline.cacheClaimName" . }}
{{- end -}}
{{- end -}}

{{- define "paceline.cacheClaimName" -}}
{{- if eq .spec.cache.type "claim" -}}
{{- include "paceline.componentName" . -}}-cache
{{- else -}}
{{- required "cache.type existingClaim needs cache.claimName" .spec.cache.claimName -}}
{{- end -}}
{{- end -}}

{{/* Everything that libraries write at run time goes to the one writable volume. */}}
{{- define "paceline.cacheEnv" -}}
{{- $folders := dict "HOME" "home" "HF_HOME" "huggingface" "XDG_CACHE_HOME" "xdg-cache" "XDG_CONFIG_HOME" "xdg-config" "PACELINE_CACHE_DIR" "paceline" "TRITON_CACHE_DIR" "triton" "TORCHINDUCTOR_CACHE_DIR" "torchinductor" "NUMBA_CACHE_DIR" "numba" -}}
{{- range $name, $folder := $folders -}}
- name: {{ $name }}
  value: /cache/{{ $folder }}
{{ end -}}
{{- end -}}

{{/* Secrets by the name of their folder below /etc/paceline. */}}
{{- define "paceline.secrets" -}}
{{- $found := dict "tls" .spec.tls.existingSecret "client-ca" .spec.tls.clientCASecret -}}
{{- with .spec.links -}}
{{- $_ := set $found "link-ca" .caSecret -}}
{{- $_ := set $found "link-certificate" .certificateSecret -}}
{{- end -}}
{{- with .spec.auth -}}
{{- $_ := set $found "api-keys" .apiKeysSecret.name -}}
{{- $_ := set $found "jwks" .jwksSecret.name -}}
{{- end -}}
{{- range $folder, $secret := $found }}
{{- if $secret }}
{{ $folder }}: {{ $secret }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "paceline.secretSettings" -}}
{{- $secrets := include "paceline.secrets" . | fromYaml -}}
{{- if hasKey $secrets "tls" }}
tls_certificate: /etc/paceline/tls/tls.crt
tls_private_key: /etc/paceline/tls/tls.key
{{- end }}
{{- if hasKey $secrets "client-ca" }}
tls_client_ca: /etc/paceline/client-ca/ca.crt
{{- end }}
{{- if hasKey $secrets "link-ca" }}
link_ca: /etc/paceline/link-ca/ca.crt
{{- end }}
{{- if hasKey $secrets "link-certificate" }}
link_certificate: /etc/paceline/link-certificate/tls.crt
link_private_key: /etc/paceline/link-certificate/tls.key
{{- end }}
{{- if hasKey $secrets "api-keys" }}
api_keys: /etc/paceline/api-keys/{{ .spec.auth.apiKeysSecret.key }}
{{- end }}
{{- if hasKey $secrets "jwks" }}
jwks: /etc/paceline/jwks/{{ .spec.auth.jwksSecret.key }}
{{- end }}
{{- end -}}
