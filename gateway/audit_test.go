package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAuditOfMany writes one of many lines that are alike, and how many there
// were; lines of others are not held back.
func TestAuditOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := newAudit(slog.New(slog.DiscardHandler), &out)
		refuse := func(address string) { a.often(auditLine{Event: "refuse", Address: address, Reason: "too many"}) }
		for range 100 {
			refuse("192.0.2.1")
		}
		refuse("192.0.2.2")
		if n := strings.Count(out.String(), "\n"); n != 2 {
			t.Errorf("%d lines; want one of each address:\n%s", n, out.String())
		}
		time.Sleep(oftenEvery)
		refuse("192.0.2.1")
		if !strings.Contains(out.String(), "99 alike") {
			t.Errorf("it does not say how many there were:\n%s", out.String())
		}
		for i := range 3 * maxAlike {
			refuse(fmt.Sprint(i))
		}
		if n := len(a.alike); n > maxAlike {
			t.Errorf("%d kinds are remembered; want at most %d", n, maxAlike)
		}
	})
}

// A fullDisk takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestAuditCannotBeWritten says so in the log, where the line is all the same.
func TestAuditCannotBeWritten(t *testing.T) {
	var log bytes.Buffer
	newAudit(slog.New(slog.NewTextHandler(&log, nil)), fullDisk{}).write(auditLine{Event: "connect", Subject: "ada\nevent=revoke"})
	if text := log.String(); !strings.Contains(text, "no space left") || strings.Count(text, "event=connect") != 1 || strings.Count(text, "\n") != 2 {
		t.Errorf("log:\n%s", text)
	}
}

func TestAuditFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "audit")
	for range 2 { // appends
		f, err := OpenAuditFile(path)
		if err != nil {
			t.Fatal(err)
		}
		newAudit(slog.New(slog.DiscardHandler), f).write(auditLine{Event: "connect"})
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
	if _, err := OpenAuditFile(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that all may read: %v", err)
	}
}
