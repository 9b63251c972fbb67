package gateway

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/test/natssite"
)

// A relay starts on a full disk, and /readyz reports the full disk until there is room
// again. The test needs the permission to mount.
func TestRelayStartsOnAFullDisk(t *testing.T) {
	t.Parallel()
	disk := natssite.NewDisk(t, "24m")
	cfg := RelayConfig{DataDir: filepath.Join(disk.Dir, "relay"), Listen: "127.0.0.1:0", AdminListen: NoListener}
	relay, err := StartRelay(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	relay.Close()
	disk.Fill(t)
	if relay, err = StartRelay(t.Context(), cfg); err != nil {
		t.Fatal("StartRelay on a full disk must succeed:", err)
	}
	defer relay.Close()
	ready := func() (status int, text string) {
		response, err := http.Get(relay.URL() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body) // a truncated body matches no expected text
		return response.StatusCode, string(body)
	}
	natssite.Eventually(t, "/readyz reports the full disk", func() bool {
		status, text := ready()
		return status == http.StatusOK && strings.Contains(text, "cannot be written") && strings.Contains(text, "no space left")
	})
	disk.Free(t)
	natssite.Eventually(t, "/readyz reports that all is well", func() bool { _, text := ready(); return text == "ready\n" })
}
