{{/*
The controllers: the key of each in `controllers`, and the name of its program.
*/}}
{{- define "capt.programs" -}}
cluster: capt-cluster-controller
controlplane: capt-controlplane-controller
endpoint: capt-endpoint
secrets: capt-secrets
tenant: capt-tenant-controller
workspace: capt-workspace-controller
{{- end }}

{{/*
The beginning of every name. Cut so that the longest ending still leaves a name of at most 63 characters; a release may
have dots in its name and begin with a digit, a Service may not.
*/}}
{{- define "capt.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if regexMatch "^[0-9]" $release -}}
{{- printf "%s-%s" $name $release | trunc 32 | trimAll "-" -}}
{{- else if contains $name $release -}}
{{- $release | trunc 32 | trimAll "-" -}}
{{- else -}}
{{- printf "%s-%s" $release $name | trunc 32 | trimAll "-" -}}
{{- end -}}
{{- end }}

{{/*
Labels by which a program's pods are chosen; they must never change, or an upgrade fails.
Takes root and program.
*/}}
{{- define "capt.selectorLabels" -}}
app.kubernetes.io/name: {{ .program }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- end }}

{{/*
Labels of a program's pods. The chart's version is not among them: a controller whose image stays as it is need not be
restarted for a newer chart. Takes root, program, component and tag.
*/}}
{{- define "capt.podLabels" -}}
{{- with .root.Values.commonLabels }}
{{- toYaml . }}
{{ end }}
{{- include "capt.selectorLabels" . }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: capt
app.kubernetes.io/version: {{ .tag | trunc 63 | trimAll "-_." | quote }}
{{- end }}

{{/*
Labels of everything else that belongs to a program. Takes the same.
*/}}
{{- define "capt.labels" -}}
{{ include "capt.podLabels" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/*
The values that are maps of anything. In them a null takes away what is below; in place of any other value, which a
template needs, it says nothing.
*/}}
{{- define "capt.free" -}}
[affinity, annotations, labels, livenessProbe, nodeSelector, podAnnotations, podLabels, podSecurityContext, readinessProbe, resources, securityContext]
{{- end }}

{{/*
A block laid over another: maps are merged, everything else takes the place of what is below. Not sprig's mergeOverwrite,
which keeps what is below an explicit false, 0 or "".
Takes below, above and, within a map of anything, free; returns JSON.
*/}}
{{- define "capt.overlay" -}}
{{- $inside := .free -}}
{{- $merged := deepCopy .below -}}
{{- range $key, $above := .above -}}
  {{- $below := get $merged $key -}}
  {{- $free := or $inside (has $key (include "capt.free" . | fromYamlArray)) -}}
  {{- if kindIs "invalid" $above -}}
    {{- if $inside -}}
      {{- $_ := unset $merged $key -}}
    {{- else if $free -}}
      {{- $_ := set $merged $key dict -}}
    {{- end -}}
  {{- else if and (kindIs "map" $above) (kindIs "map" $below) -}}
    {{- $_ := set $merged $key (include "capt.overlay" (dict "below" $below "above" $above "free" $free) | fromJson) -}}
  {{- else -}}
    {{- $_ := set $merged $key $above -}}
  {{- end -}}
{{- end -}}
{{- toJson $merged -}}
{{- end }}

{{/*
How long a time such as 1m30s is: the only thing of sprig's that reads one moves a date by it.
*/}}
{{- define "capt.milliseconds" -}}
{{- $start := toDate "2006" "2000" -}}
{{- sub (dateModify . $start).UnixMilli $start.UnixMilli -}}
{{- end }}

{{/*
The controllers that are enabled, as a JSON list of: key, program, name (of every object), tag, account, labels,
podLabels, selector, and values (its own over the common ones).
*/}}
{{- define "capt.controllers" -}}
{{- $root := . -}}
{{- $controllers := list -}}
{{- $accounts := dict -}}
{{- if and .Values.allowCrossNamespaceTemplates .Values.watch.namespace -}}
  {{- fail "allowCrossNamespaceTemplates cannot be with watch.namespace: the controllers see no other namespace then" -}}
{{- end -}}
{{- range $key, $program := include "capt.programs" . | fromYaml -}}
  {{- $values := include "capt.overlay" (dict "below" $root.Values.common "above" (index $root.Values.controllers $key)) | fromJson -}}
  {{- if $values.enabled -}}
    {{- $name := printf "%s-%s" (include "capt.fullname" $root) (trimPrefix "capt-" $program) -}}
    {{- $tag := default $root.Chart.AppVersion $values.image.tag -}}
    {{- $about := dict "root" $root "program" $program "component" $key "tag" $tag -}}
    {{- if and (eq $key "tenant") $root.Values.watch.namespace -}}
      {{- fail "controllers.tenant.enabled cannot be with watch.namespace: Tenants belong to no namespace, and have several; use watch.filter, or install it as a release of its own" -}}
    {{- end -}}
    {{- if not (or $values.serviceAccount.create $values.serviceAccountName) -}}
      {{- fail (printf "controllers.%s.serviceAccountName must name an account, because serviceAccount.create is false" $key) -}}
    {{- end -}}
    {{- $account := default $name $values.serviceAccountName -}}
    {{- if $values.serviceAccount.create -}}
      {{- with get $accounts $account -}}
        {{- fail (printf "controllers.%s.serviceAccountName: %s is made for controllers.%s already; name another, or make it yourself and set serviceAccount.create to false" $key $account .) -}}
      {{- end -}}
      {{- $_ := set $accounts $account $key -}}
    {{- end -}}
    {{- if and $values.metrics.secure (eq (int $values.metrics.port) (int $values.metrics.securePort)) -}}
      {{- fail (printf "controllers.%s.metrics: port and securePort are both %d; the probes need a port of their own" $key (int $values.metrics.port)) -}}
    {{- end -}}
    {{- $times := $values.leaderElection -}}
    {{- range $pair := list (list "renewDeadline" "leaseDuration") (list "retryPeriod" "renewDeadline") -}}
      {{- $shorter := first $pair -}}
      {{- $longer := last $pair -}}
      {{- if ge (include "capt.milliseconds" (get $times $shorter) | int64) (include "capt.milliseconds" (get $times $longer) | int64) -}}
        {{- fail (printf "controllers.%s.leaderElection: %s (%s) must be shorter than %s (%s)" $key $shorter (get $times $shorter) $longer (get $times $longer)) -}}
      {{- end -}}
    {{- end -}}
    {{- $controller := dict
      "key" $key
      "program" $program
      "name" $name
      "tag" $tag
      "account" $account
      "labels" (include "capt.labels" $about | fromYaml)
      "podLabels" (include "capt.podLabels" $about | fromYaml)
      "selector" (include "capt.selectorLabels" $about | fromYaml)
      "values" $values
    -}}
    {{- $controllers = append $controllers $controller -}}
  {{- end -}}
{{- end -}}
{{- toJson $controllers -}}
{{- end }}

{{/*
What every pod of CAPT has, whichever program it runs. Takes root and values.
*/}}
{{- define "capt.pod" -}}
automountServiceAccountToken: true
# None of the variables that the kubelet would make of every Service in the namespace.
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
The image of a program. Takes program, tag and values.
*/}}
{{- define "capt.image" -}}
{{- $name := printf "%s/%s" .values.image.registry .program -}}
{{- if .values.imageDigest -}}
{{- printf "%s@%s" $name .values.imageDigest -}}
{{- else -}}
{{- printf "%s:%s" $name .tag -}}
{{- end -}}
{{- end }}

