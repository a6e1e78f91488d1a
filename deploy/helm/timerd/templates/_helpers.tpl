{{/* The name of what is made. */}}
{{- define "timerd.name" -}}
{{- if contains "timerd" .Release.Name -}}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{- else -}}{{ printf "%s-timerd" (.Release.Name | trunc 45 | trimSuffix "-") }}{{- end -}}
{{- end }}

{{/* The labels that select the pods of a component; takes (list . "component"). */}}
{{- define "timerd.selector" -}}
app.kubernetes.io/name: timerd
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* All labels, likewise. */}}
{{- define "timerd.labels" -}}
{{ include "timerd.selector" . }}
{{- with index . 0 }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
{{- end }}

{{- define "timerd.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* A variable with the URL of a server; takes (list "redis" .Values.redis). */}}
{{- define "timerd.url" -}}
{{- $which := index . 0 }}{{ $server := index . 1 -}}
{{- if and $server.url $server.urlSecret.name }}{{ fail (printf "%s.url and %s.urlSecret.name are both set: one of them says where the server is" $which $which) }}{{ end -}}
{{- if not (or $server.url $server.urlSecret.name) }}{{ fail (printf "%s.url is needed, or %s.urlSecret.name where the URL has a password" $which $which) }}{{ end -}}
- name: TIMERD_{{ upper $which }}_URL
{{- if $server.url }}
  value: {{ $server.url | quote }}
{{- else }}
  valueFrom: {secretKeyRef: {name: {{ $server.urlSecret.name }}, key: {{ $server.urlSecret.key }}}}
{{- end }}
{{- end }}

{{/* The variables of a server's files, likewise. */}}
{{- define "timerd.tls" -}}
{{- $which := index . 0 }}{{ $tls := (index . 1).tls -}}
{{- if and (not $tls.secret) (or $tls.ca $tls.cert $tls.key) }}{{ fail (printf "%s.tls.secret is needed: the Secret that has the files of %s.tls" $which $which) }}{{ end -}}
{{- range $name := list "ca" "cert" "key" }}
{{- with index $tls $name }}
- {name: TIMERD_{{ upper $which }}_{{ upper $name }}, value: /etc/timerd/{{ $which }}/{{ . }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Where NATS is, and what else timerd and timerd deliver have in common. */}}
{{- define "timerd.env" -}}
{{ include "timerd.url" (list "nats" .Values.nats) }}
{{- include "timerd.tls" (list "nats" .Values.nats) }}
{{- if .Values.nats.credsSecret.name }}
- {name: TIMERD_NATS_CREDS, value: /etc/timerd/creds/{{ .Values.nats.credsSecret.key }}}
{{- end }}
- {name: TIMERD_HTTP_ADDR, value: "0.0.0.0:8080"}
{{- if not (hasKey .Values.settings "TIMERD_LOG_FORMAT") }}
- {name: TIMERD_LOG_FORMAT, value: json}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "timerd.mounts" -}}
{{- if .Values.nats.tls.secret }}
- {name: nats-tls, mountPath: /etc/timerd/nats, readOnly: true}
{{- end }}
{{- if .Values.nats.credsSecret.name }}
- {name: nats-creds, mountPath: /etc/timerd/creds, readOnly: true}
{{- end }}
{{- end }}

{{- define "timerd.volumes" -}}
{{- if .Values.nats.tls.secret }}
- {name: nats-tls, secret: {secretName: {{ .Values.nats.tls.secret }}}}
{{- end }}
{{- if .Values.nats.credsSecret.name }}
- {name: nats-creds, secret: {secretName: {{ .Values.nats.credsSecret.name }}}}
{{- end }}
{{- end }}

{{/*
Nine tenths of a container's limit on memory, for Go's garbage collector; takes its resources. Without a limit there is none.
*/}}
{{- define "timerd.memory" -}}
{{- with dig "limits" "memory" "" . | toString }}
{{- $units := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 }}
{{- $unit := regexFind "[a-zA-Z]*$" . }}
{{- if not (and (hasKey $units $unit) (regexMatch "^[0-9.]+[a-zA-Z]*$" .)) }}{{ fail (printf "resources.limits.memory: %s: want a number of bytes, or one with k, M, G, Ki, Mi or Gi" .) }}{{ end -}}
- {name: GOMEMLIMIT, value: {{ mulf (trimSuffix $unit .) (get $units $unit) 0.9 | int64 | quote }}}
{{- end }}
{{- end }}

{{/* What says that a Secret has changed, where helm may look: so that its pods start anew. Takes (list . "name" …). */}}
{{- define "timerd.secrets" -}}
{{- $namespace := (index . 0).Release.Namespace }}
{{- $data := list }}
{{- range rest . | compact | uniq | sortAlpha }}
{{- with lookup "v1" "Secret" $namespace . }}{{ $data = append $data .data }}{{ end }}
{{- end }}
{{- with $data -}}
checksum/secrets: {{ toJson . | sha256sum }}
{{- end }}
{{- end }}

{{/* Lets nodes be drained while pods are unready, as all are when Redis is away. */}}
{{- define "timerd.eviction" -}}
{{- if semverCompare ">=1.27.0-0" .Capabilities.KubeVersion.Version }}
unhealthyPodEvictionPolicy: AlwaysAllow
{{- end }}
{{- end }}

{{/* What all pods have in common; takes (list . "component"). */}}
{{- define "timerd.pod" -}}
{{- $component := index . 1 -}}
{{- with index . 0 -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: 15 # it ends within 10 s of SIGTERM
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
{{- if .Values.affinity }}
  {{- toYaml .Values.affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "timerd.selector" (list . $component) | nindent 14 }}
{{- end }}
{{- end }}
{{- end }}

{{/* What all containers have in common. */}}
{{- define "timerd.container" -}}
image: {{ include "timerd.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
# Servers that are away at the start are tried for 30 s; then it ends by itself, and says what is wrong.
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 2
  failureThreshold: 30
livenessProbe:
  httpGet: {path: /healthz, port: http}
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 1
{{- end }}
