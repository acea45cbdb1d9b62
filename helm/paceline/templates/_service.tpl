{{/* Headless Services: callers see every pod and balance by themselves. */}}

{{- define "paceline.headlessService" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "paceline.metadata" . | nindent 2 }}
spec:
  type: ClusterIP
  clusterIP: None
  selector:
    {{- include "paceline.selectorLabels" . | nindent 4 }}
    {{- if dig "multinode" "enabled" false .spec }}
    leaderworkerset.sigs.k8s.io/worker-index: "0"
    {{- end }}
  ports:
    {{- include "paceline.grpcPort" . | nindent 4 }}
    - name: metrics
      port: {{ .root.Values.monitoring.port }}
      targetPort: metrics
{{- end -}}

{{- define "paceline.grpcPort" -}}
- name: grpc
  port: {{ .spec.port }}
  targetPort: grpc
  appProtocol: kubernetes.io/h2c
{{- end -}}
