{{- define "gangline.labels" -}}
app.kubernetes.io/name: gangline
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
gangline.dev/part: {{ .name }}
{{- end }}

{{- define "gangline.selector" -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
gangline.dev/part: {{ .name }}
{{- end }}

{{- define "gangline.image" -}}
{{- $image := index .root.Values.images .which -}}
image: {{ printf "%s:%s" $image.repository ($image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .root.Values.images.pullPolicy }}
{{- end }}

{{- define "gangline.restricted" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "gangline.podSecurity" -}}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- include "gangline.pullSecrets" .root }}
{{- end }}

{{- define "gangline.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets: {{ range . }}
  - name: {{ . }}{{ end }}
{{- end }}
{{- end }}

{{/* Variables that all services and agents share: where Kafka and the store are. */}}
{{- define "gangline.commonEnv" -}}
- {name: GANGLINE_CONFIG, value: /etc/gangline/gangline.toml}
- {name: GANGLINE_BOOTSTRAP_SERVERS, value: {{ required "kafka.bootstrapServers: the address of Kafka" .root.Values.kafka.bootstrapServers | quote }}}
- {name: GANGLINE_STORE_URL, value: {{ required "store.url: the object store" .root.Values.store.url | quote }}}
{{- with .root.Values.kafka.topicPrefix }}
- {name: GANGLINE_TOPIC_PREFIX, value: {{ . | quote }}}
{{- end }}
{{- if eq (include "gangline.kafkaAuth" .root) "oauthbearer" }}
- {name: GANGLINE_KAFKA, value: {{ include "gangline.kafkaTokenSettings" .root | quote }}}
{{- else if .root.Values.kafka.secret }}
- {name: GANGLINE_KAFKA_FILE, value: /run/gangline/private/{{ .kafka }}.toml}
{{- end }}
- name: GANGLINE_INSTANCE_ID
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}

{{/* How parts prove to Kafka who they are. */}}
{{- define "gangline.kafkaAuth" -}}
{{- $auth := .Values.kafka.auth }}
{{- if not (has $auth (list "scram" "oauthbearer")) }}
{{- fail (printf "kafka.auth: scram or oauthbearer, not %v" $auth) }}
{{- end }}
{{- if and (eq $auth "oauthbearer") .Values.kafka.secret }}
{{- fail "kafka.secret has passwords: leave it out with kafka.auth: oauthbearer" }}
{{- end }}
{{- if and (eq $auth "oauthbearer") (lt (int .Values.kafka.oauthbearer.expirationSeconds) 600) }}
{{- fail "kafka.oauthbearer.expirationSeconds: at least 600" }}
{{- end }}
{{- $auth }}
{{- end }}

{{/* "true" if parts have passwords. */}}
{{- define "gangline.kafkaPasswords" -}}
{{- if and (eq (include "gangline.kafkaAuth" .) "scram") .Values.kafka.secret }}true{{ end }}
{{- end }}

{{- define "gangline.kafkaTokenSettings" -}}
{{- $own := dict "security.protocol" "SASL_SSL" "sasl.mechanism" "OAUTHBEARER" "sasl.oauthbearer.token.endpoint.url" "file:///run/gangline/kafka/token" }}
{{- if .Values.kafka.oauthbearer.caSecret }}
{{- $own = set $own "ssl.ca.location" "/run/gangline/kafka/ca.crt" }}
{{- end }}
{{- $own | toJson }}
{{- end }}

{{/* The account as which a part proves itself to Kafka. */}}
{{- define "gangline.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  labels: {{- include "gangline.labels" . | nindent 4 }}
automountServiceAccountToken: false
{{- end }}

{{/* A token of the pod's account for Kafka alone: the API server refuses it. */}}
{{- define "gangline.kafkaTokenVolume" -}}
{{- if eq (include "gangline.kafkaAuth" .) "oauthbearer" }}
- name: kafka
  projected:
    defaultMode: 0400
    sources:
      - serviceAccountToken:
          path: token
          audience: {{ required "kafka.oauthbearer.audience: the audience that Kafka expects" .Values.kafka.oauthbearer.audience | quote }}
          expirationSeconds: {{ .Values.kafka.oauthbearer.expirationSeconds }}
      {{- with .Values.kafka.oauthbearer.caSecret }}
      - secret:
          name: {{ . }}
          items: [{key: ca.crt, path: ca.crt}]
      {{- end }}
{{- end }}
{{- end }}

{{- define "gangline.kafkaTokenMount" -}}
{{- if eq (include "gangline.kafkaAuth" .) "oauthbearer" }}
- {name: kafka, mountPath: /run/gangline/kafka, readOnly: true}
{{- end }}
{{- end }}

{{- define "gangline.storeFrom" -}}
{{- with .Values.store.secret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{- define "gangline.health" -}}
- {name: GANGLINE_HEALTH_HOST, value: 0.0.0.0}
- {name: GANGLINE_HEALTH_PORT, value: {{ . | quote }}}
{{- end }}

{{- define "gangline.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  failureThreshold: 6
  initialDelaySeconds: 30
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 3
{{- end }}

{{- define "gangline.alertsFile" -}}
{{- if .Values.alerts }}
- {name: GANGLINE_ALERTS_FILE, value: /etc/gangline/files/alerts.yaml}
{{- end }}
{{- end }}

{{- define "gangline.serviceToken" -}}
- name: GANGLINE_SERVICE_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.secrets.service }}, key: service-token}}
{{- end }}

{{- define "gangline.clickhouseEnv" -}}
{{- with .Values.clickhouse.url }}
- {name: GANGLINE_CLICKHOUSE_URL, value: {{ . | quote }}}
- {name: GANGLINE_CLICKHOUSE_USER, value: {{ $.Values.clickhouse.gatewayUser | quote }}}
{{- end }}
{{- end }}

{{/* Helm reads each number as a float, and would write 25000000 as 2.5e+07. */}}
{{- define "gangline.env" -}}
{{- range $name, $value := . }}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}
- {name: {{ $name }}, value: {{ printf "%.0f" $value | quote }}}
{{- else }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Secrets as files of the service's own user: services refuse files that others may read. `once`:
     they are copied before the pod's other containers start, and no later changes are. */}}
{{- define "gangline.privateCopies" -}}
- name: private
  {{- include "gangline.image" (dict "root" .root "which" "services") | nindent 2 }}
  command: [python, -m, gangline_service.private_copies, /run/gangline/mounted, /run/gangline/private{{ if not .once }}, --follow{{ end }}]
  {{- if not .once }}
  restartPolicy: Always
  startupProbe:
    exec: {command: [sh, -c, "test -n \"$(ls /run/gangline/private)\""]}
    periodSeconds: 1
    failureThreshold: 60
  {{- end }}
  resources:
    requests: {cpu: 1m, memory: 16Mi}
    limits: {memory: 64Mi}
  {{- if .privileged }}
  securityContext: {runAsUser: 0}
  {{- else }}
  {{- include "gangline.restricted" . | nindent 2 }}
  {{- end }}
  volumeMounts:
    - {name: mounted, mountPath: /run/gangline/mounted, readOnly: true}
    - {name: private, mountPath: /run/gangline/private}
{{- end }}

{{- define "gangline.mounts" -}}
- {name: settings, mountPath: /etc/gangline/gangline.toml, subPath: gangline.toml, readOnly: true}
- {name: settings, mountPath: /etc/gangline/files, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .private }}
- {name: private, mountPath: /run/gangline/private, readOnly: true}
{{- end }}
{{- end }}

{{/* `kafka`: names of the parts whose files are wanted; `tokens`: tokens.json too. */}}
{{- define "gangline.volumes" -}}
- name: settings
  configMap: {name: {{ .root.Release.Name }}-settings}
- name: tmp
  emptyDir: {}
{{- if .private }}
- name: private
  emptyDir: {medium: Memory}
- name: mounted
  projected:
    defaultMode: 0440
    sources:
      {{- if include "gangline.kafkaPasswords" .root }}
      - secret:
          name: {{ .root.Values.kafka.secret }}
          items:
            {{- range .kafka }}
            - {key: {{ . }}.toml, path: {{ . }}.toml}
            {{- end }}
            - {key: ca.pem, path: ca.pem}
      {{- end }}
      {{- if .tokens }}
      - secret:
          name: {{ .root.Values.secrets.tokens }}
          items: [{key: tokens.json, path: tokens.json}]
      {{- end }}
{{- end }}
{{- end }}

{{/* Where the ranks of a pool run: `agent` or `pods`. */}}
{{- define "gangline.ranks" -}}
{{- $ranks := .pool.ranks | default (ternary "pods" "agent" .root.Values.kube.pods.enabled) }}
{{- if not (has $ranks (list "agent" "pods")) }}
{{- fail (printf "agents.pools, %s: ranks: agent or pods, not %v" .pool.name $ranks) }}
{{- end }}
{{- if and (eq $ranks "pods") (not .root.Values.kube.pods.enabled) }}
{{- fail (printf "agents.pools, %s: ranks: pods needs kube.pods.enabled" .pool.name) }}
{{- end }}
{{- $ranks }}
{{- end }}

{{/* The pools whose ranks run in pods, as JSON. */}}
{{- define "gangline.podPools" -}}
{{- $pods := list }}
{{- $others := list }}
{{- range .Values.agents.pools }}
{{- if eq (include "gangline.ranks" (dict "root" $ "pool" .)) "pods" }}
{{- $pods = append $pods . }}
{{- else }}
{{- $others = append $others . }}
{{- end }}
{{- end }}
{{- if not $pods }}
{{- fail "kube.pods.enabled: no pool of agents.pools has ranks: pods" }}
{{- end }}
{{- if not (has .Values.kube.pods.network (list "node" "pod")) }}
{{- fail (printf "kube.pods.network: node or pod, not %v" .Values.kube.pods.network) }}
{{- end }}
{{- if and $others (eq .Values.kube.pods.network "pod") }}
{{- fail (printf "kube.pods.network: ranks below the agents of %s would not reach pods with networks of their own" (first $others).name) }}
{{- end }}
{{- range $pool := $pods }}
{{- if or $pool.gpus (not $pool.hostNetwork) (ne $pool.dataPath (first $pods).dataPath) }}
{{- fail (printf "agents.pools, %s: with ranks in pods a pool has gpus: 0, hostNetwork: true, and the dataPath of the others" $pool.name) }}
{{- end }}
{{- $own := $pool.nodeSelector | default dict }}
{{- range $other := $others }}
{{- $theirs := $other.nodeSelector | default dict }}
{{- if or (deepEqual (mergeOverwrite (deepCopy $own) $theirs) $own) (deepEqual (mergeOverwrite (deepCopy $theirs) $own) $theirs) }}
{{- fail (printf "agents.pools, %s and %s: their nodeSelectors have the same nodes, but ranks run in pods of one pool only" $pool.name $other.name) }}
{{- end }}
{{- end }}
{{- end }}
{{- $pods | toJson }}
{{- end }}

{{/* MLflow's server. It listens on 127.0.0.1 alone: the gateway and the registry have one each. */}}
{{- define "gangline.mlflow" -}}
- name: mlflow
  {{- include "gangline.image" (dict "root" .root "which" "services") | nindent 2 }}
  command: [python, -m, gangline_mlflow]
  {{- include "gangline.restricted" .root | nindent 2 }}
  envFrom:
    {{- with .root.Values.store.secret }}
    - secretRef: {name: {{ . }}}
    {{- end }}
    {{- with .root.Values.mlflow.secret }}
    - secretRef: {name: {{ . }}}
    {{- end }}
  env:
    {{- include "gangline.commonEnv" (dict "root" .root "kafka" "mlflow") | nindent 4 }}
    {{- include "gangline.health" 8083 | nindent 4 }}
    {{- include "gangline.serviceToken" .root | nindent 4 }}
    {{- include "gangline.clickhouseEnv" .root | nindent 4 }}
    - {name: GANGLINE_MLFLOW_PORT, value: "8090"}
    - {name: GANGLINE_MLFLOW_DATABASE, value: {{ required "mlflow.database: postgresql://user@host/name" .root.Values.mlflow.database | quote }}}
  ports:
    - {name: health-mlflow, containerPort: 8083}
  {{- include "gangline.probes" "health-mlflow" | nindent 2 }}
  resources: {{- toYaml .root.Values.resources | nindent 4 }}
  volumeMounts:
    {{- include "gangline.mounts" (dict "private" .private) | nindent 4 }}
    {{- include "gangline.kafkaTokenMount" .root | nindent 4 }}
{{- end }}
