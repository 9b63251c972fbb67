package audit

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/test/locked"
)

// Each of 1,000 sources causes many equal refusals and connects. The audit writes the
// first of them at once, and the count of the rest in a later line, in the file and in
// the log. For each source, the counts add up to all its events.
func TestEqualEventsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file, log locked.Buffer
		a := New(slog.New(slog.NewJSONHandler(&log, nil)), &file)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go a.Run(ctx)
		const sources, times = 1000, 40
		for i := range sources {
			from := fmt.Sprintf("192.0.%d.%d", i/256, i%256)
			for range times {
				a.Refuse("forbidden", Line{Subject: "guest", Address: from, Reason: rand.Text()})
				a.Comings(Line{Event: "connect", Subject: "guest", Address: from, Conn: rand.Text()})
			}
		}
		atOnce := strings.Count(file.String(), "\n")
		if want := sources * (RefusedAtOnce + comingsAtOnce); atOnce != want {
			t.Errorf("the log has %d lines before the interval ends; want %d", atOnce, want)
		}
		time.Sleep(Every)
		synctest.Wait()
		a.Refuse("forbidden", Line{Subject: "guest", Address: "192.0.0.1", Reason: rand.Text()})
		time.Sleep(Every)
		synctest.Wait()
		for name, out := range map[string]string{"file": file.String(), "log": log.String()} {
			counts := map[string]int{}
			lines := 0
			for text := range strings.Lines(out) {
				var line struct {
					Event, Address string
					Count          int
				}
				if err := json.Unmarshal([]byte(text), &line); err != nil {
					t.Fatal(err)
				}
				lines++
				counts[line.Event+" "+line.Address] += max(1, line.Count)
			}
			if want := sources*(RefusedAtOnce+comingsAtOnce+2) + 1; lines != want {
				t.Errorf("%s: the log has %d lines in the end; want %d", name, lines, want)
			}
			if len(counts) != 2*sources {
				t.Errorf("%s: the log has lines for %d pairs of source and event; want %d", name, len(counts), 2*sources)
			}
			for key, n := range counts {
				if want := times; n != want && key != "refuse 192.0.0.1" || key == "refuse 192.0.0.1" && n != times+1 {
					t.Fatalf("%s: %s is counted %d times; want %d", name, key, n, want)
				}
			}
		}
	})
}

// A fullDisk fails all writes.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// A write to the audit file fails. The log gets the error, and the line itself.
func TestFailedAuditWriteIsLogged(t *testing.T) {
	var log bytes.Buffer
	New(slog.New(slog.NewTextHandler(&log, nil)), fullDisk{}).Write(Line{Event: "connect", Subject: "ada\nevent=revoke"})
	if text := log.String(); !strings.Contains(text, "no space left") || strings.Count(text, "event=connect") != 1 || strings.Count(text, "\n") != 2 {
		t.Errorf("the log says\n%s\nwant the disk's error, and the audit line without a second event", text)
	}
}

func TestAuditFileIsPrivateAndAppended(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	for range 2 { // the second run appends
		f, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		New(slog.New(slog.DiscardHandler), f).Write(Line{Event: "connect"})
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil || strings.Count(string(data), "\n") != 2 {
		t.Errorf("the file has %q, %v; want two lines", data, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(filepath.Dir(path), "mistyped", "audit")
	if _, err := OpenFile(missing); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("OpenFile in a directory that does not exist: %v; want an error, because the path may be mistyped", err)
	}
	if _, err := OpenFile(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("OpenFile of a file that all users may read: %v; want an error with chmod 600", err)
	}
}
