// Command chartcheck checks the Helm chart like helm lint and helm template: for a relay
// that is alone, and for three with ingress.
package main

import (
	"fmt"
	"log"
	"os"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
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

func check(dir string) error {
	for _, values := range []map[string]any{
		{"keys": map[string]any{"existingSecret": "relay-keys"}},
		{"replicas": 3, "keys": map[string]any{"existingSecret": "relay-keys"}, "publicURL": "https://relay.example.com",
			"ingress": map[string]any{"enabled": true, "host": "relay.example.com", "tlsSecret": "tls"}},
		{"replicas": 3, "keys": map[string]any{"existingSecret": "relay-keys"}, "nats": map[string]any{"url": "nats://nats:4222"}},
	} {
		result := lint.All(dir, values, "ahp", false)
		for _, message := range result.Messages {
			if message.Severity >= support.WarningSev {
				return fmt.Errorf("lint: %v", message)
			}
		}
		if err := template(dir, values); err != nil {
			return err
		}
	}
	return nil
}

// template renders the chart, and sees that all of it is YAML with a kind.
func template(dir string, values map[string]any) error {
	chart, err := loader.Load(dir)
	if err != nil {
		return err
	}
	with, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "relay", Namespace: "ahp", IsInstall: true}, nil)
	if err != nil {
		return err
	}
	files, err := engine.Render(chart, with)
	if err != nil {
		return err
	}
	for name, text := range files {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for part := range strings.SplitSeq(text, "\n---\n") {
			if strings.TrimSpace(part) == "" {
				continue
			}
			var object struct{ Kind, APIVersion string }
			if err := yaml.Unmarshal([]byte(part), &object); err != nil || object.Kind == "" || object.APIVersion == "" {
				return fmt.Errorf("%s: %v\n%s", name, err, part)
			}
		}
		if os.Getenv("SHOW") != "" {
			fmt.Println("# " + name + "\n" + text)
		}
	}
	return nil
}
