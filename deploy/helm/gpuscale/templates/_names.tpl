{{- define "gpuscale.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of object names; room is left for the longest suffix within 63 characters. */}}
{{- define "gpuscale.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "gpuscale.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "gpuscale.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects a component's pods; never changes, since selectors are immutable. Takes (dict "root" $ "component" NAME). */}}
{{- define "gpuscale.selector" -}}
app.kubernetes.io/name: {{ include "gpuscale.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "gpuscale.labels" -}}
{{ include "gpuscale.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Image of a component: registry/repository:tag. Takes (dict "root" $ "repository" NAME). */}}
{{- define "gpuscale.image" -}}
{{- $image := .root.Values.image -}}
{{- $tag := $image.tag | default .root.Chart.AppVersion -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .repository }}:{{ $tag }}
{{- end -}}

{{- define "gpuscale.serviceAccountName" -}}
{{- $account := .Values.controller.serviceAccount -}}
{{- if $account.create -}}
{{- $account.name | default (printf "%s-controller" (include "gpuscale.fullname" .)) -}}
{{- else -}}
{{- $account.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Settings of a daemon as JSON, whether they were given as keys or as the text of a file. Takes the value. */}}
{{- define "gpuscale.settings" -}}
{{- if kindIs "string" . -}}
{{- $parsed := fromYaml . -}}
{{- if hasKey $parsed "Error" -}}
{{- fail (printf "settings given as text are not YAML: %s" $parsed.Error) -}}
{{- end -}}
{{- toJson $parsed -}}
{{- else -}}
{{- toJson (. | default dict) -}}
{{- end -}}
{{- end -}}

{{/* Settings with what the chart itself has to say in them, as JSON; given as text they stand as they are. Takes (dict "root" $ "component" NAME). */}}
{{- define "gpuscale.effective" -}}
{{- $values := index .root.Values .component -}}
{{- $settings := fromJson (include "gpuscale.settings" $values.config) -}}
{{- $own := dict -}}
{{- if include "gpuscale.web.on" . -}}
{{- $_ := set $own "web" (dict "config_file" "/etc/gpuscale-web/web.yml") -}}
{{- end -}}
{{- if and (eq .component "controller") $values.grpc.certificateSecret -}}
{{- $files := dict "cert_file" "/etc/gpuscale-grpc/tls.crt" "key_file" "/etc/gpuscale-grpc/tls.key" -}}
{{- if $values.grpc.clientCertificates -}}
{{- $_ := set $files "client_ca_file" "/etc/gpuscale-grpc/ca.crt" -}}
{{- end -}}
{{- $_ := set $own "grpc_tls" $files -}}
{{- end -}}
{{- if eq .component "exporter" -}}
{{- if eq $values.gpuAccess.mode "privileged" -}}
{{- $_ := set $own "driver_root" "/driver" -}}
{{- else if eq $values.gpuAccess.mode "dra" -}}
{{- $self := printf "%s/%s-exporter-*" .root.Release.Namespace (include "gpuscale.fullname" .root) -}}
{{- $_ := set $own "pod_resources" (dict "exclude" (append (dig "pod_resources" "exclude" list $settings) $self | uniq)) -}}
{{- end -}}
{{- end -}}
{{- toJson (ternary $settings (mergeOverwrite $settings $own) (kindIs "string" $values.config)) -}}
{{- end -}}

{{/* The file that is mounted. Takes (dict "root" $ "component" NAME). */}}
{{- define "gpuscale.mounted" -}}
{{- $config := (index .root.Values .component).config -}}
{{- if kindIs "string" $config }}{{ $config }}{{ else }}{{ toPrettyJson (fromJson (include "gpuscale.effective" .)) }}{{ end -}}
{{- end -}}

{{/* Not empty where the HTTP server has a web configuration. Takes (dict "root" $ "component" NAME). */}}
{{- define "gpuscale.web.on" -}}
{{- $web := (index .root.Values .component).web -}}
{{- or $web.secret (include "gpuscale.web.certificate" .) -}}
{{- end -}}

{{/* Name of the Secret with its certificate; empty for none. */}}
{{- define "gpuscale.web.certificate" -}}
{{- $given := (index .root.Values .component).web.certificateSecret -}}
{{- if $given }}{{ $given }}{{ else if .root.Values.certManager.enabled }}{{ include "gpuscale.fullname" .root }}-{{ .component }}-tls{{ end -}}
{{- end -}}

{{/* Scheme of probes and scrapes: HTTP or HTTPS. */}}
{{- define "gpuscale.web.scheme" -}}
{{- $web := (index .root.Values .component).web -}}
{{- if $web.scheme }}{{ $web.scheme }}{{ else if include "gpuscale.web.certificate" . }}HTTPS{{ else }}HTTP{{ end -}}
{{- end -}}

{{/* The volume with the web configuration and the files that it names, in one directory. */}}
{{- define "gpuscale.web.volume" -}}
{{- $web := (index .root.Values .component).web -}}
- name: web
  projected:
    sources:
      {{- if $web.secret }}
      - secret:
          name: {{ $web.secret }}
      {{- else }}
      - configMap:
          name: {{ include "gpuscale.fullname" .root }}-{{ .component }}
          items:
            - key: web.yml
              path: web.yml
      {{- end }}
      {{- with include "gpuscale.web.certificate" . }}
      - secret:
          name: {{ . }}
          items:
            - key: tls.crt
              path: tls.crt
            - key: tls.key
              path: tls.key
      {{- end }}
{{- end -}}

{{/* What a certificate and no Secret of one's own comes to. */}}
{{- define "gpuscale.web.config" -}}
{{- if and (include "gpuscale.web.on" .) (not (index .root.Values .component).web.secret) }}
web.yml: |
  tls_server_config:
    cert_file: tls.crt
    key_file: tls.key
{{- end }}
{{- end -}}

{{/* Address of this chart's exporters for the page's map of GPUs; empty where the settings name their own, or where the exporters have a web config, whose TLS and password only the settings can tell. */}}
{{- define "gpuscale.controller.exporters" -}}
{{- $own := dig "exporters" "urls" list (fromJson (include "gpuscale.settings" .Values.controller.config)) -}}
{{- $protected := dig "web" "config_file" "" (fromJson (include "gpuscale.effective" (dict "root" . "component" "exporter"))) -}}
{{- if and .Values.exporter.enabled (not $own) (not $protected) -}}
{{- printf "http://%s-exporter.%s.svc:%s" (include "gpuscale.fullname" .) .Release.Namespace (include "gpuscale.exporter.port" .) -}}
{{- end -}}
{{- end -}}

{{/* Ports come from the settings, so that probes, Services and daemons cannot disagree. */}}
{{- define "gpuscale.exporter.port" -}}
{{- regexFind "[0-9]+$" ((fromJson (include "gpuscale.settings" .Values.exporter.config)).listen | default ":9400") -}}
{{- end -}}

{{- define "gpuscale.controller.port" -}}
{{- regexFind "[0-9]+$" ((fromJson (include "gpuscale.settings" .Values.controller.config)).listen | default ":8080") -}}
{{- end -}}

{{- define "gpuscale.controller.grpcPort" -}}
{{- regexFind "[0-9]+$" ((fromJson (include "gpuscale.settings" .Values.controller.config)).listen_grpc | default ":6000") -}}
{{- end -}}

{{/* "true" when the exporter attributes GPUs to pods (on unless the settings say otherwise). */}}
{{- define "gpuscale.exporter.attribution" -}}
{{- $settings := (fromJson (include "gpuscale.settings" .Values.exporter.config)).pod_resources | default dict -}}
{{- if hasKey $settings "enabled" }}{{ $settings.enabled }}{{ else }}true{{ end -}}
{{- end -}}

{{/* Directory, inside the container, of the kubelet's socket. */}}
{{- define "gpuscale.exporter.socketDirectory" -}}
{{- $settings := (fromJson (include "gpuscale.settings" .Values.exporter.config)).pod_resources | default dict -}}
{{- dir ($settings.socket | default "/var/lib/kubelet/pod-resources/kubelet.sock") -}}
{{- end -}}

{{/* Directory, inside the container, of the pods' log directories; empty when it is not mounted. */}}
{{- define "gpuscale.exporter.podLogs" -}}
{{- $settings := (fromJson (include "gpuscale.settings" .Values.exporter.config)).pod_resources | default dict -}}
{{- if and (eq (include "gpuscale.exporter.attribution" .) "true") .Values.exporter.podResources.podLogsHostPath -}}
{{- if hasKey $settings "pod_logs" }}{{ $settings.pod_logs }}{{ else }}/var/log/pods{{ end -}}
{{- end -}}
{{- end -}}

{{/* Directory, inside the container, of the accounts; empty when none are kept. */}}
{{- define "gpuscale.exporter.accounts" -}}
{{- $file := dig "accounting" "state_file" "" (fromJson (include "gpuscale.settings" .Values.exporter.config)) -}}
{{- with $file }}{{ dir . }}{{ end -}}
{{- end -}}

{{/* "true" when processes are mapped to pods, which needs the host's PID namespace. */}}
{{- define "gpuscale.exporter.processes" -}}
{{- dig "processes" "enabled" false (fromJson (include "gpuscale.settings" .Values.exporter.config)) -}}
{{- end -}}

{{/* Same job names however the daemons are scraped: alerts and dashboards select by them. Takes the component. */}}
{{- define "gpuscale.relabelings" -}}
- targetLabel: job
  replacement: gpuscale-{{ . }}
- sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: node
{{- end -}}
