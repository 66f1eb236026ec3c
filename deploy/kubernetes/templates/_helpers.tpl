{{- /* At most 63 characters, as services and labels have; of a long release's name some are left out. */}}
{{- define "batchjob.name" -}}
{{ printf "%s-%s" (.root.Release.Name | trunc (sub 62 (len .part) | int) | trimSuffix "-") .part }}
{{- end }}

{{- define "batchjob.selector" -}}
app.kubernetes.io/name: batchjob
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "batchjob.metadata" -}}
name: {{ include "batchjob.name" . }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "batchjob.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "batchjob.image" -}}
{{- $image := get .root.Values.images .image -}}
image: {{ printf "%s:%s" $image.repository ($image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{- /* What all pods have. `.values` are the part's. */}}
{{- define "batchjob.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "batchjob.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .uid }}
runAsGroup: {{ .uid }}
fsGroup: {{ .uid }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "batchjob.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* How what is the node's is mounted: with the mounts below it, where Kubernetes can do that. */}}
{{- define "batchjob.readOnly" -}}
readOnly: true
{{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version }}, recursiveReadOnly: IfPossible{{ end }}
{{- end }}

{{- define "batchjob.checksum" -}}
checksum/config: {{ .config | sha256sum }}
{{- end }}

{{- /* Liveness and readiness by the part's own pages. */}}
{{- define "batchjob.probes" -}}
livenessProbe:
  httpGet: {path: /-/healthy, port: http, scheme: {{ .scheme | default "HTTP" }}}
  periodSeconds: 30
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /-/ready, port: http, scheme: {{ .scheme | default "HTTP" }}}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{- define "batchjob.sqlite" -}}
{{- if hasPrefix "sqlite:" .Values.database.url }}yes{{ end }}
{{- end }}

{{- /* db and tsdb as poller and server read them. */}}
{{- define "batchjob.sources" -}}
{{- $values := .Values -}}
{{- $db := dict "url" $values.database.url -}}
{{- if $values.database.passwordSecret }}{{ $_ := set $db "password-file" "/etc/batchjob/database/password" }}{{ end -}}
{{- $made := dict "db" $db -}}
{{- if $values.tsdb.url -}}
{{- $tsdb := merge (dict "url" $values.tsdb.url) $values.tsdb.config -}}
{{- if $values.tsdb.tokenSecret }}{{ $_ := set $tsdb "token-file" "/etc/batchjob/tsdb/token" }}{{ end -}}
{{- $_ := set $made "tsdb" $tsdb -}}
{{- end -}}
{{- toYaml $made -}}
{{- end }}

{{- /* Files of poller and server: configuration, secrets, the database. `.part`, `.values`. */}}
{{- define "batchjob.volumes" -}}
- {name: config, configMap: {name: {{ include "batchjob.name" . }}}}
- {name: tmp, emptyDir: {}}
{{- if include "batchjob.sqlite" .root }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .root.Values.database.volume.existingClaim | default (include "batchjob.name" (dict "root" .root "part" "jobs")) | quote }}
{{- end }}
{{- with .root.Values.database.passwordSecret }}
- {name: database, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- with .root.Values.tsdb.tokenSecret }}
- {name: tsdb, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- with .values.secret }}
- {name: secret, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- end }}

{{- define "batchjob.mounts" -}}
- {name: config, mountPath: /etc/batchjob/config, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if include "batchjob.sqlite" .root }}
- {name: data, mountPath: /var/lib/batchjob}
{{- end }}
{{- if .root.Values.database.passwordSecret }}
- {name: database, mountPath: /etc/batchjob/database, readOnly: true}
{{- end }}
{{- if .root.Values.tsdb.tokenSecret }}
- {name: tsdb, mountPath: /etc/batchjob/tsdb, readOnly: true}
{{- end }}
{{- if .values.secret }}
- {name: secret, mountPath: /etc/batchjob/secret, readOnly: true}
{{- end }}
{{- end }}
