{{- define "aegis.bus" -}}
{{- if .Values.nats.enabled }}tls://aegis-nats.{{ .Release.Namespace }}.svc:4222{{ else }}{{ required "busServers: the address of the bus, since nats.enabled is false" .Values.busServers }}{{ end }}
{{- end }}

{{- define "aegis.credentials" -}}
{{- .Values.credentialsServer | default (printf "aegis-credentials.%s.svc:7443" .Release.Namespace) }}
{{- end }}

{{- define "aegis.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* One service: a dict of root, name, module and, where it has them, account, data, environment. */}}
{{- define "aegis.service" -}}
{{- $root := .root -}}
{{- $replicas := index $root.Values.replicas .name | int -}}
{{- if gt $replicas 0 }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: aegis-{{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {app.kubernetes.io/name: aegis, app.kubernetes.io/component: {{ .name }}}
spec:
  replicas: {{ $replicas }}
  {{- if .data }}
  strategy: {type: Recreate}
  {{- end }}
  selector:
    matchLabels: {app.kubernetes.io/name: aegis, app.kubernetes.io/component: {{ .name }}}
  template:
    metadata:
      labels: {app.kubernetes.io/name: aegis, app.kubernetes.io/component: {{ .name }}}
      annotations: {prometheus.io/scrape: "true", prometheus.io/port: "9300"}
    spec:
      {{- if .account }}
      serviceAccountName: aegis-{{ .name }}
      {{- else }}
      automountServiceAccountToken: false
      {{- end }}
      terminationGracePeriodSeconds: 60
      securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
      {{- if .site }}
      initContainers:
        - name: site # the service writes beside it where it listens
          image: {{ include "aegis.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command: [sh, -ec, "cp -rL /etc/aegis/site/. /run/aegis/site; chmod -R go-rwx /run/aegis/site"]
          securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
          volumeMounts:
            - {name: secret, mountPath: /etc/aegis/site, readOnly: true}
            - {name: site, mountPath: /run/aegis/site}
      {{- end }}
      containers:
        - name: {{ .name }}
          image: {{ include "aegis.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command: [python, -m, {{ .module }}]
          env:
            - {name: AEGIS_BUS_SERVERS, value: {{ include "aegis.bus" $root | quote }}}
            - {name: AEGIS_BUS_TLS_CA, value: /etc/aegis/ca/ca.pem}
            {{- if not .site }}
            - {name: AEGIS_BUS_CREDS, value: /etc/aegis/creds/{{ .creds | default .name }}.creds}
            {{- end }}
            {{- if gt (int $root.Values.nats.replicas) 1 }}
            - {name: AEGIS_BUS_LEASE_TTL, value: 12s} # the servers may choose a new leader for seconds
            {{- end }}
            - {name: AEGIS_SERVICE_LISTEN, value: 0.0.0.0}
            - {name: AEGIS_SERVICE_PORT, value: "9300"}
            {{- range $key, $value := merge (dict) (index $root.Values.environment .name | default dict) (.environment | default dict) }}
            - {name: {{ $key }}, value: {{ $value | quote }}}
            {{- end }}
          ports:
            - {name: http, containerPort: 9300}
            {{- if .site }}
            - {name: grpc, containerPort: 7443}
            {{- end }}
          readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 5}
          livenessProbe: {httpGet: {path: /metrics, port: http}, periodSeconds: 20, failureThreshold: 6} # alive, whatever the bus does
          securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
          resources: {{ index $root.Values.resources .name | toJson }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            - {name: ca, mountPath: /etc/aegis/ca, readOnly: true}
            {{- if .site }}
            - {name: site, mountPath: /run/aegis/site}
            {{- else }}
            - {name: creds, mountPath: /etc/aegis/creds, readOnly: true}
            {{- end }}
            {{- if .data }}
            - {name: data, mountPath: /data}
            {{- end }}
      volumes:
        - {name: tmp, emptyDir: {}}
        - {name: ca, secret: {secretName: {{ $root.Values.secrets.ca }}}}
        {{- if .site }}
        - {name: site, emptyDir: {medium: Memory}}
        {{- include "aegis.site" $root | nindent 8 }}
        {{- else }}
        - {name: creds, secret: {secretName: {{ $root.Values.secrets.creds }}-{{ .creds | default .name }}}}
        {{- end }}
        {{- if .data }}
        {{- $claim := index $root.Values.claims .name }}
        - {name: data, {{ if $claim }}persistentVolumeClaim: {claimName: {{ $claim }}}{{ else }}emptyDir: {}{{ end }}}
        {{- end }}
---
{{- end }}
{{- end }}

{{/* The folder of the site as a volume `secret`. */}}
{{- define "aegis.site" -}}
- name: secret
  secret:
    secretName: {{ .Values.secrets.site }}
    items:
      - {key: root.secret, path: root.secret}
      - {key: operator.jwt, path: operator.jwt}
      - {key: auth.conf, path: auth.conf}
      - {key: ca.pem, path: tls/ca.pem}
      - {key: server.pem, path: tls/server.pem}
      - {key: server.key, path: tls/server.key}
{{- end }}
