package transcript_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ahprelay/agenthost/transcript"
)

func texts(records [][]byte) string { return string(bytes.Join(records, []byte("|"))) }

// TestDamagedRecordsAreSetAside cuts a log or changes a byte, at a random place. All
// undamaged records must stay, and new records can be added.
func TestDamagedRecordsAreSetAside(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		path := filepath.Join(dir, "log")
		os.Remove(path)
		os.Remove(path + ".damaged")
		records := rapid.SliceOfN(rapid.StringMatching(`[a-z{}"é]{0,20}`), 1, 6).Draw(t, "records")
		log, _, err := transcript.OpenLog(path, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		var ends []int
		for _, r := range records {
			if err := log.Append([]byte(r)); err != nil {
				t.Fatal(err)
			}
			info, _ := os.Stat(path)
			ends = append(ends, int(info.Size()))
		}
		log.Close()
		data, _ := os.ReadFile(path)
		var want []string
		if rapid.Bool().Draw(t, "cut") {
			cut := rapid.IntRange(0, len(data)).Draw(t, "at")
			data = data[:cut]
			for i, end := range ends {
				if end <= cut {
					want = append(want, records[i])
				}
			}
		} else {
			at := rapid.IntRange(0, len(data)-1).Draw(t, "at")
			data[at] ^= 1
			begin := 0
			for i, end := range ends {
				// A damaged line feed also damages the line after it.
				if hit := at >= begin && at < end || i > 0 && at == begin-1; !hit {
					want = append(want, records[i])
				}
				begin = end
			}
			if bytes.Count(data, []byte("\n")) > len(records) {
				t.Skip("the change made a line feed")
			}
		}
		os.WriteFile(path, data, 0o600)
		log, got, err := transcript.OpenLog(path, 1<<20)
		if err != nil || texts(got) != strings.Join(want, "|") {
			t.Fatalf("OpenLog = %q, %v; want %q", got, err, want)
		}
		if err := log.Append([]byte("more")); err != nil {
			t.Fatal(err)
		}
		log.Close()
		_, got, err = transcript.OpenLog(path, 1<<20)
		if err != nil || texts(got) != strings.Join(append(want, "more"), "|") {
			t.Fatalf("after one more record: %q, %v; want %q and more", got, err, want)
		}
	})
}

func TestLogDropsItsOlderHalf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, _, err := transcript.OpenLog(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := log.Append(bytes.Repeat([]byte{'a' + byte(i%26)}, 50)); err != nil {
			t.Fatal(err)
		}
	}
	log.Close()
	_, records, err := transcript.OpenLog(path, 1000)
	info, _ := os.Stat(path)
	if err != nil || info.Size() > 1000+70 || len(records) == 0 || records[len(records)-1][0] != 'a'+byte(99%26) {
		t.Errorf("the log has %d bytes and %d records, %v; want at most 1070 bytes, with the newest record", info.Size(), len(records), err)
	}
}

// TestNewestRecordStaysUntilTheNext appends two records, each longer than half of the log's limit. If the
// second one could not be written, the first one would be the session's description.
func TestNewestRecordStaysUntilTheNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, _, err := transcript.OpenLog(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, letter := range "abc" {
		if err := log.Append(bytes.Repeat([]byte(string(letter)), 900)); err != nil {
			t.Fatal(err)
		}
	}
	log.Close()
	_, records, err := transcript.OpenLog(path, 1000)
	if err != nil || len(records) != 2 || records[0][0] != 'b' || records[1][0] != 'c' {
		t.Errorf("the log has %d records, %v; want the latest and the one before it", len(records), err)
	}
}

// TestLongTurnKeepsItsBeginning stores more actions than the bound of a turn. The first action, which has the
// person's message, must stay.
func TestLongTurnKeepsItsBeginning(t *testing.T) {
	store, err := transcript.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	x, err := store.Session("a:/1")
	if err != nil {
		t.Fatal(err)
	}
	live, _, err := x.Live("chat")
	if err != nil {
		t.Fatal(err)
	}
	const size = 4 << 20
	for _, action := range append([][]byte{[]byte("begin")}, slices.Repeat([][]byte{bytes.Repeat([]byte("x"), size)}, transcript.MaxLive/size+1)...) {
		if err := live.Append(action); err != nil {
			t.Fatal(err)
		}
	}
	live.Close()
	_, records, err := x.Live("chat")
	if err != nil || len(records) < 2 || string(records[0]) != "begin" || len(records) > transcript.MaxLive/size {
		t.Errorf("the log has %d records, %v; want the first, and at most %d", len(records), err, transcript.MaxLive/size)
	}
}

func TestSessionsComeBack(t *testing.T) {
	dir := t.TempDir()
	store, err := transcript.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	x, err := store.Session("a:/1")
	if err != nil {
		t.Fatal(err)
	}
	for _, meta := range []string{"one", "two"} {
		if err := x.Describe([]byte(meta)); err != nil {
			t.Fatal(err)
		}
	}
	// If the last description of a session is incomplete, the store uses the description
	// before it.
	file := filepath.Join(dir, firstDir(t, dir), "meta")
	data, _ := os.ReadFile(file)
	os.WriteFile(file, data[:len(data)-2], 0o600)
	sessions, err := store.Sessions()
	if err != nil || len(sessions) != 1 || string(sessions[0].Meta) != "one" {
		t.Fatalf("Sessions() = %v, %v; want the description before the torn one", sessions, err)
	}
	if err := sessions[0].Remove(); err != nil {
		t.Fatal(err)
	}
	if sessions, err = store.Sessions(); err != nil || len(sessions) != 0 {
		t.Errorf("after Remove, Sessions() = %v, %v; want none", sessions, err)
	}
}

func firstDir(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	return entries[0].Name()
}

func FuzzOpenLog(f *testing.F) {
	f.Add([]byte("00000000 \n"))
	f.Add([]byte("x\ny"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "log")
		os.WriteFile(path, data, 0o600)
		_, first, err := transcript.OpenLog(path, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		_, second, err := transcript.OpenLog(path, 1<<20)
		if err != nil || texts(first) != texts(second) {
			t.Errorf("OpenLog returns the records %q, and a second time %q, %v; want the same", first, second, err)
		}
	})
}

// TestLongFirstActionLeavesRoom fills the log of a turn whose first action has the longest message, which stays. When the log has
// dropped its older half, the next actions must not each drop records again: that rewrites the file.
func TestLongFirstActionLeavesRoom(t *testing.T) {
	dir := t.TempDir()
	store, err := transcript.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	session, err := store.Session("s")
	if err != nil {
		t.Fatal(err)
	}
	log, _, err := session.Live("c")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	rewritten, last := 0, os.FileInfo(nil)
	add := func(size int) {
		if err := log.Append(bytes.Repeat([]byte("x"), size)); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*", "*.live"))
		if err != nil || len(files) != 1 {
			t.Fatalf("the logs are %q, %v; want one", files, err)
		}
		now, err := os.Stat(files[0])
		if err != nil {
			t.Fatal(err)
		}
		if last != nil && !os.SameFile(last, now) {
			rewritten++
		}
		last = now
	}
	add(32 << 20)
	for range 32_480 { // 30 beyond the bound
		add(1 << 10)
	}
	if rewritten > 1 {
		t.Errorf("the log is rewritten %d times for 30 actions beyond its bound; want once", rewritten)
	}
}
