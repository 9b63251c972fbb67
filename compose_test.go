package ahprelay

import (
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestComposeIsLocal: by default, the published ports are reachable from this machine
// only, because nothing on them is encrypted.
func TestComposeIsLocal(t *testing.T) {
	text, err := os.ReadFile("docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var compose struct {
		Services map[string]struct {
			Ports       []string
			ReadOnly    bool `yaml:"read_only"`
			Tmpfs       []string
			Environment map[string]string
		}
	}
	if err := yaml.Unmarshal(text, &compose); err != nil {
		t.Fatal(err)
	}
	published := 0
	for name, service := range compose.Services {
		for _, port := range service.Ports {
			published++
			if !strings.HasPrefix(port, "${AHP_ADDRESS:-127.0.0.1}:") {
				t.Errorf("the service %s publishes port %s on all interfaces; want 127.0.0.1 only", name, port)
			}
		}
	}
	for name, service := range compose.Services {
		if service.ReadOnly && len(service.Tmpfs) == 0 {
			t.Errorf("the service %s has no writable /tmp; want one for the host-agent's control socket", name)
		}
	}
	for _, name := range []string{"AHP_RELAY_CANVAS_DOMAIN", "AHP_RELAY_PUBLIC_URL"} {
		if at := compose.Services["relay"].Environment[name]; !strings.Contains(at, "localhost:${AHP_PORT:-8484}") {
			t.Errorf("%s is %s; want the published port", name, at)
		}
	}
	if published == 0 {
		t.Error("no port is published; want the relay's")
	}
}

// TestComposeWithCertificate: with the second file, the relay has a certificate, the
// host-agent reaches it by the certificate's name, and no key gets into an image.
func TestComposeWithCertificate(t *testing.T) {
	text, err := os.ReadFile("docker-compose.tls.yml")
	if err != nil {
		t.Fatal(err)
	}
	var compose struct {
		Services map[string]struct {
			Container   string `yaml:"container_name"`
			Ports       []string
			Environment map[string]string
			Secrets     []string
		}
		Secrets map[string]struct{ File string }
	}
	if err := yaml.Unmarshal(text, &compose); err != nil {
		t.Fatal(err)
	}
	relay, agent := compose.Services["relay"], compose.Services["host-agent"]
	for name, secret := range map[string]string{"AHP_RELAY_TLS_CERT": "tls-cert", "AHP_RELAY_TLS_KEY": "tls-key"} {
		if relay.Environment[name] != "/run/secrets/"+secret || !slices.Contains(relay.Secrets, secret) {
			t.Errorf("the relay's %s is %s, its secrets are %q; want the mounted secret", name, relay.Environment[name], relay.Secrets)
		}
		for _, file := range []string{".dockerignore", ".gitignore"} {
			ignored, err := os.ReadFile(file)
			if err != nil || !strings.Contains(string(ignored), strings.TrimPrefix(compose.Secrets[secret].File, "./")+"\n") {
				t.Errorf("%s does not list %s: %v", file, compose.Secrets[secret].File, err)
			}
		}
	}
	if relay.Container != "${AHP_NAME}" || agent.Environment["AHP_AGENT_RELAY"] != "https://${AHP_NAME}:8484" || agent.Environment["AHP_AGENT_RELAY_PLAIN"] != "false" {
		t.Errorf("the host-agent reaches %s, the relay is %s; want the certificate's name", agent.Environment["AHP_AGENT_RELAY"], relay.Container)
	}
	if len(relay.Ports) > 0 {
		t.Error("docker-compose.yml and docker-compose.tls.yml both publish ports; want only one to do so")
	}
}