{{/*
The flags of a controller. Takes root and controller; fails when extraArgs repeats one, which the program would refuse.
*/}}
{{- define "capt.args" -}}
{{- $root := .root -}}
{{- $key := .controller.key -}}
{{- $values := .controller.values -}}
{{- $args := list
  (printf "--metrics-bind-address=:%d" (int $values.metrics.port))
  (printf "--concurrency=%d" (int $values.concurrency))
  (printf "--log-level=%s" $values.logLevel)
  (printf "--log-format=%s" $values.logFormat)
  (printf "--grace-period=%ds" (sub (int $values.terminationGracePeriodSeconds) 5))
  (printf "--lease-duration=%s" $values.leaderElection.leaseDuration)
  (printf "--renew-deadline=%s" $values.leaderElection.renewDeadline)
  (printf "--retry-period=%s" $values.leaderElection.retryPeriod)
-}}
{{- with $root.Values.watch.namespace }}{{ $args = append $args (printf "--namespace=%s" .) }}{{ end -}}
{{- with $root.Values.watch.filter }}{{ $args = append $args (printf "--watch-filter=%s" .) }}{{ end -}}
{{- if $values.metrics.secure -}}
  {{- $args = append $args (printf "--metrics-secure-bind-address=:%d" (int $values.metrics.securePort)) -}}
  {{- if $values.metrics.certSecret }}{{ $args = append $args "--metrics-cert-dir=/var/run/capt/metrics" }}{{ end -}}
{{- end -}}
{{- range $name, $time := $values.timeouts -}}
  {{- $args = append $args (printf "--%s-timeout=%s" (kebabcase $name) $time) -}}
{{- end -}}
{{- if has $key (list "cluster" "controlplane") -}}
  {{- $args = append $args (printf "--allow-cross-namespace-templates=%t" $root.Values.allowCrossNamespaceTemplates) -}}
  {{- $args = append $args (printf "--clear-cluster-failures=%t" $values.clearClusterFailures) -}}
{{- end -}}
{{- if eq $key "secrets" -}}
  {{- if $values.allowExecKubeconfig }}{{ $args = append $args "--allow-exec-kubeconfig" }}{{ end -}}
{{- end -}}
{{- if eq $key "workspace" -}}
  {{- $args = append $args (printf "--workspace-kind=%s" $values.workspaceKind) -}}
  {{- if $root.Values.allowCrossNamespaceTemplates }}{{ $args = append $args "--allow-cross-namespace-templates" }}{{ end -}}
  {{- if $values.resumeInterruptedCreates }}{{ $args = append $args "--resume-interrupted-creates" }}{{ end -}}
  {{- if $values.sharedTerraformBackend }}{{ $args = append $args "--shared-terraform-backend" }}{{ end -}}
{{- end -}}
{{- $flags := list -}}
{{- range $args }}{{ $flags = append $flags (splitList "=" . | first) }}{{ end -}}
{{- range $extra := $values.extraArgs -}}
  {{- $flag := splitList "=" $extra | first -}}
  {{- if has $flag $flags -}}
    {{- fail (printf "controllers.%s.extraArgs: %s is set by a value of the chart already; change that value instead" $key $flag) -}}
  {{- end -}}
{{- end -}}
{{- toYaml (concat $args $values.extraArgs) -}}
{{- end }}

{{/*
What a pod of CAPT may reach: the API server and DNS. Takes the block networkPolicy.
*/}}
{{- define "capt.egress" -}}
- ports:
    {{- range .apiServer.ports }}
    - port: {{ int . }}
    {{- end }}
  {{- with .apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
  {{- end }}
{{- with .dns }}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
  to:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{/*
The rules of a generated file, without its first line, which is for readers of the file. Takes root and file.
*/}}
{{- define "capt.rules" -}}
{{- .root.Files.Get (printf "files/rbac/%s.yaml" .file) | splitList "\n" | rest | join "\n" -}}
{{- end }}

{{/*
A Role or ClusterRole with its binding. Takes root, name, namespace (none for a ClusterRole), labels, annotations, rules
(the name of a generated file) and account.
*/}}
{{- define "capt.role" -}}
{{- $kind := ternary "Role" "ClusterRole" (not (empty .namespace)) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ .name | quote }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- toYaml .labels | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
rules:
  {{- include "capt.rules" (dict "root" .root "file" .rules) | trim | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ .name | quote }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- toYaml .labels | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .name | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ .account | quote }}
    namespace: {{ .root.Release.Namespace | quote }}
{{- end }}
