package gateway

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ahprelay/test/natssite"
)

// A relay starts on a full disk, and reports it. It needs the permission to mount.
func TestRelayStartsOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skip("no right to mount a disk:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	cfg := RelayConfig{DataDir: filepath.Join(dir, "relay"), Listen: "127.0.0.1:0", AdminListen: NoListener}
	relay, err := StartRelay(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	relay.Close()
	full := filepath.Join(dir, "other")
	f, err := os.Create(full)
	if err != nil {
		t.Fatal(err)
	}
	for size := 64 << 10; size > 0; size /= 2 { // no byte is left
		for err = nil; err == nil; {
			_, err = f.Write(bytes.Repeat([]byte{1}, size))
		}
	}
	_ = f.Close() // full
	if relay, err = StartRelay(t.Context(), cfg); err != nil {
		t.Fatal("start on a full disk:", err)
	}
	defer relay.Close()
	ready := func() (status int, text string) {
		response, err := http.Get(relay.URL() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body) // a part does not match
		return response.StatusCode, string(body)
	}
	natssite.Eventually(t, "/readyz reports the full disk", func() bool {
		status, text := ready()
		return status == http.StatusOK && strings.Contains(text, "cannot be written") && strings.Contains(text, "no space left")
	})
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "/readyz reports that all is well", func() bool { _, text := ready(); return text == "ready\n" })
}
