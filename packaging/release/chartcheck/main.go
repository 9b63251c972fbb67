// Command chartcheck checks the Helm chart like helm lint and helm template, for several
// sets of values: each object has only members that Kubernetes' types have, and the
// schema refuses unknown values.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: chartcheck DIR")
	}
	if err := check(os.Args[1]); err != nil {
		log.Fatal("chartcheck: ", err)
	}
}

// objects are the chart's kinds.
var objects = map[string]func() any{
	"v1/Service":                              func() any { return new(corev1.Service) },
	"v1/ServiceAccount":                       func() any { return new(corev1.ServiceAccount) },
	"v1/ConfigMap":                            func() any { return new(corev1.ConfigMap) },
	"apps/v1/StatefulSet":                     func() any { return new(appsv1.StatefulSet) },
	"networking.k8s.io/v1/Ingress":            func() any { return new(networkingv1.Ingress) },
	"networking.k8s.io/v1/NetworkPolicy":      func() any { return new(networkingv1.NetworkPolicy) },
	"policy/v1/PodDisruptionBudget":           func() any { return new(policyv1.PodDisruptionBudget) },
	"monitoring.coreos.com/v1/ServiceMonitor": func() any { return new(monitoringv1.ServiceMonitor) },
	"monitoring.coreos.com/v1/PrometheusRule": func() any { return new(monitoringv1.PrometheusRule) },
}

// all sets every value once.
const all = `
replicas: 3
image: {repository: registry.example.com/ahp-relay, tag: "1"}
imagePullSecrets: [{name: registry}]
publicURL: https://relay.example.com
keys: {existingSecret: relay-keys, sets: [{name: set-0f1e2d3c, secret: relay-keys-0f1e}]}
config: {client-resume: 5m, trust-proxy: [10.0.0.0/8]}
settings: {LOG_FORMAT: json}
extraArgs: ["--log-level", debug]
extraEnv: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: "http://collector:4318"}]
extraEnvFrom: [{secretRef: {name: more}}]
service: {type: LoadBalancer, annotations: {a: b}, loadBalancerClass: c}
ingress: {enabled: true, className: nginx, host: relay.example.com, tlsSecret: tls, annotations: {a: b}}
trustProxy: [10.0.0.0/8]
metrics: {enabled: true, serviceMonitor: {enabled: true, labels: {release: prometheus}}, rules: {enabled: true, labels: {release: prometheus}}}
networkPolicy: {enabled: true, from: [{namespaceSelector: {}}], metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}], extraIngress: [{ports: [{port: 4222}]}]}
podDisruptionBudget: {maxUnavailable: 1}
storage: {className: fast}
extraVolumes: [{name: tls, secret: {secretName: tls}}]
extraVolumeMounts: [{name: tls, mountPath: /tls, readOnly: true}]
extraInitContainers: [{name: first, image: busybox}]
extraContainers: [{name: beside, image: busybox}]
updateStrategy: {type: RollingUpdate}
serviceAccount: {annotations: {a: b}}
podAnnotations: {a: b}
podLabels: {a: b}
priorityClassName: high
nodeSelector: {a: b}
tolerations: [{key: a, operator: Exists}]
affinity: {nodeAffinity: {}}
`

func check(dir string) error {
	list := []string{
		"{keys: {existingSecret: relay-keys}}",
		"{replicas: 1, keys: {existingSecret: relay-keys}, storage: {ephemeral: true}, topologySpread: [], podDisruptionBudget: {enabled: false}, serviceAccount: {create: false}}",
		"{replicas: 3, keys: {existingSecret: relay-keys}, nats: {url: \"nats://nats:4222\"}}",
		`{keys: {existingSecret: "0123", sets: [{name: set-0f1e2d3c, secret: "4567"}]}, ingress: {enabled: true, host: "*.example.com", tlsSecret: "89"}}`,
		all,
	}
	kinds := map[string]bool{}
	for _, text := range list {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			return err
		}
		for _, message := range lint.All(dir, values, "ahp", false).Messages {
			if message.Severity >= support.WarningSev {
				return fmt.Errorf("lint: %v", message)
			}
		}
		made, err := template(dir, values)
		if err != nil {
			return err
		}
		for kind := range made {
			kinds[kind] = true
		}
	}
	for kind := range objects {
		if !kinds[kind] {
			return fmt.Errorf("no set of values makes a %s", kind)
		}
	}
	for _, typo := range []string{"replica: 3", "ingress: {enable: true}", "keys: {sets: [{name: other, secret: s}]}", "settings: {client-resume: 5m}", "service: {type: Cluster}", "publicURL: relay", "ingress: {annotations: {a: 3600}}", "service: {annotations: {a: true}}", "podLabels: {a: 1}"} {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(typo), &values); err != nil {
			return err
		}
		if _, err := template(dir, values); err == nil || !strings.Contains(err.Error(), "values don't meet") {
			return fmt.Errorf("the schema accepts %s: %v", typo, err)
		}
	}
	return errors.Join(pods(dir), documented(dir))
}

