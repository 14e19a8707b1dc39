{{- define "conch.labels" -}}
app.kubernetes.io/name: conch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "conch.name" -}}
{{- if contains "conch" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-conch{{ end }}
{{- end }}
{{- define "conch.own" -}}
{{- if eq .Values.mode "own" }}yes{{ end }}
{{- end }}
{{- /* What is rendered: own, cluster, attach, beside (all but a Deployment, for one that another release has), or patch (for that one, and nothing else). */ -}}
{{- define "conch.what" -}}
{{- $a := .Values.attach }}
{{- if and (or (include "conch.own" .) (eq .Values.mode "cluster")) $a.deployment }}{{ fail "attach.deployment is for mode attach: with the others Conch starts the servers itself" }}{{ end }}
{{- if and $a.service (or $a.deployment (ne .Values.mode "attach")) }}{{ fail "attach.service is for mode attach without attach.deployment: Conch is in a Pod of its own then, before the servers of a Service" }}{{ end }}
{{- if and $a.patch (not $a.deployment) }}{{ fail "attach.patch is for a Deployment: name it with attach.deployment" }}{{ end }}
{{- if include "conch.own" . }}own{{ else if eq .Values.mode "cluster" }}cluster{{ else if $a.patch }}patch{{ else if $a.deployment }}beside{{ else }}attach{{ end }}
{{- end }}
{{- /* Whether every replica takes requests: with mode cluster, unless clients' connections are encrypted or addresses are shared. */ -}}
{{- define "conch.handsOn" -}}
{{- if and (eq .Values.mode "cluster") (not (dig "listen" "tls" "certificate" "" .Values.config)) (not (dig "listen" "reusePort" false .Values.config)) }}yes{{ end }}
{{- end }}
{{- /* Whether a new Pod takes requests beside the old one: every replica does, or Conch is alone before the servers of a Service. */ -}}
{{- define "conch.surges" -}}
{{- if or (include "conch.handsOn" .) .Values.attach.service }}yes{{ end }}
{{- end }}
{{- define "conch.replicas" -}}
{{- if kindIs "invalid" .Values.replicas }}{{ ternary 2 1 (eq (include "conch.handsOn" .) "yes") }}{{ else }}{{ .Values.replicas }}{{ end }}
{{- end }}
{{- /* A volume of the values: Helm merges what a user says into the claim that is the default, and a volume is of one kind. */ -}}
{{- define "conch.volume" -}}
{{- if gt (len .) 1 }}{{ omit . "persistentVolumeClaim" | toYaml }}{{ else }}{{ toYaml . }}{{ end }}
{{- end }}
{{- /* The seconds that the Pod has to end: limits.drain, as Conch reads it, and a minute for the servers' own end. */ -}}
{{- define "conch.grace" -}}
{{- $drain := get (.Values.config.limits | default dict) "drain" | default "30s" | toString }}
{{- $seconds := 0.0 }}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 1e-3 "us" 1e-6 "µs" 1e-6 "ns" 1e-9 }}
{{- range regexFindAll "[0-9.]+(h|ms|us|µs|ns|m|s)" $drain -1 }}
{{- $seconds = addf $seconds (mulf (regexFind "[0-9.]+" . | float64) (get $units (regexFind "[^0-9.]+" .))) }}
{{- end }}
{{- $least := ceil (default 30.0 $seconds) | int }}
{{- /* Conch hears of its end after the preStop of a Pod whose successor takes requests before. */ -}}
{{- $heard := ternary 5 0 (eq (include "conch.surges" .) "yes") }}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds }}{{ add $least 60 }}
{{- else if lt (int .Values.terminationGracePeriodSeconds) (int (add $least $heard)) }}{{ fail (printf "terminationGracePeriodSeconds is %v, and config.limits.drain %s, which begins after %d s: the kubelet would kill Conch before its requests end" .Values.terminationGracePeriodSeconds $drain $heard) }}
{{- else }}{{ int .Values.terminationGracePeriodSeconds }}{{ end }}
{{- end }}
{{- /* conch.yaml */ -}}
{{- define "conch.config" -}}
{{- $what := include "conch.what" . }}
{{- $set := dict "apiVersion" "conch/v1" "state" "/var/lib/conch" -}}
{{- if eq $what "own" }}
{{- $_ := set $set "repository" "/models" -}}
{{- $_ := set $set "driver" (dict "kind" "process" "tritonserver" "/opt/tritonserver/bin/tritonserver") -}}
{{- $_ := set $set "listen" (dict "grpc" ":8001" "http" ":8000" "metrics" ":8002" "admin" "unix:///run/conch/admin.sock") -}}
{{- else if eq $what "cluster" }}
{{- $c := .Values.cluster }}
{{- if semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version }}{{ fail (printf "mode cluster needs Kubernetes 1.30 or later, and this is %s" .Capabilities.KubeVersion.Version) }}{{ end }}
{{- $models := merge (dict "volume" (include "conch.volume" $c.models.volume | fromYaml)) (omit $c.models "volume") }}
{{- if gt (len (include "conch.name" .)) 30 }}{{ fail (printf "the release %q is too long: mode cluster begins Pods' names with it, and takes 30 characters with -conch" .Release.Name) }}{{ end }}
{{- $pods := dict "release" (include "conch.name" .) "owner" (include "conch.name" .) "namespace" .Release.Namespace "image" .Values.triton.image "models" $models -}}
{{- if $c.podTemplate }}{{ $_ := set $pods "podTemplate" $c.podTemplate }}{{ end -}}
{{- if $c.gpus }}{{ $_ := set $pods "gpus" $c.gpus }}{{ end -}}
{{- $_ := set $set "repository" "/models" -}}
{{- $_ := set $set "driver" (dict "kind" "kubernetes" "kubernetes" $pods) -}}
{{- $_ := set $set "listen" (dict "grpc" ":8101" "http" ":8100" "metrics" ":8102" "admin" "unix:///run/conch/admin.sock") -}}
{{- else }}
{{- $servers := dict "endpoints" (list .Values.attach.endpoint) }}
{{- if .Values.attach.service }}{{ $servers = dict "service" .Values.attach.service }}{{ end -}}
{{- $_ := set $set "driver" (merge (dict "kind" "attach") $servers) -}}
{{- $_ := set $set "listen" (dict "grpc" ":8101" "http" ":8100" "metrics" ":8102" "admin" "unix:///run/conch/admin.sock") -}}
{{- end }}
{{- $config := deepCopy .Values.config }}
{{- if has $what (list "beside" "patch") }}
{{- /* Within the 30 s that a Pod has to end unless its Deployment says otherwise. */ -}}
{{- $config = mergeOverwrite (dict "limits" (dict "drain" "20s")) $config }}
{{- end }}
{{- mergeOverwrite $config $set | toYaml }}
{{- end }}
{{- /* Whether metrics and probes are asked for over TLS. The kubelet has no certificate of its own to show. */ -}}
{{- define "conch.metricsTLS" -}}
{{- $tls := dig "listen" "tls" dict .Values.config }}
{{- if $tls.metrics }}
{{- if and $tls.clientCA (ne (toString $tls.clientCertificates) "optional") }}{{ fail "config.listen.tls.metrics with clientCA asks probes for a certificate, which the kubelet does not have: set config.listen.tls.clientCertificates=optional, or metrics=false" }}{{ end -}}
yes
{{- end }}
{{- end }}
{{- /* Conch's container. */ -}}
{{- define "conch.container" -}}
{{- $own := include "conch.own" . -}}
{{- $probed := printf "port: conch-metrics%s" (ternary ", scheme: HTTPS" "" (eq (include "conch.metricsTLS" .) "yes")) -}}
name: conch
image: {{ printf "%s:%v" .Values.image.repository (kindIs "string" .Values.image.tag | ternary .Values.image.tag (int64 .Values.image.tag)) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if $own }}
command: [/usr/local/bin/conch, init, --, --config, /etc/conch/conch.yaml]
{{- else }}
command: [/usr/bin/conch, init, --, --config, /etc/conch/conch.yaml]
{{- end }}
env:
  - {name: CONCH_ADMIN, value: "unix:///run/conch/admin.sock"}
