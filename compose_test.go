package ahprelay

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestComposeIsLocal has what Docker publishes be of this machine only, as long
// as nobody says otherwise: nothing is encrypted there.
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
				t.Errorf("%s publishes %s on all interfaces", name, port)
			}
		}
	}
	for name, service := range compose.Services {
		if service.ReadOnly && len(service.Tmpfs) == 0 {
			t.Errorf("%s has no writable /tmp: the host-agent's control socket is there", name)
		}
	}
	for _, name := range []string{"AHP_RELAY_CANVAS_DOMAIN", "AHP_RELAY_PUBLIC_URL"} {
		if at := compose.Services["relay"].Environment[name]; !strings.Contains(at, "localhost:${AHP_PORT:-8484}") {
			t.Errorf("%s is %s; want the published port", name, at)
		}
	}
	if published == 0 {
		t.Error("nothing is published: the relay cannot be reached")
	}
}
