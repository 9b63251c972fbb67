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
		Services map[string]struct{ Ports []string }
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
	if published == 0 {
		t.Error("nothing is published: the relay cannot be reached")
	}
}
