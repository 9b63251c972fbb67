package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/test/natssite"
	"ahprelay/test/procs"
)

// TestRelayIsCalledReadyWhenItIs starts the first relay of a cluster. It logs its
// addresses at once, and logs that it is ready only after a second relay has joined and
// /readyz answers 200.
func TestRelayIsCalledReadyWhenItIs(t *testing.T) {
	t.Parallel()
	dirs, ports := []string{t.TempDir(), t.TempDir()}, []string{natssite.FreePort(t), natssite.FreePort(t)}
	if _, err := auth.LoadKeys(dirs[0]); err != nil {
		t.Fatal(err)
	}
	if err := procs.CopyKeys(filepath.Join(dirs[0], "keys"), filepath.Join(dirs[1], "keys")); err != nil {
		t.Fatal(err)
	}
	start := func(i int) *syncBuffer {
		ctx, stop := context.WithCancel(t.Context())
		logs, ended := newSyncBuffer(), make(chan error, 1)
		go func() {
			ended <- run(ctx, []string{"serve", "--data-dir", dirs[i], "--listen", "127.0.0.1:0", "--admin-listen", "none", "--drain", "1s",
				"--cluster-listen", ports[i], "--cluster-route", strings.Join(ports, ",")}, os.Stdout, logs)
		}()
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Errorf("serve ended with %v; want no error", err)
			}
		})
		return logs
	}
	first := start(0)
	said := first.await(t, "relay start incomplete")
	_, rest, _ := strings.Cut(said, "url=")
	url, _, _ := strings.Cut(rest, " ")
	if !strings.HasPrefix(url, "http://127.0.0.1:") || strings.Contains(said, "relay ready") {
		t.Errorf("a relay that waits for others logs %q; want its address, without relay ready", said)
	}
	if status := readyz(t, url); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz: HTTP %d; want 503", status)
	}
	start(1).match(t, "relay start incomplete|relay ready")
	first.await(t, `msg="relay ready" url=`+url)
	if status := readyz(t, url); status != http.StatusOK {
		t.Errorf("after the log line relay ready, /readyz answers HTTP %d; want 200", status)
	}
}

func readyz(t *testing.T, url string) (status int) {
	t.Helper()
	response, err := http.Get(url + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}