// pods reports values that reach the relays wrongly.
func pods(dir string) error {
	relay := func(text string) (spec corev1.PodTemplateSpec, err error) {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			return spec, err
		}
		made, err := template(dir, values)
		if err != nil {
			return spec, err
		}
		return made["apps/v1/StatefulSet"].(*appsv1.StatefulSet).Spec.Template, nil
	}
	before, err := relay("{keys: {existingSecret: relay-keys}, settings: {MAX_QUEUED: 268435456}, config: {hold: 5m}}")
	if err != nil {
		return err
	}
	after, err := relay("{keys: {existingSecret: relay-keys}, settings: {MAX_QUEUED: 268435456}, config: {hold: 6m}}")
	if err != nil {
		return err
	}
	var faults []error
	if reflect.DeepEqual(before, after) {
		faults = append(faults, errors.New("an upgrade with a changed config replaces no relay, so it has no effect"))
	}
	env := map[string]string{}
	for _, e := range before.Spec.Containers[0].Env {
		env[e.Name] = e.Value
	}
	if got := env["AHP_RELAY_MAX_QUEUED"]; got != "268435456" {
		faults = append(faults, fmt.Errorf("the setting MAX_QUEUED: 268435456 is %s for the relay", got))
	}
	for _, name := range []string{"AHP_RELAY_LISTEN", "AHP_RELAY_CLUSTER_LISTEN"} { // a pod may have an IPv6 address only
		address := strings.ReplaceAll(env[name], "$(POD_IP)", "fd00::1")
		if host, _, err := net.SplitHostPort(address); err != nil || host != "" && host != "fd00::1" {
			faults = append(faults, fmt.Errorf("%s is %s, which is no address of a pod with IPv6 only: %v", name, address, err))
		}
	}
	if how := before.Spec.SecurityContext.FSGroupChangePolicy; how == nil || *how != corev1.FSGroupChangeOnRootMismatch {
		faults = append(faults, errors.New("each start of a pod opens the relay's files to its group, and the relay refuses such an audit file"))
	}
	return errors.Join(faults...)
}

// template renders the chart, and returns its objects by kind; of several, the last.
func template(dir string, values map[string]any) (made map[string]any, err error) {
	made = map[string]any{}
	chart, err := loader.Load(dir)
	if err != nil {
		return nil, err
	}
	with, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "relay", Namespace: "ahp", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, with)
	if err != nil {
		return nil, err
	}
	for name, text := range files {
		if os.Getenv("SHOW") != "" {
			fmt.Println("# " + name + "\n" + text)
		}
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for part := range strings.SplitSeq(text, "\n---\n") {
			if strings.TrimSpace(part) == "" {
				continue
			}
			kind, object, err := strict(part)
			if err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", name, err, part)
			}
			made[kind] = object
		}
	}
	return made, nil
}

// strict reads an object into the type of its kind, which must have all its members.
func strict(text string) (kind string, into any, err error) {
	var object struct{ Kind, APIVersion string }
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		return "", nil, err
	}
	kind = object.APIVersion + "/" + object.Kind
	make := objects[kind]
	if make == nil {
		return "", nil, fmt.Errorf("unknown kind %q", kind)
	}
	into = make()
	return kind, into, yaml.UnmarshalStrict([]byte(text), into)
}

// documented reports values without a row in the chart's README, or missing in the schema.
func documented(dir string) error {
	chart, err := loader.Load(dir)
	if err != nil {
		return err
	}
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		return err
	}
	var schema struct{ Properties map[string]any }
	if err := json.Unmarshal(chart.Schema, &schema); err != nil {
		return err
	}
	var missing []error
	for name := range chart.Values {
		if !slices.ContainsFunc(strings.Split(string(readme), "\n"), func(line string) bool {
			return strings.HasPrefix(line, "| `"+name) || strings.HasPrefix(line, "|") && strings.Contains(line[:strings.LastIndex(line, "|")], "`"+name+"`")
		}) {
			missing = append(missing, fmt.Errorf("README.md has no row for %s", name))
		}
		if schema.Properties[name] == nil {
			missing = append(missing, fmt.Errorf("values.schema.json does not have %s", name))
		}
	}
	return errors.Join(missing...)
}
