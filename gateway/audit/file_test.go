package audit

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Relays write an audit file, one after another, with concurrent writers. Read accepts
// all lines as an unbroken chain. A changed, moved, inserted or removed line breaks it.
func TestAuditIsAChain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	for run := range 3 {
		f, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		a := New(slog.New(slog.DiscardHandler), f)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() { a.Write(Line{Event: "connect", Subject: fmt.Sprint(run, i), Reason: "\"}\n{"}) })
		}
		wg.Wait()
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	read := func(text []byte) (n int, err error) {
		_, err = Read(bytes.NewReader(text), "", func(Entry) error { n++; return nil })
		return n, err
	}
	if n, err := read(text); n != 24 || err != nil {
		t.Fatalf("%d lines, %v; want 24 that follow each other", n, err)
	}
	lines := strings.SplitAfter(string(text), "\n")[:24]
	rapid.Check(t, func(rt *rapid.T) {
		i := rapid.IntRange(0, 21).Draw(rt, "line") // changes to the last two lines may go unnoticed
		changed := append([]string{}, lines...)
		switch rapid.SampledFrom([]string{"change", "take out", "put in", "swap"}).Draw(rt, "how") {
		case "change":
			changed[i] = strings.Replace(changed[i], "connect", "connecT", 1)
		case "take out":
			changed = append(changed[:i+1], changed[i+2:]...)
		case "put in":
			changed = append(changed[:i+1], append([]string{changed[i]}, changed[i+1:]...)...)
		case "swap":
			changed[i], changed[i+1] = changed[i+1], changed[i]
		}
		if _, err := read([]byte(strings.Join(changed, ""))); err == nil {
			rt.Fatal("Read accepts changed lines; want an error")
		}
	})
}

// A crash has truncated the file's last line. The next relay's lines continue the chain
// after it.
func TestChainContinuesAfterACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	if err := os.WriteFile(path, []byte(`{"event":"connect","prev":""}`+"\n"+`{"event":"conn`), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	New(slog.New(slog.DiscardHandler), f).Write(Line{Event: "revoke"})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	var events []any
	_, err = Read(text, "", func(e Entry) error { events = append(events, e.Fields["event"]); return nil })
	if fmt.Sprint(events) != "[connect <nil> revoke]" || err != nil {
		t.Errorf("the file's events are %v, %v; want connect, an entry without an event, and revoke", events, err)
	}
}
