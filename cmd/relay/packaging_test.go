package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPackagesSetExistingFlags reads units, chart and configuration. They may set only
// flags that exist, and the units must restrict their services to what these need, and no further.
func TestPackagesSetExistingFlags(t *testing.T) {
	help, _, err := relay(t, "serve", "--help")
	if err != nil {
		t.Fatal(err)
	}
	set := regexp.MustCompile(`AHP_RELAY_[A-Z_]*[A-Z]`)
	files := 0
	err = filepath.WalkDir("../../packaging", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		for _, name := range set.FindAllString(string(text), -1) {
			if !strings.Contains(help, "$"+name) {
				t.Errorf("%s sets %s; want only variables of relay serve", path, name)
			}
		}
		return err
	})
	if err != nil || files < 8 {
		t.Fatalf("%d files were read, %v; want at least 8", files, err)
	}
	for _, unit := range []string{"ahp-relay.service", "ahp-host-agent@.service"} {
		text, err := os.ReadFile("../../packaging/systemd/" + unit)
		// net.InterfaceAddrs, which finds a relay's own address among --cluster-route, and
		// net.Interfaces, which Wake-on-LAN needs, ask the kernel by netlink.
		if err != nil || !regexp.MustCompile(`\nRestrictAddressFamilies=.*\bAF_NETLINK\b`).Match(text) {
			t.Errorf("%s: %v; want AF_NETLINK among RestrictAddressFamilies", unit, err)
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here: the units are not looked at")
	}
	for _, unit := range []string{"ahp-relay.service", "ahp-host-agent@.service"} {
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", "../../packaging/systemd/"+unit).CombinedOutput()
		if err != nil && strings.Contains(string(out), "Unknown") {
			t.Skip("an old systemd-analyze: the units are not looked at")
		}
		if err != nil {
			t.Errorf("%s: systemd-analyze reports an exposure above 2.0: %v\n%s", unit, err, out)
		}
	}
}

// TestImagesStartWithoutFlags compares the settings of the released image and of the
// Dockerfile. Both must be equal, and enough to start a relay.
func TestImagesStartWithoutFlags(t *testing.T) {
	settings := regexp.MustCompile(`AHP_RELAY_([A-Z_]+)=([^ "\n]+)`)
	var images []string
	for _, path := range []string{"../../Dockerfile", "../../packaging/release/images.go"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, strings.Join(settings.FindAllString(string(text), -1), " "))
	}
	if images[0] == "" || images[0] != images[1] {
		t.Fatalf("the Dockerfile sets %q, the released image %q; want the same", images[0], images[1])
	}
	here := map[string]string{"DATA_DIR=/data": t.TempDir(), "LISTEN=0.0.0.0:8484": "0.0.0.0:0"}
	for _, set := range settings.FindAllStringSubmatch(images[0], -1) {
		value, ok := here[set[1]+"="+set[2]]
		if !ok {
			value = set[2]
		}
		t.Setenv("AHP_RELAY_"+set[1], value)
	}
	// Another test on this machine may use the default port of the admin listener.
	t.Setenv("AHP_RELAY_ADMIN_LISTEN", "127.0.0.1:0")
	ctx, stop := context.WithCancel(t.Context())
	logs := newSyncBuffer()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"serve"}, os.Stdout, logs)
		fmt.Fprintln(logs, "serve ended:", err)
		ended <- err
	}()
	if said := logs.match(t, "relay ready|serve ended: "); !strings.Contains(said, "relay ready") {
		t.Fatal(said)
	}
	if out, _, err := relay(t, "check"); err != nil || !strings.Contains(out, "relay at http://127.0.0.1:") {
		t.Errorf("the command of the image's health check prints %q, %v; want relay at http://127.0.0.1", out, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
