{{- define "conch.labels" -}}
app.kubernetes.io/name: conch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "conch.name" -}}
{{- if contains "conch" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-conch{{ end }}
{{- end }}
{{- define "conch.own" -}}
{{- if eq .Values.mode "own" }}yes{{ else if ne .Values.mode "attach" }}{{ fail (printf "mode is %q: it may be attach or own" .Values.mode) }}{{ end }}
{{- end }}
