{{- define "podwire.labels" -}}
app.kubernetes.io/name: podwire
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "podwire.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "podwire.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "podwire.apiEnvironment" -}}
{{- with .Values.api.host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ . | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ $.Values.api.port | quote }}
{{- end }}
{{- end }}

{{- define "podwire.gatewayImage" -}}
{{- $image := .Values.gateway.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* The security context of a container of the gateway: its values, whether it is on the host network, whether it
is the engine. On the host network the engine takes ports below 1024; both then run as root, the gateway without any
capability, since they share sockets. */ -}}
{{- define "podwire.gatewayRights" -}}
{{- $context := deepCopy (index . 0) -}}
{{- if index . 1 -}}
{{- $context = mergeOverwrite $context (dict "runAsNonRoot" false "runAsUser" 0) -}}
{{- if index . 2 -}}
{{- $context = mergeOverwrite $context (dict "capabilities" (dict "drop" (list "ALL") "add" (list "NET_BIND_SERVICE"))) -}}
{{- end -}}
{{- end -}}
{{ toYaml $context }}
{{- end }}