# Names of their own: Triton's container may have http, grpc and metrics.
ports:
  - {name: conch-grpc, containerPort: {{ if $own }}8001{{ else }}8101{{ end }}}
  - {name: conch-http, containerPort: {{ if $own }}8000{{ else }}8100{{ end }}}
  - {name: conch-metrics, containerPort: {{ if $own }}8002{{ else }}8102{{ end }}}
# Ready once a plan serves; alive as long as the process answers. A start that loads large models takes its time.
{{- if and (eq .Values.mode "cluster") (not (include "conch.handsOn" .)) }}
# One that waits for the lease opens no door, for as long as another leads.
startupProbe: {httpGet: {path: /livez, {{ $probed }}}, periodSeconds: 2, failureThreshold: 100000000}
{{- else }}
startupProbe: {httpGet: {path: /livez, {{ $probed }}}, periodSeconds: 2, failureThreshold: 60}
{{- end }}
readinessProbe: {httpGet: {path: /readyz, {{ $probed }}}, periodSeconds: 2}
livenessProbe: {httpGet: {path: /livez, {{ $probed }}}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
{{- if and (include "conch.surges" .) (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}
# The Service sends new connections elsewhere before this Pod shuts its doors.
lifecycle: {preStop: {sleep: {seconds: 5}}}
{{- end }}
resources: {{- toYaml (ternary .Values.serverResources .Values.resources (eq $own "yes")) | nindent 2 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  allowPrivilegeEscalation: false
  {{- if not $own }}
  readOnlyRootFilesystem: true
  {{- end }}
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
  - {name: conch-config, mountPath: /etc/conch, readOnly: true}
  - {name: conch-state, mountPath: /var/lib/conch}
  - {name: conch-run, mountPath: /run/conch}
  {{- if $own }}
  - {name: models, mountPath: /models, readOnly: true}
  - {name: shared-memory, mountPath: /dev/shm}
  {{- else }}
  - {name: conch-tmp, mountPath: /tmp}
  {{- end }}
  {{- if eq .Values.mode "cluster" }}
  - {name: models, mountPath: /models, readOnly: true}
  - {name: conch-models, mountPath: {{ .Values.cluster.models.path }}}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- /* The volumes that only Conch's container has. */ -}}
{{- define "conch.volumes" -}}
- name: conch-config
  configMap: {name: {{ include "conch.name" . }}}
- name: conch-state
  emptyDir: {}
- name: conch-run
  emptyDir: {medium: Memory}
{{- if not (include "conch.own" .) }}
- name: conch-tmp
  emptyDir: {}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
